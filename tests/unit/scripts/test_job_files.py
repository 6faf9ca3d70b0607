"""The job files of scripts/: Azure's SDK and Kubernetes' schemas take them, their commands compose,
their counts agree.
"""

from __future__ import annotations

import copy
import io
import logging
import os
import re
import shlex
import shutil
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from retina_dist.config.compose import load_config
from retina_dist.run.build import build_plan

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"
COCO_IMAGES, GPUS = 117_266, 8  # two machines of four in every training file
MODULE = re.compile(r"-m retina_dist\.(train|benchmark \w+)|scripts/ray/train\.py [^`]*?--(?= )")


def commands_of(path: Path) -> Iterator[tuple[str, list[str]]]:
    """(configuration, settings) of each command in a shell script, a page, or a YAML file of Azure
    or Kubernetes.
    """
    text = path.read_text().replace("\\\n", " ")
    if path.suffix in (".yaml", ".yml"):
        loaded = list(yaml.safe_load_all(text))
        inputs = {k: v for d in loaded for k, v in (d.get("inputs") or {}).items()}

        def filled(found: re.Match[str]) -> str:
            value = inputs.get(found[1], "/folder")
            return "/folder" if isinstance(value, dict) else str(value)

        text = re.sub(r"\$\{\{\w+\.(\w+)\}\}", filled, "\n".join(lines_of(loaded)))
    for line in text.splitlines():
        if found := MODULE.search(line):
            words = shlex.split(re.split(r"[`&|;>]", line[found.end() :])[0], comments=True)
            name = (found[1] or "train").replace(" ", "_")
            yield name, [word for word in words if word not in ("…", "-m")]


def lines_of(node: Any) -> Iterator[str]:
    """Commands in a parsed YAML file, one a line: strings, and `command` followed by `args`."""
    if isinstance(node, dict):
        words = node.get("command")
        if isinstance(words, list):
            yield shlex.join([*words, *(node.get("args") or [])])
    if isinstance(node, str):
        yield from node.splitlines()
    for value in (
        node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    ):
        yield from lines_of(value)


def cases() -> list[Any]:
    folders = ("azure", "kubernetes", "skypilot", "ray")
    files = sorted(
        p
        for f in folders
        for p in (SCRIPTS / f).iterdir()
        if p.suffix in (".yaml", ".yml", ".py", ".md")
    )
    return [
        pytest.param(path, name, words, id=f"{path.relative_to(SCRIPTS)}-{i}")
        for path in files
        for i, (name, words) in enumerate(commands_of(path))
    ]


@pytest.mark.parametrize(("path", "name", "words"), cases())
def test_a_command_composes_and_its_batch_fits_its_gpus(
    path: Path, name: str, words: list[str]
) -> None:
    config = load_config(name, [word for word in words if "$" not in word])
    if path.suffix != ".md" and path.parent.name != "ray":
        assert config.strategy.device == "cuda", (
            "on paid machines, a run must not fall back on the CPU"
        )
        if name == "train":
            assert len(build_plan(config, COCO_IMAGES, GPUS).micro_batches) == 1, (
                "some GPUs would wait for others"
            )


LOADERS = {
    "workspace": "load_workspace",
    "azureBlob": "load_datastore",
    "data": "load_data",
    "environment": "load_environment",
    "amlCompute": "load_compute",
    "commandJob": "load_job",
    "model": "load_model",
    "managedOnlineEndpoint": "load_online_endpoint",
    "managedOnlineDeployment": "load_online_deployment",
}


def load_by_sdk(path: Path, content: dict[str, Any]) -> None:
    ml = pytest.importorskip(
        "azure.ai.ml", reason="azure-ai-ml, of the extra dev, is not installed"
    )
    logging.getLogger("azure.ai.ml").setLevel(logging.ERROR)
    kind = re.search(r"/(\w+)\.schema\.json$", content["$schema"])
    assert kind
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        entity = getattr(ml, LOADERS[kind[1]])(
            io.StringIO(yaml.safe_dump(content)), relative_origin=str(path)
        )
        entity = entity._to_job() if hasattr(entity, "_to_job") else entity
        if kind[1] == "commandJob":
            entity._to_rest_object()  # private: the only place where some errors show


@pytest.mark.parametrize(
    "path", sorted((SCRIPTS / "azure").glob("*.yml")), ids=lambda path: path.name
)
def test_azures_sdk_takes_the_file_and_refuses_an_unknown_key(path: Path) -> None:
    content = yaml.safe_load(path.read_text())
    load_by_sdk(path, content)
    with pytest.raises(Exception, match=r"[Uu]nknown|no_such_key"):
        load_by_sdk(path, {**content, "no_such_key": 1})


def pods(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict) and "containers" in node:
        yield node
    for value in (
        node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    ):
        yield from pods(value)


def documents() -> dict[str, dict[str, Any]]:
    files = (SCRIPTS / "kubernetes").glob("*.yaml")
    return {
        f"{d['kind']} {d['metadata']['name']}": d
        for file in files
        for d in yaml.safe_load_all(file.read_text())
    }


def test_kubernetes_knows_every_field() -> None:
    """Operators of MPI publish no schema, so only the pods of an MPIJob are held against one."""
    validate = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate, of the extra dev, is missing"
    )
    models = pytest.importorskip(
        "kubeflow_trainer_api.models", reason="kubeflow-trainer-api, of the extra dev, is missing"
    )
    for document in documents().values():
        if document["apiVersion"] == "v1":
            validate.validate(document, "1.34", strict=True)
        elif document["apiVersion"] == "trainer.kubeflow.org/v1alpha1":
            model = getattr(models, f"TrainerV1alpha1{document['kind']}")
            assert model.from_dict(copy.deepcopy(document)).to_dict() == document, (
                "the model drops what it does not know"
            )
        for pod in pods(document):
            filled = {
                **pod,
                "containers": [{"image": "x", **container} for container in pod["containers"]],
            }
            wrapped = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": filled}
            validate.validate(wrapped, "1.34", strict=True)


def test_kubernetes_files_agree_with_each_other() -> None:
    found = documents()
    roles = found["MPIJob retina-horovod"]["spec"]["mpiReplicaSpecs"]
    slots = found["MPIJob retina-horovod"]["spec"]["slotsPerWorker"]
    arguments = roles["Launcher"]["template"]["spec"]["containers"][0]["args"]
    assert int(arguments[arguments.index("-np") + 1]) == slots * roles["Worker"]["replicas"] == GPUS
    trainer = found["TrainJob retina-ddp"]["spec"]["trainer"]
    assert trainer["numProcPerNode"] * trainer["numNodes"] == GPUS
    for pod in (pod for document in found.values() for pod in pods(document) if "volumes" in pod):
        mounts = {
            m["mountPath"]: m["name"]
            for container in pod["containers"]
            for m in container["volumeMounts"]
        }
        assert set(mounts.values()) == {v["name"] for v in pod["volumes"]}
        assert "/dev/shm" in mounts, "a container's own 64 MB are too few for data workers"


READ_BY_SKYPILOT = """
import sys, sky
task = sky.Task.from_yaml(sys.argv[1])
resources = list(task.resources)[0]
print(task.num_nodes, resources.accelerators, resources.use_spot, sorted(task.storage_mounts))
"""


def test_skypilot_reads_the_task(tmp_path: Path) -> None:
    """In SkyPilot's own Python, since skypilot[azure] brings an antlr4 that Hydra cannot use;
    importing it writes to HOME.
    """
    sky = shutil.which("sky")
    if sky is None:
        pytest.skip("there is no sky on PATH (make engines installs SkyPilot)")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
    }
    line = [
        Path(sky).resolve().with_name("python"),
        "-c",
        READ_BY_SKYPILOT,
        SCRIPTS / "skypilot" / "task.yaml",
    ]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=120)
    assert "2 {'A100-80GB': 4} True ['/mnt/coco', '/mnt/runs']" in done.stdout, done.stderr
