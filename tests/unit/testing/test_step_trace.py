"""The digests of a step: equal where nothing differs, in any layout, and the first fault is named."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from retina_dist.base.errors import DataError
from retina_dist.config.compose import load_config
from retina_dist.run.records import start_of, write_start
from retina_dist.strategies.launch_environment import Launch
from retina_dist.strategies.single_device import SingleDeviceStrategy
from retina_dist.strategies.start_processes import command, launcher_like
from retina_dist.testing import bisect
from retina_dist.testing.bisect import Trace, differing_step, locate, print_differences
from retina_dist.testing.step_trace import (
    STAGES,
    Stages,
    StepTracer,
    Traced,
    fingerprint_of,
    first_difference,
)
from retina_dist.testing.thread_ranks import on_ranks
from retina_dist.tracking.callbacks import TrainingStart
from retina_dist.tracking.digest import START, DigestRow
from tests.planted_faults import FAULTS, STEP, nudge, planted
from tests.virtual_ranks import Data, Rows, loop_of

# The name of what is at fault, in the small network of the tests.
NAMES = {
    "an early layer": "first",
    "a late layer": "last",
    "loss": "size",
    "an early gradient": "first.weight",
    "a late gradient": "last.bias",
    "reduction": "last.weight",
    "clipping": "last.weight",
    "a weight": "weights.first.bias",
    "momentum": "optimizer.last.weight.momentum_buffer",
    "a running mean": "norm.running_mean",
    "average": "first.weight",
}


def traced(strategy: Any, step: int = STEP, start: Any = None, **changes: Any) -> StepTracer:
    loop = loop_of(strategy, **changes)
    if start:
        loop.state.load_state_dict(start)
    tracer = StepTracer(step)
    loop.callbacks = tracer
    place = (strategy.rank, strategy.world_size)
    tracer.on_start(
        TrainingStart(loop.state.model, Path(), loop.state.step, 7, *place, loop.train_step)
    )
    with pytest.raises(Traced):
        loop.fit()
    return tracer


def alone(**changes: Any) -> StepTracer:
    return traced(SingleDeviceStrategy("cpu"), **changes)


@pytest.mark.parametrize("step", [1, STEP, 7])
def test_equal_steps_have_equal_digests_in_any_layout(step: int) -> None:
    one = alone(step=step)
    assert first_difference(one.stages, alone(step=step).stages) is None
    for world_size in (2, 4):
        for other in on_ranks(world_size, partial(traced, step=step)):
            assert other.states == one.states
            assert first_difference(one.stages, other.stages) is None
            assert first_difference(other.stages, one.stages) is None
    assert list(one.states) == [str(each) for each in range(1, step)]
    shards = [f"virtual rank {shard}" for shard in range(4)]
    for stage in ("targets", "forward", "loss", "gradient"):
        assert list(one.stages[stage]) == shards
    for stage in ("start", "reduction", "clipping", "optimizer", "buffers", "average"):
        assert list(one.stages[stage]) == ["rank 0"]


def test_the_order_is_that_of_the_passes() -> None:
    stages = alone(norm=False).stages
    places = {
        stage: digests["virtual rank 0"]
        for stage, digests in stages.items()
        if stage in ("forward", "gradient", "loss")
    }
    assert list(places["forward"]) == ["first", "norm", "dropout", "last"]
    assert list(places["loss"]) == ["loss", "size"]
    assert list(places["gradient"])[:2] in (
        ["last.bias", "last.weight"],
        ["last.weight", "last.bias"],
    )


@pytest.mark.parametrize("fault", NAMES)
def test_a_fault_of_one_bit_is_named(fault: str) -> None:
    sound = alone()
    with planted(fault, name=NAMES[fault]):
        faulty = alone()
    found = first_difference(sound.stages, faulty.stages)
    assert found is not None
    assert found.stage == FAULTS[fault].stage
    assert found.name == NAMES[fault]
    assert found.a != found.b
    assert STAGES[found.stage] in str(found)
    assert sound.states == faulty.states  # of the steps before


def test_the_rank_of_a_fault_is_named() -> None:
    sound = alone()
    with planted("a late layer", name="last", rank=1):
        faulty, _ = on_ranks(2, traced)
    found = first_difference(sound.stages, faulty.stages)
    assert found is not None
    assert (found.stage, found.place, found.name) == ("forward", "virtual rank 2", "last")


def test_every_rank_is_traced_in_a_resume_which_the_main_rank_alone_has_loaded() -> None:
    """The others learn of it after the callbacks' start."""
    loop = loop_of(SingleDeviceStrategy("cpu"))
    for micro_batches in loop.data.train_steps(0, STEP - 1):
        loop.train_step(micro_batches)
        loop.state.step += 1
    saved = loop.state.state_dict()

    def resumed(strategy: Any) -> StepTracer:
        return traced(strategy, start=saved if strategy.is_main else None)

    one = alone()
    for tracer in on_ranks(2, resumed):
        assert tracer.stages.keys() == one.stages.keys()
        assert len(tracer.stages["forward"]) == 4
        assert len(tracer.stages["start"]) == len(tracer.stages["reduction"]) == 2
        assert tracer.states == {}
        assert first_difference(one.stages, tracer.stages) is None


class OtherData(Data):
    """One bit of one number of a shard in the second step."""

    def train_steps(self, start: int, stop: int) -> Iterator[list[Rows]]:
        for step, shards in enumerate(super().train_steps(start, stop), start=start + 1):
            if step == STEP - 1:
                nudge(shards[3].x)
            yield shards


def test_the_step_before_in_which_the_states_parted_is_found() -> None:
    """As for a fault of the optimizer or the average, which later rows show."""
    calls: list[tuple[str, int, int]] = []

    def repeat(side: str, step: int, before: int) -> Trace:
        calls.append((side, step, before))
        changes: Any = {"data_class": OtherData} if side == "b" else {}
        tracer = alone(step=step, **changes)
        return Trace(0, tracer.states, tracer.stages)

    step, found = locate(4, repeat)
    assert (step, calls) == (2, [("a", 4, 3), ("b", 4, 3), ("a", 2, 1), ("b", 2, 1)])
    assert found is not None
    assert (found.stage, found.place, found.name) == ("targets", "virtual rank 3", "x")


def of_start(value: str) -> Stages:
    return {stage: {} for stage in STAGES} | {"start": {"rank 0": {"model.weight": value}}}


def test_checkpoints_that_differ_are_left_for_earlier_ones() -> None:
    """Until there is none: then the runs began from other weights."""
    kept = [0, 3, 6]
    calls: list[int] = []

    def repeat(side: str, step: int, before: int) -> Trace:
        calls.append(before)
        return Trace(max(each for each in kept if each <= before), {}, of_start(side))

    step, found = locate(8, repeat)
    assert calls == [7, 7, 5, 5, 2, 2]
    assert step == 8
    assert found is not None
    assert str(found) == (
        "it begins with another state\ndiffers in start: model.weight of rank 0\n  a  a\n  b  b\n"
        + STAGES["start"]
    )


def test_digests_see_type_shape_and_bits() -> None:
    zeros = torch.zeros(2, 2)
    others = [torch.zeros(4), torch.zeros(2, 2, dtype=torch.int32), -zeros, "0", None, 0]
    found = {fingerprint_of(value) for value in [zeros, *others]}
    assert len(found) == 7
    assert fingerprint_of(zeros) == "float32 [2, 2] 0000000000000000"
    assert fingerprint_of(torch.ones(3, 2).t()) == fingerprint_of(torch.ones(2, 3))


def rows(*changes: tuple[int, str, str], steps: int = 9) -> list[DigestRow]:
    """Rows with other values at (step, column)."""
    found = [DigestRow(0, "data", "versions", START, "settings").chained("")]
    for step in range(1, steps + 1):
        cells = {"images": "i", "loss": "l", "gradients": "g"}
        cells |= {column: value for at, column, value in changes if at == step}
        found.append(DigestRow(step, **cells).chained(found[-1].chain))
    return found


@pytest.mark.parametrize("step", [1, 2, 5, 8, 9])
def test_the_first_step_that_differs_is_found_by_its_columns(step: int) -> None:
    other = rows((step, "loss", "x"), (step, "gradients", "y"), (9, "images", "z"))
    expected = ["loss", "gradients"] if step < 9 else ["images", "loss", "gradients"]
    assert differing_step(rows(), other) == (step, expected)
    assert differing_step(other, rows(steps=12)) == (step, expected)


def test_rows_that_differ_in_the_rhythm_alone_agree() -> None:
    """One run logs and saves where the other does not; and it was resumed."""
    often = rows((3, "metrics", "m"), (4, "weights", "w"), (4, "optimizer", "o"))
    resumed = [*often[:5], DigestRow(4, "data", "others", START, "settings"), *often[5:]]
    assert differing_step(rows(), rows()) is None
    assert differing_step(rows(), often) is None
    assert differing_step(resumed, often) is None
    assert differing_step(often, rows((4, "weights", "v"))) == (4, ["weights"])
    assert differing_step(often, rows((7, "gradients", ""))) == (7, ["gradients"])


class OnTwo(SingleDeviceStrategy):
    launch = Launch("srun", world_size=2)


def test_a_step_is_repeated_in_the_layout_of_the_start_that_took_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config("bisect", [f"a={tmp_path}", f"b={tmp_path}", "b_python=/new/python"])
    write_start(config, SingleDeviceStrategy("cpu"), tmp_path, "")
    write_start(config, OnTwo("cpu"), tmp_path, "", resumed_at=6)
    assert [start_of(tmp_path, step).processes for step in (1, 6, 7)] == [1, 1, 2]
    calls = []

    def run_job(*job: object, **how: object) -> dict[str, object]:
        calls.append((*job[:2], how["threads"], how["python"], how["further"]))
        return {"began_at": 0, "states": {}, "stages": {}}

    monkeypatch.setattr("retina_dist.testing.bisect.run_job", run_job)
    bisect.repeat(config, "a", 6, 5)
    bisect.repeat(config, "b", 7, 6)
    threads = torch.get_num_threads()
    resume = f'resume="{tmp_path}"'
    assert calls == [
        ("python", 1, threads, sys.executable, [resume, "step=6", "before=5"]),
        ("torchrun", 2, threads, "/new/python", [resume, "step=7", "before=6"]),
    ]
    (tmp_path / "command.json").write_text('[{"job": "one process, cpu, 2 threads"}]')
    with pytest.raises(DataError, match=r"command.json is of an older version and has no launcher"):
        bisect.repeat(config, "a", 6, 5)


@pytest.mark.parametrize(
    ("name", "processes", "expected"),
    [
        ("python", 1, "python"),
        ("python", 2, "torchrun"),
        ("torchrun", 1, "torchrun"),
        ("horovodrun", 2, "horovodrun"),
        ("variables", 2, "torchrun"),
    ],
)
def test_a_launcher_that_starts_nothing_here_is_replaced(
    name: str, processes: int, expected: str
) -> None:
    assert launcher_like(name, processes) == expected


def test_a_section_that_one_run_lacks_differs_by_its_values(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_differences("settings", {"data.shapes": "null"}, {"data.shapes.num_train": "24"})
    assert capsys.readouterr().out == "settings that differ: data.shapes.num_train: null and 24\n"


@pytest.mark.parametrize(
    ("ranks", "strategy", "said"),
    [("null", OnTwo, True), ("null", SingleDeviceStrategy, False), ("4", OnTwo, False)],
)
def test_images_that_are_dealt_out_to_other_processes(
    ranks: str, strategy: type, said: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Said before the step is repeated: only virtual ranks make layouts comparable."""
    for run, where in (("a", SingleDeviceStrategy), ("b", strategy)):
        folder = tmp_path / run
        folder.mkdir()
        write_start(load_config("train"), where("cpu"), folder, "")
        (folder / "config.yaml").write_text(f"trainer: {{virtual_ranks: {ranks}}}")
    config = load_config("bisect", [f"a={tmp_path}/a", f"b={tmp_path}/b", "step=1"])
    empty = Trace(0, {}, {stage: {} for stage in STAGES})
    assert bisect.bisect(config, lambda *_: empty)
    sentence = "the images of a step are dealt out to 1 and 2 processes, so its parts differ: "
    assert (sentence in capsys.readouterr().out) == said


def test_another_interpreter_runs_the_module() -> None:
    assert command("python", 1, "m", ["k=1"], "/new/python") == ["/new/python", "-m", "m", "k=1"]
    words = command("torchrun", 2, "m", [], "/new/python")
    assert words[:3] == ["/new/python", "-m", "torch.distributed.run"]
