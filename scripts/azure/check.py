#!/usr/bin/env python3
"""Check the files of this folder before Azure does, without an account.

  python scripts/azure/check.py                 all of them: YAML, Dockerfile, .amlignore, the README's commands
  python scripts/azure/check.py FILE...         these; --set KEY=VALUE... changes them as it does for az

Azure's own SDK reads each file (pip install "azure-ai-ml>=1.35,<1.36"); checker/rules.py finds what the SDK lets through.
Exits with 1 when anything is wrong, 2 when nothing can be checked.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

try:
    import checker
    import yaml
    from checker import files
except ModuleNotFoundError as error:
    print(f'error: {sys.executable} has no {error.name}; in the checkout: pip install -e ".[dev]"', file=sys.stderr)
    sys.exit(2)


def table(rows: Iterable[tuple[str, str, str]], heads: tuple[str, str, str]) -> str:
    """Three columns, the last one wrapped."""
    lines = [heads, *rows]
    first, second = (max(len(line[i]) for line in lines) for i in (0, 1))
    words = textwrap.TextWrapper(
        150, initial_indent=" " * (first + second + 4), subsequent_indent=" " * (first + second + 4)
    )
    return "\n".join(
        f"{line[0]:<{first}}  {line[1]:<{second}}  {words.fill(line[2]).strip()}".rstrip() for line in lines
    )


def all_files(folder: Path) -> list[Path]:
    """What is checked when no file is named."""
    return sorted([*folder.glob("*.yml"), *folder.glob("*.yaml")]) + files.other_files(folder)


def check(paths: list[Path], changes: dict[str, Any]) -> bool:
    """Print the table; whether all is right."""
    rows, right = [], True
    for path in paths:
        kind, found = checker.check_file(path, changes)
        right &= not found
        words = [f"{finding.rule}: {finding.text}" for finding in found]
        if not found:
            words = ["ok" + (f" ({files.describe_snapshot(path.parent)})" if kind == ".amlignore" else "")]
        rows += [
            (str(path.relative_to(HERE) if path.is_relative_to(HERE) else path.name), kind, text) for text in words
        ]
    print(table(rows, ("file", "kind", "")))
    return right


def main() -> None:
    """Parse the arguments and exit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="all of this folder, if none is named")
    parser.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", dest="changes", help="as for az"
    )
    chosen = parser.parse_args()
    for path in chosen.files:
        if not path.is_file():
            parser.error(f"there is no {path}")
    changes = {key: yaml.safe_load(value) for key, _, value in (change.partition("=") for change in chosen.changes)}
    if changes and not chosen.files:
        parser.error("--set changes a file; name it")
    try:
        right = check([path.resolve() for path in chosen.files] or all_files(HERE), changes)
    except checker.Unusable as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    sys.exit(not right)


if __name__ == "__main__":
    main()
