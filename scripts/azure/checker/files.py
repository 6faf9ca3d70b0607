"""What is no YAML of Azure's: the code that a job takes along, and the README's commands."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from . import commands
from .documents import JOBS, Document, read_folder

Problems = Iterator[tuple[str, str]]  # (rule, what is wrong)
# https://learn.microsoft.com/azure/machine-learning/how-to-manage-quotas
MOST_FILES, MOST_BYTES = 2000, 300 * 10**6


@cache  # of a checkout with a virtual environment it takes a while
def snapshot(folder: Path) -> list[tuple[Path, str]]:
    """(file, name in the upload) of what the SDK takes of a folder, with its own reading of .amlignore."""
    from azure.ai.ml._utils import _asset_utils as assets

    taken: Any = assets.get_upload_files_from_folder(folder, ignore_file=assets.get_ignore_file(folder))
    return [(Path(file), name) for file, name in taken]


def describe_snapshot(folder: Path) -> str:
    """ "190 files, 2.1 MB"."""
    files = snapshot(folder)
    return f"{len(files)} files, {sum(file.stat().st_size for file, _ in files) / 1e6:.1f} MB"


def code_problems(job: Document) -> Problems:
    """The folder that a job takes along."""
    folder = job.path_of(job.get("code"))
    if job.kind in JOBS and job.get("code") and folder.is_dir():
        yield from check_amlignore(folder / ".amlignore")


def check_amlignore(path: Path) -> Problems:
    """The code below an .amlignore: its size, and whether the package is in it."""
    files = snapshot(path.parent)
    total = sum(file.stat().st_size for file, _ in files)
    if len(files) > MOST_FILES or total > MOST_BYTES:
        weights: Counter[str] = Counter()  # of the entries of the folder, in the unit that is exceeded
        for file, name in files:
            weights[Path(name).parts[0]] += file.stat().st_size if total > MOST_BYTES else 1
        most = ", ".join(name for name, _ in weights.most_common(3))
        yield (
            "code",
            (
                f"the code is {describe_snapshot(path.parent)}, and Azure takes {MOST_FILES} of {MOST_BYTES / 1e6:.0f} MB; "
                f"name in .amlignore what is not needed. Most is in {most}."
            ),
        )
    for needed in sorted({"retina_dist/train.py", "conf/train.yaml"} - {name.lstrip("./") for _, name in files}):
        yield "code", f"the code lacks {needed}; does .amlignore leave out too much?"


def check_readme(path: Path) -> Problems:
    """The commands of the shell blocks, which are pasted from top to bottom."""
    known = {"HOME", "PWD", "PATH", "USER"}
    root = next((folder for folder in path.parents if (folder / ".amlignore").exists()), path.parent)
    for block in re.findall(r"^```(?:bash|sh)\n(.*?)^```", path.read_text("utf-8"), re.MULTILINE | re.DOTALL):
        done = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True)
        if done.returncode:
            yield "shell", f"{block.splitlines()[0]}: {' '.join(done.stderr.split())}"
            continue
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            bare = re.sub(r"'[^']*'", "''", line.partition(" #")[0])
            known |= {set_ or in_ for set_, in_ in re.findall(r"(?:^|[\s;(])([A-Za-z_]\w*)=|\bfor (\w+) in\b", bare)}
            for name in re.findall(r"(?<!\\)\$\{?([A-Za-z_]\w*)", bare):
                if name not in known:
                    yield "variables", f"${name} is used and no block above sets it: {line.strip()[:80]}"
            yield from (("commands", problem) for problem in _command_problems(line, root))


def _command_problems(line: str, root: Path) -> Iterator[str]:
    """Files that do not exist, and commands of this package that would not start."""
    text = re.sub(r"\$\{?\w+\}?", "1", line)
    for call in commands.calls(text):
        yield from commands.problems(call)
    for words in commands.simple_commands(text):
        named = [word for word in words if word.startswith("scripts/")]
        named += [name for option, name in zip(words, words[1:]) if words[0] == "az" and option in ("-f", "--file")]
        for name in dict.fromkeys(named):
            if not (root / name).exists():
                yield f"there is no {name}: {line.strip()[:80]}"


def other_files(folder: Path) -> list[Path]:
    """The .amlignore and the README that belong to a folder of jobs."""
    roots = {d.path_of(d.get("code")) for d in read_folder(folder) if d.kind in JOBS and d.get("code")}
    found = [folder / "README.md", *(root / ".amlignore" for root in sorted(roots))]
    return [path for path in found if path.is_file()]


CHECKS = {".amlignore": check_amlignore, "README.md": check_readme}
