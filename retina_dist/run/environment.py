"""The process around a run: torch's settings, the description of the job, the versions of the libraries."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

import torch
import torchvision
from omegaconf import OmegaConf

import retina_dist
from retina_dist.config.run_config import RunConfig
from retina_dist.engine.settings import TrainerConfig
from retina_dist.files import write_atomically
from retina_dist.redaction import redacted_tree
from retina_dist.strategies.base import DistributedStrategy


def configure_torch(settings: TrainerConfig) -> None:
    """Set the number of threads and deterministic algorithms of this process."""
    if settings.num_threads:
        torch.set_num_threads(settings.num_threads)
    if settings.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS requires it
    torch.use_deterministic_algorithms(settings.deterministic)


def describe_job(strategy: DistributedStrategy) -> str:
    """ "8 processes, Horovod over NCCL, NVIDIA H100", or "one process, cpu, 2 threads"."""
    device = strategy.device
    what = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"{device.type}, {torch.get_num_threads()} thread{'s' * (torch.get_num_threads() > 1)}"
    )
    return f"{strategy.backend}, {what}" + (f", {strategy.world_size} processes" if strategy.world_size > 1 else "")


def write_config(config: RunConfig, folder: Path) -> None:
    """Every setting of the run as config.yaml, without secrets: MLflow gets the file."""
    text = OmegaConf.to_yaml(OmegaConf.create(redacted_tree(asdict(config))))
    write_atomically(folder / "config.yaml", lambda temporary: temporary.write_text(text))


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
