"""The same steps on one process and under each launcher, compared: `retina_dist.parity`."""

import math
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from retina_dist.base.console import print_redacted
from retina_dist.base.files import write_json
from retina_dist.base.seeding import seed_everything
from retina_dist.base.settings import setting
from retina_dist.benchmark.report import LaunchedConfig
from retina_dist.config.run_config import task_class
from retina_dist.engine.plan import TrainerConfig
from retina_dist.engine.replicas import check_replicas
from retina_dist.engine.train_step import TrainStep
from retina_dist.run.build import build_plan, build_state, build_strategy
from retina_dist.strategies.base import DistributedStrategy
from retina_dist.strategies.launch_environment import detect_launch
from retina_dist.strategies.launchers import ALONE
from retina_dist.strategies.single_device import SingleDeviceStrategy
from retina_dist.strategies.start_processes import run_job, usable
from retina_dist.testing.bits import Digests, train_digests

TOLERANCE = 1e-10
LOSS_SCALE = 1024.0

Tensors = dict[str, Tensor]
# What a run of a case gave: by kind, for each step or for the end.
Outcome = dict[str, list[Tensors]]
Differences = dict[str, float]  # by case


@dataclass
class ParityConfig(LaunchedConfig):
    """`python -m retina_dist.parity`: takes the settings of a training."""

    steps: int = setting(2, "a whole and a short one; the third begins epoch 2", at_least=1)
    bits: bool = setting(False, "compare every bit of runs with trainer.virtual_ranks")


@dataclass(frozen=True)
class Case:
    """The settings of a case; `agrees=False`: several processes cannot give the same."""

    name: str
    norm: str = "frozen_bn"
    accumulate: int = 1
    clip: float | None = None
    loss_scale: bool = False
    ema_decay: float | None = None
    agrees: bool = True


CASES = (
    Case("momentum, weight decay"),
    Case("accumulate 2", accumulate=2),
    Case("clip", clip=1.0),
    Case("loss scale", loss_scale=True),
    Case("all of these, average", accumulate=2, clip=1.0, loss_scale=True, ema_decay=0.9),
    Case("synchronised batch norm", norm="sync_bn"),
    Case("live batch norm", norm="bn", agrees=False),
)


def difference(one: Outcome, other: Outcome) -> float:
    """The largest relative difference of any kind in any step."""
    differences = [0.0]
    for kind, steps in one.items():
        differences += map(_relative, steps, other[kind])
        assert len(steps) == len(other[kind]), f"other steps of {kind}"
    return max(differences)


def run_case(case: Case, config: ParityConfig, strategy: DistributedStrategy) -> Outcome:
    """Train `config.steps` steps of `case` with `strategy`.

    Returns losses, gradients (as applied: reduced, unscaled, clipped), momentum (the optimizer's
    state after the step), weights, and ends (batch norm statistics, averaged weights). The main
    rank alone has gradients, momentum and weights.
    """
    config = _settings(case, config)
    seed_everything(config.seed)
    task = task_class(config)(config, strategy)
    data = task.build_data()
    plan = build_plan(config, task.num_images, strategy.world_size)
    state = build_state(config, task.build_model().double(), strategy)
    if case.loss_scale:
        state.scaler = torch.amp.GradScaler(strategy.device.type, init_scale=LOSS_SCALE)
    trained = {name: p for name, p in state.model.named_parameters() if p.requires_grad}
    outcome: Outcome = {"losses": [], "gradients": [], "momentum": [], "weights": []}

    def keep_gradients(*_: object) -> None:
        gradients = {name: p.grad for name, p in trained.items() if p.grad is not None}
        outcome["gradients"].append(_copied(gradients))

    if strategy.is_main:
        state.optimizer.register_step_pre_hook(keep_gradients)
    train_step = TrainStep(state, plan, strategy, TrainerConfig(gradient_clip=case.clip))
    strategy.broadcast_state(state)
    for micro_batches in data.train_steps(0, config.steps):
        loss = train_step(micro_batches)["train/loss"]
        state.step += 1
        check_replicas(state.replicated(), strategy, state.step)
        outcome["losses"].append(_copied({"loss": strategy.all_reduce(loss.double())}))
        if strategy.is_main:
            outcome["momentum"].append(_momentum(state.optimizer))
            outcome["weights"].append(_copied(trained))

    ends: Tensors = {}
    for name, buffer in state.model.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            ends[name] = buffer
    if state.ema:
        ends |= state.ema.model.state_dict()
    outcome["ends"] = [_copied(ends)]
    return outcome


def _momentum(optimizer: torch.optim.Optimizer) -> Tensors:
    momentum = {}
    for number, kept in optimizer.state_dict()["state"].items():
        for key, value in kept.items():
            momentum[f"{key} of {number}"] = value
    return _copied(momentum)


def _copied(tensors: Mapping[str, Tensor]) -> Tensors:
    return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}


def compare(config: ParityConfig) -> Differences:
    """Compare each case with one process; every rank of a launched job calls it.

    The main rank gets the differences.
    """
    torch.set_num_threads(config.trainer.num_threads or 1)
    differences: Differences = {}
    with build_strategy(config) as strategy:
        alone = SingleDeviceStrategy(str(strategy.device))
        for case in cases_of(config):
            # The first job computes what one process gives, later jobs read its file.
            file = Path(str(config.worker)).with_name(f"one process, {case.name}.pt")
            if strategy.is_main and not file.exists():
                torch.save(run_case(case, config, alone), file)
            outcome = run_case(case, config, strategy)
            if strategy.is_main:
                differences[case.name] = difference(
                    torch.load(file, map_location="cpu", weights_only=True), outcome
                )
                why = (
                    ""
                    if case.agrees
                    else ", as expected of statistics of each process's own images"
                )
                print(f"{case.name} differs by {differences[case.name]:.1e}{why}", flush=True)
    return differences


def train_bits(config: ParityConfig) -> Digests:
    """The digests of the runs of one job; every rank calls it."""
    ranks = config.trainer.virtual_ranks or max(4, *config.processes)
    return train_digests(config, config.steps, ranks, str(config.worker).removesuffix(".json"))


def parity(config: ParityConfig) -> bool:
    """Start every installed launcher with each number of processes; print the table.

    Returns whether all agree.
    """
    task_class(config).prepare(config)
    starts = list(product(usable(config.launchers), config.processes))
    if config.bits:
        starts.insert(0, (ALONE.name, 1))
    columns = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (launcher, processes) in enumerate(starts, start=1):
            job = f"{launcher} {processes}"
            print_redacted(f"{job} ({number} of {len(starts)})", sys.stderr)
            columns[job] = run_job(launcher, processes, "retina_dist.parity", Path(folder))
    good = _print_bits(columns) if config.bits else _print_table(config, columns)
    if config.output:
        write_json(Path(config.output), columns)
    return good


def _print_table(config: ParityConfig, columns: dict[str, Differences]) -> bool:
    """Print a row for each case; return whether all that can agree do."""
    good = True
    cases = cases_of(config)
    width = max(len(case.name) for case in cases) + 2
    print(f"\nlargest difference from one process in float64, relative; tolerance {TOLERANCE:g}")
    print(" " * width + "".join(map("{:>14}".format, columns)))
    for case in cases:
        row = f"{case.name:<{width}}"
        for differences in columns.values():
            apart = differences[case.name]
            mark = " "
            if case.agrees and not apart <= TOLERANCE:  # NaN fails too
                mark = "!"
                good = False
            row += f"{apart:>13.1e}{mark}"
        if not case.agrees:
            row += " cannot agree: own statistics"
        print(row)
    verdict = "Marked with !: past the tolerance."
    if good:
        verdict = "All agree." if all(case.agrees for case in cases) else "All others agree."
    print(f"\n{verdict}")
    return good


def _print_bits(columns: dict[str, Digests]) -> bool:
    """Print the digests of each job; return whether all jobs have the same."""
    first, *others = columns
    good = True
    for name, digest in columns[first].items():
        print(f"\n{name:<20}{digest}  {first}")
        for job in others:
            mark = "equal" if columns[job][name] == digest else f"! {columns[job][name]}"
            good = good and mark == "equal"
            print(f"{'':<20}{mark}  {job}")
    print(f"\n{'All are equal, to the last bit.' if good else 'Marked with !: other bits.'}")
    return good


def cases_of(config: ParityConfig) -> list[Case]:
    """All cases; those of norms only if the model has the setting `norm`."""
    if config.model.has_norm():
        return list(CASES)
    return [case for case in CASES if case.norm == Case.norm]


def _settings(case: Case, config: ParityConfig) -> ParityConfig:
    batch_size = max(case.accumulate * max(config.processes), config.data.batch_size)
    model = config.model
    if model.has_norm():
        model = replace(model, norm=case.norm)
    trainer = replace(
        config.trainer,
        accumulate=case.accumulate,
        virtual_ranks=None,
        gradient_clip=case.clip,
        ema_decay=case.ema_decay,
        precision="fp32",
        max_duration=f"{config.steps}steps",
        validate_every="0steps",
        stop_after=None,
    )
    data = replace(config.data, batch_size=batch_size)
    return replace(config, data=data, model=model, trainer=trainer)


def _relative(a: Tensors, b: Tensors) -> float:
    """max |a - b| / max |a| over all tensors.

    Infinite when one lacks a tensor of the other, or a number is not finite.
    """
    if a.keys() != b.keys():
        return math.inf
    size = _flat(a).abs().max()
    apart = (_flat(a) - _flat(b)).abs().max()
    if size > 0:
        apart /= size
    return float(apart.nan_to_num(math.inf, math.inf))  # `max` would overlook NaN


def _flat(tensors: Tensors) -> Tensor:
    parts = [tensors[name].double().flatten() for name in sorted(tensors)]
    return torch.cat([*parts, torch.zeros(1, dtype=torch.float64)])


def work(config: ParityConfig, output: Path) -> None:
    """In a launched process: write what its job gives to `output`; every rank calls it."""
    found = train_bits(config) if config.bits else compare(config)
    if found and detect_launch().rank == 0:
        write_json(output, found)
