"""The records of a run in its folder: config.yaml, command.json and, for its end, result.json."""

from __future__ import annotations

import contextlib
import json
import platform
import shlex
import subprocess
import sys
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import torchvision
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

import retina_dist
from retina_dist.base.files import read_bytes, write_json, write_text
from retina_dist.base.redaction import redacted, redacted_tree, redacted_word
from retina_dist.base.registry import as_dict
from retina_dist.base.text import pluralize
from retina_dist.config.compose import config_dir
from retina_dist.config.run_config import RunConfig, changed_settings
from retina_dist.strategies.base import DistributedStrategy

COMMAND = "command.json"
RESULT = "result.json"  # for sweeps, benchmarks and scripts that compare runs
LOSS = "train/loss"


def describe_job(strategy: DistributedStrategy) -> str:
    """ "8 processes, Horovod over NCCL, NVIDIA H100", or "one process, cpu, 2 threads"."""
    device, kind, threads = (
        strategy.device,
        type(strategy),
        pluralize(torch.get_num_threads(), "thread"),
    )
    what = (
        torch.cuda.get_device_name(device) if device.type == "cuda" else f"{device.type}, {threads}"
    )
    # one from outside often inherits what it says of itself
    outside = "" if kind.__module__.startswith("retina_dist.") else f"{kind.__name__}, "
    processes = f", {strategy.world_size} processes" if strategy.world_size > 1 else ""
    return f"{outside}{strategy.backend}, {what}{processes}"


def write_start(config: RunConfig, strategy: DistributedStrategy, folder: Path, plan: str) -> None:
    """Write every setting to config.yaml, and add this start to command.json, both without secrets; forget the last result."""
    (folder / RESULT).unlink(missing_ok=True)
    write_text(
        folder / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(redacted_tree(as_dict(config))))
    )
    path, starts = folder / COMMAND, []
    with contextlib.suppress(OSError, ValueError):
        starts = json.loads(read_bytes(path))
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    program = ["-m", spec.name.removesuffix(".__main__")] if spec else [sys.argv[0]]
    given = [a for a in sys.argv[1:] if "=" in a and not a.startswith("-")]
    if HydraConfig.initialized():
        given = list(HydraConfig.get().overrides.task)  # of a sweep, the job's
    start = {
        "time": datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": redacted_command(["python", *program, *sys.argv[1:]]),
        "overrides": given,
        "recipe": [
            o for o in given if Path(config_dir(), o.lstrip("+").partition("=")[0]).is_dir()
        ],
        "changed": changed_settings(config),
        "plan": plan,
        "job": describe_job(strategy),
        "versions": versions(),
        "commit": commit(),
    }
    write_json(path, [*starts, redacted_tree(start)])


def redacted_command(words: list[str]) -> str:
    """A line for a shell, without secrets.

    Each word is redacted before it is quoted, because quotes of a shell can cut a secret in two.
    """
    shown = shlex.join([redacted_word(word) for word in words])
    return redacted(shown)  # --token VALUE


def markdown_of_start(folder: Path) -> str:
    """The last start of a run as Markdown: its command and the settings that it changed."""
    start = json.loads(read_bytes(folder / COMMAND))[-1]
    rows = [f"| {key} | {value} | {default} |\n" for key, value, default in start["changed"]]
    table = "| setting | value | default |\n|---|---|---|\n" + "".join(rows)
    return f"    {start['command']}\n\n{table}"


def commit() -> str | None:
    """The commit of this code's checkout, with "+" when files were changed since; None outside of one."""

    def git(*words: str) -> str:
        folder = Path(__file__).resolve().parent
        return subprocess.run(
            ["git", *words], cwd=folder, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        git(
            "ls-files", "--error-unmatch", Path(__file__).name
        )  # not a checkout that the package is installed in
        return git("describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+")
    except (OSError, subprocess.CalledProcessError):
        return None


def versions() -> dict[str, str]:
    """The versions of what the numbers of a run depend on beside its settings."""
    horovod = {"horovod": metadata.version("horovod")} if "horovod" in sys.modules else {}
    return {
        **horovod,
        "retina_dist": retina_dist.__version__,
        "torch": str(torch.__version__),
        "torchvision": str(torchvision.__version__),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def read_result(folder: Path) -> dict[str, Any]:
    """The content of result.json; empty without the file."""
    path = folder / RESULT
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
