"""Azure ML's YAML files as dictionaries with their kind, and what Azure's own SDK refuses of them, without an account."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

# The last part of $schema: what of azure.ai.ml reads it
LOADERS = {
    "workspace": "load_workspace",
    "azureBlob": "load_datastore",
    "data": "load_data",
    "environment": "load_environment",
    "amlCompute": "load_compute",
    "commandJob": "load_job",
    "sweepJob": "load_job",
    "model": "load_model",
    "managedOnlineEndpoint": "load_online_endpoint",
    "managedOnlineDeployment": "load_online_deployment",
}
JOBS = ("commandJob", "sweepJob")
SYSTEM_DATASTORES = ("workspaceblobstore", "workspacefilestore", "workspaceartifactstore", "workspaceworkingdirectory")
CONDA = "conda"  # the packages of an environment, which Azure's SDK does not check


class Unusable(Exception):
    """Why nothing can be checked."""


@dataclass(frozen=True)
class Document:
    """A file of a known kind; `beside` are the others of its folder, by which a job finds its compute, its data and so on."""

    path: Path
    kind: str
    content: dict[str, Any]
    beside: list[Document] = field(default_factory=list, repr=False, compare=False)

    def get(self, key: str) -> Any:
        """The value of a dotted key, None where there is none; a sweep has the keys of its `trial` too."""
        trial = self.content.get("trial") if self.kind == "sweepJob" else None
        found: Any = {**self.content, **trial} if isinstance(trial, dict) else self.content
        for name in key.split("."):
            found = found.get(name) if isinstance(found, dict) else None
        return found

    @property
    def command(self) -> str:
        """What a job runs."""
        return str(self.get("command") or "")

    def names(self, what: str) -> list[str]:
        """Declared names of "inputs", "outputs" or "search_space", sorted."""
        found = self.get(what)
        return sorted(found) if isinstance(found, dict) else []

    def asset(self, kind: str, reference: Any) -> Document | None:
        """The file of the folder that describes azureml:NAME or azureml:NAME:VERSION."""
        name = str(reference or "").removeprefix("azureml:").partition(":")[0]
        return next((d for d in self.beside if d.kind == kind and d.get("name") == name), None)

    def undescribed_datastore(self, path: Any) -> str | None:
        """The datastore of an azureml:// path that neither the workspace has nor a file of the folder describes."""
        found = re.match(r"azureml://datastores/([^/]+)/", str(path or ""))
        known = not found or found[1] in SYSTEM_DATASTORES or self.asset("azureBlob", found[1])
        return None if known or not found else found[1]

    def blob_folder(self) -> str | None:
        """CONTAINER/FOLDER of a path on a datastore of the folder."""
        found = re.fullmatch(r"azureml://datastores/([^/]+)/paths/(.+?)/?", str(self.get("path") or ""))
        store = self.asset("azureBlob", found[1]) if found else None
        return f"{store.get('container_name')}/{found[2]}" if found and store else None

    @property
    def size(self) -> str | None:
        """The machine that a compute, a deployment or a job uses, the job's by its compute's file."""
        if self.kind not in JOBS:
            return self.get("size") or self.get("instance_type")
        compute = self.asset("amlCompute", self.get("compute"))
        return self.get("resources.instance_type") or (compute.size if compute else None)

    def build(self) -> tuple[Path, Path] | None:
        """Context and Dockerfile of the image that an environment, or one within a job or a deployment, is built of."""
        build = self.get("build") or self.get("environment.build")
        if not isinstance(build, dict):
            return None
        context = self.path_of(build.get("path"))
        return context, context / str(build.get("dockerfile_path") or "Dockerfile")

    def path_of(self, value: Any) -> Path:
        """A path that the file names, relative to it."""
        return (self.path.parent / str(value)).resolve()


def yaml_files(folder: Path) -> list[Path]:
    """All YAML files of a folder, sorted."""
    return sorted(path for path in folder.glob("*.y*ml") if path.suffix in (".yml", ".yaml"))


def read_folder(folder: Path) -> list[Document]:
    """All YAML files of a folder that have a $schema of Azure ML, without those that cannot be read."""
    documents: list[Document] = []
    for path in yaml_files(folder):
        with contextlib.suppress(ValueError):
            documents.append(_read(path, documents))
    return documents


def _read(path: Path, beside: list[Document]) -> Document:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ValueError("is no YAML mapping of keys to values.")
    if "$schema" not in content and "dependencies" in content:
        return Document(path, CONDA, content, beside)
    kind = re.search(r"/(\w+)\.schema\.json$", str(content.get("$schema")))
    if kind is None or kind[1] not in LOADERS:
        raise ValueError(
            f"$schema: {content.get('$schema')} names none of {', '.join(LOADERS)}; add the line of its kind."
        )
    return Document(path, kind[1], content, beside)


def read(path: Path, changes: Mapping[str, Any] | None = None) -> Document:
    """One file, with the others of its folder beside it, and `changes` of values by dotted key as by `az ml ... --set`.

    Raises ValueError with what is wrong with it.
    """
    document = _read(path, read_folder(path.parent))
    for key, value in (changes or {}).items():
        *above, last = key.split(".")
        parent = document.content
        for name in above:
            parent = parent.setdefault(name, {})
        parent[last] = value
    return document


@lru_cache
def _sdk() -> Any:
    try:
        from azure.ai import ml
    except ImportError as error:
        message = 'azure-ai-ml is not installed; pip install "azure-ai-ml>=1.35,<1.36" (or this package\'s extra dev).'
        raise Unusable(message) from error
    logging.getLogger("azure.ai.ml").setLevel(logging.ERROR)
    return ml


def refused(document: Document) -> Iterator[str]:
    """What the SDK refuses: unknown keys, wrong types and values, missing folders, or what has no REST form."""
    if document.kind == CONDA:
        return
    load = getattr(_sdk(), LOADERS[document.kind])
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            entity = load(io.StringIO(yaml.safe_dump(document.content)), relative_origin=str(document.path))
            # Private, and the only place where some errors show; the release is pinned for it.
            if hasattr(entity, "_to_job"):
                entity = entity._to_job()
            if document.kind in JOBS:
                entity._to_rest_object()
    except Exception as error:  # marshmallow's, azure.ai.ml's, and any other that a wrong file leads to
        yield from _shortened(str(error))


def _shortened(text: str) -> list[str]:
    """The SDK's pages of JSON as "key: message" lines."""
    with contextlib.suppress(ValueError):
        content = json.JSONDecoder().raw_decode(text[text.index("{") :])[0]
        if "errors" in content:
            return [line for error in content["errors"] for line in _shortened(str(error["message"]))]
        return _leaves(content)
    return [" ".join(text.split())[:300]]


def _leaves(value: Any, key: str = "") -> list[str]:
    if isinstance(value, dict):
        return [line for name, inner in value.items() for line in _leaves(inner, f"{key}.{name}" if key else str(name))]
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):  # alternatives: the nearest one
        return min((_leaves(item, key) for item in value), key=len)
    return [f"{key}: {item}" for item in (value if isinstance(value, list) else [value])]
