"""Facts of all ranks -> what is wrong, each with its remedy in one sentence. Pure functions."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from retina_dist.preflight.clock import offset
from retina_dist.preflight.facts import Facts, is_loopback
from retina_dist.preflight.needs import Needs
from retina_dist.preflight.network import Link

Level = Literal["error", "warning"]

# A difference in these is tolerable: training runs, but not always equally fast.
TOLERABLE = ("driver", "python")
CLOCK_S = 1.0  # beyond which log files cannot be merged; beyond minutes, signed URLs and tokens fail
SLOW_STEP = {True: 1.1, False: 1.5}  # times the median, on a GPU, on a CPU that others may use too
SLOW_LINK = 2.0  # times what is expected ...
LAUNCH_MS = 0.1  # ... and so long for a launch and the wait for the device, which the model leaves out


@dataclass(frozen=True)
class Finding:
    """What is wrong, with the host or rank, and what to do."""

    level: Level
    check: str
    what: str
    remedy: str


def first_of_hosts(ranks: Sequence[Facts]) -> list[Facts]:
    """One rank of each host, the lowest."""
    return list({facts.host: facts for facts in reversed(ranks)}.values())[::-1]


def version_findings(ranks: Sequence[Facts]) -> Iterator[Finding]:
    """A library of another version, or another GPU, on some rank."""
    names = dict.fromkeys(name for facts in ranks for name in facts.versions)
    for name in names:
        if text := _odd_ones(name, {facts.rank: facts.versions.get(name) or "not found" for facts in ranks}, ranks):
            level: Level = "warning" if name in TOLERABLE else "error"
            yield Finding(
                level, "versions", text, "Install the same versions on every host, from one image or lock file."
            )
    models = {f.rank: f"{f.gpu}, {f.memory_gib:g} GiB" if f.gpu and f.memory_gib else "the CPU" for f in ranks}
    if text := _odd_ones("the device", models, ranks):
        yield Finding("warning", "devices", text, "Take hosts of one kind, or every step waits for the slowest.")


def gpu_findings(ranks: Sequence[Facts]) -> Iterator[Finding]:
    """A GPU that two ranks have."""
    owners = defaultdict(list)
    for facts in ranks:
        if facts.uuid:
            owners[facts.uuid].append(facts)
    for uuid, sharing in owners.items():
        if len(sharing) > 1:
            yield Finding(
                "error",
                "devices",
                f"{_ranks(f.rank for f in sharing)} on {sharing[0].host} have the same GPU, {uuid}",
                "Start at most as many processes on a host as it has GPUs, or let each see another one (CUDA_VISIBLE_DEVICES).",
            )


def memory_findings(ranks: Sequence[Facts], needs: Needs) -> Iterator[Finding]:
    """/dev/shm too small for the batches of all ranks of a host."""
    count = Counter(facts.host for facts in ranks)
    for facts in first_of_hosts(ranks):
        wanted = (needs.shm_of_rank or 0) * count[facts.host]
        if facts.shm_bytes is not None and facts.shm_bytes < wanted:
            yield Finding(
                "error",
                "/dev/shm",
                f"{facts.host} has {amount(facts.shm_bytes)} free in /dev/shm, and the data workers of its "
                f"{_count(count[facts.host])} need {amount(wanted)}",
                "Give the container more (docker run --shm-size=16g; on Kubernetes a memory-backed emptyDir), or lower "
                "data.num_workers.",
            )


def file_findings(ranks: Sequence[Facts], needs: Needs) -> Iterator[Finding]:
    """A limit of open files that data workers and peers may exceed."""
    for facts in first_of_hosts(ranks):
        if facts.open_files is not None and facts.open_files < needs.open_files:
            yield Finding(
                "warning",
                "open files",
                f"{facts.host} lets a process open {facts.open_files} files, and a rank may need about {needs.open_files}",
                "Raise the limit where the job starts: ulimit -n 65536 (docker run --ulimit nofile=65536).",
            )


def disk_findings(ranks: Sequence[Facts], needs: Needs, folder: str) -> Iterator[Finding]:
    """Too little room for the checkpoints, which the main rank writes."""
    free = ranks[0].disk_free
    if free is not None and needs.disk is not None and free < needs.disk:
        yield Finding(
            "error",
            "disk",
            f"{ranks[0].host} has {amount(free)} free for {folder}, and the checkpoints need {amount(needs.disk)}",
            "Make room, give another output_dir, or keep fewer checkpoints (trainer.keep_last, trainer.save_top_k).",
        )


def name_findings(ranks: Sequence[Facts]) -> Iterator[Finding]:
    """A host whose own name leads nowhere, to itself only, or to another host; one host alone is not looked at."""
    hosts = first_of_hosts(ranks)
    if len(hosts) == 1:
        return
    remedy = (
        "Map {host} to its address on the cluster's network in its /etc/hosts, or set GLOO_SOCKET_IFNAME=INTERFACE."
    )
    for facts in hosts:
        loopback = [address for address in facts.addresses if is_loopback(address)]
        text = ""
        if not facts.addresses:
            text = f"{facts.host} cannot resolve its own name"
        elif loopback:
            text = f"{facts.host} resolves its own name to {loopback[0]}, where no other host can reach it"
        elif facts.foreign:
            text = f"{facts.host} resolves its own name to {facts.foreign[0]}, which is no address of it"
        if text:
            yield Finding("warning", "host names", text, remedy.format(host=facts.host))


def clock_findings(ranks: Sequence[Facts]) -> Iterator[Finding]:
    """A host's clock that certainly differs from the main rank's."""
    hosts = first_of_hosts(ranks)
    for facts in hosts[1:]:
        found = offset(hosts[0].clock, facts.clock)
        if found.at_least_s > CLOCK_S:
            direction = "ahead of" if found.ahead_s > 0 else "behind"
            yield Finding(
                "warning",
                "clock",
                f"the clock of {facts.host} is {abs(found.ahead_s):.3f} s {direction} that of {hosts[0].host} "
                f"(+- {found.bound_s:.3f} s)",
                f"Start a time service on {facts.host} (chrony or systemd-timesyncd): logs disagree, and signed URLs are refused.",
            )


def data_findings(ranks: Sequence[Facts]) -> Iterator[Finding]:
    """Data that some host cannot read, or that differs from the main rank's."""
    hosts = first_of_hosts(ranks)
    remedy = "Copy the data anew, or mount the same storage on every host."
    for facts in hosts:
        for file, found in facts.data.items():
            if found.startswith("error: "):
                reason = found.removeprefix("error: ").rstrip(".")
                yield Finding("error", "data", f"{facts.host} cannot read {file} ({reason})", remedy)
    for file in dict.fromkeys(file for facts in hosts for file in facts.data):
        readable = {f.rank: v for f in hosts if not (v := f.data.get(file, "nothing")).startswith("error: ")}
        if text := _odd_ones(file, readable, ranks):
            yield Finding("error", "data", text, remedy)


def step_findings(ranks: Sequence[Facts]) -> Iterator[Finding]:
    """The slowest rank, where it is much slower than the median."""
    facts, ratio = slowest(ranks)
    if facts is not None and ratio > SLOW_STEP[facts.gpu is not None]:
        yield Finding(
            "warning",
            "step",
            f"rank {facts.rank} on {facts.host} takes {facts.step_ms:.1f} ms for a step, {ratio:.2f} times the median: every "
            "step waits for it",
            "Look there for other processes, a hot GPU or a low power limit (nvidia-smi -q -d PERFORMANCE), or leave the host out.",
        )


def slowest(ranks: Sequence[Facts]) -> tuple[Facts | None, float]:
    """The rank with the longest step, and how many times the median that is; of two ranks, the faster one is the median."""
    timed = [facts for facts in ranks if facts.step_ms]
    if not timed:
        return None, 1.0
    worst = max(timed, key=lambda facts: facts.step_ms or 0.0)
    median = statistics.median_low(facts.step_ms or 0.0 for facts in timed)
    return worst, (worst.step_ms or 0.0) / median


def link_findings(links: Sequence[Link], ranks: int, expect_gb_s: float | None) -> Iterator[Finding]:
    """An all-reduce far slower than the hardware should make it, or than `expect_gb_s` asks of the largest."""
    remedy = (
        "See in NCCL_DEBUG=INFO which network was chosen (NET/IB or NET/Socket), give nccl=NAME for this kind of machine, and run "
        "nccl-tests between pairs of hosts."
    )
    for link in links:
        if link.expected_ms is not None and link.ms > SLOW_LINK * link.expected_ms + LAUNCH_MS:
            text = f"an all-reduce of {link.size_mb} MB takes {link.ms:.2f} ms, and should take about {link.expected_ms:.2f}"
            yield Finding("warning", "network", text, remedy)
    if links and expect_gb_s and links[-1].gb_s(ranks) < expect_gb_s:
        reached = f"an all-reduce of {links[-1].size_mb} MB reaches {links[-1].gb_s(ranks):.2f} GB/s"
        text = f"{reached}, below expect_gb_s={expect_gb_s:g}"
        yield Finding("error", "network", text, remedy)


def unread_findings(ranks: Sequence[Facts]) -> Iterator[Finding]:
    """Facts that could not be read, so that nothing was checked with them."""
    reasons = defaultdict(list)
    for facts in ranks:
        for fact, why in facts.unread.items():
            reasons[fact, why].append(facts.rank)
    for (fact, why), found in reasons.items():
        everyone = "no rank" if len(found) == len(ranks) else f"{_ranks(found)}"
        verb = "could read" if len(found) == len(ranks) else "could not read"
        yield Finding("warning", "not read", f"{everyone} {verb} the {fact} ({why})", "Nothing was checked with it.")


def _odd_ones(what: str, values: Mapping[int, str], ranks: Sequence[Facts]) -> str:
    """Who has another value than most, with both; of as many, the main rank counts as most. "" where all agree."""
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
        f"{value} on {', '.join(dict.fromkeys(hosts[r] for r in found))} ({_ranks(found)})"
        for value, found in odd.items()
    ]
    return (
        f"{what}: {'; '.join(parts)}, but {usual} on {'the others' if len(values) > 2 else hosts[next(iter(values))]}"
    )


def _ranks(numbers: Iterable[int]) -> str:
    found = list(numbers)
    shown = ", ".join(map(str, found[:8])) + (f" and {len(found) - 8} more" if len(found) > 8 else "")
    return f"rank{'s' * (len(found) > 1)} {shown}"


def _count(ranks: int) -> str:
    return f"{ranks} rank{'s' * (ranks > 1)}"


def amount(size: float) -> str:
    """Bytes in MiB or GiB."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
