"""Geometry by hand and against torchvision; randomness by key."""

from __future__ import annotations

import pytest
import torch
from torchvision.models.detection.transform import GeneralizedRCNNTransform
from torchvision.transforms.v2 import functional as F

from retina_dist.data.buckets import resized_size
from retina_dist.detection.data.transforms import Transform

CANVAS = (128, 160)


def make_image(height: int, width: int) -> torch.Tensor:
    """A smooth gradient with a bright block from 25 to 50 % of each side, which shows geometry."""
    image = torch.zeros(3, height, width, dtype=torch.uint8)
    image[1] = torch.linspace(0, 100, width).to(torch.uint8)
    image[0, height // 4 : height // 2, width // 4 : width // 2] = 255
    return image


def block(height: int, width: int) -> torch.Tensor:
    return torch.tensor([[width // 4, height // 4, width // 2, height // 2]], dtype=torch.float32)


def found_block(image: torch.Tensor) -> torch.Tensor:
    """The box around the bright block, by looking at the pixels."""
    rows, columns = (image[0] > 127).nonzero().unbind(1)
    corners = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
    return torch.tensor([[float(corner) for corner in corners]])


@pytest.mark.parametrize(
    ("height", "width"),
    [(480, 640), (640, 480), (427, 640), (333, 500), (51, 640), (640, 59), (37, 37), (799, 1203)],
)
@pytest.mark.parametrize(("min_size", "max_size"), [(800, 1333), (64, 100), (333, 400)])
def test_resized_size_is_torchvisions(height, width, min_size, max_size):
    theirs = GeneralizedRCNNTransform(min_size, max_size, [0.0] * 3, [1.0] * 3, size_divisible=1)
    images, _ = theirs([torch.zeros(3, height, width)])
    assert resized_size(height, width, min_size, max_size) == images.image_sizes[0]


def test_eval_resizes_image_and_boxes():
    image = make_image(60, 80)
    boxes = torch.tensor([[0.0, 0.0, 80.0, 60.0], [8.0, 6.0, 16.0, 30.0]])
    out, out_boxes, labels = Transform(max_size=200)(
        image, boxes, torch.tensor([4, 7]), min_size=90, canvas=(96, 128)
    )
    assert torch.equal(out, F.resize(image, [90, 120], antialias=True))
    assert out_boxes.tolist() == [[0, 0, 120, 90], [12, 9, 24, 45]]
    assert labels.tolist() == [4, 7]
    assert out.dtype == torch.uint8


def test_boxes_under_a_pixel_go_with_their_labels():
    boxes = torch.tensor([[0.0, 0.0, 1.9, 40.0], [10.0, 10.0, 12.0, 12.0], [0.0, 0.0, 9.0, 1.0]])
    _, kept, labels = Transform(max_size=200)(
        make_image(100, 100), boxes, torch.tensor([1, 2, 3]), min_size=50, canvas=(64, 64)
    )
    assert kept.tolist() == [[5, 5, 6, 6]]  # half of 2 is a pixel, half of 1.9 and of 1 are less
    assert labels.tolist() == [2]


def test_a_canvas_too_small_shrinks_the_image_and_keeps_its_shape():
    image, boxes, _ = Transform(max_size=200)(
        make_image(60, 80), block(60, 80), torch.tensor([1]), min_size=120, canvas=(96, 160)
    )
    assert tuple(image.shape) == (3, 96, 128)  # not 120 x 160
    assert boxes.tolist() == [[32, 24, 64, 48]]


@pytest.mark.parametrize(
    "settings",
    [
        {"hflip": 0.5},
        {"hflip": 0.0, "scale_jitter": (0.5, 0.9)},
        {"hflip": 0.5, "vflip": 0.5, "scale_jitter": (1.5, 3.0)},
        {"hflip": 0.5, "scale_jitter": (0.3, 2.0)},
    ],
)
def test_boxes_follow_the_pixels(settings):
    transform = Transform(max_size=200, **settings)
    seen = 0
    for seed in range(40):
        image, boxes, labels = transform(
            make_image(60, 80),
            block(60, 80),
            torch.tensor([9]),
            min_size=100,
            canvas=CANVAS,
            key=(seed,),
        )
        height, width = image.shape[-2:]
        assert height <= CANVAS[0]
        assert width <= CANVAS[1]
        assert len(boxes) == len(labels) <= 1
        if len(boxes) and ((boxes[:, 2:] - boxes[:, :2]) > 4).all():
            seen += 1
            assert (boxes >= 0).all()
            assert (boxes[:, 2] <= width).all()
            assert (boxes[:, 3] <= height).all()
            torch.testing.assert_close(found_block(image), boxes, atol=2.0, rtol=0)
    assert seen > 10


@pytest.mark.parametrize("size", [(60, 80), (2, 3), (1, 1)])
def test_every_operation_survives_no_boxes_and_tiny_images(size):
    transform = Transform(max_size=200, hflip=1.0, photometric=1.0, scale_jitter=(0.1, 3.0))
    for seed in range(10):
        for boxes in (torch.zeros(0, 4), torch.tensor([[0.0, 0.0, size[1], size[0]]])):
            labels = torch.zeros(len(boxes), dtype=torch.int64)
            blank, how = (
                torch.zeros(3, *size, dtype=torch.uint8),
                {"min_size": 100, "canvas": CANVAS, "key": (seed,)},
            )
            image, out, out_labels = transform(blank, boxes, labels, **how)
            assert min(image.shape) >= 1
            assert out.shape == (len(out_labels), 4)
            assert type(out) is torch.Tensor
            assert type(image) is torch.Tensor


def test_result_depends_on_the_key_alone():
    transform = Transform(max_size=200, hflip=0.5, photometric=0.5, scale_jitter=(0.5, 2.0))

    def call(*key: int) -> list[torch.Tensor]:
        return list(
            transform(
                make_image(60, 80),
                block(60, 80),
                torch.tensor([1]),
                min_size=100,
                canvas=CANVAS,
                key=key,
            )
        )

    torch.manual_seed(1)
    first = call(0, 3, 17)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    again = call(0, 3, 17)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert torch.equal(torch.get_rng_state(), state)  # nothing drawn from the global stream
    others = [call(0, 4, 17), call(1, 3, 17), call(0, 3, 18)]
    assert not all(
        first[0].shape == other[0].shape and torch.equal(first[0], other[0]) for other in others
    )
