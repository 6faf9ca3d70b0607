"""`doctor cluster=true`: is every rank's machine sound, and equal to the others?

A fact that cannot be read stops nothing.
"""

import os
import resource
import shutil
import socket
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torchvision.models import resnet18

from retina_dist.base.errors import describe_error, set_status
from retina_dist.base.files import nearest_existing
from retina_dist.base.text import aligned, format_bytes, format_ranks, pluralize
from retina_dist.config.run_config import RunConfig, task_class
from retina_dist.reporting.findings import DoctorReport, Finding, Level
from retina_dist.run.build import build_strategy
from retina_dist.run.records import describe_versions, versions
from retina_dist.strategies.base import DistributedStrategy
from retina_dist.strategies.devices import driver_version
from retina_dist.strategies.launch_environment import detect_launch

T = TypeVar("T")

SHARED_MEMORY = "/dev/shm"
# Equal in all containers of a machine, and on no other machine.
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# Enough to show a power cap; heat shows after minutes only.
STEP_S = 2.0
MIN_STEPS = 3
SIZES_MB = (1, 64)  # 1e6 bytes: a latency, and more than a bucket of gradients
MAX_REPETITIONS = 20
DATA = "training data"  # the fact whose absence is an error


@dataclass
class Facts:
    """Facts of one rank as plain values, since they travel as JSON.

    None where a fact does not exist or could not be read.
    """

    rank: int
    host: str
    boot_id: str | None = None
    gpu: str | None = None  # its name; None on the CPU
    memory_gib: float | None = None  # of the GPU
    versions: dict[str, str | None] = field(default_factory=dict)
    addresses: list[str] = field(default_factory=list)  # that the host's own name resolves to
    shm_bytes: int | None = None  # free in /dev/shm
    open_files: int | None = None  # the soft limit
    disk_free: int | None = None  # bytes where the run folder will be
    data: str | None = None  # fingerprint of the training data; the first rank of a host reads it
    step_ms: float | None = None
    unread: dict[str, str] = field(default_factory=dict)  # fact -> why it could not be read

    @property
    def device(self) -> str:
        """The GPU with its memory, or the CPU."""
        if self.gpu and self.memory_gib:
            return f"{self.gpu}, {self.memory_gib:g} GiB"
        return "the CPU"

    def attempt(self, fact: str, read: Callable[..., T], *arguments: object) -> T | None:
        """What `read` returns; None if it fails, with the reason in `unread`."""
        try:
            return read(*arguments)
        except Exception as error:  # whatever a broken machine answers
            self.unread[fact] = describe_error(error)
            return None


def read_machine(strategy: DistributedStrategy, run_folder: Path) -> Facts:
    """The facts of this rank's process and machine, without communication."""
    facts = Facts(strategy.rank, socket.gethostname())
    read = facts.attempt
    facts.boot_id = read("boot_id", lambda: BOOT_ID.read_text().strip())
    facts.versions = {**versions(), "CUDA of torch": str(torch.version.cuda)}
    del facts.versions["platform"]
    if strategy.device.type == "cuda":
        gpu = read("GPU", torch.cuda.get_device_properties, strategy.device)
        if gpu:
            facts.gpu = gpu.name
            facts.memory_gib = round(gpu.total_memory / 2**30, 1)
        facts.versions["driver"] = driver_version()
        facts.versions["NCCL"] = read("NCCL", lambda: ".".join(map(str, torch.cuda.nccl.version())))
    # With an interface named, no name is resolved.
    if not (os.environ.get("GLOO_SOCKET_IFNAME") or os.environ.get("HOROVOD_GLOO_IFACE")):
        found = read("address of the host's name", socket.getaddrinfo, facts.host, None)
        facts.addresses = sorted({str(entry[4][0]) for entry in found or ()})
    facts.shm_bytes = read(SHARED_MEMORY, _free_bytes, SHARED_MEMORY)
    limits = read("limit of open files", resource.getrlimit, resource.RLIMIT_NOFILE)
    facts.open_files = limits[0] if limits else None
    facts.disk_free = read("disk space", _free_bytes, nearest_existing(run_folder))
    return facts


def _free_bytes(place: str | Path) -> int:
    return shutil.disk_usage(place).free


def time_step(device: torch.device) -> float:
    """Median milliseconds of a forward and a backward pass of a ResNet-18 on noise.

    Nothing is sent, so no rank waits for another.
    """
    torch.manual_seed(0)
    model = resnet18(weights=None).to(device)
    shape = (1, 3, 112, 112)
    if device.type == "cuda":
        shape = (16, 3, 512, 512)
    images = torch.rand(shape, device=device)
    times: list[float] = []
    until = time.monotonic() + STEP_S
    while len(times) <= MIN_STEPS or time.monotonic() < until:
        started = time.perf_counter()
        model.zero_grad()
        loss = model(images).sum()
        loss.backward()
        loss.item()  # waits for a GPU
        times.append((time.perf_counter() - started) * 1e3)
    return statistics.median(times[1:])  # the first allocates, and chooses kernels


class Link(NamedTuple):
    """An all-reduce of `size_mb` (1e6 bytes) over all ranks.

    `ms` is the slowest rank's time, the mean of the repetitions.
    """

    size_mb: int
    ms: float

    def gb_s(self, ranks: int) -> float:
        """Bus bandwidth as nccl-tests prints it: 2 (n-1)/n of the bytes in the time."""
        return 2 * (ranks - 1) / ranks * self.size_mb / self.ms


def measure_link(strategy: DistributedStrategy, size_mb: int) -> Link:
    """The time of an all-reduce, with the copy that the strategy makes of its input.

    Every rank calls it, and gets the same.
    """
    x = torch.ones(size_mb * 10**6 // 4, device=strategy.device)

    def slowest_ms(repetitions: int) -> float:
        float(strategy.all_reduce(x[:1]))  # begin together
        started = time.perf_counter()
        for _ in range(repetitions):
            last = strategy.all_reduce(x, "sum")
        float(last[0])  # waits for a GPU
        own_ms = (time.perf_counter() - started) / repetitions * 1e3
        return float(strategy.all_reduce(torch.tensor([own_ms], device=strategy.device), "max"))

    slowest_ms(1)  # connections are made at the first
    once = slowest_ms(1)
    in_two_seconds = int(2e3 / max(once, 1e-3))
    return Link(size_mb, slowest_ms(max(1, min(MAX_REPETITIONS, in_two_seconds))))


CPU = torch.device("cpu")
TOLERABLE = ("driver", "python")  # training runs with different ones, but not always equally fast
# Times the median, on a GPU, and on a CPU that others may use too.
SLOW_ON_GPU = 1.1
SLOW_ON_CPU = 1.5
SHM_OF_WORKER = 64 * 2**20  # bytes of batches that a data worker hands over: a rule of thumb
MIN_DISK = 2**30
REMEDIES = {
    "versions": "Install the same versions on every host, from one image or lock file.",
    "devices": "Use hosts of one kind, or every step waits for the slowest.",
    "data": "Copy the data again, or mount the same storage on every host.",
    "/dev/shm": (
        "Give the container more (docker run --shm-size=16g; on Kubernetes an emptyDir), "
        "or lower data.num_workers."
    ),
    "open files": (
        "Raise the limit where the job starts: ulimit -n 65536 (docker run --ulimit nofile=65536)."
    ),
    "host names": (
        "Give each machine a different name (hostnamectl set-hostname NAME, docker run "
        "--hostname NAME)."
    ),
    "addresses": (
        "Map the host's name to its address in the cluster in its /etc/hosts, or set "
        "GLOO_SOCKET_IFNAME=INTERFACE."
    ),
    "step": (
        "Look there for other processes, a hot GPU or a low power limit (nvidia-smi -q -d "
        "PERFORMANCE), or leave it out."
    ),
    "disk": (
        "Make room, give another output_dir, or lower trainer.keep_last and trainer.save_top_k."
    ),
    "network": (
        "See in NCCL_DEBUG=INFO which network was chosen, and set NCCL's variables as in "
        "docs/clusters.md."
    ),
    "unknown": "It was not checked.",
}


def _problem(level: Level, where: str, what: str) -> Finding:
    return Finding(level, where, what, REMEDIES[where])


def findings(
    ranks: Sequence[Facts],
    links: Sequence[Link],
    config: RunConfig,
    folder: str,
    expect_gb_s: float | None = None,
) -> list[Finding]:
    """All findings.

    Args:
        ranks: the facts of each rank.
        links: all-reduces, the largest last; none with one process.
        config: the settings of the training.
        folder: the one that rank 0 writes into.
        expect_gb_s: least bus bandwidth of the last link, in 1e9 bytes a second.
    """
    workers = 0
    if not config.data.synthetic:
        workers = config.data.num_workers
    found = [*_differences(ranks), *_machine_problems(ranks, workers), *_slow_ranks(ranks)]
    for host, count in Counter(own[0].host for own in by_machine(ranks)).items():
        if count > 1:
            found.append(_problem("error", "host names", f"{count} machines are called {host}"))
    free = ranks[0].disk_free
    if free is not None and free < MIN_DISK:
        space = f"{format_bytes(free)} free for {folder}, where checkpoints go"
        found.append(_problem("error", "disk", f"{ranks[0].host} has {space}"))
    if links and expect_gb_s:
        reached = links[-1].gb_s(len(ranks))
        if reached < expect_gb_s:
            speed = f"{reached:.2f} GB/s, below expect_gb_s={expect_gb_s:g}"
            text = f"an all-reduce of {links[-1].size_mb} MB reaches {speed}"
            found.append(_problem("error", "network", text))
    return [*found, *_unread(ranks)]


def by_machine(ranks: Sequence[Facts]) -> list[list[Facts]]:
    """The ranks of each machine, the lowest first, even if two machines have the same name."""
    machines: dict[object, list[Facts]] = defaultdict(list)
    for facts in ranks:
        machines[facts.host, facts.boot_id].append(facts)
    return list(machines.values())


def _differences(ranks: Sequence[Facts]) -> Iterator[Finding]:
    """Another version of a library, another GPU or other training data on some rank."""
    for name in dict.fromkeys(chain.from_iterable(facts.versions for facts in ranks)):
        versions = {}
        for facts in ranks:
            if name not in facts.unread:
                versions[facts.rank] = facts.versions.get(name) or "none"
        level: Level = "error"
        if name in TOLERABLE:
            level = "warning"
        yield from _odd_ones(level, "versions", name, versions, ranks)

    devices = {facts.rank: facts.device for facts in ranks}
    yield from _odd_ones("warning", "devices", "the device", devices, ranks)
    read_data = {own[0].rank: own[0].data for own in by_machine(ranks) if own[0].data}
    yield from _odd_ones("error", "data", "the training data", read_data, ranks)


def _machine_problems(ranks: Sequence[Facts], workers: int) -> Iterator[Finding]:
    """What is wrong with a machine for so many data `workers` a rank, or with its address."""
    machines = by_machine(ranks)
    # Libraries and logs; pipes and tensors of a worker; sockets.
    files = 256 + 40 * workers + 4 * (len(ranks) - 1)
    for own in machines:
        facts = own[0]
        shm = SHM_OF_WORKER * workers * len(own)
        if facts.shm_bytes is not None and facts.shm_bytes < shm:
            text = (
                f"{facts.host} has {format_bytes(facts.shm_bytes)} free in /dev/shm, and the data "
                f"workers of its {pluralize(len(own), 'rank')} may need {format_bytes(shm)}"
            )
            yield _problem("warning", "/dev/shm", text)
        if facts.open_files is not None and 0 <= facts.open_files < files:  # -1: no limit
            text = (
                f"{facts.host} lets a process open {facts.open_files} files, "
                f"and a rank may need about {files}"
            )
            yield _problem("warning", "open files", text)
        loopback = [a for a in facts.addresses if a.startswith("127.") or a == "::1"]
        if loopback and len(machines) > 1:
            text = (
                f"{facts.host} resolves its own name to {loopback[0]}, "
                "where no other host can reach it"
            )
            yield _problem("warning", "addresses", text)


def _slow_ranks(ranks: Sequence[Facts]) -> Iterator[Finding]:
    """The slowest rank, where it is much slower than the median; of two, the faster is that."""
    times = [(facts.step_ms, facts.rank) for facts in ranks if facts.step_ms]
    if not times:
        return
    slowest_ms, rank = max(times)
    ratio = slowest_ms / statistics.median_low(time for time, _ in times)
    bound = SLOW_ON_GPU
    if ranks[rank].gpu is None:
        bound = SLOW_ON_CPU
    if ratio > bound:
        text = (
            f"rank {rank} on {ranks[rank].host} takes {slowest_ms:.1f} ms for a step, "
            f"{ratio:.2f} times the median: every step waits for it"
        )
        yield _problem("warning", "step", text)


def _unread(ranks: Sequence[Facts]) -> Iterator[Finding]:
    """Facts that could not be read, so that nothing was checked with them."""
    reasons = defaultdict(list)
    for facts in ranks:
        for fact, why in facts.unread.items():
            reasons[fact, why.rstrip(".")].append(facts.rank)
    for (fact, why), without in reasons.items():
        who = format_ranks(without)
        if len(without) == len(ranks):
            who = "no rank"
        text = f"{who} could not read the {fact} ({why})"
        if fact == DATA:
            yield _problem("error", "data", text)
        else:
            yield _problem("warning", "unknown", text)


def _odd_ones(
    level: Level, remedy: str, what: str, values: Mapping[int, str], ranks: Sequence[Facts]
) -> Iterator[Finding]:
    """The problem that some ranks have another value than most; none where all agree.

    In a tie the lowest rank is right.
    """
    having: dict[str, list[int]] = defaultdict(list)
    for rank, value in values.items():
        having[value].append(rank)
    if len(having) < 2:
        return
    usual = max(having, key=lambda value: len(having[value]))  # the first of equals
    first = having.pop(usual)[0]
    parts = []
    for value, odd in having.items():
        hosts = dict.fromkeys(ranks[rank].host for rank in odd)
        parts.append(f"{value} on {', '.join(hosts)} ({format_ranks(odd)})")
    others = "the others"
    if len(values) <= 2:
        others = ranks[first].host
    yield _problem(level, remedy, f"{what}: {'; '.join(parts)}, but {usual} on {others}")


def check_cluster(config: RunConfig, expect_gb_s: float | None, output: str | None) -> int:
    """The number of errors, on every rank; the main one shows the report, and writes it.

    Every rank calls it. A rank that does not start, or hangs, ends the others with an error that
    names it, after `strategy.timeout_s`. `expect_gb_s` is the least bus bandwidth.
    """
    with build_strategy(config) as strategy:
        return strategy.run_elastic(partial(_check, config, expect_gb_s, strategy, output))


def _check(
    config: RunConfig,
    expect_gb_s: float | None,
    strategy: DistributedStrategy,
    output: str | None,
) -> int:
    # Where checkpoints go, or the run folder where they go to a URL.
    place = config.trainer.checkpoint_dir
    if not place or "://" in place:
        place = config.output_dir or "runs"
    kind = task_class(config)

    def prepare() -> None:
        if strategy.is_main:
            kind.prepare(config)

    def read_data() -> str | None:
        if strategy.local_rank:
            return None
        task = kind(config, strategy)
        return f"{task.fingerprint()[:16]}…, {' '.join(task.describe().split())}"

    def show_report(links: Sequence[Link]) -> int:
        report = _report(ranks, links, strategy, findings(ranks, links, config, place, expect_gb_s))
        if strategy.is_main:
            report.show(output)
        return report.count("error")

    facts = _on_each(strategy, "reading the machine", read_machine, strategy, Path(place))
    _on_each(strategy, "drawing the data", prepare)
    facts.data = _on_each(strategy, "reading data", facts.attempt, DATA, read_data)
    # All at once, as in a training: they share power, memory and cores.
    facts.step_ms = _on_each(
        strategy, "the synthetic step", facts.attempt, "step", time_step, strategy.device
    )
    set_status("gathering the facts")
    # over the CPUs' network
    ranks = [Facts(**each) for each in strategy.gather_objects(asdict(facts), CPU)]

    links = []
    if strategy.world_size > 1:
        # NCCL connects at its first collective, and may hang: show what is known before.
        if strategy.device.type == "cuda":
            _on_each(strategy, "the first report", show_report, ())
        set_status("measuring the network")
        links = [measure_link(strategy, size) for size in SIZES_MB]
    return show_report(links)


def _on_each(
    strategy: DistributedStrategy, phase: str, work: Callable[..., T], *arguments: object
) -> T:
    """What `work`, which does not communicate, returns once every rank has done it.

    A UserError on one rank ends all.
    """
    set_status(phase)
    return strategy.run_collectively(partial(work, *arguments), CPU)


def _report(
    ranks: Sequence[Facts],
    links: Sequence[Link],
    strategy: DistributedStrategy,
    found: list[Finding],
) -> DoctorReport:
    """The findings below a table of the hosts."""
    machines = by_machine(ranks)
    job = f"{strategy.backend} under {detect_launch()}"
    lines = [
        f"{job}, {pluralize(len(machines), 'host')}",
        "",
        *_table(machines),
        "",
        f"Versions on the main rank: {describe_versions(ranks[0].versions)}",
        f"Data: {ranks[0].data}",
    ]
    details: dict[str, Any] = {"job": job, "all_reduce": []}
    for link in links:
        gb_s = link.gb_s(len(ranks))
        lines.append(
            f"All-reduce of {link.size_mb:>2} MB over {len(ranks)} ranks: {link.ms:>9.2f} ms  "
            f"{gb_s:>8.2f} GB/s of bus bandwidth"
        )
        details["all_reduce"].append({**link._asdict(), "gb_s": gb_s})
    details["ranks"] = list(map(asdict, ranks))
    return DoctorReport(lines, found, details)


def _table(machines: Sequence[Sequence[Facts]]) -> list[str]:
    rows: list[tuple[str, ...]] = [
        ("host", "ranks", "device", "/dev/shm", "disk free", "files", "step")
    ]
    for own in machines:
        facts = own[0]
        sizes = []
        for size in (facts.shm_bytes, facts.disk_free):
            sizes.append("?" if size is None else format_bytes(size))
        slowest_ms = max(other.step_ms or 0 for other in own)
        row = (
            facts.host,
            format_ranks(other.rank for other in own).partition(" ")[2],
            f"{len(own)} x {facts.device.removeprefix('the ')}",
            *sizes,
            str(facts.open_files or "?"),
            f"{slowest_ms:.1f} ms" if slowest_ms else "?",
        )
        rows.append(row)
    return [f"  {line}" for line in aligned(rows)]
