from __future__ import annotations

import pytest
import torch

from retina_dist.detection.batch import Sample, collate


def sample(height: int, width: int, count: int) -> Sample:
    image = torch.full((3, height, width), 11, dtype=torch.uint8)
    boxes = torch.arange(count * 4, dtype=torch.float32).reshape(count, 4)
    return Sample(image, boxes, torch.arange(count) + 1, 1, (height * 2, width * 2))


def test_images_are_padded_with_zeros_and_boxes_with_unit_boxes():
    batch = collate([sample(4, 6, 2), sample(8, 5, 0)], (8, 8))
    expected = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
    expected[0, :, :4, :6] = expected[1, :, :8, :5] = 11
    assert torch.equal(batch.images, expected)
    assert batch.images.is_contiguous(memory_format=torch.channels_last)
    assert batch.num_boxes.tolist() == [2, 0]
    assert batch.boxes.shape == (2, 8, 4)
    assert batch.boxes[0, :2].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert (batch.boxes[0, 2:] == torch.tensor([0.0, 0.0, 1.0, 1.0])).all()
    assert (batch.boxes[1] == torch.tensor([0.0, 0.0, 1.0, 1.0])).all()
    assert batch.labels[0].tolist() == [1, 2, 0, 0, 0, 0, 0, 0]
    assert batch.boxes.dtype == torch.float32
    for name in ("image_sizes", "original_sizes", "image_ids", "labels", "num_boxes"):
        assert getattr(batch, name).dtype == torch.int64, name


@pytest.mark.parametrize(("most", "rows"), [(0, 8), (1, 8), (8, 8), (9, 16), (17, 32)])
def test_number_of_box_rows_is_a_power_of_two(most, rows):
    assert collate([sample(4, 4, most), sample(4, 4, 0)], (4, 4)).boxes.shape[1] == rows
