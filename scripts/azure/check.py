#!/usr/bin/env python3
"""Check the files of this folder before Azure does, without an account.

  python scripts/azure/check.py                 all of them: YAML, .amlignore, the README's commands
  python scripts/azure/check.py FILE...         these; --set KEY=VALUE... changes them as it does for az

Azure's own SDK reads each file (pip install "azure-ai-ml>=1.35,<1.36"); checker/rules.py finds what the SDK lets through.
Exits with 1 when anything is wrong, 2 when nothing can be checked.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

try:
    import checker
    import yaml
except ModuleNotFoundError as error:
    print(f'error: {sys.executable} has no {error.name}; in the checkout: pip install -e ".[dev]"', file=sys.stderr)
    sys.exit(2)


def all_files(folder: Path) -> list[Path]:
    """What is checked when no file is named."""
    return checker.yaml_files(folder) + checker.files.other_files(folder)


def check(paths: list[Path], changes: dict[str, Any]) -> bool:
    """Print a table of file, kind and what is wrong, the last wrapped; whether all is right."""
    rows, right = [("file", "kind", "")], True
    for path in paths:
        kind, found = checker.check_file(path, changes)
        right &= not found
        snapshot = f" ({checker.files.describe_snapshot(path.parent)})" if kind == ".amlignore" else ""
        name = str(path.relative_to(HERE) if path.is_relative_to(HERE) else path.name)
        rows += [(name, kind, f"{rule}: {text}") for rule, text in found] or [(name, kind, f"ok{snapshot}")]
    first, second = (max(len(row[i]) for row in rows) for i in (0, 1))
    for name, kind, text in rows:
        start = f"{name:<{first}}  {kind:<{second}}  "
        print(textwrap.fill(text, 150, initial_indent=start, subsequent_indent=" " * len(start)).rstrip() or start)
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
