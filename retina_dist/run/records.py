"""The records of a run in its folder: config.yaml, command.json and, for its end, result.json."""

import contextlib
import math
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from importlib import metadata
from pathlib import Path

import torch
import torchvision
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from retina_dist.base import __version__
from retina_dist.base.errors import DataError
from retina_dist.base.files import write_json, write_text
from retina_dist.base.redaction import redacted, redacted_tree, redacted_word
from retina_dist.base.registry import as_dict
from retina_dist.base.text import pluralize
from retina_dist.config.compose import config_dir
from retina_dist.config.run_config import RunConfig, changed_settings
from retina_dist.engine.task import Facts
from retina_dist.reporting.run_files import RESULT, Start, read_typed
from retina_dist.strategies.base import DistributedStrategy

COMMAND = "command.json"


def describe_job(strategy: DistributedStrategy) -> str:
    """ "8 processes, Horovod over NCCL, NVIDIA H100", or "one process, cpu, 2 threads"."""
    device = strategy.device
    place = f"{device.type}, {pluralize(torch.get_num_threads(), 'thread')}"
    if device.type == "cuda":
        place = torch.cuda.get_device_name(device)

    words = [strategy.backend, place]
    if not type(strategy).__module__.startswith("retina_dist."):
        words.insert(0, type(strategy).__name__)  # which often inherits what it says of itself
    if strategy.world_size > 1:
        words.append(f"{strategy.world_size} processes")
    return ", ".join(words)


def write_start(
    config: RunConfig,
    strategy: DistributedStrategy,
    folder: Path,
    plan: str,
    resumed_at: int | None = None,
) -> None:
    """Write every setting to config.yaml, and add this start to command.json; forget the last
    result.

    Both are without secrets. `resumed_at` is the step that the run continues from.
    """
    (folder / RESULT).unlink(missing_ok=True)
    settings = OmegaConf.create(redacted_tree(as_dict(config)))
    write_text(folder / "config.yaml", OmegaConf.to_yaml(settings))

    starts: list[Facts] = []
    with contextlib.suppress(DataError):  # what is not ours is replaced
        starts = read_typed(folder / COMMAND, list[Facts])
    spec = sys.modules["__main__"].__spec__
    program = ["-m", spec.name.removesuffix(".__main__")] if spec else [sys.argv[0]]
    given = [word for word in sys.argv[1:] if "=" in word and not word.startswith("-")]
    if HydraConfig.initialized():
        given = list(HydraConfig.get().overrides.task)  # of a sweep, the job's
    words = ["python", *program, *sys.argv[1:]]
    groups = {word: word.lstrip("+").partition("=")[0] for word in given}
    start = {
        "time": datetime.now().astimezone().isoformat(timespec="seconds"),
        # each word before it is quoted, because quotes of a shell can cut a secret in two; then
        # --token VALUE
        "command": redacted(shlex.join(map(redacted_word, words))),
        "overrides": given,
        "recipe": [word for word in given if Path(config_dir(), groups[word]).is_dir()],
        "changed": changed_settings(config),
        "plan": plan,
        "job": describe_job(strategy),
        "launcher": strategy.launch.launcher,
        "processes": strategy.world_size,
        "threads": torch.get_num_threads(),
        "versions": versions(),
        "commit": commit(),
        "resumed_at": resumed_at,
    }
    write_json(folder / COMMAND, [*starts, redacted_tree(start)])


def start_of(run: Path, step: float = math.inf) -> Start:
    """The start of a run that took a step, by its command.json; by default the last one."""
    starts = read_typed(run / COMMAND, list[Start])
    took = [start for start in starts if (start.resumed_at or 0) < step]
    return took[-1] if took else Start()


def markdown_of_start(folder: Path) -> str:
    """The last start of a run as Markdown: its command and the settings that it changed."""
    start = start_of(folder)
    rows = [f"| {key} | {value} | {default} |\n" for key, value, default in start.changed]
    table = "| setting | value | default |\n|---|---|---|\n" + "".join(rows)
    return f"    {start.command}\n\n{table}"


def commit() -> str | None:
    """The commit of this code's checkout, with "+" when files were changed since; None outside of
    one.
    """
    here = Path(__file__).resolve()
    run = partial(subprocess.check_output, cwd=here.parent, stderr=subprocess.DEVNULL, text=True)
    try:
        # fails for a package that is merely installed below some checkout
        run(["git", "ls-files", "--error-unmatch", here.name])
        described = run(["git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+"])
    except (OSError, subprocess.CalledProcessError):
        return None
    return described.strip()


def versions() -> dict[str, str]:
    """The versions of what the numbers of a run depend on beside its settings."""
    found = {}
    if "horovod" in sys.modules:
        found["horovod"] = metadata.version("horovod")
    return {
        **found,
        "retina_dist": __version__,
        "torch": str(torch.__version__),
        "torchvision": str(torchvision.__version__),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def describe_versions(found: Mapping[str, str | None]) -> str:
    """Such as "torch 2.15.0, python 3.12.3"."""
    return ", ".join(f"{name} {value or '?'}" for name, value in found.items())
