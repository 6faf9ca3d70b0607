"""Data sets on disk to batches, with and without data workers."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from dataclasses import fields
from multiprocessing import forkserver, spawn
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from retina_dist.base.errors import ImageError
from retina_dist.data.module import start_fork_server
from retina_dist.data.samplers import BatchSpec
from retina_dist.detection.batch import NO_IMAGE, Batch, Sample, collate
from retina_dist.detection.data.dataset import CocoDataModule, DetectionDataset
from retina_dist.detection.data.transforms import Transform
from retina_dist.detection.readers.annotations import Annotations
from retina_dist.detection.readers.load import load_annotations
from retina_dist.detection.settings import DetectionData
from tests.coco_files import SIZES, noise_images, write_coco

SETTINGS = {
    "batch_size": 4,
    "val_batch_size": 4,
    "min_sizes": [32, 48],
    "max_size": 96,
    "num_workers": 0,
}
SETTINGS |= {"hflip": 0.5, "photometric": 0.5, "scale_jitter": [0.5, 1.5]}


@pytest.fixture
def annotations(tmp_path: Path) -> Annotations:
    """Ten images of noise with ids 100, 101, ...; image i has i % 3 boxes with label i."""
    images = noise_images(tmp_path, [f"{i}.png" for i in range(10)], first_id=100)
    boxes = [(100 + i, i, [2, 3, 18, 19], 0) for i in range(10) for _ in range(i % 3)]
    write_coco(tmp_path / "a.json", images, boxes, {i: str(i) for i in range(10)})
    return load_annotations(tmp_path / "a.json", tmp_path)


def make_module(
    annotations, val=None, *, accumulate=1, seed=3, rank=0, world_size=1, **settings
) -> CocoDataModule:
    config = DetectionData(name="x", **SETTINGS | settings)
    job = {"accumulate": accumulate, "seed": seed, "rank": rank, "world_size": world_size}
    return CocoDataModule(config, train=annotations, val=val, **job)


def same(a: Batch, b: Batch) -> bool:
    return all(
        torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y
        for x, y in ((getattr(a, field.name), getattr(b, field.name)) for field in fields(Batch))
    )


def same_steps(a: list[list[Batch]], b: list[list[Batch]]) -> bool:
    return [len(step) for step in a] == [len(step) for step in b] and all(
        same(x, y)
        for left, right in zip(a, b, strict=True)
        for x, y in zip(left, right, strict=True)
    )


# the data set


def test_batch_holds_the_images_and_boxes_it_is_asked_for(annotations):
    dataset = DetectionDataset(annotations, Transform(max_size=96))
    assert len(dataset) == 10
    assert dataset.sizes.tolist() == [list(SIZES[i % 4]) for i in range(10)]
    batch = dataset[
        BatchSpec(epoch=0, indices=(5, 0), padded_shape=(64, 64), min_size=30, weight=0.5)
    ]
    assert batch.image_ids.tolist() == [105, 100]
    assert batch.original_sizes.tolist() == [[40, 30], [30, 40]]
    assert batch.image_sizes.tolist() == [[40, 30], [30, 40]]  # scale 1
    pixels = np.asarray(Image.open(annotations.records[5].path))
    assert np.array_equal(batch.images[0, :, :40, :30].permute(1, 2, 0).numpy(), pixels)
    assert batch.num_boxes.tolist() == [2, 0]
    assert batch.boxes[0, :2].tolist() == [[2, 3, 20, 22]] * 2
    assert batch.labels[0, :2].tolist() == [5, 5]
    assert batch.weight == 0.5


def test_fillers_bring_a_batch_to_its_size(annotations):
    """Black images without boxes, at the end: for what was not read, and where images are few."""
    annotations.records[1].path.write_bytes(b"no image")
    dataset = DetectionDataset(annotations, Transform(max_size=96), bad_images="skip")

    def batch(*indices: int, size: int) -> Batch:
        return dataset[
            BatchSpec(0, indices, padded_shape=(64, 128), min_size=32, weight=0.5, size=size)
        ]

    full, short, empty = batch(0, 2, 3, size=3), batch(0, 1, 2, size=4), batch(size=2)
    assert full.real is None
    assert short.real.tolist() == [True, True, False, False]
    assert empty.real.tolist() == [False, False]
    assert (full.weight, short.weight, empty.weight) == (0.5, 0.5 * 2 / 3, 0.5 * 0)
    assert short.image_ids.tolist() == [100, 102, NO_IMAGE, NO_IMAGE]
    assert torch.equal(short.images[:2], batch(0, 2, size=1).images)
    for found, count in ((short, 4), (empty, 2)):
        assert found.images.shape == (count, 3, 64, 128)
        fillers = ~found.real
        assert not found.images[fillers].any()
        assert not found.num_boxes[fillers].any()
        assert found.image_sizes[fillers].tolist() == [[64, 128]] * int(fillers.sum())


# the module


def test_resuming_gives_the_same_batches_as_going_on(annotations):
    module = make_module(annotations)
    assert same_steps(
        list(module.train_steps(0, 7))[4:], list(make_module(annotations).train_steps(4, 7))
    )
    assert list(module.train_steps(3, 3)) == []


@pytest.mark.parametrize("world_size", [2, 3, 8])
def test_every_world_size_sees_the_same_augmented_images(annotations, world_size):
    def images(world_size: int) -> list[dict[int, torch.Tensor]]:
        steps: list[dict[int, torch.Tensor]] = [{} for _ in range(4)]
        for rank in range(world_size):
            module = make_module(annotations, rank=rank, world_size=world_size)
            for found, batches in zip(steps, module.train_steps(0, 4), strict=True):
                for batch in batches:
                    found |= dict(zip(batch.image_ids.tolist(), batch.images, strict=True))
                    found.pop(NO_IMAGE, None)
        return steps

    for one, many in zip(images(1), images(world_size), strict=True):
        assert one.keys() == many.keys()
        assert all(torch.equal(one[i], many[i]) for i in one)


def test_workers_change_nothing_and_stop_when_the_iterator_is_closed(annotations, monkeypatch):
    prepared: dict[str, dict] = {}
    prepare = spawn.get_preparation_data
    monkeypatch.setattr(
        spawn, "get_preparation_data", lambda name: prepared.setdefault(name, prepare(name))
    )
    module = make_module(annotations, num_workers=2)
    before = set(multiprocessing.active_children())
    torch.manual_seed(0)
    state = torch.get_rng_state()

    main = sys.modules["__main__"]
    as_they_were = main.__spec__, getattr(main, "__file__", None)
    steps = module.train_steps(0, 100)
    found = [next(steps) for _ in range(5)]
    assert len(set(multiprocessing.active_children()) - before) == 2
    steps.close()
    assert set(multiprocessing.active_children()) == before

    # or a script without `if __name__ == "__main__":` would run again in each
    prepared.pop("ignore", None)  # the fork server's, which takes only the path from it
    assert [key for each in prepared.values() for key in each if key.startswith("init_main")] == []
    assert len(prepared) == 2
    assert (main.__spec__, getattr(main, "__file__", None)) == as_they_were
    assert torch.equal(torch.get_rng_state(), state)  # reading draws nothing from the global stream
    assert same_steps(found, list(make_module(annotations).train_steps(0, 5)))


def test_a_bad_image_in_a_worker_is_one_sentence_and_stops_the_workers(annotations):
    annotations.records[1].path.write_bytes(b"no image")
    module = make_module(annotations, num_workers=1)
    before = set(multiprocessing.active_children())
    with pytest.raises(ImageError, match=r"1\.png") as caught:
        list(module.train_steps(0, 3))
    assert "Traceback" not in str(caught.value)
    assert set(multiprocessing.active_children()) == before


@pytest.mark.parametrize("num_workers", [0, 1])
def test_what_a_worker_logs_is_logged_by_the_main_process(annotations, said, num_workers):
    annotations.records[1].path.write_bytes(b"no image")
    module = make_module(None, val=annotations, num_workers=num_workers, bad_images="skip")
    assert (
        sum(len(batch.image_ids) for batch in module.val_batches()) == len(annotations.records) - 1
    )
    assert len(said) == 1
    assert "1.png" in said[0]


def test_validation_can_be_read_while_training_goes_on(annotations):
    module = make_module(annotations, val=annotations, num_workers=1)
    straight = list(make_module(annotations).train_steps(0, 4))
    steps = module.train_steps(0, 4)
    found = [next(steps), next(steps)]
    assert sum(len(batch) for batch in module.val_batches()) == 10
    assert sum(len(batch) for batch in module.val_batches()) == 10  # and again
    assert same_steps(found + list(steps), straight)


def test_the_fork_server_starts_deaf_to_what_slurm_sends_to_every_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Slurm signals whole steps; without its server the data workers count as dead."""
    deaf: list[set[int]] = []
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    monkeypatch.setattr(
        forkserver,
        "ensure_running",
        lambda: deaf.append(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    )
    start_fork_server("torch")
    assert deaf == [before | {signal.SIGTERM, signal.SIGUSR1}]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


def test_images_of_rare_classes_come_again_with_another_augmentation(annotations) -> None:
    """Each label is in one image of ten, so its factor is sqrt(.9 / .1) = 3."""
    module = make_module(annotations, repeat_threshold=0.9, hflip=0.5, batch_size=5)
    sampler = module.train_sampler
    labelled = [i for i in range(10) if i % 3]
    assert sampler.num_images == 4 + 3 * len(labelled)
    seen: dict[int, list[torch.Tensor]] = {}
    for batches in module.train_steps(0, sampler.steps_per_epoch):
        for batch in batches:
            for i in batch.real_rows():
                seen.setdefault(int(batch.image_ids[i]), []).append(batch.images[i])
    assert {image - 100: len(images) for image, images in seen.items()} == {
        i: 3 if i % 3 else 1 for i in range(10)
    }
    for images in seen.values():  # small images: two random scales can round to one size
        assert len(images) == 1 or not all(torch.equal(images[0], other) for other in images[1:])
    assert same_steps(list(module.train_steps(2, 9)), list(module.train_steps(0, 9))[2:])


# batches


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
