"""Facts of all ranks -> what is wrong, each with its remedy in one sentence. Pure functions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from retina_dist.preflight.clock import offset
from retina_dist.preflight.facts import Facts, is_loopback
from retina_dist.preflight.needs import Needs
from retina_dist.text import format_bytes, format_ranks, pluralize

Level = Literal["error", "warning"]

# A difference in these is tolerable: training runs, but not always equally fast.
TOLERABLE = ("driver", "python")
CLOCK_S = 1.0  # beyond which log files cannot be merged; beyond minutes, signed URLs and tokens fail


@dataclass(frozen=True)
class Finding:
    """What is wrong, with the host or rank, and what to do."""

    level: Level
    check: str
    what: str
    remedy: str


def first_of_hosts(ranks: Sequence[Facts]) -> list[Facts]:
    """One rank of each machine, the lowest."""
    return list({facts.machine: facts for facts in reversed(ranks)}.values())[::-1]


def version_findings(ranks: Sequence[Facts]) -> Iterator[Finding]:
    """A library of another version, or another GPU, on some rank."""
    names = dict.fromkeys(name for facts in ranks for name in facts.versions)
    for name in names:
        read = [facts for facts in ranks if not {name, "versions"} & facts.unread.keys()]
        if text := _odd_ones(name, {facts.rank: facts.versions.get(name) or "not found" for facts in read}, ranks):
            level: Level = "warning" if name in TOLERABLE else "error"
            yield Finding(
                level, "versions", text, "Install the same versions on every host, from one image or lock file."
            )
    models = {f.rank: f"{f.gpu}, {f.memory_gib:g} GiB" if f.gpu and f.memory_gib else "the CPU" for f in ranks}
    if text := _odd_ones("the device", models, ranks):
        yield Finding("warning", "devices", text, "Take hosts of one kind, or every step waits for the slowest.")


def gpu_findings(ranks: Sequence[Facts]) -> Iterator[Finding]:
    """A GPU that two ranks have: containers of one machine may share it under different host names."""
    owners = defaultdict(list)
    for facts in ranks:
        if facts.uuid:
            owners[facts.uuid].append(facts)
    for uuid, sharing in owners.items():
        if len(sharing) > 1:
            hosts = ", ".join(dict.fromkeys(f.host for f in sharing))
            yield Finding(
                "error",
                "devices",
                f"{format_ranks(f.rank for f in sharing)} on {hosts} have the same GPU, {uuid}",
                "Start at most as many processes on a host as it has GPUs, and let each of them, and each container, see another "
                "one (CUDA_VISIBLE_DEVICES, docker run --gpus).",
            )


def memory_findings(ranks: Sequence[Facts], needs: Needs) -> Iterator[Finding]:
    """/dev/shm too small for the batches of all ranks of a host."""
    count = Counter(facts.machine for facts in ranks)
    for facts in first_of_hosts(ranks):
        wanted = (needs.shm_of_rank or 0) * count[facts.machine]
        if facts.shm_bytes is not None and facts.shm_bytes < wanted:
            yield Finding(
                "error",
                "/dev/shm",
                f"{facts.host} has {format_bytes(facts.shm_bytes)} free in /dev/shm, and the data workers of its "
                f"{pluralize(count[facts.machine], 'rank')} need {format_bytes(wanted)}",
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
    if free is not None and needs.disk is not None and free < needs.disk - ranks[0].checkpoint_bytes:
        yield Finding(
            "error",
            "disk",
            f"{ranks[0].host} has {format_bytes(free)} free for {folder}, and the checkpoints need {format_bytes(needs.disk)}"
            + (f", of which {format_bytes(there)} are there" if (there := ranks[0].checkpoint_bytes) else ""),
            "Make room, give another output_dir, or keep fewer checkpoints (trainer.keep_last, trainer.save_top_k).",
        )


def name_findings(ranks: Sequence[Facts]) -> Iterator[Finding]:
    """Two machines of one name; a host whose own name cannot be resolved, or resolves to loopback or to another host.

    One host alone is not looked at, nor the address of one for which GLOO_SOCKET_IFNAME names an interface.
    """
    hosts = first_of_hosts(ranks)
    if len(hosts) == 1:
        return
    for host, found in Counter(facts.host for facts in hosts).items():
        if found > 1:
            yield Finding(
                "error",
                "host names",
                f"{found} machines are both called {host}" if found == 2 else f"{found} machines are all called {host}",
                "Give each machine a different name (hostnamectl set-hostname NAME, docker run --hostname NAME).",
            )
    remedy = "Map the host's name to its address on the cluster's network in /etc/hosts there, or set GLOO_SOCKET_IFNAME=INTERFACE."
    for facts in (facts for facts in hosts if not facts.chosen_interface):
        loopback = [address for address in facts.addresses if is_loopback(address)]
        text = ""
        if not facts.addresses:
            text = f"{facts.host} cannot resolve its own name"
        elif loopback:
            text = f"{facts.host} resolves its own name to {loopback[0]}, where no other host can reach it"
        elif facts.foreign:
            text = f"{facts.host} resolves its own name to {facts.foreign[0]}, which is no address of it"
        if text:
            yield Finding("warning", "host names", text, remedy)


def clock_findings(ranks: Sequence[Facts]) -> Iterator[Finding]:
    """A host's clock that certainly differs from the median; of two hosts the main rank's counts as that."""
    hosts = first_of_hosts(ranks)
    if not all(facts.clock for facts in hosts):
        return
    ordered = sorted(hosts, key=lambda facts: offset(hosts[0].clock, facts.clock).ahead_s)
    middle = ordered[(len(hosts) - 1) // 2 : len(hosts) // 2 + 1]
    reference = min(middle, key=lambda facts: facts.rank)
    for facts in (facts for facts in hosts if facts is not reference):
        found = offset(reference.clock, facts.clock)
        if found.at_least_s > CLOCK_S:
            direction = "ahead of" if found.ahead_s > 0 else "behind"
            yield Finding(
                "warning",
                "clock",
                f"the clock of {facts.host} is {abs(found.ahead_s):.3f} s {direction} that of {reference.host} "
                f"(+- {found.bound_s:.3f} s)",
                "Start a time service there (chrony or systemd-timesyncd): logs disagree, and signed URLs are refused.",
            )


def data_findings(ranks: Sequence[Facts]) -> Iterator[Finding]:
    """Data that some host cannot read, or that differs from the main rank's."""
    hosts = first_of_hosts(ranks)
    remedy = "Copy the data anew, or mount the same storage on every host."
    failed = {facts.rank for facts in hosts if any(found.startswith("error: ") for found in facts.data.values())}
    for facts in hosts:
        for file, found in facts.data.items():
            kind, _, reason = found.partition(": ")
            if kind == "error":
                yield Finding("error", "data", f"{facts.host} cannot read {file} ({reason.rstrip('.')})", remedy)
            elif kind == "slow":
                faster = "Keep the data on faster storage, or copy it to a local disk of each host."
                yield Finding("warning", "storage", f"{facts.host} reads {file} slowly: {reason}", faster)
    for file in dict.fromkeys(file for facts in hosts for file in facts.data):
        found_by = {f.rank: f.data.get(file, "nothing") for f in hosts if file in f.data or f.rank not in failed}
        readable = {rank: found for rank, found in found_by.items() if not found.startswith(("error: ", "slow: "))}
        if text := _odd_ones(file, readable, ranks):
            yield Finding("error", "data", text, remedy)


def unread_findings(ranks: Sequence[Facts]) -> Iterator[Finding]:
    """Facts that could not be read, so that nothing was checked with them."""
    reasons = defaultdict(list)
    for facts in ranks:
        for fact, why in facts.unread.items():
            reasons[fact, why].append(facts.rank)
    for (fact, why), found in reasons.items():
        everyone = "no rank" if len(found) == len(ranks) else f"{format_ranks(found)}"
        verb = "could read" if len(found) == len(ranks) else "could not read"
        yield Finding("warning", "unknown", f"{everyone} {verb} the {fact} ({why})", "Nothing was checked with it.")


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
        f"{value} on {', '.join(dict.fromkeys(hosts[r] for r in found))} ({format_ranks(found)})"
        for value, found in odd.items()
    ]
    return (
        f"{what}: {'; '.join(parts)}, but {usual} on {'the others' if len(values) > 2 else hosts[next(iter(values))]}"
    )
