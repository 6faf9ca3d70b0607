#!/usr/bin/env python3
"""Check the files of this folder before Azure does, without an account.

  python scripts/azure/check.py                 all of them: YAML, Dockerfile, .amlignore, the README's commands
  python scripts/azure/check.py FILE...         these
  python scripts/azure/check.py --self-test     all of them, and wrong ones made of them: each must be found, with its reason

Azure's own SDK reads each file (pip install "azure-ai-ml>=1.35,<1.36"), and rules find what it lets through; --rules lists them.
Exits with 1 when anything is wrong, 2 when nothing can be checked.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import checker  # noqa: E402
from checker import faults, files  # noqa: E402
from checker.documents import Unusable  # noqa: E402


def table(rows: Iterable[tuple[str, str, str]], heads: tuple[str, str, str]) -> str:
    """Three columns, the last one wrapped."""
    lines = [heads, *rows]
    widths = [max(len(line[i]) for line in lines) for i in (0, 1)]
    indent = " " * (sum(widths) + 4)
    return "\n".join(
        f"{first:<{widths[0]}}  {second:<{widths[1]}}  " + textwrap.fill(last, 150, subsequent_indent=indent, initial_indent=indent).strip()
        for first, second, last in lines
    )


def all_files(folder: Path) -> list[Path]:
    """What is checked when no file is named."""
    return sorted([*folder.glob("*.yml"), *folder.glob("*.yaml")]) + files.other_files(folder)


def check(paths: list[Path]) -> bool:
    """Print the table; whether all is right."""
    rows, right = [], True
    for path in paths:
        kind, found = checker.check_file(path)
        right &= not found
        words = [f"{finding.rule}: {finding.text}" for finding in found]
        if not found:
            words = ["ok" + (f" ({files.describe_snapshot(path.parent)})" if kind == ".amlignore" else "")]
        rows += [(str(path.relative_to(HERE) if path.is_relative_to(HERE) else path.name), kind, text) for text in words]
    print(table(rows, ("file", "kind", "")))
    return right


def self_test() -> bool:
    """Print the table of wrong files; whether each was found by its rule."""
    rows, missed = [], 0
    for fault, found in faults.tried(HERE):
        named = [finding.text for finding in found if finding.rule == fault.rule]
        missed += not named
        rows.append((fault.rule, fault.file, f"{fault.edit}  ->  {named[0] if named else 'NOT FOUND'}"))
    print("\n" + table(rows, ("rule", "file", "edit -> what is said of it")))
    print(f"\n{len(rows)} wrong files, {missed} not found")
    return not missed


def main() -> None:
    """Parse the arguments and exit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="all of this folder, if none is named")
    parser.add_argument("--self-test", action="store_true", help="check wrong files too; each must be found")
    parser.add_argument("--rules", action="store_true", help="list the rules and do nothing")
    chosen = parser.parse_args()
    if chosen.rules:
        print("\n".join(f"{name:<38}{sentence}" for name, sentence in checker.rules().items()))
        return
    for path in chosen.files:
        if not path.is_file():
            sys.exit(f"error: there is no {path}.")
    try:
        right = check([path.resolve() for path in chosen.files] or all_files(HERE))
        if chosen.self_test:
            right &= self_test()
    except Unusable as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    sys.exit(not right)


if __name__ == "__main__":
    main()
