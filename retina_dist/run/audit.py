"""Did a run happen as it is logged? Its records are compared with each other, and parts of it run
again.
"""

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from torch.optim.optimizer import StateDict

from retina_dist.base.errors import UserError, describe_error
from retina_dist.base.files import PathOrUrl, names_in
from retina_dist.base.text import pluralize
from retina_dist.base.yaml_files import load_yaml
from retina_dist.config.compose import load_config
from retina_dist.config.run_config import RunConfig
from retina_dist.engine.checkpoint.store import STEP_FILE, load_checkpoint
from retina_dist.reporting.run_files import read_result
from retina_dist.run.assemble import fit
from retina_dist.run.digest_recorder import (
    counted_settings,
    metrics_digest,
    settings_digest,
    state_digests,
    versions_digest,
)
from retina_dist.run.records import describe_versions, start_of, versions
from retina_dist.run.resume import checkpoint_folder
from retina_dist.strategies.settings import StrategySettings
from retina_dist.tracking.callbacks import Callback
from retina_dist.tracking.digest import COLUMNS, OF_EACH_STEP, DigestRow, read_digests
from retina_dist.tracking.loggers import read_metrics
from retina_dist.tracking.progress import LOSS
from retina_dist.tracking.settings import LoggingConfig

Metrics = Iterable[tuple[int, dict[str, float]]]  # the step and the values of each row


class Mismatch(UserError):
    """What is not as the run has logged it."""


@dataclass
class Window:
    """Steps to run again: those after `begin` up to `stop`, in a run folder of their own.

    Without a `checkpoint` they are the first ones.
    """

    begin: int
    stop: int
    checkpoint: str | None
    folder: str = ""

    def __str__(self) -> str:
        source = f"from {Path(self.checkpoint).name}" if self.checkpoint else "from the start"
        return f"steps {self.begin + 1} to {self.stop}, {source}"


class Audit:
    """The records of a run. `overrides` are settings of the place, such as `data.root`.

    Raises DataError without digest.csv, ConfigError for settings that cannot be read.
    """

    def __init__(self, folder: Path, overrides: Sequence[str] = ()) -> None:
        self.folder = folder
        self.rows = read_digests(folder, check=False)
        self.starts = [row for row in self.rows if row.is_start]
        self.steps = {row.step: row for row in self.rows if not row.is_start}
        self.start = start_of(folder)
        self.config = settings_of(folder, overrides)
        self.settings = load_yaml(folder / "config.yaml")
        self.checkpoints: dict[int, str | None] = {0: None}  # of step 0, where there is no file
        self.undecided = ""  # why windows prove nothing

    def records(self) -> Iterator[str]:
        """Compare the records with each other; a line for each kind. Raises UserError, such as
        Mismatch.
        """
        yield self._check_chain()
        if settings_digest(self.settings) != self.starts[-1].metrics:
            raise Mismatch("config.yaml has other settings than the run was started with")
        yield "settings: config.yaml is that of the start"
        folder = checkpoint_folder(self.config, self.folder)
        names = sorted(name for name in names_in(folder) if name.endswith(".pt"))
        for name in names:
            try:
                self._check_checkpoint(folder / name)
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                raise Mismatch(f"{name}: {describe_error(error)}") from error
        yield (
            f"checkpoints: {', '.join(names) or 'none'}: weights, optimizer, settings, versions "
            "and head are those of their rows"
        )
        yield self._check_metrics()

    def _check_chain(self) -> str:
        read_digests(self.folder)
        steps = [row.step for row in self.rows]
        if not self.starts or sorted(set(steps)) != list(range(steps[0], steps[-1] + 1)):
            raise Mismatch("digest.csv lacks steps, or its start")
        head = self.rows[-1].chain
        result = read_result(self.folder)
        if result.status and result.digest != head:
            raise Mismatch("result.json has another head than digest.csv")
        return (
            f"chain: the rows of steps {steps[0]} to {steps[-1]} end in {head}; "
            f"result.json: {result.status or 'not there'}"
        )

    def _check_checkpoint(self, path: PathOrUrl) -> None:
        content = load_checkpoint(path)
        step = content["step"]
        row = {each.chain: each for each in self.rows}.get(content["digest"])
        if row is None or row.step != step:
            raise Mismatch("it has the head of another run, or of another step")
        for name, digest in zip(("weights", "optimizer"), state_digests(content), strict=True):
            if digest != getattr(row, name):
                raise Mismatch(f"it does not have the {name} of step {step}")
        if STEP_FILE.fullmatch(path.name):
            self.checkpoints[step] = str(path)
        if self.rows.index(row) >= self.rows.index(self.starts[-1]):
            self._check_conditions(content)

    def _check_conditions(self, content: StateDict) -> None:
        """Settings and versions of a checkpoint that the last start led to."""
        ours = counted_settings(self.settings)
        theirs = counted_settings(content["config"])
        if ours["trainer.precision"] == "auto":
            theirs["trainer.precision"] = "auto"
        for key in sorted(ours.keys() | theirs.keys()):
            if ours.get(key) != theirs.get(key):
                raise Mismatch(f"it has {key}={theirs.get(key)}, config.yaml {ours.get(key)}")
        if versions_digest(content["versions"]) != self.starts[-1].loss:
            raise Mismatch("it has other versions than the run was started with")

    def _check_metrics(self) -> str:
        logged: dict[int, str] = {}
        for step, values in read_metrics(self.folder / "metrics.csv"):
            if step > self.rows[0].step:
                logged[step] = metrics_digest(values, logged.get(step, ""))
        for step, row in self.steps.items():
            if row.metrics != logged.get(step, ""):
                raise Mismatch(f"metrics.csv has other values at step {step}")
        return (
            f"metrics.csv: the values of {pluralize(len(logged), 'step')} are those of their rows"
        )

    def windows(self, number: int | str, steps: int, seed: int) -> list[Window]:
        """Those to run again, each from the start or a checkpoint up to the next one.

        All of them, or the first and others that `seed` draws, each of `steps` steps at most.
        """
        start = self.starts[-1]
        last = self.rows[-1].step
        stops = sorted(step for step in self.checkpoints if start.step <= step < last) + [last]
        every = [Window(begin, stop, self.checkpoints[begin]) for begin, stop in pairwise(stops)]
        if not every:
            self.undecided = "no checkpoint is left from which it could run again"
        if number == "all" or not every:
            return every
        others = random.Random(seed).sample(every[1:], min(int(number), len(every)) - 1)
        chosen = every[:1] + sorted(others, key=lambda window: window.begin)
        return [replace(each, stop=min(each.stop, each.begin + steps)) for each in chosen]

    def compare(self, window: Window) -> str:
        """Compare the rows of a window that was run again; what was equal, in words.

        Raises Mismatch. With other versions, or in another layout without virtual ranks, the losses
        of metrics.csv are compared, of which not every digit is the same.
        """
        again = Path(window.folder)
        rows = read_digests(again)
        first = rows[0]
        if first.images != self.starts[-1].images:
            raise Mismatch("labels or images of the data are not those of the run")
        if first.metrics != self.starts[-1].metrics:
            raise Mismatch("the overrides change settings that the run's numbers depend on")
        job = start_of(again).job
        if job != self.start.job and not self.config.trainer.virtual_ranks:
            self.undecided = f"it was run again on {job} in place of {self.start.job}"
        elif first.loss != self.starts[-1].loss:
            self.undecided = (
                f"it was trained with {describe_versions(self.start.versions)}, "
                "not with those from here"
            )
        else:
            self._compare_rows(rows, window)
            return f"{window}: images, losses, gradients, metrics, weights and optimizer are equal"
        logged = read_metrics(self.folder / "metrics.csv")
        return f"{window}: {_equal_digits(logged, read_metrics(again / 'metrics.csv'))}"

    def _compare_rows(self, rows: Sequence[DigestRow], window: Window) -> None:
        if not window.checkpoint:
            _compare(rows[0], self.starts[-1], COLUMNS)
        found = {row.step: row for row in rows if not row.is_start}
        always: Sequence[str] = (*OF_EACH_STEP, "metrics")
        for step in range(window.begin + 1, window.stop + 1):
            if step not in found:
                raise Mismatch(f"step {step} does not come again: the run ends before it")
            if step == window.stop:
                always = OF_EACH_STEP
            _compare(found[step], self.steps[step], always)

    def describe_rest(self, windows: Sequence[Window]) -> str:
        """How much was run again, and what the comparison rests on."""
        again = sum(window.stop - window.begin for window in windows)
        return (
            f"run again: {again} of {pluralize(len(self.steps), 'step')}\n"
            f"versions of the run: {describe_versions(self.start.versions)}\n"
            f"versions here: {describe_versions(versions())}"
        )


def _compare(again: DigestRow, row: DigestRow, always: Sequence[str]) -> None:
    """Raise Mismatch for the first cell that differs."""
    for name in again.differing(row, always):
        raise Mismatch(f"the cell {name} of step {row.step} is not what the step gives again")


def settings_of(folder: Path, overrides: Sequence[str]) -> RunConfig:
    """The settings of the run; with virtual ranks on any backend."""
    config: RunConfig = load_config("train", [f"resume={folder}", *overrides])
    if config.trainer.virtual_ranks and not any(each.startswith("strategy") for each in overrides):
        config = replace(config, strategy=StrategySettings())
    return config


def fit_again(
    config: RunConfig,
    checkpoint: str | None,
    folder: str,
    callbacks: Sequence[Callback] = (),
    *,
    stop_after: str | None = None,
    digest: bool = False,
) -> None:
    """Train a run again, without its loggers. Every rank calls it.

    Args:
        config: the settings of the run.
        checkpoint: the one of the run to begin from; None is the start.
        folder: where the new run is written.
        callbacks: called at steps and validations.
        stop_after: such as "20steps"; None trains to the end.
        digest: whether to write digest.csv.
    """
    trainer = replace(config.trainer, stop_after=stop_after, checkpoint_dir=None, profile=None)
    records = LoggingConfig(tensorboard=False, mlflow="false", plots=False, digest=digest)
    run = replace(config, resume=checkpoint, output_dir=folder, trainer=trainer, logging=records)
    fit(run, callbacks)


def _equal_digits(run: Metrics, again: Metrics) -> str:
    """To how many digits the losses agree that both have logged."""
    expected = {step: values[LOSS] for step, values in run if LOSS in values}
    digits = []
    for step, values in again:
        if LOSS in values and step in expected:
            apart = abs(values[LOSS] - expected[step]) / max(abs(expected[step]), 1e-16)
            digits.append(-math.log10(max(apart, 1e-16)))
    if not digits:
        return f"no {LOSS} was logged"
    return f"{LOSS} agrees to {min(digits):.1f} digits at {pluralize(len(digits), 'step')}"
