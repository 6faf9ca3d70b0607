"""The process around a run: torch's settings, and the job in words, in config.yaml and in command.json."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shlex
import subprocess
import sys
from dataclasses import asdict
from datetime import datetime
from importlib import metadata
from pathlib import Path

import torch
import torchvision
from omegaconf import OmegaConf

import retina_dist
from retina_dist.engine.settings import TrainerConfig
from retina_dist.files import read_bytes, write_atomically, write_json
from retina_dist.redaction import redacted_tree
from retina_dist.run_config import RunConfig
from retina_dist.strategies.base import DistributedStrategy

COMMAND = "command.json"

FLIGHT_FILE, FORMER_NAME = "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
_flight_file: str | None = None  # that an earlier job of this process set


def configure_torch(settings: TrainerConfig) -> None:
    """Set the number of threads and deterministic algorithms of this process."""
    if settings.num_threads:
        torch.set_num_threads(settings.num_threads)
    if settings.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS requires it
    torch.use_deterministic_algorithms(settings.deterministic)


def write_flight_records(folder: Path) -> None:
    """Let torch's Flight Recorder write into `folder`, unless the user said where."""
    global _flight_file
    if os.environ.get(FLIGHT_FILE) == _flight_file and FORMER_NAME not in os.environ:
        os.environ[FLIGHT_FILE] = _flight_file = f"{folder.resolve()}/flight_recorder_rank_"


def describe_job(strategy: DistributedStrategy) -> str:
    """ "8 processes, Horovod over NCCL, NVIDIA H100", or "one process, cpu, 2 threads"."""
    device = strategy.device
    what = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"{device.type}, {torch.get_num_threads()} thread{'s' * (torch.get_num_threads() > 1)}"
    )
    kind = type(strategy)  # one from outside often inherits what it says of itself
    outside = "" if kind.__module__.startswith("retina_dist.") else f"{kind.__name__}, "
    return f"{outside}{strategy.backend}, {what}" + (
        f", {strategy.world_size} processes" if strategy.world_size > 1 else ""
    )


def write_config(config: RunConfig, folder: Path) -> None:
    """Every setting of the run as config.yaml, without secrets: MLflow gets the file."""
    text = OmegaConf.to_yaml(OmegaConf.create(redacted_tree(asdict(config))))
    write_atomically(folder / "config.yaml", lambda temporary: temporary.write_text(text))


def write_command(strategy: DistributedStrategy, folder: Path) -> None:
    """Add this start to command.json: its time, command, overrides, job, versions, and the commit of the code, without secrets."""
    path, starts = folder / COMMAND, []
    with contextlib.suppress(OSError, ValueError):
        starts = json.loads(read_bytes(path))
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    program = ["-m", spec.name.removesuffix(".__main__")] if spec else [sys.argv[0]]
    start = {
        "time": datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": shlex.join(["python", *program, *sys.argv[1:]]),
        "overrides": [a for a in sys.argv[1:] if "=" in a and not a.startswith("-")],
        "job": describe_job(strategy),
        "versions": versions(),
        "commit": commit(),
    }
    write_json(path, [*starts, redacted_tree(start)])


def commit() -> str | None:
    """The commit of this code's checkout, with "+" when files were changed since; None outside of one."""

    def git(*words: str) -> str:
        folder = Path(__file__).resolve().parent
        return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)  # not a checkout that the package is installed in
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
