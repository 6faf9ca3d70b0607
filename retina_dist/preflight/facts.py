"""What each rank reads and measures on its machine. A fact that cannot be read is reported and stops nothing."""

from __future__ import annotations

import json
import os
import resource
import shutil
import socket
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from torchvision.models import resnet18

from retina_dist.files import first_line
from retina_dist.run.environment import versions
from retina_dist.strategies.base import DistributedStrategy
from retina_dist.strategies.devices import driver_version

T = TypeVar("T")

SHARED_MEMORY = Path("/dev/shm")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # equal in all containers of a machine, and on no other machine
STEP_S, FEWEST_STEPS = 2.0, 3  # enough to show a power cap; heat shows after minutes only
SIZES_MB = (1, 64)  # 1e6 bytes: a latency, and more than a bucket of gradients
MOST_REPETITIONS = 20
DATA = "training data"  # the fact whose absence is an error


@dataclass
class Facts:
    """Of one rank; plain values, since they travel as JSON. None where a fact does not exist or could not be read."""

    rank: int
    host: str
    boot_id: str | None = None
    gpu: str | None = None  # its name; None on the CPU
    memory_gib: float | None = None  # of the GPU
    versions: dict[str, str] = field(default_factory=dict)
    addresses: list[str] = field(default_factory=list)  # that the host's own name resolves to
    shm_bytes: int | None = None  # free in /dev/shm
    open_files: int | None = None  # the soft limit
    disk_free: int | None = None  # bytes where the run folder will be
    data: str | None = None  # fingerprint of the training data; the first rank of a host reads it
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
    if strategy.device.type == "cuda":
        facts.attempt("GPU", lambda: _read_gpu(facts, strategy.device))
        nccl = facts.attempt("NCCL", lambda: ".".join(map(str, torch.cuda.nccl.version())))  # type: ignore[no-untyped-call]
        read = {"driver": facts.attempt("driver", driver_version), "NCCL": nccl}
        facts.versions |= {name: version for name, version in read.items() if version is not None}
    if not (os.environ.get("GLOO_SOCKET_IFNAME") or os.environ.get("HOROVOD_GLOO_IFACE")):  # then no name is resolved
        resolved = facts.attempt("address of the host's name", lambda: socket.getaddrinfo(facts.host, None)) or []
        facts.addresses = sorted({str(entry[4][0]) for entry in resolved})
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


def _existing(folder: Path) -> Path:
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if path.is_dir())


def _read_gpu(facts: Facts, device: torch.device) -> None:
    properties = torch.cuda.get_device_properties(device)
    facts.gpu, facts.memory_gib = properties.name, round(properties.total_memory / 2**30, 1)


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
