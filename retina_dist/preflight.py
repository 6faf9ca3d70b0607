"""`python -m retina_dist.doctor cluster=true`: is every rank's machine sound, and equal to the others?

A fact that cannot be read is reported and stops nothing.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import socket
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torchvision.models import resnet18

from retina_dist.errors import describe_error, doing
from retina_dist.files import nearest_existing
from retina_dist.reporting.findings import DoctorReport, Finding, Level
from retina_dist.run.build import build_strategy, task_class
from retina_dist.run.records import versions
from retina_dist.strategies.base import DistributedStrategy
from retina_dist.strategies.devices import driver_version
from retina_dist.strategies.launch_environment import detect_launch
from retina_dist.text import format_bytes, format_ranks, pluralize

if TYPE_CHECKING:
    from retina_dist.doctor import DoctorConfig

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
            self.unread[fact] = describe_error(error)
            return None


def read_machine(strategy: DistributedStrategy, run_folder: Path) -> Facts:
    """The facts of this rank's process and machine, without communication."""
    facts = Facts(strategy.rank, socket.gethostname())
    facts.boot_id = facts.attempt("boot_id", lambda: BOOT_ID.read_text().strip())
    facts.versions = {name: version for name, version in versions().items() if name != "platform"}
    facts.versions["CUDA of torch"] = str(torch.version.cuda)
    if strategy.device.type == "cuda":
        if gpu := facts.attempt("GPU", lambda: torch.cuda.get_device_properties(strategy.device)):
            facts.gpu, facts.memory_gib = gpu.name, round(gpu.total_memory / 2**30, 1)
        nccl = facts.attempt("NCCL", lambda: ".".join(map(str, torch.cuda.nccl.version())))  # type: ignore[no-untyped-call]
        read = {"driver": facts.attempt("driver", driver_version), "NCCL": nccl}
        facts.versions |= {name: version for name, version in read.items() if version is not None}
    if not (os.environ.get("GLOO_SOCKET_IFNAME") or os.environ.get("HOROVOD_GLOO_IFACE")):  # then no name is resolved
        resolved = facts.attempt("address of the host's name", lambda: socket.getaddrinfo(facts.host, None)) or []
        facts.addresses = sorted({str(entry[4][0]) for entry in resolved})
    facts.shm_bytes = facts.attempt(str(SHARED_MEMORY), lambda: shutil.disk_usage(SHARED_MEMORY).free)
    facts.open_files = facts.attempt("limit of open files", lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    facts.disk_free = facts.attempt(
        "disk of the run folder", lambda: shutil.disk_usage(nearest_existing(run_folder)).free
    )
    return facts


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


def measure_link(strategy: DistributedStrategy, size_mb: int) -> Link:
    """The time of an all-reduce, with the copy that the strategy makes of its input; equal on all ranks, which all call it."""
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
    return Link(size_mb, slowest_ms(max(1, min(MOST_REPETITIONS, int(2e3 / max(once, 1e-3))))))


CPU = torch.device("cpu")
TOLERABLE = ("driver", "python")  # training runs with different ones, but not always equally fast
SLOW_STEP = {True: 1.1, False: 1.5}  # times the median, on a GPU, on a CPU that others may use too
SHM_OF_WORKER = 64 * 2**20  # bytes of batches that a data worker hands over: a rule of thumb
LEAST_DISK = 2**30
SAME_DATA = "Copy the data again, or mount the same storage on every host."


def findings(ranks: Sequence[Facts], links: Sequence[Link], config: Any, folder: str) -> list[Finding]:
    """All findings; `config` is the doctor's, `folder` the one that rank 0 writes into."""
    workers = 0 if getattr(config.data, "synthetic", None) else getattr(config.data, "num_workers", 0)
    found = [*version_findings(ranks), *limit_findings(ranks, workers), *name_findings(ranks), *step_findings(ranks)]
    if (free := ranks[0].disk_free) is not None and free < LEAST_DISK:
        text = f"{ranks[0].host} has {format_bytes(free)} free for {folder}, where checkpoints go"
        remedy = (
            "Make room, give another output_dir, or keep fewer checkpoints (trainer.keep_last, trainer.save_top_k)."
        )
        found.append(Finding("error", "disk", text, remedy))
    if links and config.expect_gb_s and (reached := links[-1].gb_s(len(ranks))) < config.expect_gb_s:
        text = f"an all-reduce of {links[-1].size_mb} MB reaches {reached:.2f} GB/s, below expect_gb_s={config.expect_gb_s:g}"
        remedy = (
            "See in NCCL_DEBUG=INFO which network was chosen (NET/IB or NET/Socket), set NCCL's variables for this kind of machine "
            "(docs/clusters.md), and run nccl-tests between pairs of hosts."
        )
        found.append(Finding("error", "network", text, remedy))
    return [*found, *unread_findings(ranks)]


def first_of_hosts(ranks: Sequence[Facts]) -> list[Facts]:
    """One rank of each machine, the lowest."""
    return list({facts.machine: facts for facts in reversed(ranks)}.values())[::-1]


def version_findings(ranks: Sequence[Facts]) -> Iterator[Finding]:
    """Another version of a library, another GPU or other training data on some rank."""
    remedy = "Install the same versions on every host, from one image or lock file."
    for name in dict.fromkeys(name for facts in ranks for name in facts.versions):
        read = [facts for facts in ranks if name not in facts.unread]
        if text := _odd_ones(name, {facts.rank: facts.versions.get(name) or "none" for facts in read}, ranks):
            level: Level = "warning" if name in TOLERABLE else "error"
            yield Finding(level, "versions", text, remedy)
    models = {f.rank: f"{f.gpu}, {f.memory_gib:g} GiB" if f.gpu and f.memory_gib else "the CPU" for f in ranks}
    if text := _odd_ones("the device", models, ranks):
        yield Finding("warning", "devices", text, "Take hosts of one kind, or every step waits for the slowest.")
    read_data = {facts.rank: facts.data for facts in first_of_hosts(ranks) if facts.data}
    if text := _odd_ones("the training data", read_data, ranks):
        yield Finding("error", "data", text, SAME_DATA)


def limit_findings(ranks: Sequence[Facts], workers: int) -> Iterator[Finding]:
    """/dev/shm and open files: less than a training with so many data workers a rank usually needs."""
    count = Counter(facts.machine for facts in ranks)
    files = 256 + 40 * workers + 4 * (len(ranks) - 1)  # libraries and logs; pipes and tensors of a worker; sockets
    for facts in first_of_hosts(ranks):
        shm = SHM_OF_WORKER * workers * count[facts.machine]
        if facts.shm_bytes is not None and facts.shm_bytes < shm:
            need = f"the data workers of its {pluralize(count[facts.machine], 'rank')} may need {format_bytes(shm)}"
            text = f"{facts.host} has {format_bytes(facts.shm_bytes)} free in /dev/shm, and {need}"
            remedy = "Give the container more (docker run --shm-size=16g; on Kubernetes an emptyDir), or lower data.num_workers."
            yield Finding("warning", "/dev/shm", text, remedy)
        if facts.open_files is not None and 0 <= facts.open_files < files:  # -1: no limit
            text = f"{facts.host} lets a process open {facts.open_files} files, and a rank may need about {files}"
            remedy = "Raise the limit where the job starts: ulimit -n 65536 (docker run --ulimit nofile=65536)."
            yield Finding("warning", "open files", text, remedy)


def name_findings(ranks: Sequence[Facts]) -> Iterator[Finding]:
    """Two machines of one name; a host whose own name resolves to loopback."""
    hosts = first_of_hosts(ranks)
    for host, machines in Counter(facts.host for facts in hosts).items():
        if machines > 1:
            text = f"{machines} machines are called {host}"
            remedy = "Give each machine a different name (hostnamectl set-hostname NAME, docker run --hostname NAME)."
            yield Finding("error", "host names", text, remedy)
    remedy = "Map the host's name to its address on the cluster's network in /etc/hosts there, or set GLOO_SOCKET_IFNAME=INTERFACE."
    for facts in hosts if len(hosts) > 1 else ():
        if loopback := [address for address in facts.addresses if address.startswith("127.") or address == "::1"]:
            text = f"{facts.host} resolves its own name to {loopback[0]}, where no other host can reach it"
            yield Finding("warning", "host names", text, remedy)


def step_findings(ranks: Sequence[Facts]) -> Iterator[Finding]:
    """The slowest rank, where it is much slower than the median; of two ranks, the faster one is the median."""
    times = [(facts.step_ms, facts.rank) for facts in ranks if facts.step_ms]
    if not times:
        return
    slowest_ms, rank = max(times)
    ratio = slowest_ms / statistics.median_low(time for time, _ in times)
    if ratio > SLOW_STEP[ranks[rank].gpu is not None]:
        who = f"rank {rank} on {ranks[rank].host} takes {slowest_ms:.1f} ms for a step, {ratio:.2f} times the median"
        remedy = "Look there for other processes, a hot GPU or a low power limit (nvidia-smi -q -d PERFORMANCE), or leave it out."
        yield Finding("warning", "step", f"{who}: every step waits for it", remedy)


def unread_findings(ranks: Sequence[Facts]) -> Iterator[Finding]:
    """Facts that could not be read, so that nothing was checked with them."""
    reasons = defaultdict(list)
    for facts in ranks:
        for fact, why in facts.unread.items():
            reasons[fact, why].append(facts.rank)
    for (fact, why), without in reasons.items():
        who = "no rank could read" if len(without) == len(ranks) else f"{format_ranks(without)} could not read"
        if fact == DATA:
            yield Finding("error", "data", f"{who} the {fact} ({why.rstrip('.')})", SAME_DATA)
        else:
            yield Finding("warning", "unknown", f"{who} the {fact} ({why})", "Nothing was checked with it.")


def _odd_ones(what: str, values: Mapping[int, str], ranks: Sequence[Facts]) -> str:
    """Who has another value than most, with both; in a tie rank 0 is right. "" where all agree."""
    counts = Counter(values.values())
    if len(counts) < 2:
        return ""
    usual = max(counts, key=lambda value: counts[value])  # the first of equals is the lowest rank's
    hosts = {facts.rank: facts.host for facts in ranks}
    odd = defaultdict(list)
    for rank, value in values.items():
        if value != usual:
            odd[value].append(rank)
    parts = [
        f"{value} on {', '.join(dict.fromkeys(hosts[r] for r in having))} ({format_ranks(having)})"
        for value, having in odd.items()
    ]
    others = "the others" if len(values) > 2 else hosts[next(iter(values))]
    return f"{what}: {'; '.join(parts)}, but {usual} on {others}"


def check_cluster(config: DoctorConfig, show: Callable[[DoctorReport], None]) -> int:
    """The number of errors, on every rank; `show` gets the report on the main one. Every rank calls it.

    A rank that does not start, or hangs, ends the others with an error that names it, after `strategy.timeout_s`.
    """
    with build_strategy(config) as strategy:
        return strategy.run_elastic(lambda _: _check(config, strategy, show))


def _check(config: DoctorConfig, strategy: DistributedStrategy, show: Callable[[DoctorReport], None]) -> int:
    def describe_data() -> str:
        task = task_class(config)(config, strategy)
        return f"{task.fingerprint()[:16]}…, {' '.join(task.describe().split())}"

    def on_each(phase: str, work: Callable[[], T]) -> T:
        """What `work`, which does not communicate, returns once every rank has done it; a UserError on one ends all."""
        doing(phase)
        return strategy.run_collectively(work, CPU)

    place = config.trainer.checkpoint_dir  # where checkpoints go, or the run folder where they go to a URL
    folder = Path(place if place and "://" not in place else config.output_dir or "runs")
    facts = on_each("reading the machine", lambda: read_machine(strategy, folder))
    on_each("drawing the data", lambda: task_class(config).prepare(config) if strategy.is_main else None)
    facts.data = on_each(
        "reading the data", lambda: None if strategy.local_rank else facts.attempt(DATA, describe_data)
    )
    # all at once, as in a training: they share power, memory and cores
    facts.step_ms = on_each("the synthetic step", lambda: facts.attempt("step", lambda: time_step(strategy.device)))
    doing("gathering the facts")
    own = torch.frombuffer(bytearray(json.dumps(asdict(facts)).encode()), dtype=torch.uint8)  # over the CPUs' network
    lengths = strategy.all_gather(torch.tensor([len(own)])).tolist()
    ranks = [Facts(**json.loads(bytes(part.tolist()))) for part in strategy.all_gather(own).split(lengths)]
    job = f"{strategy.backend} under {detect_launch()}"
    # NCCL connects at its first collective, and may hang
    if strategy.device.type == "cuda" and strategy.world_size > 1:
        first = build_report(config, ranks, (), job, folder)
        on_each("the first report", lambda: show(first) if strategy.is_main else None)
    doing("measuring the network")
    links = [measure_link(strategy, size) for size in SIZES_MB] if strategy.world_size > 1 else []
    report = build_report(config, ranks, links, job, folder)
    if strategy.is_main:
        show(report)
    return report.count("error")


def build_report(
    config: DoctorConfig, ranks: Sequence[Facts], links: Sequence[Link], job: str, folder: Path
) -> DoctorReport:
    """The findings of gathered facts, below a table of the hosts."""
    hosts, count = first_of_hosts(ranks), len(ranks)
    lines = [f"{job}, {pluralize(len(hosts), 'host')}", "", *_table(ranks, hosts)]
    lines += ["", "Versions on the main rank: " + ", ".join(f"{k} {v or '?'}" for k, v in ranks[0].versions.items())]
    lines.append(f"Data: {ranks[0].data}")
    for link in links:
        speed = f"{link.ms:>9.2f} ms  {link.gb_s(count):>8.2f} GB/s of bus bandwidth"
        lines.append(f"All-reduce of {link.size_mb:>2} MB over {count} ranks: {speed}")
    details = {
        "job": job,
        "all_reduce": [{**link._asdict(), "gb_s": link.gb_s(count)} for link in links],
        "ranks": [asdict(facts) for facts in ranks],
    }
    return DoctorReport(lines, findings(ranks, links, config, str(folder)), details)


def _table(ranks: Sequence[Facts], hosts: Sequence[Facts]) -> Iterator[str]:
    width = max(4, *(len(facts.host) for facts in hosts))
    titles = f"{'/dev/shm':>10}{'disk free':>11}{'files':>9}{'step':>10}"
    yield f"  {'host':<{width}}  {'ranks':<15}{'device':<34}{titles}"
    for facts in hosts:
        mine = [other for other in ranks if other.machine == facts.machine]
        numbers = f"{mine[0].rank} to {mine[-1].rank}" if len(mine) > 1 else str(facts.rank)
        device = f"{len(mine)} x {facts.gpu or 'CPU'}" + (f", {facts.memory_gib:g} GiB" if facts.memory_gib else "")
        steps = [other.step_ms for other in mine if other.step_ms]
        shm, disk = ("?" if size is None else format_bytes(size) for size in (facts.shm_bytes, facts.disk_free))
        yield (
            f"  {facts.host:<{width}}  {numbers:<15}{device:<34}{shm:>10}{disk:>11}{facts.open_files or '?':>9}"
            f"{f'{max(steps):.1f} ms' if steps else '?':>10}"
        )
