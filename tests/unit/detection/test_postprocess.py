"""Post-processing of a whole batch against torchvision's image by image, bit by bit."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torchvision.models.detection import RetinaNet as TorchvisionRetinaNet
from torchvision.models.detection._utils import BoxCoder

from retina_dist.detection.batch import Detections, Sample, collate
from retina_dist.detection.model import postprocess as module
from retina_dist.detection.model.postprocess import Limits, matrix_nms, postprocess
from retina_dist.detection.model.retinanet import anchor_generator, build_retinanet
from retina_dist.detection.settings import ModelConfig

CANVAS = (96, 128)
SETTINGS = {
    "score_threshold": 0.05,
    "nms_threshold": 0.5,
    "topk_candidates": 1000,
    "detections_per_image": 300,
}


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settle what torchvision leaves open: which of equal scores is first, and what torch.sigmoid
    rounds the end of a tensor to.
    """
    sort = torch.Tensor.sort

    def topk(x: Tensor, k: int, dim: int = -1) -> torch.return_types.sort:
        return torch.return_types.sort(
            part.narrow(dim, 0, k) for part in sort(x, dim=dim, descending=True, stable=True)
        )

    monkeypatch.setattr(torch.Tensor, "topk", topk)
    monkeypatch.setattr(
        torch.Tensor,
        "sort",
        lambda x, dim=-1, descending=False: sort(x, stable=True, dim=dim, descending=descending),
    )
    monkeypatch.setattr(torch, "sigmoid", lambda x: 1 / (1 + torch.exp(-x)))


def pyramid() -> list[Tensor]:
    """Anchors [A_l, 4] of the five levels on CANVAS."""
    generator = anchor_generator(ModelConfig().anchor_sizes, ModelConfig().aspect_ratios)
    strides = (8, 16, 32, 64, 128)
    grids = [[-(-side // stride) for side in CANVAS] for stride in strides]
    cells = generator.grid_anchors(grids, [[torch.tensor(s)] * 2 for s in strides])
    return [level.to(torch.float32) for level in cells]


def outputs(
    batch: int, classes: int, bias: float, seed: int, spread: float = 1.5
) -> tuple[Tensor, Tensor, Tensor]:
    """Random logits [B, A, K] and offsets [B, A, 4] on CANVAS, and image sizes [B, 2] within it."""
    g = torch.Generator().manual_seed(seed)
    count = sum(map(len, pyramid()))
    logits = torch.randn(batch, count, classes, generator=g) * spread + bias
    offsets = torch.randn(batch, count, 4, generator=g) * 0.3
    sizes = torch.stack(
        [torch.randint(side // 2, side + 1, (batch,), generator=g) for side in CANVAS], dim=1
    )
    return logits, offsets, sizes


def theirs(
    logits: Tensor,
    offsets: Tensor,
    sizes: Tensor,
    levels: list[Tensor] | None = None,
    **settings: Any,
) -> list[dict[str, Tensor]]:
    settings = SETTINGS | settings
    levels = levels or pyramid()
    counts = [len(level) for level in levels]
    model = SimpleNamespace(
        score_thresh=settings["score_threshold"],
        nms_thresh=settings["nms_threshold"],
        topk_candidates=settings["topk_candidates"],
        detections_per_img=settings["detections_per_image"],
        box_coder=BoxCoder((1.0, 1.0, 1.0, 1.0)),
    )
    heads = {
        "cls_logits": list(logits.float().split(counts, 1)),
        "bbox_regression": list(offsets.float().split(counts, 1)),
    }
    shapes = [(h, w) for h, w in sizes.tolist()]
    return TorchvisionRetinaNet.postprocess_detections(model, heads, [levels] * len(logits), shapes)  # type: ignore[arg-type]


def ours(
    logits: Tensor,
    offsets: Tensor,
    sizes: Tensor,
    levels: list[Tensor] | None = None,
    **settings: Any,
) -> list[Detections]:
    return postprocess(
        logits, offsets, levels or pyramid(), sizes, sizes, Limits(**(SETTINGS | settings))
    )


def assert_same(found: Any, expected: Any) -> list[int]:
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert {name: value.dtype for name, value in a.items()} == {
            name: value.dtype for name, value in b.items()
        }
        for name in ("labels", "scores", "boxes"):
            assert torch.equal(a[name], b[name]), name
    return [len(one["scores"]) for one in found]


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("seed", range(12))
def test_equal_to_torchvision_in_random_settings(seed: int) -> None:
    """Both ways in which torchvision keeps classes apart, every limit reached, and images with
    nothing among others.
    """
    g = torch.Generator().manual_seed(seed)
    draw = lambda low, high: int(torch.randint(low, high, (), generator=g))  # noqa: E731
    batch, classes = draw(1, 9), (1, 2, 20, 91)[draw(0, 4)]
    logits, offsets, sizes = outputs(batch, classes, bias=-draw(1, 8), seed=seed, spread=draw(1, 4))
    logits[torch.rand(batch, generator=g) < 0.3] -= 50
    settings = {
        "score_threshold": (0.0, 0.01, 0.05, 0.5)[draw(0, 4)],
        "nms_threshold": (0.3, 0.5, 0.9)[draw(0, 3)],
        "topk_candidates": (1, 20, 1000)[draw(0, 3)],
        "detections_per_image": (1, 100, 300)[draw(0, 3)],
    }
    assert_same(
        ours(logits, offsets, sizes, **settings), theirs(logits, offsets, sizes, **settings)
    )


@pytest.mark.usefixtures("settled")
def test_equal_scores_come_by_anchor_then_class() -> None:
    """In bfloat16 they come by the hundred."""
    logits, offsets, sizes = outputs(4, 3, bias=-2.0, seed=5)
    logits, offsets = logits.bfloat16(), offsets.bfloat16()
    found = ours(logits, offsets, sizes)
    assert_same(found, theirs(logits, offsets, sizes))
    assert all(len(one["scores"].unique()) < len(one["scores"]) for one in found)


@pytest.mark.parametrize(("pairs", "moved"), [(500, True), (501, False)])
def test_overlaps_are_rounded_as_torchvision_rounds_them(
    pairs: int, moved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pairs of a class with an IoU near the threshold.

    Up to 1000 candidates torchvision moves them far out in float32.
    """
    place = torch.arange(pairs)
    first = torch.stack(
        (place % 25 * 50, place // 25 * 50, place % 25 * 50 + 30, place // 25 * 50 + 30), dim=1
    ).float()
    # 30 px squares, moved by a third of a side: 20 / 40.
    second = (
        first + torch.tensor([1.0, 0, 1, 0]) * (10 + torch.linspace(-0.01, 0.01, pairs))[:, None]
    )
    logits = torch.full((2, 2 * pairs, 91), -20.0)
    logits[0, :, 90] = torch.linspace(4, 1, 2 * pairs)
    arguments = (
        logits,
        torch.zeros(2, 2 * pairs, 4),
        torch.tensor([[1300, 1300]] * 2),
        [torch.cat((first, second))],
    )
    settings = {"topk_candidates": 2000, "detections_per_image": 2000}
    found = ours(*arguments, **settings)
    for a, b in zip(found, theirs(*arguments, **settings), strict=True):
        assert torch.equal(a["boxes"], b["boxes"])
    monkeypatch.setattr("retina_dist.detection.model.postprocess.MAX_OFFSET_CPU", 0)
    assert (len(ours(*arguments, **settings)[0]["boxes"]) != len(found[0]["boxes"])) == moved


@pytest.mark.parametrize("k", [50, 100_000])
def test_not_a_number_costs_its_anchor_only(k: int) -> None:
    logits, offsets, sizes = outputs(1, 3, bias=-2.0, seed=2)
    logits[0, 100:200, 1] = torch.nan
    logits[0, 150:200, 1] *= -1  # NaNs have signs
    expected = theirs(
        logits.index_fill(1, torch.arange(100, 200), -torch.inf), offsets, sizes, topk_candidates=k
    )
    for a, b in zip(ours(logits, offsets, sizes, topk_candidates=k), expected, strict=True):
        assert torch.equal(a["boxes"], b["boxes"])


@pytest.mark.parametrize("coordinate", range(4))
def test_offsets_that_are_not_numbers_cost_their_anchor_only(coordinate: int) -> None:
    logits, offsets, sizes = outputs(1, 3, bias=-2.0, seed=2)
    damaged = torch.arange(100, 200)
    expected = theirs(logits.index_fill(1, damaged, -torch.inf), offsets, sizes)
    offsets[0, damaged, coordinate] = torch.nan
    for found, without in zip(ours(logits, offsets, sizes), expected, strict=True):
        assert torch.equal(found["boxes"], without["boxes"])


def test_matrix_nms_by_hand() -> None:
    """The second box overlaps with the best by 0.5; the third by 0.4 with the best and by 0.8 with
    the second, which counts less as that one is covered itself.
    """
    boxes = torch.tensor([[0, 0, 10, 4], [0, 0, 10, 10], [0, 0, 10, 5], [0, 0, 10, 10]]).float()
    scores = torch.tensor([0.5, 0.9, 0.8, 0.7])
    labels = torch.tensor([0, 0, 0, 1])
    second = 0.8 * math.exp(-2 * 0.5**2)
    third = 0.5 * math.exp(-2 * (0.8**2 - 0.5**2))
    alone = torch.tensor([0.5, 0.9, 0.0, 0.7])  # without the second, the third loses by the best
    found = matrix_nms(boxes.expand(2, -1, -1), torch.stack((scores, alone)), labels.expand(2, -1))
    expected = [[third, 0.9, second, 0.7], [0.5 * math.exp(-2 * 0.4**2), 0.9, 0.0, 0.7]]
    torch.testing.assert_close(found, torch.tensor(expected))


@pytest.mark.parametrize("most", [10, 1000])
def test_matrix_nms_lowers_scores_before_the_rest(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Those below the threshold go, of the others the nms_threshold still counts; no image of a
    batch depends on another, nor on damaged anchors.
    """
    monkeypatch.setattr(module, "MATRIX_CANDIDATES", most)
    logits, offsets, sizes = outputs(3, 3, bias=-2.0, seed=2)
    logits[1, 100:200, 1] = torch.nan
    offsets[2, 100:200, 1] = torch.nan
    hard = ours(logits, offsets, sizes, detections_per_image=10**5)
    found = ours(logits, offsets, sizes, nms="matrix", nms_threshold=1.0)
    for i, (one, before) in enumerate(zip(found, hard, strict=True)):
        alone = ours(
            *(x[i : i + 1] for x in (logits, offsets, sizes)), nms="matrix", nms_threshold=1.0
        )
        assert_same([one], alone)
        assert (one["scores"] > SETTINGS["score_threshold"]).all()
        assert torch.equal(one["scores"], one["scores"].sort(descending=True).values)
        assert len(one["scores"]) <= most
        assert torch.equal(one["boxes"][0], before["boxes"][0])
        assert torch.equal(one["scores"][0], before["scores"][0])
    pruned = ours(logits, offsets, sizes, nms="matrix", nms_threshold=0.8)
    assert sum(len(one["scores"]) for one in pruned) <= sum(len(one["scores"]) for one in found)


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("variant", ["v1", "v2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_models_detections(variant: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = build_retinanet(
        num_classes=5, variant=variant, backbone="resnet18", fpn_channels=64
    ).eval()
    torch.nn.init.constant_(model.head.classification_head.cls_logits.bias, -2.0)
    sizes = [(96, 128), (64, 100)]
    images = [torch.randint(0, 256, (3, *size), dtype=torch.uint8) for size in sizes]
    samples = [
        Sample(x, torch.zeros(0, 4), torch.zeros(0), 0, (2 * h, w))
        for x, (h, w) in zip(images, sizes)
    ]
    batch = collate(samples, CANVAS)
    with (
        torch.inference_mode(),
        torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16),
    ):
        heads, levels = model.predict(batch)
        assert heads["cls_logits"].dtype == dtype
        found = model.detections(heads, levels, batch)
    counts = [len(level) for level in levels]
    heads = {name: list(value.float().split(counts, 1)) for name, value in heads.items()}
    expected = model.postprocess_detections(heads, [levels] * 2, sizes)
    for one in expected:
        one["boxes"] *= torch.tensor([1.0, 2.0, 1.0, 2.0])
    assert min(assert_same(found, expected)) > 50
