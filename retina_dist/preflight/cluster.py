"""The checks of a cluster, from a training's settings to the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch

from retina_dist.activity import doing
from retina_dist.files import Url, parse_path
from retina_dist.preflight.checks import findings, first_of_hosts
from retina_dist.preflight.facts import DATA, Facts, Link, gather_facts, measure_links, read_machine, time_step
from retina_dist.reporting.findings import DoctorReport
from retina_dist.run.build import build_strategy, build_task, task_class
from retina_dist.strategies.base import DistributedStrategy
from retina_dist.strategies.launch_environment import detect_launch
from retina_dist.text import format_bytes, pluralize

if TYPE_CHECKING:
    from retina_dist.doctor import DoctorConfig

T = TypeVar("T")

CPU = torch.device("cpu")


def check_cluster(config: DoctorConfig, show: Callable[[DoctorReport], None]) -> int:
    """The number of errors, on every rank; `show` gets the report on the main one. Every rank calls it.

    A rank that does not start, or hangs, ends the others with an error that names it, after `strategy.timeout_s`.
    """
    with build_strategy(config) as strategy:
        return strategy.run_elastic(lambda _: _check(config, strategy, show))


def _check(config: DoctorConfig, strategy: DistributedStrategy, show: Callable[[DoctorReport], None]) -> int:
    def on_each(phase: str, work: Callable[[], T]) -> T:
        """What `work`, which does not communicate, returns once every rank has done it; a UserError on one ends all."""
        doing(phase)
        return strategy.run_collectively(work, CPU)

    folder = _written_folder(config)
    facts = on_each("reading the machine", lambda: read_machine(strategy, folder))
    on_each("drawing the data", lambda: task_class(config).prepare(config) if strategy.is_main else None)
    if_first = (lambda: None) if strategy.local_rank else (lambda: _describe_data(config, strategy))
    facts.data = on_each("reading the data", lambda: facts.attempt(DATA, if_first))
    # all at once, as in a training: they share power, memory and cores
    facts.step_ms = on_each("the synthetic step", lambda: facts.attempt("step", lambda: time_step(strategy.device)))
    doing("gathering the facts")
    ranks = gather_facts(strategy, facts)
    job = f"{strategy.backend} under {detect_launch()}"
    # NCCL connects at its first collective, and may hang
    if strategy.device.type == "cuda" and strategy.world_size > 1:
        first = build_report(config, ranks, (), job, folder)
        on_each("the first report", lambda: show(first) if strategy.is_main else None)
    doing("measuring the network")
    report = build_report(config, ranks, measure_links(strategy), job, folder)
    if strategy.is_main:
        show(report)
    return report.errors


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


def _written_folder(config: DoctorConfig) -> Path:
    """Where checkpoints go, on a local disk; the run folder where they go to a URL."""
    checkpoints = parse_path(config.trainer.checkpoint_dir) if config.trainer.checkpoint_dir else None
    if checkpoints is None or isinstance(checkpoints, Url):
        return Path(config.output_dir or "runs")
    return checkpoints


def _describe_data(config: DoctorConfig, strategy: DistributedStrategy) -> str:
    """The fingerprint of the training data, and what the task says of it."""
    task = build_task(config, strategy)
    return f"{task.fingerprint()[:16]}…, {' '.join(task.describe().split())}"
