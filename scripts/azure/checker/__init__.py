"""Checks the files of this folder without an Azure account: Azure's own SDK first, then the rules it does not have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import files
from .documents import Unusable, read, refused
from .rules import problems

__all__ = ["Finding", "Unusable", "check_file", "files"]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, and the name of what found it: a rule, "azure-ai-ml" for the SDK or "file"."""

    rule: str
    text: str


def check_file(path: Path, changes: Mapping[str, Any] | None = None) -> tuple[str, list[Finding]]:
    """A file's kind and what is wrong with it, once `changes` of values by dotted key are made. Raises Unusable without the SDK."""
    others = {
        "Dockerfile": files.check_dockerfile,
        ".amlignore": files.check_amlignore,
        "README.md": files.check_readme,
    }
    for ending, check in others.items():
        if path.name.endswith(ending):
            return ending, _once(check(path))
    try:
        document = read(path, changes)
    except ValueError as error:
        return "?", [Finding("file", str(error))]
    found = [("azure-ai-ml", text) for text in refused(document)]
    try:
        found += [*problems(document), *files.code_problems(document)]
    except (TypeError, ValueError, AttributeError):
        if not found:  # of a file whose form the SDK refuses, a rule may make nothing
            raise
    return document.kind, _once(found)


def _once(found: Iterable[tuple[str, str]]) -> list[Finding]:
    return list(dict.fromkeys(Finding(rule, text) for rule, text in found))
