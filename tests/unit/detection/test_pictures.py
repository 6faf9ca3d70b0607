"""Boxes on images, and what a report shows of the last validation."""

from __future__ import annotations

import torch
from torch import Tensor

from retina_dist.detection.pictures import class_color, draw_boxes

NAMES = ("cat", "dog", "Müller-Ж")


def gray(height: int, width: int) -> Tensor:
    return torch.full((3, height, width), 128, dtype=torch.uint8)


def boxes(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float32).reshape(-1, 4)


def mask(picture: Tensor, label: int) -> Tensor:
    """[h, w]: where the picture has exactly the class's colour."""
    return (picture == torch.tensor(class_color(label), dtype=torch.uint8)[:, None, None]).all(dim=0)


def test_boxes_are_where_they_belong() -> None:
    image = torch.randint(0, 256, (3, 480, 640), dtype=torch.uint8)
    assert torch.equal(draw_boxes(image, boxes(), torch.tensor([]), NAMES), image)
    picture = draw_boxes(gray(300, 700), boxes([100, 120, 200, 220]), torch.tensor([1]), NAMES, torch.tensor([0.5]))
    assert mask(picture, 1)[200].nonzero().flatten().tolist() == [100, 200]
    assert mask(picture, 1)[:, 190].nonzero().flatten().tolist() == [120, 220]
    enlarged = draw_boxes(gray(48, 64), boxes([10, 20, 30, 40]), torch.tensor([0]), NAMES)
    assert enlarged.shape == (3, 480, 640)
    assert {100, 300} <= set(mask(enlarged, 0)[390].nonzero().flatten().tolist())
    assert draw_boxes(gray(1, 1), boxes([0, 0, 1, 1]), torch.tensor([0]), NAMES).shape == (3, 640, 640)


def test_odd_boxes_and_pixels_do_no_harm() -> None:
    odd = boxes([-50, -50, 2000, 2000], [10, 10, 10, 10], [float("nan"), 0, 5, 5], [9, 9, 5, 5])
    picture = draw_boxes(gray(480, 640).float() + 0.4, odd, torch.tensor([0, 1, 2, 70]), NAMES)
    assert mask(picture, 0)[479].all(), "cut at the border"
    assert mask(picture, 1)[10, 10], "without an area, still a dot"
    assert not mask(picture, 2).any()
    assert picture[0, 240, 320] == 128
