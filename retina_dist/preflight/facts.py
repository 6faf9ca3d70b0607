"""What each rank reads and measures on its machine. A fact that cannot be read is reported and stops nothing."""

from __future__ import annotations

import ipaddress
import json
import os
import resource
import shutil
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import distributions
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from torchvision.models import resnet18

from retina_dist.files import first_line
from retina_dist.run.environment import versions
from retina_dist.strategies.base import DistributedStrategy
from retina_dist.strategies.devices import driver_version, nccl_version

T = TypeVar("T")

SHARED_MEMORY = Path("/dev/shm")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # equal in all containers of a machine, and on no other machine
CLOCK_ROUNDS = 20
STEP_S, FEWEST_STEPS = 2.0, 3  # enough to show a power cap; heat shows after minutes only
SIZES_MB = (1, 64)  # 1e6 bytes: a latency, and more than a bucket of gradients
MOST_REPETITIONS = 20

Readings = Sequence[Sequence[float]]  # (before, after) each all-reduce, in seconds since 1970


@dataclass
class Facts:
    """Of one rank; plain values, since they travel as JSON. None where a fact does not exist or could not be read."""

    rank: int
    host: str
    boot_id: str | None = None
    gpu: str | None = None  # its name; None on the CPU
    uuid: str | None = None
    memory_gib: float | None = None  # of the GPU
    versions: dict[str, str] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)  # every installed distribution
    addresses: list[str] = field(default_factory=list)  # that the host's own name resolves to
    foreign: list[str] = field(default_factory=list)  # those of them that this host does not have
    shm_bytes: int | None = None  # free in /dev/shm
    open_files: int | None = None  # the soft limit
    disk_free: int | None = None  # bytes where the run folder will be
    data: str | None = None  # fingerprint of the training data, or "error: ..."; the first rank of a host reads it
    clock: list[tuple[float, float]] = field(default_factory=list)  # see `read_clock`
    step_ms: float | None = None
    unread: dict[str, str] = field(default_factory=dict)  # fact -> why it could not be read

    @property
    def machine(self) -> str:
        """Equal for the ranks of a machine only, even if two machines have the same name."""
        return f"{self.host}/{self.boot_id or ''}"

    def attempt(self, fact: str, read: Callable[[], T]) -> T | None:
        """What `read` returns; None if it fails, with the reason in `unread`."""
        try:
            return read()
        except Exception as error:  # whatever a broken machine answers
            self.unread[fact] = first_line(error)
            return None


def read_machine(strategy: DistributedStrategy, run_folder: Path) -> Facts:
    """The facts of this rank's process and machine, without communication."""
    facts = Facts(strategy.rank, socket.gethostname())
    facts.boot_id = facts.attempt("boot_id", lambda: BOOT_ID.read_text().strip())
    facts.versions = {name: version for name, version in versions().items() if name != "platform"}
    facts.versions["CUDA of torch"] = str(torch.version.cuda)
    facts.packages = facts.attempt("packages", lambda: {d.metadata["Name"]: d.version for d in distributions()}) or {}
    if strategy.device.type == "cuda":
        facts.attempt("GPU", lambda: _read_gpu(facts, strategy.device))
        read = {"driver": facts.attempt("driver", driver_version), "NCCL": facts.attempt("NCCL", nccl_version)}
        facts.versions |= {name: version for name, version in read.items() if version is not None}
    if not (os.environ.get("GLOO_SOCKET_IFNAME") or os.environ.get("HOROVOD_GLOO_IFACE")):  # then no name is resolved
        facts.addresses = facts.attempt("address of the host's name", lambda: _addresses(facts.host)) or []
        facts.foreign = [address for address in facts.addresses if not is_own(address)]
    facts.shm_bytes = facts.attempt(str(SHARED_MEMORY), lambda: shutil.disk_usage(SHARED_MEMORY).free)
    facts.open_files = facts.attempt("limit of open files", lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    facts.disk_free = facts.attempt("disk of the run folder", lambda: shutil.disk_usage(_existing(run_folder)).free)
    return facts


def gather_facts(strategy: DistributedStrategy, facts: Facts) -> list[Facts]:
    """The facts of all ranks, in order, over the CPUs' network. Every rank calls it."""
    own = torch.frombuffer(bytearray(json.dumps(asdict(facts)).encode()), dtype=torch.uint8)
    lengths = strategy.all_gather(torch.tensor([len(own)])).tolist()
    everyone = strategy.all_gather(own)
    return [Facts(**json.loads(bytes(part.tolist()))) for part in everyone.split(lengths)]


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


def _addresses(host: str) -> list[str]:
    return sorted({str(entry[4][0]) for entry in socket.getaddrinfo(host, None)})


def _existing(folder: Path) -> Path:
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if path.is_dir())


def _read_gpu(facts: Facts, device: torch.device) -> None:
    properties = torch.cuda.get_device_properties(device)
    facts.gpu, facts.memory_gib = properties.name, round(properties.total_memory / 2**30, 1)
    facts.uuid = str(properties.uuid)


class Offset(NamedTuple):
    """Seconds by which a clock is ahead of another: `ahead_s`, give or take `bound_s`."""

    ahead_s: float
    bound_s: float


def read_clock(strategy: DistributedStrategy) -> list[tuple[float, float]]:
    """This host's time before and after each of `CLOCK_ROUNDS` all-reduces on the CPU. Every rank calls it.

    No rank leaves an all-reduce before every rank has entered it, which bounds the difference of two clocks from both sides,
    whatever the network does, as a request and its answer do in Cristian 1989, https://doi.org/10.1007/BF01784024.
    """
    readings = []
    for _ in range(CLOCK_ROUNDS):
        before = time.time()
        float(strategy.all_reduce(torch.zeros(1), "sum"))
        readings.append((before, time.time()))
    return readings


def offset(reference: Readings, other: Readings) -> Offset:
    """How far `other` is ahead of `reference`.

    >>> offset([(0.0, 2.0)], [(10.5, 12.0)])
    Offset(ahead_s=10.25, bound_s=1.75)
    """
    rounds = list(zip(reference, other, strict=True))
    least = max(there[0] - here[1] for here, there in rounds)
    most = min(there[1] - here[0] for here, there in rounds)
    return Offset((least + most) / 2, abs(most - least) / 2)


def time_step(device: torch.device) -> float:
    """Milliseconds, median, of a forward and a backward pass of a ResNet-18 on noise; nothing is sent.

    In a training step the others wait for a slow rank, so all seem equally slow.
    """
    torch.manual_seed(0)
    model = resnet18(weights=None).to(device)
    size, side = (16, 512) if device.type == "cuda" else (1, 112)
    images = torch.rand(size, 3, side, side, device=device)
    times: list[float] = []
    until = time.monotonic() + STEP_S
    while len(times) <= FEWEST_STEPS or time.monotonic() < until:
        started = time.perf_counter()
        model.zero_grad()
        model(images).sum().backward()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append((time.perf_counter() - started) * 1e3)
    return statistics.median(times[1:])  # the first allocates, and chooses kernels


class Link(NamedTuple):
    """An all-reduce of `size_mb` (1e6 bytes) over all ranks; the slowest rank's time, the mean of the repetitions."""

    size_mb: int
    ms: float

    def gb_s(self, ranks: int) -> float:
        """Bus bandwidth as nccl-tests prints it: 2 (n-1)/n of the bytes in the time."""
        return 2 * (ranks - 1) / ranks * self.size_mb / self.ms


def measure_links(strategy: DistributedStrategy) -> list[Link]:
    """The time of an all-reduce of each of `SIZES_MB`, equal on all ranks; none with one rank. Every rank calls it.

    It includes the copy that the strategy makes of its input, and the wait for the device.
    """
    return [Link(size, _milliseconds(strategy, size)) for size in SIZES_MB] if strategy.world_size > 1 else []


def _milliseconds(strategy: DistributedStrategy, size_mb: int) -> float:
    x = torch.ones(size_mb * 10**6 // 4, device=strategy.device)

    def slowest_ms(repetitions: int) -> float:
        float(strategy.all_reduce(x[:1]))  # begin together
        started = time.perf_counter()
        for _ in range(repetitions):
            last = strategy.all_reduce(x, "sum")
        float(last[0])  # waits for a GPU
        own = torch.tensor([(time.perf_counter() - started) / repetitions * 1e3], device=strategy.device)
        return float(strategy.all_reduce(own, "max"))

    slowest_ms(1)  # connections are made at the first
    once = slowest_ms(1)
    return slowest_ms(max(1, min(MOST_REPETITIONS, int(2e3 / max(once, 1e-3)))))
