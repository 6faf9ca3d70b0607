"""Checks the files of this folder without an Azure account: Azure's own SDK first, then the rules it does not have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from . import files
from .documents import Unusable, read, refused, yaml_files
from .rules import problems

__all__ = ["Finding", "Unusable", "check_file", "files", "yaml_files"]


class Finding(NamedTuple):
    """One thing that is wrong, and the name of what found it: a rule, "azure-ai-ml" for the SDK or "file"."""

    rule: str
    text: str


def check_file(path: Path, changes: Mapping[str, Any] | None = None) -> tuple[str, list[Finding]]:
    """A file's kind and what is wrong with it, once `changes` of values by dotted key are made. Raises Unusable without the SDK."""
    for kind, check in files.CHECKS.items():
        if path.name.endswith(kind):
            return kind, _once(check(path))
    try:
        document = read(path, changes)
    except ValueError as error:
        return "?", [Finding("file", str(error))]
    found = [("azure-ai-ml", text) for text in refused(document)]
    try:
        found += [*problems(document), *files.code_problems(document)]
    except (TypeError, ValueError, AttributeError):
        if not found:  # a rule may fail over a file whose form the SDK refuses
            raise
    return document.kind, _once(found)


def _once(found: files.Problems | list[tuple[str, str]]) -> list[Finding]:
    return list(dict.fromkeys(Finding(*pair) for pair in found))
