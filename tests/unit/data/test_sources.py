"""Data sets behind URLs: the same images as from a folder, read together, asked for again, never
from elsewhere.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from retina_dist.base import files
from retina_dist.base.errors import DataError, ImageError
from retina_dist.base.files import Url
from retina_dist.data.file_checks import check_images
from retina_dist.data.samplers import BatchSpec
from retina_dist.data.sources import RemoteFile, read, read_all
from retina_dist.detection.data.dataset import DetectionDataset
from retina_dist.detection.data.transforms import Transform
from retina_dist.detection.readers.annotations import Annotations
from retina_dist.detection.readers.content import Content
from retina_dist.detection.readers.ground_truth import CocoImage
from retina_dist.detection.readers.load import load_annotations
from retina_dist.detection.readers.records import make_record
from retina_dist.detection.settings import DetectionData
from retina_dist.detection.splits import read_split
from tests.coco_files import noise_images, split_of, write_coco
from tests.unit.detection.test_module import make_module, same_steps


class Remote(AsyncFileSystem):
    """A folder of this machine as if it were far away, remote:///FOLDER: every request takes a
    moment and is counted.
    """

    protocol = "remote"
    asked: Counter[str] = Counter()
    together = most_together = 0

    async def _cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        cls = type(self)
        cls.asked["read"] += 1
        cls.together += 1
        cls.most_together = max(cls.most_together, cls.together)
        await asyncio.sleep(0.01)
        cls.together -= 1
        return Path(path).read_bytes()[start:end]

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        type(self).asked["info"] += 1
        if not Path(path).exists():
            raise FileNotFoundError(path)
        return _facts(Path(path))

    async def _ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        type(self).asked["list"] += 1
        if not Path(path).is_dir():
            raise FileNotFoundError(path)
        found = [_facts(p) for p in sorted(Path(path).iterdir())]
        return found if detail else [entry["name"] for entry in found]


def _facts(path: Path) -> dict[str, Any]:
    kind, facts = "directory" if path.is_dir() else "file", path.stat()
    return {"name": str(path), "type": kind, "size": facts.st_size, "mtime": facts.st_mtime_ns}


fsspec.register_implementation("remote", Remote, clobber=True)


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    Remote.asked, Remote.together, Remote.most_together = Counter(), 0, 0
    yield
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


@pytest.fixture
def coco(tmp_path: Path) -> Path:
    """A data set of ten noise images in COCO's layout, two of them in a folder within."""
    root = tmp_path / "set"
    images = noise_images(
        root / "train2017", [f"{'more/' if i > 7 else ''}{i}.jpg" for i in range(10)], first_id=100
    )
    boxes = [(100 + i, 1, [2, 3, 18, 19], 0) for i in range(10) for _ in range(i % 3)]
    write_coco(root / "annotations" / "instances_train2017.json", images, boxes)
    return root


def in_memory(root: Path) -> str:
    there = f"memory://{root.parent.name}/set"
    for path in root.rglob("*"):
        if path.is_file():
            (Url(there) / str(path.relative_to(root))).write_bytes(path.read_bytes())
    return there


def steps(annotations: Annotations, **settings: Any) -> list:
    return list(make_module(annotations, **settings).train_steps(0, 6))


@pytest.mark.parametrize("kind", ["remote", "memory", "file", "chain"])
def test_training_sees_the_batches_of_the_folder(coco: Path, kind: str) -> None:
    roots = {"remote": f"remote://{coco}", "memory": in_memory(coco), "file": f"file://{coco}"}
    url = roots.get(kind, f"simplecache::file://{coco}")
    assert same_steps(steps(split_of(url)), steps(split_of(coco)))
    named = {
        "train_annotations": f"{url}/annotations/instances_train2017.json",
        "train_images": f"{url}/train2017",
    }
    found = read_split(DetectionData(name="x", **named), "train")
    assert found is not None
    assert same_steps(steps(found, num_workers=2 * (kind == "chain")), steps(split_of(coco)))


def test_a_batch_is_fetched_together_and_existence_by_one_listing(coco: Path) -> None:
    url = f"remote://{coco}"
    load_annotations(Url(url) / "annotations/instances_train2017.json", Url(url) / "train2017")
    assert Remote.asked["read"] == 1
    assert Remote.asked["list"] == 2  # train2017 and the folder in it
    assert Remote.asked["info"] <= 1
    dataset = DetectionDataset(split_of(url), Transform(max_size=96))
    Remote.asked.clear()
    Remote.most_together = 0
    dataset[BatchSpec(0, (0, 1, 2, 3), padded_shape=(96, 96), min_size=32)]
    assert Remote.asked == {"read": 4}
    assert Remote.most_together == 4
    files = [(record.file_name, record.path, None) for record in split_of(url).records]
    assert not any(check.problem for check in check_images(files, "train", "decode", 10**6))
    assert Remote.most_together == len(files)


def test_missing_images_are_found_before_the_training(coco: Path) -> None:
    (coco / "train2017" / "3.jpg").unlink()
    (coco / "train2017" / "more" / "9.jpg").unlink()
    with pytest.raises(
        DataError, match=r"2 of 10 images are not in remote://.*train2017: 3\.jpg, more/9\.jpg"
    ):
        split_of(f"remote://{coco}")
    left = split_of(f"remote://{coco}", missing_images="skip")
    assert [record.image_id for record in left.records] == [100, 101, 102, 104, 105, 106, 107, 108]
    with pytest.raises(DataError, match=r"remote://.*none\.json does not exist"):
        load_annotations(Url(f"remote://{coco}/none.json"), Url(f"remote://{coco}"))
    with pytest.raises(DataError, match="memory://nowhere has no annotations of boxes"):
        split_of("memory://nowhere")


@pytest.mark.parametrize(
    "name",
    [
        *("../a.jpg", "a/../../b.jpg", "..\\a.jpg", "/a.jpg", "C:/a.jpg", "az://other/a.jpg"),
        *(
            "http://h/a.jpg",
            "a/%2E%2E/%2e%2e/b.jpg",
            "az://c/images/../a.jpg",
            "az://c/imagesx/a.jpg",
        ),
    ],
)
def test_names_that_leave_the_folder_are_refused(name: str) -> None:
    with pytest.raises(DataError, match="which is outside az://c/images; write a path"):
        make_record(CocoImage(1, name), Content({}, Url("az://c/images"), "x.json"))


@pytest.mark.parametrize(
    ("name", "inside"),
    [("b/../a.jpg", "a.jpg"), ("az://c/images/a.jpg", "a.jpg"), ("x::file.jpg", "x::file.jpg")],
)
def test_names_within_the_folder(tmp_path: Path, name: str, inside: str) -> None:
    record = make_record(CocoImage(1, name), Content({}, Url("az://c/images"), "x.json"))
    assert record.path == RemoteFile("az://c/images", inside)
    # as text, fsspec would take what follows :: for another file system
    (found,) = read_all([RemoteFile("memory://c/images", f"{name}::file://{tmp_path}")])
    assert isinstance(found, ImageError)


class Failing:
    """Memory that fails `times` times with `error` for files whose names end with `name`, before it
    answers.
    """

    def __init__(
        self, patch: pytest.MonkeyPatch, error: Exception, times: int, name: str = ""
    ) -> None:
        self.calls = 0
        original = MemoryFileSystem.cat_file

        def read(system: Any, path: str, *arguments: Any, **named: Any) -> bytes:
            if path.endswith(name):
                self.calls += 1
                if self.calls <= times:
                    raise error
            return original(system, path, *arguments, **named)

        patch.setattr(MemoryFileSystem, "cat_file", read)
        self.slept: list[float] = []
        patch.setattr(files.time, "sleep", self.slept.append)


class RequestError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


@pytest.mark.parametrize("error", [TimeoutError("slow"), RequestError(503)])
def test_a_network_that_fails_for_a_moment_is_asked_again(
    coco: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    folder = f"{in_memory(coco)}/train2017"
    failing = Failing(monkeypatch, error, 3, "/1.jpg")
    found = read_all([RemoteFile(folder, f"{i}.jpg") for i in range(4)])
    assert found == [(coco / "train2017" / f"{i}.jpg").read_bytes() for i in range(4)]
    assert failing.calls == 4
    assert failing.slept == [0.5, 1.0, 2.0]


def test_a_network_that_stays_away_stops_the_run_even_where_bad_images_are_skipped(
    coco: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = DetectionDataset(split_of(in_memory(coco)), Transform(max_size=96), bad_images="skip")
    failing = Failing(monkeypatch, TimeoutError("no answer"), 100, "/1.jpg")
    with pytest.raises(
        DataError,
        match=r"memory://.*train2017 could not be read \(TimeoutError: no answer, 4 attempts in .*1\.jpg",
    ) as caught:
        dataset[BatchSpec(0, (0, 1), padded_shape=(96, 96), min_size=32)]
    assert not isinstance(caught.value, ImageError)
    assert failing.calls == 4


def test_what_was_refused_is_not_asked_again(coco: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = f"{in_memory(coco)}/train2017"
    failing = Failing(monkeypatch, RequestError(403), 100)
    with pytest.raises(DataError, match="could not be read"):
        read(RemoteFile(folder, "1.jpg"))
    assert failing.calls == 1
    assert failing.slept == []


def test_bad_and_missing_images_are_errors_of_the_image(coco: Path, said: list[str]) -> None:
    annotations = split_of(f"remote://{coco}")
    (coco / "train2017" / "1.jpg").write_bytes(b"no image")
    (coco / "train2017" / "2.jpg").unlink()
    dataset = DetectionDataset(annotations, Transform(max_size=96), bad_images="skip")
    batch = dataset[BatchSpec(0, (0, 1, 2, 3), padded_shape=(96, 96), min_size=32, weight=1.0)]
    assert batch.image_ids.tolist() == [100, 103]
    assert batch.weight == 0.5
    assert "train2017/1.jpg is not a readable image" in said[0]
    assert "train2017/2.jpg does not exist" in said[1]
