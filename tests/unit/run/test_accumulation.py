"""`trainer.accumulate=auto` and a GPU that is too small."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from retina_dist import gpus
from retina_dist.config.compose import load_config
from retina_dist.config.run_config import RunConfig
from retina_dist.engine.plan import Plan
from retina_dist.errors import ConfigError
from retina_dist.run import accumulation, assemble
from retina_dist.run.accumulation import CONTEXT_GIB, SHARE, MemoryPlan, largest_fitting, plan_memory
from retina_dist.run.build import build_plan, build_task
from retina_dist.run.memory_estimate import MemoryEstimate, NotEstimated
from retina_dist.strategies.single_device import SingleDeviceStrategy
from tests.unit.strategies.test_strategy_base import on_ranks

SETTINGS = [
    "task=classification",
    "data=synthetic",
    "data.synthetic={num_classes: 4, num_images: 16}",
    "data.image_size=64",
    "data.batch_size=8",
    "model.architecture=shufflenet_v2_x0_5",  # few weights, so that the images decide
    "model.norm=frozen_bn",
    "trainer.max_duration=3steps",
    "trainer.log_every=1",
    "schedule=constant",
    "schedule.warmup=0steps",
    "logging.plots=false",
    "logging.tensorboard=false",
]


def config_of(*more: str) -> RunConfig:
    return load_config("train", [*SETTINGS, *more])


def planned(config: RunConfig, strategy: SingleDeviceStrategy) -> MemoryPlan:
    task = build_task(config, strategy)

    def plan_of(number: int) -> Plan:
        trainer = replace(config.trainer, accumulate=number)
        return build_plan(replace(config, trainer=trainer), task.num_images, strategy.world_size)

    return plan_memory(config, task, strategy, plan_of)


STATE, IMAGE = 2.0, 1.0  # GiB of the model's state, and of each image of a micro-batch


class Straight:
    """In the place of `StepMemory`, whose estimates have a test of their own."""

    batch_norm = "bn"

    def __init__(self, *arguments: object) -> None:
        pass

    def __call__(self, plan: Plan, images: int) -> MemoryEstimate:
        assert max(plan.micro_batches) == images
        return MemoryEstimate(images, parameters=int(STATE * 2**30), activations=int(images * IMAGE * 2**30))


@pytest.fixture
def straight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accumulation, "StepMemory", Straight)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], str]:
    """Puts a GPU "X" into the table that a plan may fill with so many GiB."""

    def put(gib: float) -> str:
        made = gpus.Gpu("X", "X", CONTEXT_GIB + gib / SHARE, (9, 0))
        monkeypatch.setattr(gpus, "GPUS", (*(g for g in gpus.GPUS if g.name != "X"), made))
        return "gpu=X"

    return put


def alone(config: RunConfig) -> MemoryPlan:
    return planned(config, SingleDeviceStrategy("cpu"))


@pytest.mark.usefixtures("straight")
@pytest.mark.parametrize(("gib", "accumulate"), [(10.1, 1), (9.9, 2), (6.1, 2), (5.9, 3), (4.1, 4), (3.1, 8)])
def test_auto_takes_the_fewest_micro_batches_that_fit(gpu: Callable[[float], str], gib: float, accumulate: int) -> None:
    found = alone(config_of(gpu(gib), "trainer.accumulate=auto"))
    assert (found.accumulate, found.problem) == (accumulate, "")
    assert f"micro-batches of {-(-8 // accumulate)}:" in found.lines[0]
    assert found.lines[2:] == [f"batch norms see each micro-batch of {-(-8 // accumulate)} by itself"] * (
        accumulate > 1
    )


@pytest.mark.usefixtures("straight")
def test_ranks_agree_and_need_fewer(gpu: Callable[[float], str]) -> None:
    config = config_of(gpu(6.1), "trainer.accumulate=auto")
    two, four = (on_ranks(ranks, lambda strategy: planned(config, strategy)) for ranks in (2, 4))
    assert [found.accumulate for found in two] == [1, 1]
    assert two[0] == two[1]
    assert [found.accumulate for found in four] == [1] * 4
    config = config_of(gpu(4.1), "trainer.accumulate=auto")
    assert [found.accumulate for found in on_ranks(2, lambda strategy: planned(config, strategy))] == [2, 2]


@pytest.mark.usefixtures("straight")
def test_what_is_too_large_names_the_remedy_that_works(gpu: Callable[[float], str]) -> None:
    sentence = (
        r"data.batch_size=8 at trainer.accumulate=1 needs 10.0 GiB on each GPU, of which X has 4.6 GiB beside the CUDA "
        r"context; use trainer.accumulate=4, with 4.0 GiB."
    )
    with pytest.raises(ConfigError, match=sentence):
        alone(config_of(gpu(4.1))).check()
    alone(config_of(gpu(4.1), "trainer.accumulate=4")).check()


@pytest.mark.usefixtures("straight")
@pytest.mark.parametrize("accumulate", ["auto", 1])
def test_a_gpu_too_small_for_one_image_says_so(gpu: Callable[[float], str], accumulate: object) -> None:
    with pytest.raises(ConfigError, match=r"a single image is too much: use trainer.precision=bf16"):
        alone(config_of(gpu(2.5), f"trainer.accumulate={accumulate}")).check()


@pytest.mark.usefixtures("straight")
def test_a_remedy_between_the_share_and_all_is_named(gpu: Callable[[float], str]) -> None:
    with pytest.raises(ConfigError, match=r"; use trainer.accumulate=8, with 3.0 GiB, which may still run out\.$"):
        alone(config_of(gpu(2.8), "trainer.accumulate=1")).check()


@pytest.mark.usefixtures("straight")
def test_half_precision_is_no_remedy_where_it_is_set(gpu: Callable[[float], str]) -> None:
    with pytest.raises(ConfigError, match="is too much: use smaller images or a larger GPU"):
        alone(config_of(gpu(2.5), "trainer.precision=bf16")).check()


@pytest.mark.usefixtures("straight")
def test_each_micro_batch_of_random_data_has_an_image(gpu: Callable[[float], str]) -> None:
    config = config_of(gpu(3.7), "trainer.accumulate=auto")
    found = on_ranks(3, lambda strategy: planned(config, strategy))
    assert [(plan.accumulate, plan.problem) for plan in found] == [(2, "")] * 3


@pytest.mark.usefixtures("straight")
@pytest.mark.parametrize(
    ("norm", "ranks", "line"),
    [
        ("bn", 2, "with trainer.accumulate=2, batch norms see each micro-batch of 2 by itself"),
        ("sync_bn", 1, "with trainer.accumulate=4, batch norms see each micro-batch of 2 by itself"),
        (
            "sync_bn",
            2,
            "with trainer.accumulate=2, synchronized batch norms see 2 micro-batches of 2 at a time, one of each process",
        ),
    ],
)
def test_a_remedy_tells_what_batch_norms_will_see(
    gpu: Callable[[float], str], monkeypatch: pytest.MonkeyPatch, norm: str, ranks: int, line: str
) -> None:
    monkeypatch.setattr(Straight, "batch_norm", norm)
    config = config_of(gpu(4.1))
    assert on_ranks(ranks, lambda strategy: planned(config, strategy))[0].lines[2] == line


@pytest.mark.usefixtures("straight")
def test_an_estimate_for_the_gpu_in_use_warns_and_does_not_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accumulation, "_smallest_gpu", lambda strategy: gpus.Gpu("X", "X", 5.0, (9, 0)))
    found = alone(config_of())
    found.check()
    assert found.warnings[0].startswith(
        "may run out of memory: data.batch_size=8 at trainer.accumulate=1 needs 10.0 GiB"
    )
    for setting in ("dry_run=true", "gpu=5GiB"):
        with pytest.raises(ConfigError, match="use trainer.accumulate=8, with 3.0 GiB"):
            alone(config_of(setting)).check()
    monkeypatch.setattr(accumulation, "_smallest_gpu", lambda strategy: gpus.Gpu("X", "X", 3.0, (9, 0)))
    with pytest.raises(ConfigError, match="a single image is too much"):
        alone(config_of("trainer.accumulate=auto")).check()


@pytest.mark.usefixtures("straight")
def test_a_gpu_larger_than_that_in_use_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accumulation, "_smallest_gpu", lambda strategy: gpus.Gpu("X", "X", 5.0, (9, 0)))
    sentence = "gpu=24GiB has 24.0 GiB, but X 5.0 GiB: a step that fits into the first may not fit into the second."
    assert alone(config_of("gpu=24GiB")).warnings == [sentence]
    assert alone(config_of("gpu=24GiB", "dry_run=true")).warnings == []


@pytest.mark.usefixtures("straight")
def test_what_is_not_modelled_is_said(gpu: Callable[[float], str]) -> None:
    found = alone(config_of(gpu(50), "trainer.compile=true"))
    line = "estimated for the eager step: trainer.compile may take more or less"
    assert found.lines[-1] == line


@pytest.mark.usefixtures("straight")
def test_a_dry_run_without_a_gpu_says_that_auto_is_one() -> None:
    found = alone(config_of("trainer.accumulate=auto", "dry_run=true"))
    assert (found.accumulate, found.lines[1:]) == (
        1,
        ["trainer.accumulate=auto is 1 without a GPU; gpu=NAME settles it"],
    )


def test_the_smallest_gpu_counts_and_another_rank_does_not_lend_it_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {0: 80.0, 1: 16.0}
    plain = torch.tensor
    monkeypatch.setattr(torch, "tensor", lambda *values, device=None, **options: plain(*values, **options))
    monkeypatch.setattr(
        accumulation, "gpu_of", lambda device: gpus.Gpu(f"GPU {device.index}", "", sizes[device.index], (9, 0))
    )

    def found(strategy: Any) -> tuple[str, float]:
        strategy.device = torch.device("cuda", strategy.rank)
        gpu = accumulation._smallest_gpu(strategy)
        assert gpu is not None
        return gpu.name, gpu.memory_gib

    assert on_ranks(2, found) == [("the smallest GPU of the job", 16.0), ("GPU 1", 16.0)]


@pytest.mark.usefixtures("straight")
def test_little_room_is_a_warning(gpu: Callable[[float], str]) -> None:
    found = alone(config_of(gpu(9.5)))
    assert not found.problem
    assert alone(config_of(gpu(2.8), "trainer.accumulate=auto")).accumulate == 8
    assert found.lines[-1] == "close to what there is; use trainer.accumulate=2, with 6.0 GiB"


def test_auto_without_an_estimate_asks_for_a_number(
    gpu: Callable[[float], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: object) -> None:
        raise NotEstimated("the task is silent")

    monkeypatch.setattr(accumulation, "StepMemory", fails)
    assert alone(config_of(gpu(9.5))).lines == ["not estimated: the task is silent"]
    with pytest.raises(ConfigError, match="auto cannot be settled: the task is silent; give a number"):
        alone(config_of(gpu(9.5), "trainer.accumulate=auto")).check()


def test_an_unknown_gpu_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"gpu=A100-40 is not known; did you mean A100-40GB\?"):
        config_of("gpu=A100-40")


def test_without_a_gpu_nothing_is_estimated_and_auto_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accumulation, "StepMemory", None)
    assert alone(config_of("trainer.accumulate=auto")) == MemoryPlan(1)


@pytest.mark.parametrize("value", ["two", "0", "1.5"])
def test_accumulate_is_a_number_or_auto(value: str) -> None:
    with pytest.raises(ConfigError, match=r"trainer.accumulate=.*(number|at least 1)"):
        config_of(f"trainer.accumulate={value}")


def losses_of(folder: Path) -> list[str]:
    rows = (folder / "metrics.csv").read_text().splitlines()
    place = rows[0].split(",").index("train/loss")
    return [row.split(",")[place] for row in rows[1:] if row.split(",")[place]]


@pytest.mark.usefixtures("straight")
def test_a_run_with_auto_is_the_run_with_its_number(gpu: Callable[[float], str], tmp_path: Path) -> None:
    """The number is in config.yaml; a resume on another GPU takes another one and goes on."""
    auto = config_of(
        gpu(6.1), "trainer.accumulate=auto", f"output_dir={tmp_path / 'auto'}", "trainer.stop_after=2steps"
    )
    assemble.fit(auto)
    assert yaml.safe_load((tmp_path / "auto" / "config.yaml").read_text())["trainer"]["accumulate"] == 2
    assemble.fit(config_of("trainer.accumulate=2", f"output_dir={tmp_path / 'two'}"))
    assert losses_of(tmp_path / "auto") == losses_of(tmp_path / "two")[:2]
    gpu(4.1)
    assemble.fit(replace(auto, resume="auto", trainer=replace(auto.trainer, stop_after=None)))
    assert yaml.safe_load((tmp_path / "auto" / "config.yaml").read_text())["trainer"]["accumulate"] == 4
    both = [list(map(float, losses_of(tmp_path / name))) for name in ("auto", "two")]
    assert both[0] == pytest.approx(both[1], rel=1e-5)


def test_a_dry_run_shows_the_real_estimate_and_refuses(
    gpu: Callable[[float], str], capsys: pytest.CaptureFixture[str]
) -> None:
    assemble.fit(config_of("dry_run=true", gpu(50)))
    assert re.search(r"  memory   peak .*: parameters .*\n  memory   0 % of the 55.6 GiB", capsys.readouterr().out)
    with pytest.raises(ConfigError, match="a single image is too much"):
        assemble.fit(config_of("dry_run=true", gpu(0.001)))


@pytest.mark.parametrize("room", range(0, 120, 7))
def test_the_largest_size_that_fits_is_found_in_few_calls(room: int) -> None:
    asked: list[int] = []

    def peak(size: int) -> int:
        asked.append(size)
        return 10 + 3 * size + (size > 8)

    found = largest_fitting(peak, 40, room)
    assert found == max((size for size in range(1, 40) if 10 + 3 * size + (size > 8) <= room), default=0)
    assert len(set(asked)) <= 6
