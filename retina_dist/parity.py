"""Do all backends train the same model? The same few steps on one process and under each launcher, compared.

    python -m retina_dist.parity                                     every launcher that is there, 2 processes, fp64
    python -m retina_dist.parity processes=[1,2,4] dtypes=[fp64,fp32] steps=3     what make parity does
    python -m retina_dist.parity data=coco data.root=/data/mine      on your own images
    python -m retina_dist.parity task=classification_parity          the other task, with mixup and cutmix
    python -m retina_dist.parity processes=[2,8] launchers=[torchrun] model=retinanet_r50 dtypes=[fp32]
    python -m retina_dist.parity --config-dir my_conf task=mine strategy=mine launchers=[torchrun]     your own, in place of ours

Every cell of the table is the largest difference from one process: of the losses, the applied gradients, the momentum and
the weights of each step, and of the final batch norm statistics and weight average, each relative to the largest magnitude of its
kind. In fp64 each run keeps its own state for all steps. In fp32 each step begins from one process's state: rounding moves
inputs of ReLUs across zero, and what a network makes of that in two steps (a hundredth of a gradient, with batch norm from random
weights) does not concern the backend. Exit code 1 past the tolerance.

Each launcher starts once for each number of processes and goes through all cases; the first of them computes what one process
gives. Progress goes to stderr.
"""

from __future__ import annotations

import copy
import json
import math
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from retina_dist.config.entry_point import entry_point
from retina_dist.detection.settings import DetectionRunConfig
from retina_dist.engine.replicas import check_replicas
from retina_dist.engine.state import TrainState
from retina_dist.engine.train_step import TrainStep
from retina_dist.errors import ConfigError, UserError
from retina_dist.files import write_atomically
from retina_dist.reporting.console import print_redacted
from retina_dist.run.build import build_plan, build_state, build_strategy, build_task, task_class
from retina_dist.seeding import seed_everything
from retina_dist.settings import setting
from retina_dist.strategies.base import DistributedStrategy
from retina_dist.strategies.single_device import SingleDeviceStrategy
from retina_dist.strategies.start_processes import command, environment, why_missing

DTYPES = {"fp64": torch.float64, "fp32": torch.float32}
TOLERANCE = {"fp64": 1e-10, "fp32": 1e-5}
LOSS_SCALE = 1024.0
TRACEBACK = "Traceback (most recent call last)"
PROGRESS = "compared: "  # how a line of a launched process begins that the command shows, after what the launcher puts before it

Tensors = dict[str, Tensor]


@dataclass
class ParityConfig(DetectionRunConfig):
    """`python -m retina_dist.parity`: takes the settings of a training."""

    processes: list[int] = setting([2])
    launchers: list[str] = setting(["torchrun", "horovodrun", "mpirun"], "those that are installed")
    dtypes: list[str] = setting(["fp64"], "fp64 | fp32")
    steps: int = setting(2, "a whole one and a short one; the third begins the second epoch", at_least=1)
    output: str | None = setting(None, "a JSON file", writes="file")
    worker: str | None = setting(None, "set in the processes that it starts")


@dataclass(frozen=True)
class Case:
    """What is switched on; `agrees=False` for what cannot be the same on several processes."""

    name: str
    norm: str = "frozen_bn"
    accumulate: int = 1
    clip: float | None = None
    loss_scale: bool = False
    ema: bool = False
    agrees: bool = True


CASES = (
    Case("momentum, weight decay"),
    Case("accumulate 2", accumulate=2),
    Case("clip", clip=1.0),
    Case("loss scale", loss_scale=True),
    Case("all of these, average", accumulate=2, clip=1.0, loss_scale=True, ema=True),
    Case("synchronised batch norm", norm="sync_bn"),
    Case("live batch norm", norm="bn", agrees=False),
)


@dataclass
class Outcome:
    """What one run of a case gave, step by step, and what it ended with."""

    losses: list[float] = field(default_factory=list)
    gradients: list[Tensors] = field(default_factory=list)  # as applied: reduced, unscaled, clipped
    momentum: list[Tensors] = field(default_factory=list)  # the optimizer's state after the step
    weights: list[Tensors] = field(default_factory=list)  # after the step
    ends: Tensors = field(default_factory=dict)  # batch norm statistics, averaged weights
    states: list[dict[str, Any]] = field(default_factory=list)  # before each step

    def difference(self, other: Outcome) -> dict[str, float]:
        """Largest relative difference of each kind."""
        losses = [{"loss": torch.tensor(o.losses, dtype=torch.float64)} for o in (self, other)]
        steps = {
            name: _largest(_relative(a, b) for a, b in zip(getattr(self, name), getattr(other, name), strict=True))
            for name in ("gradients", "momentum", "weights")
        }
        return {"losses": _relative(*losses), **steps, "ends": _relative(self.ends, other.ends)}


def run_case(
    case: Case,
    dtype: str,
    config: ParityConfig,
    strategy: DistributedStrategy,
    states: list[dict[str, Any]] | None = None,
    keep_states: bool = False,
) -> Outcome:
    """Train `config.steps` steps of `case` with `strategy`; with `states` (the main rank's count) each step begins from one.

    What happened is known on the main rank only.
    """
    config = _settings(case, config)
    seed_everything(config.seed)
    task = build_task(config, strategy)
    data = task.build_data()
    plan = build_plan(config, task.num_images, strategy.world_size)
    state = build_state(config, task.build_model().to(DTYPES[dtype]), strategy)
    if case.loss_scale:
        state.scaler = torch.amp.GradScaler(strategy.device.type, init_scale=LOSS_SCALE)
    outcome = Outcome()
    if strategy.is_main:
        _record(state, outcome)
    train_step = TrainStep(state, plan, strategy, gradient_clip=case.clip)
    for number, micro_batches in enumerate(data.train_steps(0, config.steps)):
        if strategy.is_main and states:
            state.load_state_dict(states[number])
        if keep_states:
            outcome.states.append(copy.deepcopy(state.state_dict()))
        if number == 0 or states is not None:
            strategy.broadcast_state(state)
        loss = train_step(micro_batches)["train/loss"]
        state.step += 1
        check_replicas(state.replicated(), strategy, state.step)
        outcome.losses.append(float(strategy.all_reduce(loss.double(), "mean")))
    average = state.ema.model.state_dict() if state.ema else {}
    statistics = {n: b for n, b in state.model.named_buffers() if n.endswith(("running_mean", "running_var"))}
    outcome.ends = {name: tensor.cpu().clone() for name, tensor in {**statistics, **average}.items()}
    return outcome


def _record(state: TrainState, outcome: Outcome) -> None:
    """Note gradients, momentum and weights at each step of the optimizer."""

    def copied(tensors: Iterable[tuple[str, Tensor | None]]) -> Tensors:
        return {name: tensor.detach().cpu().clone() for name, tensor in tensors if tensor is not None}

    def before(*_: Any) -> None:
        outcome.gradients.append(copied((n, p.grad) for n, p in state.model.named_parameters()))

    def after(*_: Any) -> None:
        outcome.weights.append(copied((n, p) for n, p in state.model.named_parameters() if p.requires_grad))
        held = state.optimizer.state
        named = ((n, held[p]) for n, p in state.model.named_parameters() if p in held)
        outcome.momentum.append(copied((f"{n}.{key}", value) for n, kept in named for key, value in kept.items()))

    state.optimizer.register_step_pre_hook(before)
    state.optimizer.register_step_post_hook(after)


def compare(config: ParityConfig) -> dict[str, dict[str, float]]:
    """In each process of a launched job: every case's difference from one process, on the main rank ("fp64/accumulate 2": ...)."""
    torch.set_num_threads(config.trainer.num_threads or 1)
    found: dict[str, dict[str, float]] = {}
    with build_strategy(config) as strategy:
        alone = SingleDeviceStrategy(str(strategy.device))
        for dtype in config.dtypes:
            for case in cases_of(config):
                in_step, name = dtype == "fp32", f"{dtype}/{case.name}"
                reference = Outcome()
                if strategy.is_main:
                    reference = _reference(case, dtype, config, alone)
                outcome = run_case(case, dtype, config, strategy, states=reference.states if in_step else None)
                if strategy.is_main:
                    found[name] = reference.difference(outcome)
                    expected = "" if case.agrees else ", as expected: each process has its own statistics"
                    print(f"{PROGRESS}{name} differs by {_largest(found[name].values()):.1e}{expected}", flush=True)
    return found


def _reference(case: Case, dtype: str, config: ParityConfig, alone: DistributedStrategy) -> Outcome:
    """What one process gives: computed by the first job, read from a file beside its results by those after it."""
    file = Path(str(config.worker)).with_name(f"one process, {dtype}, {case.name}.pt")
    if not file.exists():
        torch.save(vars(run_case(case, dtype, config, alone, keep_states=dtype == "fp32")), file)
    return Outcome(**torch.load(file, map_location="cpu", weights_only=True))


def parity(config: ParityConfig) -> bool:
    """Start every launcher that is there with each number of processes, print the table, return whether all agree."""
    task_class(config).prepare(config)
    usable = {name: why_missing(name) for name in config.launchers}
    for name, reason in usable.items():
        if reason:
            print(f"{name} left out: {reason}", flush=True)
    starts = [(name, n) for name, reason in usable.items() if not reason for n in config.processes]
    if not starts:
        raise ConfigError(f"none of launchers={config.launchers} can be used here.")
    columns: dict[str, dict[str, dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for i, (launcher, processes) in enumerate(starts, start=1):
            print_redacted(
                f"{launcher}, {processes} process{'es' * (processes > 1)} ({i} of {len(starts)})", sys.stderr
            )
            columns[f"{launcher} {processes}"] = _launch(launcher, processes, Path(folder))
    good = _print_table(config, columns)
    if config.output:
        text = json.dumps(columns, indent=1) + "\n"
        write_atomically(Path(config.output), lambda temporary: temporary.write_text(text))
    return good


def _launch(launcher: str, processes: int, folder: Path) -> dict[str, dict[str, float]]:
    """The differences that a job of `processes` processes found. Raises UserError with its last words if it failed."""
    result = folder / f"{launcher}_{processes}.json"
    arguments = [*sys.argv[1:], f"worker={result}"]
    line = command(launcher, processes, "retina_dist.parity", arguments)
    lines: list[str] = []
    pipe = subprocess.PIPE
    with subprocess.Popen(line, env=environment(1), stdout=pipe, stderr=subprocess.STDOUT, text=True) as job:
        try:
            for text in job.stdout or ():
                _, mark, progress = text.partition(PROGRESS)
                if mark:
                    print_redacted(f"  {progress.rstrip()}", sys.stderr)
                else:
                    lines.append(text.rstrip())
        except BaseException:
            job.kill()
            raise
    if job.returncode or not result.exists():
        reason = "\n".join(reasons(lines))
        raise UserError(f"{launcher} with {processes} processes failed (exit code {job.returncode}):\n{reason}")
    found: dict[str, dict[str, float]] = json.loads(result.read_text())
    return found


def reasons(lines: Sequence[str]) -> list[str]:
    """Why a launched job failed: its lines with "error: " and its first traceback, else its last ten lines."""
    errors = [line for line in lines if re.search(r"(^|[\s>:])error: ", line)]
    start = next((i for i, line in enumerate(lines) if TRACEBACK in line), None)
    if start is None:
        return errors or list(lines[-10:])
    prefix = lines[start].partition(TRACEBACK)[0]  # of the launcher, such as "[rank 1] "
    end = next((i for i in range(start + 1, len(lines)) if not lines[i].startswith(f"{prefix} ")), len(lines) - 1)
    return [*errors, *lines[start : end + 1]]


def _print_table(config: ParityConfig, columns: dict[str, dict[str, dict[str, float]]]) -> bool:
    good = True
    width = max(len(case.name) for case in cases_of(config)) + 2
    for dtype in config.dtypes:
        print(f"\n{dtype}: largest difference from one process, relative; tolerance {TOLERANCE[dtype]:g}")
        print(" " * width + "".join(f"{name:>14}" for name in columns))
        for case in cases_of(config):
            cells = [_largest(found[f"{dtype}/{case.name}"].values()) for found in columns.values()]
            fails = [case.agrees and not cell <= TOLERANCE[dtype] for cell in cells]
            good = good and not any(fails)
            marks = "".join(f"{cell:>13.1e}{'!' if bad else ' '}" for cell, bad in zip(cells, fails, strict=True))
            print(f"{case.name:<{width}}{marks}{'' if case.agrees else ' cannot agree'}")
    live = "Live batch norm cannot agree: it normalises each process's own images. All others agree."
    print(f"\n{(live if _has_norms(config) else 'All agree.') if good else 'Marked with !: past the tolerance.'}")
    return good


def cases_of(config: ParityConfig) -> list[Case]:
    """All of them; those of norms only where the model has the setting `norm`."""
    return [case for case in CASES if case.norm == Case.norm or _has_norms(config)]


def _has_norms(config: ParityConfig) -> bool:
    return hasattr(config.model, "norm")


def _settings(case: Case, config: ParityConfig) -> ParityConfig:
    batch = max(case.accumulate * max(config.processes), config.data.batch_size)
    return replace(
        config,
        data=replace(config.data, batch_size=batch),
        model=replace(config.model, norm=case.norm) if _has_norms(config) else config.model,
        trainer=replace(
            config.trainer,
            accumulate=case.accumulate,
            max_duration=f"{config.steps}steps",
            validate_every="0steps",
            gradient_clip=case.clip,
            ema_decay=0.9 if case.ema else None,
            precision="fp32",
            stop_after=None,
        ),
    )


def _relative(a: Tensors, b: Tensors) -> float:
    """max |a - b| / max |a| over all tensors; infinite when one has a tensor that the other lacks."""
    if a.keys() != b.keys():
        return float("inf")
    names = [name for name, tensor in a.items() if tensor.numel()]
    apart = _largest(float((a[n].double() - b[n].double()).abs().max()) for n in names)
    size = _largest(float(a[n].double().abs().max()) for n in names)
    return apart / size if 0 < size < math.inf else apart


def _largest(values: Iterable[float]) -> float:
    """Their maximum, 0 of none, infinite if one is not a number: `max` would overlook that."""
    found = list(values)
    return math.inf if any(map(math.isnan, found)) else max(found, default=0.0)


@entry_point("parity", ParityConfig)
def main(config: ParityConfig) -> Any:
    """The table, or in a launched process its part."""
    if config.worker:
        found = compare(config)
        if found:
            write_atomically(Path(config.worker), lambda temporary: temporary.write_text(json.dumps(found)))
    elif not parity(config):
        sys.exit(1)


if __name__ == "__main__":
    main()
