"""The memory that is predicted for a step against the peak that the CPU's allocator measures in the same step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from retina_dist.config.compose import load_config
from retina_dist.config.run_config import RunConfig
from retina_dist.errors import DataError
from retina_dist.model.assumed_device import assume_cuda
from retina_dist.run.build import build_plan, build_state, build_task, build_train_step
from retina_dist.run.memory_estimate import MemoryEstimate, NotEstimated, StepMemory, StorageTracker
from retina_dist.strategies.single_device import SingleDeviceStrategy
from retina_dist.task import Task

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
    "`retinanet_tiny`, 192 x 192": [*PLAIN, "model=retinanet_tiny", "data.synthetic.canvas=[192,192]"],
    "`retinanet_r50`, 608 x 800": [*PLAIN, "model=retinanet_r50", "optimizer=sgd", "data.synthetic.canvas=[608,800]"],
    "`classifier` (ResNet-50), 224 x 224": [
        "task=classification",
        *PLAIN,
        "model=classifier",
        "data.image_size=224",
        "optimizer=sgd",
    ],
}


def made(settings: list[str], *more: str) -> tuple[RunConfig, Task]:
    config = load_config("train", [*settings, *more])
    return config, build_task(config, SingleDeviceStrategy("cpu"))


@cache
def step_memory(*settings: str, device: torch.device = CPU) -> Callable[[int], MemoryEstimate]:
    config, task = made(list(settings))
    memory = StepMemory(config, task, device)
    return lambda images: memory(build_plan(config, 1000, 1), images)


def measured_peak(config: RunConfig, task: Task, images: int) -> int:
    """Bytes at the peak of two steps, by each allocation that the profiler saw since the model was made."""
    plan = build_plan(config, 1000, 1)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=False) as profiler:
        state = build_state(config, task.build_model(), task.strategy)
        step = build_train_step(config, state, plan, task.strategy)
        for _ in range(2):
            step([task.largest_batch(images, CPU)])
    seen = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = peak = 0
    for event in sorted(seen, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


@pytest.mark.parametrize(
    ("model", "images"),
    [("retinanet_tiny", 4), ("retinanet_r50", 2), ("classifier_tiny", 2), ("classifier_tiny", 8)],
)
def test_the_peak_is_what_the_allocator_measures(model: str, images: int) -> None:
    predicted, measured = step_memory(*MODELS[model])(images), measured_peak(*made(MODELS[model]), images)
    assert predicted.peak == pytest.approx(measured, rel=ALIKE)
    state = sum(predicted.parts().get(part, 0) for part in ("parameters", "buffers", "optimizer", "ema"))
    assert predicted.peak - state == pytest.approx(measured - state, rel=0.15)  # what grows with the images


@pytest.mark.long
def test_the_peak_at_the_sizes_of_trainings() -> None:
    """`pytest -m long -s` prints the table of docs/planning.md."""
    for model, settings in REAL.items():
        for images in (1, 2, 4):
            predicted, measured = step_memory(*settings)(images).peak, measured_peak(*made(settings), images)
            print(
                f"| {model} | {images} | {predicted / 2**20:.0f} | {measured / 2**20:.0f} | {predicted / measured - 1:+.1%} |"
            )
            assert predicted == pytest.approx(measured, rel=ALIKE)


def test_the_parts_are_those_of_the_state() -> None:
    config, task = made(MODELS["retinanet_tiny"])
    model = task.build_model()
    weights = sum(p.numel() * 4 for p in model.parameters())
    trained = sum(p.numel() * 4 for p in model.parameters() if p.requires_grad)
    parts = step_memory(*MODELS["retinanet_tiny"])(2).parts()
    assert parts["parameters"] == pytest.approx(weights, rel=0.01)
    assert parts["ema"] == pytest.approx(weights + parts["buffers"], rel=0.01)
    assert parts["optimizer"] == pytest.approx(2 * trained, rel=0.01)  # AdamW
    assert parts["activations"] > parts["temporaries"] > 0


def test_no_random_number_is_drawn_and_the_task_stays_as_it_was() -> None:
    config, task = made(RETINANET_TINY)
    before, strategy = torch.get_rng_state(), task.strategy
    StepMemory(config, task, GPU)(build_plan(config, 1000, 1), 2)
    assert torch.equal(torch.get_rng_state(), before)
    assert task.strategy is strategy


def test_accumulated_gradients_are_held_during_the_passes() -> None:
    once, several = (step_memory(*CLASSIFIER, f"trainer.accumulate={k}")(2).parts() for k in (1, 4))
    assert several["gradients"] == pytest.approx(several["parameters"], rel=0.01)
    assert once.get("gradients", 0) < several["gradients"]
    assert several["batches"] == 4 * once["batches"]


def test_a_gpu_holds_the_batches_of_two_steps() -> None:
    once, twice = (step_memory(*CLASSIFIER, device=device)(4).parts()["batches"] for device in (CPU, GPU))
    assert twice == 2 * once


def test_images_that_the_gpu_resizes_count_as_floats() -> None:
    shapes = [
        f"data.{x}"
        for x in ("min_sizes=[96]", "max_size=128", "shapes.num_train=8", "shapes.num_val=2", "num_workers=0")
    ]
    sizes = {}
    for resize in ("workers", "device"):
        config, task = made(["trainer.max_duration=100steps", *shapes, f"data.resize={resize}"])
        batch = task.largest_batch(2, GPU)
        assert batch is not None
        assert batch.to("cpu").images.shape[0] == 2
        sizes[resize] = StepMemory(config, task, GPU)(build_plan(config, 1000, 1), 2).batches
    assert sizes["device"] > 4 * sizes["workers"]


def test_half_precision_halves_what_the_passes_keep() -> None:
    full, half = (step_memory(*CLASSIFIER, f"trainer.precision={p}")(4).activations for p in ("fp32", "bf16"))
    weights = step_memory(*CLASSIFIER)(4).parameters
    assert full / 2 < half < 0.7 * full + weights / 2  # and the copies of the weights


def test_a_step_that_reads_values_is_not_estimated() -> None:
    with pytest.raises(NotEstimated, match="does not run without data"):
        step_memory(*RETINANET_TINY, "model.loss_impl=torchvision")(2)


def test_a_task_that_knows_no_batch_is_not_estimated() -> None:
    config, task = made(CLASSIFIER)
    task.largest_batch = lambda size, device: None  # type: ignore[method-assign]
    with pytest.raises(NotEstimated, match="ClassificationTask.largest_batch"):
        StepMemory(config, task, CPU)(build_plan(config, 1000, 1), 2)


@pytest.mark.parametrize(
    ("error", "becomes", "words"),
    [
        (AttributeError("no 'data'"), NotEstimated, r"cannot be built before its data \(AttributeError: no 'data'\)"),
        (DataError("no such file"), DataError, "no such file"),
    ],
)
def test_a_model_that_cannot_be_built_yet_is_not_estimated(
    error: Exception, becomes: type[Exception], words: str
) -> None:
    config, task = made(CLASSIFIER)

    def build_model(**options: object) -> None:
        raise error

    task.build_model = build_model  # type: ignore[method-assign, assignment]
    with pytest.raises(becomes, match=words):
        StepMemory(config, task, CPU)


def test_the_tracker_knows_the_peak_of_a_few_operators() -> None:
    weight = torch.zeros(1024)
    with StorageTracker() as tracker:
        tracker.add([weight], "parameters")
        first = weight + 1  # 4 KiB
        second = torch.cat((first, first))  # 8 KiB
        del first
        third = second[:10].clone()  # 40 bytes, a block of 512
        assert third.numel() + second.numel() > 0
    assert tracker.at_peak() == {"parameters": 4096, "temporaries": 4096 + 8192}


def test_a_communicating_strategy_counts_what_it_sends() -> None:
    config, task = made(CLASSIFIER)

    class Sending(SingleDeviceStrategy):
        world_size = 2  # type: ignore[assignment]
        backend = "Horovod over Gloo"

    config = replace(config, strategy=replace(config.strategy, compression="fp16", fusion_mb=0))
    task.strategy = Sending("cpu")
    freed = StepMemory(config, task, CPU)(build_plan(config, 1000, 2), 2)
    assert freed.communication == pytest.approx(freed.parameters / 2, rel=0.01)
    assert freed.gradients < freed.parameters
    task.strategy.backend = "DDP over Gloo"
    found = StepMemory(config, task, CPU)(build_plan(config, 1000, 2), 2)
    assert found.gradients == pytest.approx(found.parameters, rel=0.01)


def test_on_a_gpu_autocast_keeps_group_norms_in_float32() -> None:
    image = torch.zeros(1, 4, 8, 8, dtype=torch.bfloat16)
    for device, kept in ((nullcontext(), torch.bfloat16), (assume_cuda(), torch.float32)):
        with torch.autocast("cpu", torch.bfloat16), device:
            assert torch.nn.functional.group_norm(image, 2).dtype == torch.nn.GroupNorm(2, 4)(image).dtype == kept
