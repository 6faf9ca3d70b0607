"""Pipes, devices and impossible names give one sentence, never a hang or a traceback."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from retina_dist.base.errors import UserError
from retina_dist.base.files import parse_path
from retina_dist.data.images import find_images, read_image
from retina_dist.data.shards import index_of
from retina_dist.data.sources import ArchiveMember, read
from retina_dist.detection.coco_metrics import read_results
from retina_dist.detection.model.weights import load_weights
from retina_dist.detection.readers.load import load_annotations
from retina_dist.detection.settings import DetectionData, DetectionRunConfig
from retina_dist.detection.splits import read_split
from retina_dist.engine.checkpoint.folder_owner import Owner
from retina_dist.engine.checkpoint.store import load_checkpoint, load_latest
from retina_dist.run.resume import open_run
from tests.coco_files import write_coco

PATIENCE_S = 20


@pytest.fixture(autouse=True)
def _nothing_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("retina_dist.base.files.WAITS", ())

    def hung(number: int, frame: object) -> None:
        raise AssertionError("it waits for a writer")

    before = signal.signal(signal.SIGALRM, hung)
    signal.alarm(PATIENCE_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def coco(folder: Path, name: str = "a.jpg") -> Path:
    images = [{"id": 1, "file_name": name, "width": 8, "height": 8}]
    write_coco(folder / "coco.json", images, [])
    return folder / "coco.json"


def run(**named: Any) -> Callable[[Path, Path], Any]:
    return lambda pipe, folder: open_run(DetectionRunConfig(data=DetectionData(name="a"), **named))


def pipe_at(name: str, read: Callable[[Path], Any]) -> Callable[[Path, Path], Any]:
    def case(pipe: Path, folder: Path) -> Any:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(folder / name)
        return read(folder)

    return case


READERS: dict[str, Callable[[Path, Path], Any]] = {
    "checkpoint": lambda pipe, folder: load_checkpoint(pipe),
    "weights": lambda pipe, folder: load_weights(torch.nn.Linear(1, 1), str(pipe)),
    "COCO": lambda pipe, folder: load_annotations(pipe, folder),
    "CSV": lambda pipe, folder: load_annotations(pipe, folder, format="csv", classes=pipe),
    "an image that is listed": lambda pipe, folder: load_annotations(
        coco(folder, pipe.name), folder
    ),
    "image": lambda pipe, folder: read_image(pipe),
    "part": lambda pipe, folder: read(ArchiveMember(str(folder), pipe.name, 0, 9, 0, "a")),
    "images": lambda pipe, folder: find_images(str(pipe)),
    "results": lambda pipe, folder: read_results(pipe, {}),
    "shards": pipe_at(
        index_of("train"), lambda folder: load_annotations(coco(folder), folder, format="shards")
    ),
    "step": pipe_at(
        "checkpoints/step_00000001.pt", lambda folder: load_latest(folder / "checkpoints")
    ),
    "resume": run(resume="pipe"),
    "output_dir": pipe_at("out/x", lambda folder: Owner().lock(folder / "out" / "x", "output_dir")),
}


@pytest.mark.parametrize("kind", READERS)
def test_pipes_are_refused(kind: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError) as caught:
        READERS[kind](tmp_path / "pipe", tmp_path)
    assert "\n" not in str(caught.value)


def test_a_device_is_refused(tmp_path: Path) -> None:
    """One that never ends would fill the memory."""
    with pytest.raises(UserError, match="not a regular file"):
        load_checkpoint("/dev/zero")
    with pytest.raises(UserError, match="not a regular file"):
        load_annotations(Path("/dev/zero"), tmp_path)


ODD = [
    *(
        "://",
        "file://",
        "memory:///",
        "9p://box/run",
        "a b://box/run",
        "nonsense://box/run",
        "http://[::1",
    ),
    *("http://:99999999/x", "n" * 300, "n/" * 3000, "a\0b", "\ud800", "file://a\0b", "/dev/null"),
]


@pytest.mark.parametrize("text", ODD, ids=lambda text: ascii(text)[:20])
def test_odd_places_are_one_sentence(text: str, tmp_path: Path) -> None:
    readers: list[Callable[[], Any]] = [
        lambda: load_checkpoint(text),
        lambda: load_weights(torch.nn.Linear(1, 1), text),
        lambda: load_annotations(parse_path(text), tmp_path),
        lambda: load_annotations(parse_path(text), tmp_path, format="csv"),
        lambda: load_annotations(parse_path(text), tmp_path, format="voc"),
        lambda: load_annotations(coco(tmp_path), parse_path(text)),
        lambda: load_annotations(coco(tmp_path), parse_path(text), format="shards"),
        lambda: read_split(DetectionData(name="a", root=text), "train"),
        lambda: read_split(DetectionData(name="a", format="csv", root=text), "train"),
        lambda: open_run(
            DetectionRunConfig(data=DetectionData(name="a"), resume=text, output_dir="out")
        ),
        lambda: find_images(text),
        lambda: read_results(Path(text), {}),
    ]
    for reader in readers:
        with pytest.raises(UserError) as caught:
            reader()
        assert "\n" not in str(caught.value)
