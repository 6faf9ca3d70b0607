"""What one rank finds out about its machine. A fact that cannot be read is said, and stops nothing."""

from __future__ import annotations

import ipaddress
import resource
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TypeVar

import torch

from retina_dist.files import first_line
from retina_dist.run.environment import versions
from retina_dist.strategies.base import DistributedStrategy
from retina_dist.strategies.devices import driver_version

T = TypeVar("T")

SHARED_MEMORY = Path("/dev/shm")
INFINIBAND, INTERFACES = Path("/sys/class/infiniband"), Path("/sys/class/net")


@dataclass
class Facts:
    """Of one rank; plain values only, since they travel as JSON. None where a fact does not exist or was not read."""

    rank: int
    host: str
    gpu: str | None = None  # its name; None on the CPU
    uuid: str | None = None
    memory_gib: float | None = None  # of the GPU
    versions: dict[str, str] = field(default_factory=dict)
    addresses: list[str] = field(default_factory=list)  # that the host's own name resolves to
    foreign: list[str] = field(default_factory=list)  # those of them that this host does not have
    ethernet_gbit: float | None = None  # of the fastest card
    infiniband_gbit: float | None = None  # of all active cards together
    shm_bytes: int | None = None  # free in /dev/shm
    open_files: int | None = None  # the soft limit
    disk_free: int | None = None  # bytes where the run folder will be
    data: dict[str, str] = field(
        default_factory=dict
    )  # file -> digest, or "error: ..."; the first rank of a host reads
    clock: list[tuple[float, float]] = field(default_factory=list)  # see `clock`
    step_ms: float | None = None
    unread: dict[str, str] = field(default_factory=dict)  # fact -> why it could not be read

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
    facts.versions = facts.attempt("versions", lambda: _versions(strategy)) or {}
    if strategy.device.type == "cuda":
        properties = torch.cuda.get_device_properties(strategy.device)
        facts.gpu, facts.memory_gib = properties.name, round(properties.total_memory / 2**30, 1)
        facts.uuid = facts.attempt("UUID of the GPU", lambda: str(properties.uuid))
        facts.versions["driver"] = facts.attempt("driver", _driver) or ""
        facts.versions["NCCL"] = facts.attempt("NCCL", _nccl) or ""
    facts.addresses = facts.attempt("address of the host's name", lambda: _addresses(facts.host)) or []
    facts.foreign = [address for address in facts.addresses if not is_own(address)]
    facts.ethernet_gbit = facts.attempt("Ethernet cards", _ethernet_gbit)
    facts.infiniband_gbit = facts.attempt("InfiniBand cards", _infiniband_gbit)
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
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _versions(strategy: DistributedStrategy) -> dict[str, str]:
    found = {name: version for name, version in versions().items() if name != "platform"}
    found["CUDA of torch"] = str(torch.version.cuda)
    if strategy.backend.startswith("Horovod"):
        found["horovod"] = metadata.version("horovod")
    return found


def _driver() -> str:
    found = driver_version()
    if found is None:
        raise FileNotFoundError("NVIDIA's kernel driver does not say its version in /proc")
    return found


def _nccl() -> str:
    found = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return ".".join(map(str, found)) if isinstance(found, tuple) else str(found)


def _addresses(host: str) -> list[str]:
    return sorted({str(entry[4][0]) for entry in socket.getaddrinfo(host, None)})


def _open_files() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 if soft == resource.RLIM_INFINITY else soft


def _ethernet_gbit() -> float | None:
    """Of the fastest card that has a cable in; virtual interfaces have no `device`."""
    cards = [card for card in INTERFACES.iterdir() if (card / "device").exists()]
    speeds = [_number(card / "speed") for card in cards if _text(card / "operstate") == "up"]
    return max((speed / 1000 for speed in speeds if speed > 0), default=None)


def _infiniband_gbit() -> float | None:
    """Of all active ports; those whose link layer is Ethernet are left out."""
    if not INFINIBAND.is_dir():
        return None
    ports = [port for port in INFINIBAND.glob("*/ports/*") if _text(port / "link_layer") == "InfiniBand"]
    rates = [_number(port / "rate") for port in ports if "ACTIVE" in _text(port / "state")]
    return sum(rates) or None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # a card that is down answers "Invalid argument"
        return ""


def _number(path: Path) -> float:
    """The number at the start of a file, such as that of "200 Gb/sec (4X HDR)"; 0 where there is none."""
    first = (_text(path).split() or ["0"])[0]
    return float(first) if first.replace(".", "", 1).isdigit() else 0.0
