"""The memory of a step: predicted against the peak that the CPU's allocator measures, and settled
against what there is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
import yaml
from torch.profiler import ProfilerActivity, profile

from retina_dist.base.errors import ConfigError
from retina_dist.base.seeding import seed_step
from retina_dist.config.compose import load_config
from retina_dist.config.run_config import RunConfig, task_class
from retina_dist.engine.plan import Plan
from retina_dist.engine.task import Task
from retina_dist.run import assemble, memory
from retina_dist.run.build import build_plan, build_state, build_train_step
from retina_dist.run.memory import MemoryEstimate, MemoryPlan, StepMemory, plan_memory
from retina_dist.strategies.devices import CONTEXT_GIB, GPUS, find_gpu, memory_of
from retina_dist.strategies.single_device import SingleDeviceStrategy
from tests.metric_files import read_metrics
from tests.unit.strategies.test_strategy_base import on_ranks

CPU, GPU = torch.device("cpu"), torch.device("cuda")
ALIKE = 0.10  # what may lie between the two
PLAIN = ["data=synthetic", "trainer.max_duration=100steps", "data.batch_size=16"]
RETINANET_TINY = [*PLAIN, "model=retinanet_tiny", "data.synthetic.canvas=[128,160]"]
RETINANET_R50 = [
    *PLAIN,
    "model=retinanet_r50",
    "model.norm=frozen_bn",
    "data.synthetic.canvas=[128,128]",
    "optimizer=sgd",
]
CLASSIFIER = ["task=classification", *PLAIN, "data.image_size=64", "data.synthetic.num_classes=10"]
MODELS = {
    "retinanet_tiny": [*RETINANET_TINY, "trainer.ema_decay=0.99"],
    "retinanet_r50": RETINANET_R50,
    "classifier_tiny": CLASSIFIER,
}
REAL = {  # the sizes of trainings
    "`retinanet_tiny`, 192 x 192": [
        *PLAIN,
        "model=retinanet_tiny",
        "data.synthetic.canvas=[192,192]",
    ],
    "`retinanet_r50`, 608 x 800": [
        *PLAIN,
        "model=retinanet_r50",
        "optimizer=sgd",
        "data.synthetic.canvas=[608,800]",
    ],
    "`classifier` (ResNet-50), 224 x 224": [
        *(
            "task=classification",
            *PLAIN,
            "model=classifier",
            "data.image_size=224",
            "optimizer=sgd",
        ),
    ],
}


def made(settings: list[str], *more: str) -> tuple[RunConfig, Task]:
    config = load_config("train", [*settings, *more])
    return config, task_class(config)(config, SingleDeviceStrategy("cpu"))


@cache
def step_memory(*settings: str, device: torch.device = CPU) -> Callable[[int], MemoryEstimate]:
    config, task = made(list(settings))
    step = StepMemory(config, task, device)
    return lambda images: step(build_plan(config, 1000, 1), images)


def measured_peak(config: RunConfig, task: Task, images: int) -> int:
    """Bytes at the peak of two steps since the model was made, without what a kernel frees at once:
    its workspace.
    """
    plan = build_plan(config, 1000, 1)
    with profile(
        activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=False
    ) as profiler:
        state = build_state(config, task.build_model(), task.strategy)
        step = build_train_step(config, state, plan, task.strategy)
        for _ in range(2):
            step([task.largest_batch(images, CPU)])
    seen = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    changes = [event.nbytes() for event in sorted(seen, key=lambda event: event.start_ns())]
    live = torch.tensor(changes).cumsum(0).tolist()
    return max(
        now
        for now, change, after in zip(live, changes, [*changes[1:], 0], strict=True)
        if change != -after
    )


@pytest.mark.parametrize(
    ("model", "images"),
    [("retinanet_tiny", 4), ("retinanet_r50", 2), ("classifier_tiny", 2), ("classifier_tiny", 8)],
)
def test_the_peak_is_what_the_allocator_measures(model: str, images: int) -> None:
    predicted, measured = (
        step_memory(*MODELS[model])(images),
        measured_peak(*made(MODELS[model]), images),
    )
    assert predicted.peak == pytest.approx(measured, rel=ALIKE)
    state = sum(predicted.parts[part] for part in ("parameters", "buffers", "optimizer", "ema"))
    assert predicted.peak - state == pytest.approx(
        measured - state, rel=0.15
    )  # what grows with the images


@pytest.mark.long
def test_the_peak_at_the_sizes_of_trainings() -> None:
    """`pytest -m long -s` prints the table of docs/planning.md."""
    for model, settings in REAL.items():
        for images in (1, 2, 4):
            predicted, measured = (
                step_memory(*settings)(images).peak,
                measured_peak(*made(settings), images),
            )
            print(
                f"| {model} | {images} | {predicted / 2**20:.0f} | {measured / 2**20:.0f} | {predicted / measured - 1:+.1%} |"
            )
            assert predicted == pytest.approx(measured, rel=ALIKE)


def test_a_communicating_strategy_counts_what_it_sends() -> None:
    config, task = made(CLASSIFIER)

    class Sending(SingleDeviceStrategy):
        world_size = 2  # type: ignore[assignment]
        backend = "Horovod over Gloo"

    config = replace(config, strategy=replace(config.strategy, compression="fp16", fusion_mb=0))
    seed_step(config.seed, "step", 0, 0)  # as the estimate does
    task.strategy, before = Sending("cpu"), torch.get_rng_state()
    freed = StepMemory(config, task, CPU)(build_plan(config, 1000, 2), 2).parts
    assert freed["communication"] == pytest.approx(freed["parameters"] / 2, rel=0.01)
    assert freed["gradients"] < freed["parameters"]
    assert torch.equal(torch.get_rng_state(), before)  # the estimate draws no random number
    task.strategy.backend = "DDP over Gloo"
    kept = StepMemory(config, task, CPU)(build_plan(config, 1000, 2), 2).parts
    assert kept["gradients"] == pytest.approx(kept["parameters"], rel=0.01)


def test_on_a_gpu_autocast_keeps_group_norms_in_float32() -> None:
    image = torch.zeros(1, 4, 8, 8, dtype=torch.bfloat16)
    for device, kept in ((nullcontext(), torch.bfloat16), (memory._CudaAutocast(), torch.float32)):
        with torch.autocast("cpu", torch.bfloat16), device:
            assert (
                torch.nn.functional.group_norm(image, 2).dtype
                == torch.nn.GroupNorm(2, 4)(image).dtype
                == kept
            )


SMALL = [
    *("task=classification", "data=synthetic", "data.synthetic={num_classes: 4, num_images: 16}"),
    *("data.image_size=64", "data.batch_size=8", "model.norm=frozen_bn"),
    "model.architecture=shufflenet_v2_x0_5",  # few weights, so that the images decide
    *(
        "trainer.max_duration=3steps",
        "trainer.log_every=1",
        "schedule=constant",
        "schedule.warmup=0steps",
    ),
    "logging=quiet",
]
X = "that X has beside the CUDA context"
SHARDS = ["trainer.num_threads=1", "model.norm=frozen_bn"]  # what virtual ranks need


def config_of(*more: str) -> RunConfig:
    return load_config("train", [*SMALL, *more])


def planned(config: RunConfig, strategy: SingleDeviceStrategy) -> MemoryPlan:
    task = task_class(config)(config, strategy)

    def plan_of(number: int) -> Plan:
        trainer = replace(config.trainer, accumulate=number)
        return build_plan(replace(config, trainer=trainer), task.num_images, strategy.world_size)

    return plan_memory(config, task, strategy, plan_of)


def alone(*more: str) -> MemoryPlan:
    return planned(config_of(*more), SingleDeviceStrategy("cpu"))


@pytest.fixture
def straight(monkeypatch: pytest.MonkeyPatch) -> None:
    """The estimate is 2 GiB, and 1 GiB for each image of a micro-batch."""

    class Straight:
        def __init__(self, *arguments: object) -> None: ...

        def __call__(self, plan: Plan, images: int) -> MemoryEstimate:
            parts = dict.fromkeys(memory.PARTS, 0)
            return MemoryEstimate(
                images, parts | {"parameters": 2 * 2**30, "activations": images * 2**30}
            )

    monkeypatch.setattr(memory, "StepMemory", Straight)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], str]:
    """Puts a GPU "X" into the table that a plan may fill with so many GiB."""

    def put(gib: float) -> str:
        monkeypatch.setitem(GPUS, "X", CONTEXT_GIB + gib / memory.SHARE)
        return "gpu=X"

    return put


@pytest.mark.usefixtures("straight")
@pytest.mark.parametrize(
    ("gib", "accumulate"), [(10.1, 1), (9.9, 2), (6.1, 2), (5.9, 3), (4.1, 4), (3.1, 8)]
)
def test_auto_takes_the_fewest_micro_batches_that_fit(
    gpu: Callable[[float], str], gib: float, accumulate: int
) -> None:
    plan = alone(gpu(gib), "trainer.accumulate=auto")
    assert (plan.accumulate, plan.problem) == (accumulate, "")
    assert f"micro-batches of {-(-8 // accumulate)}:" in plan.lines[0]


@pytest.mark.usefixtures("straight")
def test_ranks_agree_and_need_fewer(gpu: Callable[[float], str]) -> None:
    for gib, ranks, accumulate in ((6.1, 2, 1), (6.1, 4, 1), (4.1, 2, 2), (4.1, 3, 2), (3.1, 3, 3)):
        config = config_of(gpu(gib), "trainer.accumulate=auto")
        plans = on_ranks(ranks, lambda strategy, config=config: planned(config, strategy))
        assert [(plan.accumulate, plan.problem) for plan in plans] == [(accumulate, "")] * ranks


@pytest.mark.usefixtures("straight")
@pytest.mark.parametrize(
    ("gib", "settings", "sentence"),
    [
        (
            4.1,
            [],
            f"needs 10.0 GiB, more than the 4.6 GiB {X}; use trainer.accumulate=4, with 4.0 GiB.",
        ),
        (2.8, [], "; use trainer.accumulate=8, with 3.0 GiB, which may still run out."),
        (
            2.5,
            [],
            "; a single image is too much: use trainer.precision=bf16, smaller images or more memory.",
        ),
        (2.5, ["trainer.accumulate=auto"], "at trainer.accumulate=8 needs 3.0 GiB"),
        (2.5, ["trainer.precision=bf16"], "is too much: use smaller images or more memory."),
        (2.8, [*SHARDS, "trainer.virtual_ranks=4"], f" {X}; use trainer.virtual_ranks=8."),
        (
            2.8,
            [*SHARDS, "data.batch_size=12", "trainer.virtual_ranks=8"],
            f" {X}; use data.batch_size=8.",
        ),
        (2.5, [*SHARDS, "trainer.virtual_ranks=8"], "is too much: use smaller images or more"),
    ],
)
def test_what_is_too_large_names_the_remedy_that_works(
    gpu: Callable[[float], str], gib: float, settings: list[str], sentence: str
) -> None:
    assert sentence in alone(gpu(gib), *settings).problem


@pytest.mark.usefixtures("straight")
def test_an_estimate_for_the_gpu_in_use_warns_and_does_not_refuse(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(memory, "_smallest_gpu", lambda strategy: memory_of("X", 5.0))
    assert not alone().problem
    assert (
        "may run out of memory: data.batch_size=8 at trainer.accumulate=1 needs 10.0" in caplog.text
    )
    for setting in ("dry_run=true", "gpu=5GiB"):
        assert "use trainer.accumulate=8, with 3.0 GiB" in alone(setting).problem
    monkeypatch.setattr(memory, "_smallest_gpu", lambda strategy: memory_of("X", 3.0))
    assert "a single image is too much" in alone("trainer.accumulate=auto").problem


@pytest.mark.parametrize(
    ("wrong", "near"), [("H100", "H100-80GB, H100-NVL-94GB"), ("quantum", "V100-16GB, .*GB200")]
)
def test_an_unknown_gpu_names_those_that_are_known(wrong: str, near: str) -> None:
    with pytest.raises(
        ConfigError, match=f"gpu={wrong} is not known; use {near}, or its memory, such as gpu=24GiB"
    ):
        find_gpu(wrong)


def losses_of(folder: Path) -> list[float]:
    return read_metrics(folder / "metrics.csv")["train/loss"][1]


@pytest.mark.usefixtures("straight")
def test_a_run_with_auto_is_the_run_with_its_number(
    gpu: Callable[[float], str], tmp_path: Path
) -> None:
    """The number is in config.yaml; a resume on another GPU takes another one and goes on."""
    auto = config_of(
        gpu(6.1),
        "trainer.accumulate=auto",
        f"output_dir={tmp_path / 'auto'}",
        "trainer.stop_after=2steps",
    )
    assemble.fit(auto)
    assert (
        yaml.safe_load((tmp_path / "auto" / "config.yaml").read_text())["trainer"]["accumulate"]
        == 2
    )
    assemble.fit(config_of("trainer.accumulate=2", f"output_dir={tmp_path / 'two'}"))
    assert losses_of(tmp_path / "auto") == losses_of(tmp_path / "two")[:2]
    gpu(4.1)
    assemble.fit(replace(auto, resume="auto", trainer=replace(auto.trainer, stop_after=None)))
    assert (
        yaml.safe_load((tmp_path / "auto" / "config.yaml").read_text())["trainer"]["accumulate"]
        == 4
    )
    assert losses_of(tmp_path / "auto") == pytest.approx(losses_of(tmp_path / "two"), rel=1e-5)


def test_a_dry_run_shows_the_real_estimate_and_refuses(
    gpu: Callable[[float], str], capsys: pytest.CaptureFixture[str]
) -> None:
    assemble.fit(config_of("dry_run=true", gpu(50)))
    assert re.search(
        r"  memory   peak .*: parameters .*\n  memory   0 % of the 55.6 GiB",
        capsys.readouterr().out,
    )
    with pytest.raises(ConfigError, match="a single image is too much"):
        assemble.fit(config_of("dry_run=true", gpu(0.001)))
