"""Each row of the table of box losses: torchvision's numbers, no wait for a GPU, one graph.

And a row that is added.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torchvision.models.detection._utils import BoxCoder
from torchvision.models.detection._utils import _box_loss as torchvisions_box_loss
from torchvision.ops import distance_box_iou_loss

from retina_dist.detection.batch import Batch
from retina_dist.detection.model.box_losses import BOX_LOSSES, BoxLoss
from retina_dist.detection.model.losses import retinanet_losses
from tests.fake_cuda import HostStall, fake_cuda

BETA = 0.3
ANCHORS, IMAGES = 40, 2


def area(sides: Tensor) -> Tensor:
    return sides[..., 0] * sides[..., 1]


def diou_loss(predicted: Tensor, boxes: Tensor, beta: float, eps: float = 1e-7) -> Tensor:
    """1 - IoU + the squared distance of the centres over that of the hull's corners."""
    low, high = (
        predicted[..., :2].maximum(boxes[..., :2]),
        predicted[..., 2:].minimum(boxes[..., 2:]),
    )
    intersection = area((high - low).clamp(min=0))
    union = area(predicted[..., 2:] - predicted[..., :2]) - intersection
    union = union + area(boxes[..., 2:] - boxes[..., :2])
    hull = predicted[..., 2:].maximum(boxes[..., 2:]) - predicted[..., :2].minimum(boxes[..., :2])
    centres = (predicted[..., :2] + predicted[..., 2:] - boxes[..., :2] - boxes[..., 2:]) / 2
    distance = centres.square().sum(dim=-1) / (hull.square().sum(dim=-1) + eps)
    return 1 - intersection / (union + eps) + distance


def torchvisions_diou(predicted: Tensor, boxes: Tensor, beta: float) -> Tensor:
    return distance_box_iou_loss(predicted, boxes)


# A loss is added by one row: this one is in the tests below only.
ROWS = {**BOX_LOSSES, "diou": BoxLoss("boxes", diou_loss)}


@pytest.fixture(autouse=True)
def _table(monkeypatch: pytest.MonkeyPatch) -> None:
    of_torchvision = {"torchvision's diou": BoxLoss("boxes", torchvisions_diou)}
    for name, row in (ROWS | of_torchvision).items():
        monkeypatch.setitem(BOX_LOSSES, name, row)


def drawn(device: str = "cpu") -> tuple[Tensor, Tensor, Tensor, Batch]:
    """Offsets [B, A, 4], anchors [A, 4], matched [B, A], and a batch with three boxes an image."""
    generator = torch.Generator().manual_seed(0)
    corners = torch.rand(ANCHORS + 3 * IMAGES, 2, generator=generator, dtype=torch.float64) * 50
    sizes = torch.rand(ANCHORS + 3 * IMAGES, 2, generator=generator, dtype=torch.float64) * 30 + 1
    boxes = torch.cat((corners, corners + sizes), dim=1)
    offsets = torch.randn(IMAGES, ANCHORS, 4, generator=generator, dtype=torch.float64) * 0.3
    matched = torch.randint(-2, 3, (IMAGES, ANCHORS), generator=generator)
    fields: dict[str, Any] = {
        "images": torch.zeros(IMAGES, 3, 4, 4, dtype=torch.uint8),
        "image_sizes": torch.full((IMAGES, 2), 4),
        "original_sizes": torch.full((IMAGES, 2), 4),
        "image_ids": torch.arange(IMAGES),
        "boxes": boxes[ANCHORS:].view(IMAGES, 3, 4),
        "labels": torch.zeros(IMAGES, 3, dtype=torch.int64),
        "num_boxes": torch.full((IMAGES,), 3),
    }
    batch = Batch(**fields, weight=1.0, real=None).to(device)
    values = (x.to(device) for x in (offsets, boxes[:ANCHORS], matched))
    return *values, batch  # type: ignore[return-value]


def box_loss(kind: str, offsets: Tensor, anchors: Tensor, matched: Tensor, batch: Batch) -> Tensor:
    logits = torch.zeros(IMAGES, ANCHORS, 1, dtype=offsets.dtype, device=offsets.device)
    outputs = {"cls_logits": logits, "bbox_regression": offsets}
    return retinanet_losses(outputs, anchors, matched, batch, kind, BETA)["bbox_regression"]


@pytest.mark.parametrize("name", ROWS)
def test_a_loss_and_its_gradient_are_torchvisions(name: str) -> None:
    offsets, anchors, matched, batch = drawn()
    coder = BoxCoder((1.0, 1.0, 1.0, 1.0))
    expected = torch.zeros((), dtype=torch.float64)
    theirs = offsets.clone().requires_grad_()
    for i in range(IMAGES):
        rows = matched[i] >= 0
        truth = batch.boxes[i, matched[i][rows]]
        loss = torchvisions_box_loss(
            name, coder, anchors[rows], truth, theirs[i][rows], {"beta": BETA}
        )
        expected = expected + loss / rows.sum() / IMAGES
    ours = offsets.clone().requires_grad_()
    found = box_loss(name, ours, anchors, matched, batch)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    for value in (found, expected):
        value.backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("name", ROWS)
def test_a_loss_never_waits_for_the_gpu(name: str) -> None:
    with fake_cuda() as gpu:
        values = drawn("cuda")
        with gpu.watch():
            box_loss(name, *values)


@pytest.mark.parametrize("name", ROWS)
def test_a_loss_is_one_graph(name: str) -> None:
    values = drawn()
    compiled = torch.compile(partial(box_loss, name), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(*values), box_loss(name, *values))


def test_a_product_over_a_dimension_is_caught() -> None:
    with fake_cuda() as gpu:
        sides = torch.ones(3, 2, device="cuda")
        with gpu.watch(), pytest.raises(HostStall, match="counts zeros in its gradient"):
            sides.prod(dim=-1)


def test_a_loss_that_selects_by_a_mask_is_caught() -> None:
    with fake_cuda() as gpu:
        values = drawn("cuda")
        with gpu.watch(), pytest.raises(HostStall, match="selects by a mask"):
            box_loss("torchvision's diou", *values)
