"""Decoded images on the disk: the same pixels, whatever happens to the files."""

from __future__ import annotations

import os
import re
import shutil
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from retina_dist.data import cache as module
from retina_dist.data.cache import DecodedCache
from retina_dist.data.images import read_image
from retina_dist.errors import ConfigError
from tests.unit.detection.test_module import make_annotations, make_module, same_steps

Usage = namedtuple("Usage", "free")


@pytest.fixture
def photo(tmp_path: Path) -> str:
    """37 x 21, whose bytes are no multiple of eight."""
    pixels = np.random.default_rng(0).integers(0, 256, (21, 37, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.jpg")
    return str(tmp_path / "a.jpg")


def test_a_folder_that_cannot_be_made_is_one_sentence(photo: str) -> None:
    with pytest.raises(ConfigError, match=r"data.cache=.*/a.jpg/x cannot be made \(Not a directory\); give another"):
        DecodedCache(f"{photo}/x")


def files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file())


def refuse(*_):
    raise AssertionError("called")


def test_the_second_reading_does_not_decode(photo, tmp_path, monkeypatch):
    cache = DecodedCache(tmp_path / "cache")
    first = cache.read(photo, (37, 21))
    assert torch.equal(first, read_image(photo))
    (kept,) = files(cache.folder)
    assert kept.stat().st_size == -(-37 * 21 * 3 // 8) * 8 + 24
    monkeypatch.setattr(module, "read_image", refuse)
    again = DecodedCache(tmp_path / "cache").read(photo, (37, 21))
    assert torch.equal(again, first)
    assert again.dtype == torch.uint8
    assert again.stride() == first.stride()


def test_a_changed_image_is_decoded_anew(photo, tmp_path):
    cache = DecodedCache(tmp_path / "cache")
    cache.read(photo, (37, 21))
    Image.new("RGB", (37, 21), (9, 9, 9)).save(photo, quality=95)
    assert torch.equal(cache.read(photo, (37, 21)), read_image(photo))


def test_orientations_are_kept_apart(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(np.arange(6, dtype=np.uint8).reshape(2, 3) * 40).save(tmp_path / "a.png", exif=exif)
    cache = DecodedCache(tmp_path / "cache")
    for size in ((2, 3), (3, 2), (2, 3), (3, 2)):  # boxes drawn on the upright image, and on it as stored
        assert torch.equal(cache.read(str(tmp_path / "a.png"), size), read_image(tmp_path / "a.png", size))


def damage(content: bytes) -> list[bytes]:
    one_bit = bytes([content[0] ^ 1]) + content[1:]
    zeros = bytes(len(content) - 24) + content[-24:]  # a file whose blocks a crash has lost
    return [b"", b"x", content[:-8], content[:800], content + bytes(8), one_bit, zeros, bytes(len(content))]


def test_a_damaged_file_is_written_again_with_a_warning(photo, tmp_path, said):
    cache = DecodedCache(tmp_path / "cache")
    expected = cache.read(photo, (37, 21)).clone()
    cache.read(photo, (37, 21)).fill_(7)  # writing into pixels does not reach the file
    (kept,) = files(cache.folder)
    whole = kept.read_bytes()
    for content in damage(whole):
        kept.write_bytes(content)
        for _ in range(2):
            assert torch.equal(cache.read(photo, (37, 21)), expected)
        assert kept.read_bytes() == whole
        assert len(said) == 1
        assert re.search(f"is damaged; {re.escape(photo)}", said.pop())


def test_a_full_disk_ends_the_writing_once_and_for_all(photo, tmp_path, monkeypatch, said):
    annotations = make_annotations(tmp_path, 2)
    other = [(str(r.path), (r.width, r.height)) for r in annotations.records]
    cache = DecodedCache(tmp_path / "cache")
    cache.read(photo, (37, 21))

    def no_room(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", no_room)
    for path, size in other:
        assert torch.equal(cache.read(path, size), read_image(path))
    assert len(said) == 1
    assert "No space left" in said[0]
    assert len(files(cache.folder)) == 1  # nothing half-written is left
    monkeypatch.setattr(module, "read_image", refuse)
    cache.read(photo, (37, 21))  # what is there is used


def test_the_last_gigabyte_of_a_disk_is_left_alone(photo, tmp_path, monkeypatch, said):
    cache = DecodedCache(tmp_path / "cache")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(2**30 + 37 * 21 * 3 - 1))
    cache.read(photo, (37, 21))
    assert "less than 1 GiB is free" in said[0]
    assert not files(cache.folder)


def test_training_sees_the_same_batches(tmp_path):
    annotations = make_annotations(tmp_path)
    plain = list(make_module(annotations).train_steps(0, 6))
    for num_workers in (2, 0):  # two processes fill it together; filled
        kept = make_module(annotations, cache=str(tmp_path / "cache"), num_workers=num_workers)
        assert same_steps(list(kept.train_steps(0, 6)), plain)
    assert len(files(tmp_path / "cache")) == 10
