"""The list of rules: plain functions from a document to what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .documents import Document

Rule = Callable[[Document], Iterator[str]]
RULES: list[tuple[tuple[str, ...], Rule]] = []


def rule(*kinds: str) -> Callable[[Rule], Rule]:
    """Have a function asked about all files of these kinds."""

    def add(function: Rule) -> Rule:
        RULES.append((kinds, function))
        return function

    return add
