"""What only a GPU can show; `make gpu` runs these. Without a GPU they are skipped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from retina_dist.benchmark.step import random_batch
from retina_dist.detection.batch import Batch
from retina_dist.detection.model.retinanet import RetinaNet, as_torchvision, build_retinanet
from retina_dist.engine.train_loop import prefetched
from retina_dist.model.sync_batch_norm import connect

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="this machine has no GPU that torch can use"
)

CANVAS = (128, 160)


def model_and_batch(variant: str = "v1", **settings: Any) -> tuple[RetinaNet, Batch]:
    torch.manual_seed(0)
    model = build_retinanet(
        num_classes=5, variant=variant, backbone="resnet18", fpn_channels=64, **settings
    )
    return model.cuda(), random_batch(3, CANVAS, 5, 8, seed=0).to("cuda")


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("variant", ["v1", "v2"])
@pytest.mark.parametrize("norm", ["bn", "frozen_bn"])
def test_losses_and_gradients_equal_torchvision(variant: str, norm: str) -> None:
    model, batch = model_and_batch(variant, norm=norm)
    model = model.double()
    theirs = as_torchvision(model, CANVAS).train()
    images = [image.double() / 255 for image in batch.images]
    targets = [
        {"boxes": b.double(), "labels": k} for b, k in zip(batch.boxes, batch.labels, strict=True)
    ]
    losses, expected = model(batch), theirs(images, targets)
    for name, value in expected.items():
        torch.testing.assert_close(losses[name], value, rtol=1e-12, atol=1e-14)
    sum(losses.values()).backward()
    sum(expected.values()).backward()
    for a, b in zip(gradients(model), gradients(theirs), strict=True):
        assert (a - b).norm() < 1e-10 * (b.norm() + 1e-12)


def with_filler(batch: Batch) -> Batch:
    return replace(batch, real=torch.arange(len(batch), device="cuda") < len(batch) - 1)


@pytest.mark.parametrize("norm", ["frozen_bn", "sync_bn"])
@pytest.mark.parametrize("precision", [None, torch.bfloat16])
def test_forward_and_backward_pass_never_wait_for_the_device(
    precision: torch.dtype | None, norm: str
) -> None:
    model, batch = model_and_batch("v2", norm=norm)
    connect(model, torch.clone)
    batch = with_filler(batch)

    def passes() -> None:
        with torch.autocast(
            "cuda", dtype=precision or torch.bfloat16, enabled=precision is not None
        ):
            losses = model(batch)
        torch.stack(list(losses.values())).sum().backward()

    passes()  # what is made once
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        passes()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_prefetched_batches_arrive_whole_and_in_order() -> None:
    batches = [random_batch(2, (256, 256), 5, 8, seed).pin_memory() for seed in range(8)]

    def steps() -> Iterator[list[Batch]]:
        yield from ([batch] for batch in batches)

    for found, expected in zip(prefetched(steps(), torch.device("cuda")), batches, strict=True):
        work = torch.randn(2048, 2048, device="cuda")
        for _ in range(5):
            work = work @ work / 2048
        assert torch.equal(found[0].images.cpu(), expected.images)  # type: ignore[attr-defined]


def test_detections_are_those_of_the_cpu() -> None:
    model, batch = model_and_batch("v2", norm="frozen_bn", score_threshold=0.0)
    with torch.inference_mode():
        model.eval()
        outputs, levels = model.predict(batch)
        there = model.detections(outputs, levels, batch)
        here = model.cpu().detections(
            {k: v.cpu() for k, v in outputs.items()},
            [level.cpu() for level in levels],
            batch.to("cpu"),
        )
    for a, b in zip(there, here, strict=True):
        torch.testing.assert_close(a["scores"].cpu(), b["scores"], rtol=1e-5, atol=1e-6)
        assert (
            a["labels"].cpu() == b["labels"]
        ).float().mean() > 0.98  # scores may tie to the last bit
