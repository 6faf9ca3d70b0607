"""The checks of a cluster, from a training's settings to the report."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import torch

from retina_dist.config.commands import DoctorConfig
from retina_dist.errors import UserError
from retina_dist.files import Url, first_line, place
from retina_dist.preflight import checks
from retina_dist.preflight.clock import read_clock
from retina_dist.preflight.data_files import digests
from retina_dist.preflight.facts import Facts, read_machine
from retina_dist.preflight.gather import gather_facts
from retina_dist.preflight.needs import Needs, needs_of
from retina_dist.preflight.network import Link, measure_links
from retina_dist.preflight.report import ClusterReport
from retina_dist.preflight.speed_checks import link_findings, step_findings
from retina_dist.preflight.step import time_step
from retina_dist.reporting.console import print_redacted
from retina_dist.run.build import build_strategy, task_class
from retina_dist.strategies.base import DistributedStrategy
from retina_dist.strategies.launch_environment import detect_launch
from retina_dist.task import Examination

T = TypeVar("T")

CPU = torch.device("cpu")


def check_cluster(config: DoctorConfig, show: Callable[[Examination], None]) -> int:
    """How many errors there are, on every rank; `show` gets the report on the main one. Every rank calls it.

    As in a training, a rank that does not start or hangs ends the others after `strategy.timeout_s` with an error that names it.
    """
    started = time.monotonic()
    with build_strategy(config) as strategy:
        return strategy.run_elastic(lambda _: _check(config, strategy, started, show))


def _check(
    config: DoctorConfig, strategy: DistributedStrategy, started: float, show: Callable[[Examination], None]
) -> int:
    """Until the last measurement nothing goes over the GPUs' network, which may hang: by then all the rest is printed."""

    def on_each(phase: str, work: Callable[[], T]) -> T:
        """What `work`, which does not communicate, returns once every rank has done it; an error on one ends all."""
        strategy.phase = phase
        return strategy.run_collectively(lambda: _or_user_error(phase, work), CPU)

    folder = _written_folder(config)
    facts = on_each("the reading of the machine", lambda: read_machine(strategy, folder))
    facts.checkpoint_bytes = on_each(
        "the reading of the run folder", lambda: _checkpoint_bytes(config) if strategy.is_main else 0
    )
    facts.data = on_each("the digest of the data", lambda: {} if strategy.local_rank else _digests(config))
    # all at once, as in a training: they share power, memory and cores
    facts.step_ms = on_each("the synthetic step", lambda: facts.attempt("step", lambda: time_step(strategy.device)))
    strategy.phase = "the comparison of clocks"
    facts.clock = read_clock(strategy)
    strategy.phase = "the gathering of facts"
    ranks = gather_facts(strategy, facts)

    def report(links: Sequence[Link] = ()) -> ClusterReport:
        job = f"{strategy.backend} under {detect_launch()}"
        return build_report(config, ranks, links, job, str(folder), time.monotonic() - started)

    on_each("the report", lambda: print_redacted(f"{report().machines()}\n") if strategy.is_main else None)
    strategy.phase = "the measurement of the network"
    links = measure_links(strategy)

    def end() -> int:
        found = report(links)
        show(Examination(found.network(), found.to_dict(), found.errors))
        return found.errors

    return strategy.on_main(end)


def _or_user_error(phase: str, work: Callable[[], T]) -> T:
    try:
        return work()
    except UserError:
        raise
    except Exception as error:  # of a broken machine, of which the other ranks should hear
        host = socket.gethostname()
        raise UserError(
            f"{phase} failed on {host} ({first_line(error)}); repair the host, or remove it from the job."
        ) from error


def build_report(
    config: DoctorConfig,
    ranks: Sequence[Facts],
    links: Sequence[Link],
    job: str,
    folder: str,
    seconds: float,
) -> ClusterReport:
    """The findings of gathered facts."""
    image_bytes, model_bytes = task_class(config).sizes(config)
    needs = needs_of(config, len(ranks), image_bytes, model_bytes)
    found = findings(ranks, links, needs, folder, config.expect_gb_s)
    return ClusterReport(job, ranks, links, found, seconds)


def findings(
    ranks: Sequence[Facts], links: Sequence[Link], needs: Needs, folder: str, expect_gb_s: float | None
) -> list[checks.Finding]:
    """All that is wrong, errors first."""
    found = [
        *checks.version_findings(ranks),
        *checks.gpu_findings(ranks),
        *checks.data_findings(ranks),
        *checks.memory_findings(ranks, needs),
        *checks.disk_findings(ranks, needs, folder),
        *checks.file_findings(ranks, needs),
        *checks.name_findings(ranks),
        *checks.clock_findings(ranks),
        *link_findings(links, len(ranks), expect_gb_s),
        *step_findings(ranks),
        *checks.unread_findings(ranks),
    ]
    return sorted(found, key=lambda finding: finding.level)


def _written_folder(config: DoctorConfig) -> Path:
    """Where checkpoints go, on a local disk; the run folder where they go to a URL."""
    checkpoints = place(config.trainer.checkpoint_dir) if config.trainer.checkpoint_dir else None
    if checkpoints is None or isinstance(checkpoints, Url):
        return Path(config.output_dir or "runs")
    return checkpoints


def _checkpoint_bytes(config: DoctorConfig) -> int:
    """Of the checkpoints that a run to resume has written already; 0 where the folder is not given, but found later.

    best.pt and last.pt are links to others, and a file may rotate away meanwhile.
    """
    if not (config.resume and (config.output_dir or config.trainer.checkpoint_dir)):
        return 0
    sizes: dict[tuple[int, int], int] = {}
    for file in _written_folder(config).rglob("*.pt"):
        with contextlib.suppress(OSError):
            found = file.stat()
            sizes[found.st_dev, found.st_ino] = found.st_size
    return sum(sizes.values())


def _digests(config: DoctorConfig) -> dict[str, str]:
    """Of each file that the task reads its data from; an error is a finding, not the end."""
    try:
        return digests(task_class(config).data_files(config))
    except UserError as error:
        return {f"data={config.data.name}": f"error: {error}"}
    except Exception as error:
        return {f"data={config.data.name}": f"error: {first_line(error)}"}
