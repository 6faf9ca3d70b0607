"""Flips and the resize on the device: against interpolate, torchvision's own transform, and the data workers' way."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import interpolate
from torchvision.models.detection.transform import GeneralizedRCNNTransform

from retina_dist.data.samplers import BatchSpec
from retina_dist.detection.batch import Batch
from retina_dist.detection.data.collate import Sample, collate_raw
from retina_dist.detection.data.dataset import DetectionDataset
from retina_dist.detection.data.deferred_resize import DeferredResizeBatch, resize_batch
from retina_dist.detection.data.transforms import EvalTransform, TrainTransform
from retina_dist.detection.model.retinanet import build_retinanet
from tests.unit.detection.test_module import make_annotations, make_module

NO_FLIP = torch.zeros(1, 2, dtype=torch.bool)


def noise(*sizes: tuple[int, int]) -> torch.Tensor:
    """Random pixels in a tensor with room for all sizes; what is outside each image must not matter."""
    generator = torch.Generator().manual_seed(0)
    height, width = max(h for h, _ in sizes), max(w for _, w in sizes)
    images = torch.randint(0, 256, (len(sizes), height, width, 3), dtype=torch.uint8, generator=generator)
    return images.permute(0, 3, 1, 2)


def test_two_pixels_become_four_by_hand():
    images = torch.tensor([[0, 100]], dtype=torch.uint8).expand(1, 3, 1, 2)
    found = resize_batch(images, torch.tensor([[1, 2]]), torch.tensor([[2, 4]]), NO_FLIP, (3, 5))
    # centres at -0.25 (so 0), 0.25, 0.75 and 1.25 (the last pixel) of the stored ones
    assert found[0, 0].tolist() == [[0, 25, 75, 100, 0], [0, 25, 75, 100, 0], [0, 0, 0, 0, 0]]
    assert found.dtype == torch.float32


@pytest.mark.parametrize("flips", [(False, False), (True, False), (False, True), (True, True)])
def test_each_image_is_what_interpolate_makes_of_it(flips):
    sizes = [(48, 64), (43, 64), (33, 50), (1, 7), (60, 70), (48, 64), (2, 1)]
    targets = [(80, 106), (80, 119), (80, 121), (5, 9), (30, 35), (48, 64), (120, 60)]
    images = noise(*sizes)
    turned = torch.tensor([flips] * len(sizes))
    found = resize_batch(images, torch.tensor(sizes), torch.tensor(targets), turned, (128, 128))
    assert found.is_contiguous(memory_format=torch.channels_last)
    for image, (h, w), (height, width), out in zip(images, sizes, targets, found, strict=True):
        axes = [axis for axis, flip in zip((1, 2), flips, strict=True) if flip]
        stored = image[:, :h, :w].flip(axes).float()
        expected = interpolate(stored[None], size=(height, width), mode="bilinear", align_corners=False)[0]
        torch.testing.assert_close(out[:, :height, :width], expected, atol=255e-6, rtol=0)
        assert not out[:, height:].any()
        assert not out[:, :, width:].any()


def test_normalised_it_is_torchvisions_own_input():
    """Resize, normalisation and padding of the detectors that torchvision trained."""
    sizes = [(48, 64), (43, 64), (64, 40)]
    model = build_retinanet(num_classes=2, backbone="resnet18", fpn_channels=32)
    theirs = GeneralizedRCNNTransform(80, 133, model.transform.image_mean, model.transform.image_std)
    images = noise(*sizes)
    stored = [image[:, :h, :w] for image, (h, w) in zip(images, sizes, strict=True)]
    expected, _ = theirs([image / 255 for image in stored])
    canvas = tuple(expected.tensors.shape[-2:])
    transform = EvalTransform(max_size=133)
    samples = []
    for image in stored:
        ready = transform.unresized(image, torch.zeros(0, 4), torch.zeros(0), min_size=80, canvas=canvas).for_device()
        samples.append(Sample(ready.image, ready.boxes, ready.labels, 1, image.shape[1:], ready.size, ready.flips))
    batch = collate_raw(samples, canvas).to("cpu")
    assert batch.image_sizes.tolist() == [list(size) for size in expected.image_sizes]
    torch.testing.assert_close(model.normalized(batch), expected.tensors, atol=1.5e-5, rtol=0)


# the batch


def datasets(folder, transform, **settings):
    annotations = make_annotations(folder)
    return [DetectionDataset(annotations, transform, seed=3, resize=r, **settings) for r in ("workers", "device")]


@pytest.mark.parametrize(
    "settings",
    [
        {"hflip": 0.0},
        {"hflip": 1.0},
        {"hflip": 0.0, "vflip": 1.0},
        {"hflip": 0.5, "vflip": 0.5, "photometric": 1.0},
        {"hflip": 0.5, "vflip": 0.5, "iou_crop": 1.0},
        {"hflip": 0.5, "vflip": 0.5, "scale_jitter": (1.2, 2.5)},
        {"hflip": 0.5, "vflip": 0.5, "scale_jitter": (0.2, 0.9)},
        {"hflip": 0.5, "vflip": 0.5, "photometric": 0.5, "iou_crop": 0.5, "scale_jitter": (0.3, 3.0)},
    ],
)
def test_only_rounding_tells_it_from_the_workers_way(tmp_path, settings):
    by_workers, by_device = datasets(tmp_path, TrainTransform(max_size=120, **settings))
    different = 0
    for epoch in range(6):
        spec = BatchSpec(epoch, tuple(range(10)), canvas=(96, 128), min_size=60, weight=0.5)
        expected, raw = by_workers[spec], by_device[spec]
        assert isinstance(raw, DeferredResizeBatch)
        assert raw.images.dtype == torch.uint8
        found = raw.to("cpu")
        assert type(found) is Batch
        assert found.images.shape == expected.images.shape
        for name in ("image_sizes", "original_sizes", "image_ids", "boxes", "labels", "num_boxes"):
            assert torch.equal(getattr(found, name), getattr(expected, name)), name
        assert found.weight == expected.weight
        # the uint8 kernel rounds after each direction and has weights of 16 bits
        torch.testing.assert_close(found.images, expected.images.float(), atol=1.5, rtol=0)
        different += not torch.equal(found.images, expected.images.float())
    assert different


def test_a_shrinking_image_comes_resized_with_the_same_smoothing(tmp_path):
    by_workers, by_device = datasets(tmp_path, TrainTransform(max_size=40, hflip=1.0))
    spec = BatchSpec(0, tuple(range(10)), canvas=(32, 32), min_size=12)
    raw = by_device[spec]
    assert torch.equal(raw.raw_sizes, raw.image_sizes)
    assert torch.equal(raw.to("cpu").images, by_workers[spec].images.float())


def test_it_crosses_from_data_workers_unchanged(tmp_path):
    annotations = make_annotations(tmp_path)
    steps = [list(make_module(annotations, num_workers=n, resize="device").train_steps(0, 3)) for n in (0, 1)]
    for (alone,), (sent,) in zip(*steps, strict=True):
        assert isinstance(sent, DeferredResizeBatch)
        assert sent.canvas == alone.canvas
        assert torch.equal(sent.to("cpu").images, alone.to("cpu").images)
    (batch, *_) = make_module(None, val=annotations, resize="device").val_batches()
    assert isinstance(batch, DeferredResizeBatch)
