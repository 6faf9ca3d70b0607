"""What is no YAML of Azure's: the code that a job takes along, the Dockerfile and the README's commands."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from retina_dist.strategies.launchers import executable

from . import commands
from .documents import JOBS, Document, read_folder

# https://learn.microsoft.com/azure/machine-learning/how-to-manage-quotas
MOST_FILES, MOST_BYTES = 2000, 300 * 10**6


@cache  # of a checkout with a virtual environment it takes a while
def snapshot(folder: Path) -> list[tuple[Path, str]]:
    """(file, name in the upload) of what the SDK takes of a folder, with its own reading of .amlignore."""
    from azure.ai.ml._utils import _asset_utils as assets

    taken: Any = assets.get_upload_files_from_folder(folder, ignore_file=assets.get_ignore_file(folder))
    return [(Path(file), name) for file, name in taken]


def snapshot_problems(folder: Path) -> Iterator[str]:
    """Why a folder is no good as the code of a job."""
    files = snapshot(folder)
    total = sum(file.stat().st_size for file, _ in files)
    if len(files) > MOST_FILES or total > MOST_BYTES:
        weights: Counter[str] = Counter()  # of the entries of the folder, in what there is too much of
        for file, name in files:
            weights[Path(name).parts[0]] += file.stat().st_size if total > MOST_BYTES else 1
        most = ", ".join(name for name, _ in weights.most_common(3))
        yield (
            f"the code is {len(files)} files of {total / 1e6:.0f} MB, and Azure takes {MOST_FILES} of {MOST_BYTES / 1e6:.0f} MB; "
            f"name in .amlignore what is not needed. Most is in {most}."
        )
    names = {name.removeprefix("./").lstrip("/") for _, name in files}
    for needed in ("retina_dist/train.py", "conf/train.yaml"):
        if needed not in names:
            yield f"the code lacks {needed}; does .amlignore leave out too much?"


def code_problems(job: Document) -> Iterator[tuple[str, str]]:
    """(rule, what is wrong) with the folder that a job takes along."""
    folder = job.path_of(job.get("trial.code"))
    if job.kind in JOBS and job.get("trial.code") and folder.is_dir():
        yield from check_amlignore(folder / ".amlignore")


def check_amlignore(path: Path) -> Iterator[tuple[str, str]]:
    """(rule, what is wrong) with the code below an .amlignore."""
    yield from (("code", problem) for problem in snapshot_problems(path.parent))


def check_dockerfile(path: Path) -> Iterator[tuple[str, str]]:
    """(rule, what is wrong): a base image without a date, a COPY of what is not there, and whatever hadolint finds."""
    text = re.sub(r"\\\n", " ", path.read_text(encoding="utf-8"))
    arguments = dict(re.findall(r"^ARG (\w+)=(\S+)", text, re.MULTILINE))
    for image in re.findall(r"^FROM (\S+)", text, re.MULTILINE):
        whole = re.sub(r"\$\{?(\w+)\}?", lambda m: arguments.get(m[1], ""), image)
        tag = whole.rpartition(":")[2] if ":" in whole else ""
        if tag in ("", "latest"):
            yield "base_image", f"FROM {whole} may be another image tomorrow; give a tag with a date."
    context = _context_of(path)
    for source in re.findall(r"^COPY (?!--from)(\S+) \S+", text, re.MULTILINE):
        if not (context / source).exists():
            yield "copied", f"COPY {source}: {context.name}/ has no {source}."
    if hadolint := executable("hadolint"):
        done = subprocess.run([hadolint, "--no-color", str(path)], capture_output=True, text=True)
        for line in done.stdout.strip().splitlines():
            yield "hadolint", line.removeprefix(f"{path}:")


def _context_of(dockerfile: Path) -> Path:
    """The folder that a file beside the Dockerfile, or one folder above, builds it in; else its own."""
    builds = [d.build() for folder in dockerfile.parents[:2] for d in read_folder(folder)]
    return next((build[0] for build in builds if build and build[1] == dockerfile), dockerfile.parent)


def blocks(text: str) -> list[str]:
    """The shell blocks of a Markdown text."""
    return re.findall(r"^```(?:bash|sh)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def check_readme(path: Path) -> Iterator[tuple[str, str]]:
    """(rule, what is wrong) with the commands of the shell blocks, which are pasted from top to bottom."""
    known = {"HOME", "PWD", "PATH", "USER"}
    root = next((folder for folder in path.parents if (folder / ".amlignore").exists()), path.parent)
    for block in blocks(path.read_text(encoding="utf-8")):
        text = re.sub(r"\\\n\s*", " ", block)
        done = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True)
        if done.returncode:
            yield "shell", f"{block.splitlines()[0]}: {' '.join(done.stderr.split())}"
            continue
        yield from (("variables", problem) for problem in _unset(text, known))
        yield from (("commands", problem) for problem in _command_problems(text, root))


def _unset(text: str, known: set[str]) -> Iterator[str]:
    """Variables that no line so far has set; those that a line sets become `known`."""
    for line in text.splitlines():
        bare = re.sub(r"'[^']*'", "''", line.partition(" #")[0])
        known |= set(re.findall(r"(?:^|[\s;(])([A-Za-z_]\w*)=", bare)) | set(re.findall(r"\bfor (\w+) in\b", bare))
        for name in re.findall(r"(?<!\\)\$\{?([A-Za-z_]\w*)", bare):
            if name not in known:
                yield f"${name} is used and no block above sets it: {line.strip()[:80]}"


def _command_problems(text: str, root: Path) -> Iterator[str]:
    """Files that are not there, and commands of this package that would not start."""
    for line in re.sub(r"\$\{?\w+\}?", "1", text).splitlines():
        for call in commands.calls(line):
            yield from commands.problems(call)
        for words in commands.simple_commands(line):
            named = [word for word in words if word.startswith("scripts/")]
            named += [
                words[i + 1] for i, word in enumerate(words[:-1]) if words[0] == "az" and word in ("-f", "--file")
            ]
            for name in dict.fromkeys(named):
                if not (root / name).exists():
                    yield f"there is no {name}: {line.strip()[:80]}"


def describe_snapshot(folder: Path) -> str:
    """ "190 files, 2.1 MB"."""
    files = snapshot(folder)
    return f"{len(files)} files, {sum(file.stat().st_size for file, _ in files) / 1e6:.1f} MB"


def other_files(folder: Path) -> list[Path]:
    """The Dockerfiles, the .amlignore and the README that belong to a folder of jobs."""
    roots = {d.path_of(d.get("trial.code")) for d in read_folder(folder) if d.kind in JOBS and d.get("trial.code")}
    found = [
        *folder.glob("*Dockerfile"),
        *folder.glob("*/*Dockerfile"),
        folder / "README.md",
        *(root / ".amlignore" for root in sorted(roots)),
    ]
    return [path for path in found if path.is_file()]
