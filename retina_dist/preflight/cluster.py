"""The checks of a cluster, from a training's settings to the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch

from retina_dist.benchmark.communication import MACHINES
from retina_dist.config.commands import DoctorConfig
from retina_dist.errors import ConfigError, UserError
from retina_dist.files import Url, first_line, place
from retina_dist.preflight import checks
from retina_dist.preflight.clock import read_clock
from retina_dist.preflight.data_files import digest
from retina_dist.preflight.facts import Facts, read_machine
from retina_dist.preflight.gather import gather_facts
from retina_dist.preflight.needs import Needs, needs_of
from retina_dist.preflight.network import Link, expected_machine, measure_links, with_expected
from retina_dist.preflight.report import ClusterReport
from retina_dist.preflight.step import time_step
from retina_dist.run.build import build_strategy, task_class
from retina_dist.strategies.base import DistributedStrategy
from retina_dist.strategies.launch_environment import detect_launch
from retina_dist.task import Examination

T = TypeVar("T")

PATIENCE_S = 60.0  # for a rank that does not come; a training's own time-out is longer


def check_cluster(config: DoctorConfig, show: Callable[[Examination], None]) -> int:
    """How many errors there are, on every rank; `show` gets the report on the main one. Every rank calls it.

    A rank that does not come, or hangs, ends the others after a minute with an error that names it.
    """
    started = time.monotonic()
    if config.sku is not None and config.sku not in MACHINES:
        raise ConfigError(f"sku={config.sku} is not known; give one of {', '.join(MACHINES)}.", collective=True)
    patience = min(config.strategy.timeout_s, PATIENCE_S)
    with build_strategy(replace(config, strategy=replace(config.strategy, timeout_s=patience))) as strategy:
        return strategy.run_elastic(lambda kept: _check(config, strategy, started, show))


def _check(
    config: DoctorConfig, strategy: DistributedStrategy, started: float, show: Callable[[Examination], None]
) -> int:
    def together(phase: str, work: Callable[[], T]) -> T:
        """What `work` returns once every rank has done it; an error about a rank that has not names the phase."""
        strategy.phase = phase
        found = work()
        float(strategy.all_reduce(torch.zeros(1, device=strategy.device)))  # a GPU's barrier would not hold the host
        return found

    folder = _written_folder(config)
    facts = together("the reading of the machine", lambda: read_machine(strategy, folder))
    facts.data = together("the digest of the data", lambda: {} if strategy.local_rank else _digests(config))
    # all at once, as in a training: they share power, memory and cores
    facts.step_ms = together("the synthetic step", lambda: facts.attempt("step", lambda: time_step(strategy.device)))
    facts.clock = together("the comparison of clocks", lambda: read_clock(strategy))
    links = together("the measurement of the network", lambda: measure_links(strategy))
    strategy.phase = "the gathering of facts"
    ranks = gather_facts(strategy, facts)

    def report() -> int:
        job = f"{strategy.backend} under {detect_launch()}"
        found = build_report(config, ranks, links, job, str(folder), time.monotonic() - started)
        show(Examination(found.text(), found.to_dict(), found.errors))
        return found.errors

    return strategy.on_main(report)


def build_report(
    config: DoctorConfig, ranks: Sequence[Facts], links: Sequence[Link], job: str, folder: str, seconds: float
) -> ClusterReport:
    """The findings of gathered facts."""
    image_bytes, model_bytes = task_class(config).sizes(config)
    needs = needs_of(config, len(ranks), image_bytes, model_bytes)
    machine, expected_from = expected_machine(ranks, config.sku)
    links = with_expected(links, len(ranks), machine)
    found = sorted(_findings(config, ranks, links, needs, folder), key=lambda finding: finding.level)  # errors first
    return ClusterReport(job, ranks, links, expected_from, found, seconds)


def _findings(
    config: DoctorConfig, ranks: Sequence[Facts], links: Sequence[Link], needs: Needs, folder: str
) -> Iterator[checks.Finding]:
    yield from checks.version_findings(ranks)
    yield from checks.gpu_findings(ranks)
    yield from checks.data_findings(ranks)
    yield from checks.memory_findings(ranks, needs)
    yield from checks.disk_findings(ranks, needs, folder)
    yield from checks.file_findings(ranks, needs)
    yield from checks.name_findings(ranks)
    yield from checks.clock_findings(ranks)
    yield from checks.link_findings(links, len(ranks), config.expect_gb_s)
    yield from checks.step_findings(ranks)
    yield from checks.unread_findings(ranks)


def _written_folder(config: DoctorConfig) -> Path:
    """Where checkpoints go, on a local disk; the run folder where they go to a URL."""
    checkpoints = place(config.trainer.checkpoint_dir) if config.trainer.checkpoint_dir else None
    if checkpoints is None or isinstance(checkpoints, Url):
        return Path(config.output_dir or "runs")
    return checkpoints


def _digests(config: DoctorConfig) -> dict[str, str]:
    """Of each file that the task reads its data from; an error is a finding, not the end."""
    try:
        files = task_class(config).data_files(config)
    except UserError as error:
        return {f"data={config.data.name}": f"error: {error}"}
    found = {}
    for file in files:
        try:
            found[str(file)] = digest(file)
        except (OSError, UserError) as error:
            found[str(file)] = f"error: {first_line(error)}"
    return found
