"""Which device this process works on, and the memory of a GPU that a user names."""

import os
import re
import socket
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from retina_dist.base.errors import ConfigError
from retina_dist.base.text import format_bytes, format_ranks
from retina_dist.strategies.launch_environment import Launch

DEV, DRIVER_VERSION = Path("/dev"), Path("/proc/driver/nvidia/version")
# GiB that torch reports as `total_memory`: the smallest "total capacity" of torch's out-of-memory
# messages in public bug reports.
GPUS = {
    "V100-16GB": 15.77,
    "V100-32GB": 31.74,
    "T4": 14.56,
    "A10": 21.96,
    "A30": 23.50,
    "A40": 44.34,
    "A100-40GB": 39.38,
    "A100-80GB": 79.14,
    "L4": 21.96,
    "L40": 44.39,
    "L40S": 44.39,
    "H100-80GB": 79.10,
    "H100-NVL-94GB": 93.00,
    "H200-141GB": 139.80,
    "B200-180GB": 178.35,
    "GB200": 184.31,
}
# of the CUDA context and kernels: processes without tensors take 0.5 to 0.7 GiB by nvidia-smi
CONTEXT_GIB = 0.6


def resolve_device(name: str, launch: Launch = Launch()) -> torch.device:  # noqa: B008 - frozen
    """The device for "auto" (a GPU if this process has one, else the CPU), "cpu", "cuda" or
    "cuda:N", made current.

    "auto" and "cuda" take the GPU of the local rank, or the only one that this process sees. Raises
    ConfigError when this machine lacks the device, has several GPUs but fewer than processes, or
    has GPUs that torch cannot use, which "auto" does not replace by the CPU.
    """
    if name == "cpu":
        return torch.device("cpu")
    asked = name
    try:
        torch.device("cpu" if name == "auto" else name)
    except RuntimeError as error:
        raise ConfigError(
            f"device={name} is not a device; give auto, cpu, cuda or cuda:0."
        ) from error
    usable = torch.cuda.is_available()
    unusable: list[str] = []
    if not usable:
        unusable = nvidia_gpus()
    if name == "auto":
        name = "cuda" if usable or unusable else "cpu"
    if name == "cuda" and usable:
        name = f"cuda:{_own_gpu(launch)}"
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].partition(". ")[0].rstrip(".")
        raise ConfigError(
            f"device={asked} cannot be used ({_why_unusable(name, unusable, reason)}."
        ) from error
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def _why_unusable(name: str, unusable: list[str], reason: str) -> str:
    """The reason, with its bracket, and the remedy."""
    if not (name.startswith("cuda") and unusable):
        return f"{reason}); use auto or cpu"
    return (
        f"{unusable[0]} has driver {driver_version() or 'unknown'}, torch {torch.__version__} "
        f"is built for CUDA {torch.version.cuda or '(none)'}: {reason}); update the driver, "
        "install a torch for its CUDA (https://pytorch.org), or give strategy.device=cpu"
    )


def _own_gpu(launch: Launch) -> int:
    """The number of this process's GPU among those that it sees."""
    count = torch.cuda.device_count()
    if count == 1:
        return 0
    if launch.local_rank >= count:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "unset")
        raise ConfigError(
            f"local rank {launch.local_rank} has no GPU: this host shows {count} "
            f"(CUDA_VISIBLE_DEVICES: {visible}); start at most {count} a host, "
            "or give strategy.device=cpu."
        )
    return launch.local_rank


def nvidia_gpus() -> list[str]:
    """The device files of NVIDIA's GPUs that this process may use; [] if CUDA_VISIBLE_DEVICES hides
    them all.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and not re.match(r"\d|GPU-|MIG-", visible.strip()):
        return []  # "", -1, Slurm's NoDevFiles
    return list(map(str, filter(_may_open, sorted(DEV.glob("nvidia[0-9]*")))))


def _may_open(path: Path) -> bool:
    """A scheduler gives a job without GPUs the device files too, but not the right to open them."""
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError as error:
        # a driver that does not answer must not look like a machine without GPUs
        return not isinstance(error, PermissionError)
    return True


def driver_version() -> str | None:
    """The version of NVIDIA's kernel driver, such as "535.104.05"; None where it does not say."""
    try:
        text = DRIVER_VERSION.read_text(errors="replace")
    except OSError:
        return None
    match = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)", text)
    return match[1] if match else None


def device_identity(device: torch.device) -> str:
    """This process's GPU, by the UUID that no other has, or "cpu", and the host."""
    name = "cpu"
    if device.type == "cuda":
        name = torch.cuda.get_device_properties(device).uuid
    return f"{name} on {socket.gethostname()}"


def check_devices(identities: Sequence[str], shared: bool = False) -> None:
    """Raise ConfigError if two of the ranks' `identities`, in order, are one GPU that cannot be
    `shared`, or some are a GPU and others a CPU.
    """
    ranks = defaultdict(list)
    for rank, identity in enumerate(identities):
        ranks[identity].append(rank)
    on_cpu = [identity for identity in ranks if identity.startswith("cpu ")]
    for identity in ranks:
        if len(ranks[identity]) > 1 and identity not in on_cpu and not shared:
            sharing = f"{format_ranks(ranks[identity])} all have the GPU {identity}"
            raise ConfigError(
                f"{sharing}; start at most one process for each GPU of a host, or give "
                "strategy=ddp strategy.process_group_backend=gloo, which is slow.",
                collective=True,
            )
    if 0 < len(on_cpu) < len(ranks):
        mixed = f"rank {ranks[on_cpu[0]][0]} works on the {on_cpu[0]}, others on a GPU"
        raise ConfigError(
            f"{mixed}; give strategy.device=cuda to learn why, or cpu for all.", collective=True
        )


class Memory(NamedTuple):
    """Bytes that tensors may take on a GPU, and what they are in words."""

    room: float
    words: str


def find_gpu(name: str) -> Memory:
    """The GPU that a user names, or its memory as torch reports it, such as "24GiB".

    Raises ConfigError for an unknown name.
    """
    wanted = name.strip().upper()
    size = re.fullmatch(r"(\d+(?:\.\d+)?) ?GIB", wanted)
    if size and float(size[1]) >= 1:
        return memory_of(f"a GPU of {size[1]} GiB", float(size[1]))
    near = [gpu for gpu in GPUS if f"{gpu.upper()}-".startswith(f"{wanted}-")]
    if len(near) == 1:
        return memory_of(near[0], GPUS[near[0]])
    raise ConfigError(
        f"gpu={name} is not known; use {', '.join(near or GPUS)}, or its memory, such as gpu=24GiB "
        "(strategy.device=cuda:0 trains on one)."
    )


def memory_of(name: str, gib: float) -> Memory:
    """The memory that tensors may take of a GPU with so many GiB."""
    room = (gib - CONTEXT_GIB) * 2**30
    return Memory(room, f"{format_bytes(room)} that {name} has beside the CUDA context")
