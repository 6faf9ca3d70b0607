"""What one rank finds out about its machine. A fact that cannot be read is said, and stops nothing."""

from __future__ import annotations

import ipaddress
import os
import resource
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import torch

from retina_dist.files import first_line
from retina_dist.run.environment import versions
from retina_dist.strategies.base import DistributedStrategy
from retina_dist.strategies.devices import driver_version, nccl_version

T = TypeVar("T")

SHARED_MEMORY = Path("/dev/shm")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # equal in all containers of a machine, and no other machine's


@dataclass
class Facts:
    """Of one rank; plain values only, since they travel as JSON. None where a fact does not exist or was not read."""

    rank: int
    host: str
    boot_id: str | None = None
    gpu: str | None = None  # its name; None on the CPU
    uuid: str | None = None
    memory_gib: float | None = None  # of the GPU
    versions: dict[str, str] = field(default_factory=dict)
    addresses: list[str] = field(default_factory=list)  # that the host's own name resolves to
    foreign: list[str] = field(default_factory=list)  # those of them that this host does not have
    chosen_interface: str | None = None  # GLOO_SOCKET_IFNAME: the host's name is then not asked for its address
    shm_bytes: int | None = None  # free in /dev/shm
    open_files: int | None = None  # the soft limit
    disk_free: int | None = None  # bytes where the run folder will be
    checkpoint_bytes: int = 0  # that a run to resume has there already
    data: dict[str, str] = field(
        default_factory=dict
    )  # file -> digest, "error: ..." or "slow: ..."; the first rank of a host reads
    clock: list[tuple[float, float]] = field(default_factory=list)  # see `clock`
    step_ms: float | None = None
    unread: dict[str, str] = field(default_factory=dict)  # fact -> why it could not be read

    @property
    def machine(self) -> str:
        """What no two machines have in common, though two may be called alike."""
        return f"{self.host}/{self.boot_id or ''}"

    def attempt(self, fact: str, read: Callable[[], T]) -> T | None:
        """What `read` returns; None where it fails, and then why is in `unread`."""
        try:
            return read()
        except Exception as error:  # whatever a broken machine answers
            self.unread[fact] = first_line(error)
            return None


def read_machine(strategy: DistributedStrategy, run_folder: Path) -> Facts:
    """The facts of this rank's process and machine; nothing is measured and nobody is waited for."""
    facts = Facts(strategy.rank, socket.gethostname())
    facts.boot_id = facts.attempt("boot_id", lambda: BOOT_ID.read_text().strip())
    facts.versions = facts.attempt("versions", _versions) or {}
    if strategy.device.type == "cuda":
        facts.attempt("GPU", lambda: _read_gpu(facts, strategy.device))
        found = {"driver": facts.attempt("driver", _driver), "NCCL": facts.attempt("NCCL", nccl_version)}
        facts.versions |= {name: version for name, version in found.items() if version is not None}
    facts.addresses = facts.attempt("address of the host's name", lambda: _addresses(facts.host)) or []
    facts.foreign = facts.attempt("host's own addresses", lambda: [a for a in facts.addresses if not is_own(a)]) or []
    facts.chosen_interface = os.environ.get("GLOO_SOCKET_IFNAME") or os.environ.get("HOROVOD_GLOO_IFACE")
    facts.shm_bytes = facts.attempt(str(SHARED_MEMORY), lambda: shutil.disk_usage(SHARED_MEMORY).free)
    facts.open_files = facts.attempt("limit of open files", _open_files)
    facts.disk_free = facts.attempt("disk of the run folder", lambda: shutil.disk_usage(existing(run_folder)).free)
    return facts


def existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    folder = folder.absolute()
    return next(place for place in (folder, *folder.parents) if place.is_dir())


def is_loopback(address: str) -> bool:
    """Whether an address, such as 127.0.1.1, leads to no other machine."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def is_own(address: str) -> bool:
    """Whether this host has the address: only such a one can be bound."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:  # an error where the host has no IPv6
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def _read_gpu(facts: Facts, device: torch.device) -> None:
    properties = torch.cuda.get_device_properties(device)
    facts.gpu, facts.memory_gib = properties.name, round(properties.total_memory / 2**30, 1)
    facts.uuid = str(properties.uuid)


def _versions() -> dict[str, str]:
    found = {name: version for name, version in versions().items() if name != "platform"}
    found["CUDA of torch"] = str(torch.version.cuda)
    return found


def _driver() -> str:
    found = driver_version()
    if found is None:
        raise FileNotFoundError("NVIDIA's kernel driver does not say its version in /proc")
    return found


def _addresses(host: str) -> list[str]:
    return sorted({str(entry[4][0]) for entry in socket.getaddrinfo(host, None)})


def _open_files() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 if soft == resource.RLIM_INFINITY else soft
