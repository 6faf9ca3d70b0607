"""The estimate of the plan beside the peak that the CUDA allocator measures.

`python -m pytest tests/gpu/test_memory.py -s` prints the table of docs/planning.md.
"""

from __future__ import annotations

import pytest
import torch

from retina_dist.config.compose import load_config
from retina_dist.config.run_config import task_class
from retina_dist.engine.train_loop import prefetched
from retina_dist.run.build import build_plan, build_state, build_train_step, configure_torch
from retina_dist.run.memory import StepMemory
from retina_dist.strategies.single_device import SingleDeviceStrategy

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="this machine has no GPU that torch can use"
)

CUDA = torch.device("cuda")
SYNTHETIC = ["data=synthetic", "schedule=constant", "logging=quiet", "strategy.device=cuda"]
DETECTOR = [*SYNTHETIC, "model=retinanet_r50", "data.synthetic.canvas=[800,1344]"]
FAST = ["trainer.precision=bf16", "trainer.channels_last=true"]
CHECKPOINTED = ["model.activation_checkpointing=true"]
CLASSIFIER = [*SYNTHETIC, "task=classification", "model=classifier"]


@pytest.mark.parametrize(
    ("settings", "images"),
    [
        ([*DETECTOR, *FAST], 2),
        ([*DETECTOR, *FAST], 4),
        ([*DETECTOR, *FAST, *CHECKPOINTED], 4),
        ([*CLASSIFIER, "trainer.precision=bf16"], 64),
        (CLASSIFIER, 32),
    ],
)
def test_the_peak_of_a_step(settings: list[str], images: int) -> None:
    config = load_config("train", [*settings, f"data.batch_size={images}"])
    configure_torch(config.trainer)
    strategy = SingleDeviceStrategy("cuda")
    task = task_class(config)(config, strategy)
    predicted = StepMemory(config, task, CUDA)(build_plan(config, 1000, 1), images).peak
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    data = task.build_data()
    plan = build_plan(config, task.num_images, 1)
    state = build_state(config, task.build_model(), strategy)
    step = build_train_step(config, state, plan, strategy)
    step.timer.start()
    for micro_batches in prefetched(data.train_steps(0, 3), CUDA):
        step(micro_batches)
        state.step += 1
    measured = torch.cuda.max_memory_allocated() - before
    row = f"{' '.join(settings[len(SYNTHETIC) :])} | {images} | {predicted / 2**20:.0f} "
    print(f"| {row}| {measured / 2**20:.0f} | {predicted / measured - 1:+.1%} |")
    assert predicted == pytest.approx(measured, rel=0.1)
