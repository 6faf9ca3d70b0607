"""Which device this process works on. Layer 1."""

from __future__ import annotations

import os

import torch

from retina_dist.errors import ConfigError
from retina_dist.strategies.launch import Launch


def resolve_device(name: str, launch: Launch = Launch()) -> torch.device:  # noqa: B008 - frozen
    """The device for "auto" (a GPU if there is one, else the CPU), "cpu", "cuda" or "cuda:N", and make it current.

    "auto" and "cuda" take the GPU of the process's local rank. Raises ConfigError when this machine lacks the device, or
    has fewer GPUs than processes.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and torch.cuda.is_available():
        count = torch.cuda.device_count()
        if launch.local_rank >= count:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            note = f" (CUDA_VISIBLE_DEVICES={visible})" if visible is not None else ""
            raise ConfigError(
                f"{launch.local_world_size or 'more'} processes were started on this host, but it has "
                f"{count} GPU{'s' * (count != 1)}{note}: "
                f"none is left for local rank {launch.local_rank}; start at most {count} a host, or give strategy.device=cpu "
                "(where each process sees a GPU of its own only, strategy.device=cuda:0)."
            )
        name = f"cuda:{launch.local_rank}"
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device={name} cannot be used ({reason}); use auto or cpu.") from error
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device
