"""Shards: plain tar files, the same bytes each time, and training on them is training on the
folder.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tarfile
import zlib
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from retina_dist.base.errors import DataError, ImageError
from retina_dist.base.files import Url, write_bytes
from retina_dist.config.compose import load_config
from retina_dist.data import shards as module
from retina_dist.data.file_checks import check_image
from retina_dist.data.samplers import BatchSpec
from retina_dist.data.sources import ArchiveMember
from retina_dist.data.tree import Tree
from retina_dist.detection.commands import write_shards
from retina_dist.detection.data.dataset import DetectionDataset
from retina_dist.detection.data.transforms import Transform
from retina_dist.detection.readers.annotations import Annotations
from retina_dist.detection.readers.recognition import recognise
from tests.coco_files import noise_images, split_of, write_coco
from tests.unit.detection.test_module import make_module, same_steps

LIMIT = 20 * 1024  # bytes: a few images a shard


@pytest.fixture(scope="module")
def coco(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eighteen noise images for training and five for validation.

    One name in use by two folders, one without extension.
    """
    root = tmp_path_factory.mktemp("coco")
    odd = {3: "sub/0.jpg", 5: "photo.of.me.JPG", 7: "plain"}
    for split, count in (("train", 18), ("val", 5)):
        images = noise_images(
            root / split, [odd.get(i, f"{i}.jpg") for i in range(count)], first_id=1000
        )
        write_coco(
            root / "annotations" / f"instances_{split}.json", images, [(1001, 1, [2, 3, 18, 19], 0)]
        )
    return root


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """shard_mb counts in units of LIMIT."""
    original = module._tars
    monkeypatch.setattr(
        module, "_tars", lambda members, limit: original(members, limit * LIMIT // 2**20)
    )


@pytest.fixture
def written(coco: Path, tmp_path: Path) -> Path:
    write(coco, tmp_path / "shards")
    return tmp_path / "shards"


def write(source: Path | str, output: Path | str, *more: str) -> None:
    write_shards(
        load_config(
            "shards", ["data=coco", f"data.root={source}", f"output={output}", "shard_mb=1", *more]
        )
    )


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def epochs(annotations: Annotations, start: int = 0, **settings: Any) -> list:
    return list(make_module(annotations, **settings).train_steps(start, 10))


# what is written


def test_shards_are_tar_files_of_the_very_bytes(coco: Path, written: Path) -> None:
    assert [recognise(Tree(root)) for root in (written, coco)] == [["shards"], ["coco"]]
    names, total = [], 0
    for shard in sorted(written.glob("train-*.tar")):
        assert shard.stat().st_size <= LIMIT
        assert shard.stat().st_size % 10240 == 0
        with tarfile.open(shard) as archive:
            for member in archive:
                record = next(
                    r
                    for r in split_of(coco).records
                    if r.image_id == int(member.name.split(".")[0])
                )
                assert archive.extractfile(member).read() == Path(str(record.path)).read_bytes()  # type: ignore[union-attr]
                assert (member.mtime, member.uid, member.uname, member.mode) == (0, 0, "", 0o644)
                names.append(member.name)
                total += 1
    assert total == len(set(names)) == 18
    assert names[3] == "000000001003.jpg"
    assert {names[5], names[7]} == {"000000001005.jpg", "000000001007.img"}
    assert len({name.split(".")[0] for name in names}) == 18  # WebDataset's keys
    listed = subprocess.run(
        ["tar", "tf", written / "train-00000.tar"], capture_output=True, text=True, check=True
    )
    assert listed.stdout.split() == names[: len(listed.stdout.split())]
    index = json.loads((written / "train.index.json").read_text())
    for shard in index["shards"]:
        content = (written / shard["file"]).read_bytes()
        assert shard["bytes"] == len(content)
        assert all(
            zlib.crc32(content[at : at + length]) == crc
            for _, _, at, length, crc in shard["images"]
        )
    kept, original = (
        json.loads((root / "annotations/instances_val.json").read_text())
        for root in (written, coco)
    )
    assert {**kept, "annotations": []} == {**original, "annotations": []}


def test_the_same_input_gives_the_same_bytes(coco: Path, written: Path, tmp_path: Path) -> None:
    shutil.copytree(coco, tmp_path / "copy")
    write(tmp_path / "copy", tmp_path / "again")
    assert tree(tmp_path / "again") == tree(written)
    write(coco, "memory://again/shards")
    there = Url("memory://again/shards")
    assert {name: (there / name).read_bytes() for name in there.all_files()} == tree(written)


def test_shards_that_are_there_are_not_touched(coco: Path, written: Path) -> None:
    before = tree(written)
    with pytest.raises(DataError, match=r"holds train\.index\.json already; give an empty folder"):
        write(coco, written)
    assert tree(written) == before
    before = tree(coco)
    with pytest.raises(DataError, match=r"holds instances_train\.json already"):
        write(coco, coco)
    assert tree(coco) == before


@pytest.mark.parametrize("place", ["file://{}/new", "memory://{}/new"])
@pytest.mark.parametrize(
    "file", ["train-00001.tar", "annotations/instances_train.json", "train.index.json"]
)
def test_an_interrupted_writing_is_run_again(
    coco: Path,
    written: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    file: str,
    place: str,
) -> None:
    there = Url(place.format(tmp_path))

    def interrupted(target: Any, data: bytes) -> None:
        if str(target).endswith(file):
            raise KeyboardInterrupt
        write_bytes(target, data)

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_bytes", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write(coco, there)
    write_bytes(there / "train-00099.tar", b"")  # of larger shards
    write(coco, there)
    assert {name: (there / name).read_bytes() for name in there.all_files()} == tree(written)


def test_missing_images_and_other_formats(tmp_path: Path) -> None:
    """CSV, with absolute names and without sizes, becomes COCO json with sizes.

    What is not there may be left out.
    """
    for name in "ab":
        Image.new("RGB", (30, 20), ord(name)).save(tmp_path / f"{name}.png")
    (tmp_path / "train.csv").write_text(
        f"{tmp_path}/a.png,1,2,11,12,cat\ngone.png,1,2,9,9,cat\nb.png,,,,,\n"
    )
    (tmp_path / "classes.csv").write_text("cat,0\n")
    line = ["data=csv", f"data.root={tmp_path}", f"output={tmp_path}/out"]
    (tmp_path / "val.csv").write_text("b.png,,,,,\n")
    with pytest.raises(DataError, match=r"gone\.png"):
        write_shards(load_config("shards", line))
    write_shards(load_config("shards", [*line, "data.missing_images=skip"]))
    content = json.loads((tmp_path / "out/annotations/instances_train.json").read_text())
    assert [(i.get("width"), i.get("height")) for i in content["images"]] == [(30, 20), (30, 20)]
    found = split_of(tmp_path / "out", format="shards")
    assert [record.image_id for record in found.records] == [1, 3]
    assert found.boxes[0].tolist() == [[1, 2, 11, 12]]


# what is read


@pytest.mark.parametrize("workers", [0, 2])
def test_training_is_bit_for_bit_that_on_the_folder(
    coco: Path, written: Path, workers: int
) -> None:
    plain = epochs(split_of(coco))
    annotations = split_of(written, format="shards")
    assert all(isinstance(record.path, ArchiveMember) for record in annotations.records)
    assert same_steps(epochs(annotations, num_workers=workers), plain)
    assert same_steps(epochs(annotations, 4, num_workers=workers), plain[4:])  # and after a resume


@pytest.mark.parametrize("kind", ["gone", "short", "bit"])
def test_damage_is_named_or_skipped(written: Path, kind: str, said: list[str]) -> None:
    annotations = split_of(written, format="shards")
    where = annotations.records[4].path
    assert isinstance(where, ArchiveMember)
    path, what = written / where.file, "its CRC-32 differs"
    content = bytearray(path.read_bytes())
    content[where.offset + where.length // 2] ^= 1
    if kind == "short":
        content, what = content[: where.offset + 100], "only 100 bytes are there"
    path.write_bytes(content)
    if kind == "gone":
        path.unlink()
        what = f"{where.file} (member {where.member}"
    spec = BatchSpec(0, (4,), padded_shape=(96, 96), min_size=32, weight=1.0)
    dataset = DetectionDataset(annotations, Transform(max_size=96))
    with pytest.raises(ImageError) as caught:
        dataset[spec]
    for word in (where.file, where.member, f"byte {where.offset}", what):
        assert word in str(caught.value)
    batch = DetectionDataset(annotations, Transform(max_size=96), bad_images="skip")[spec]
    assert batch.weight == 0
    assert where.member in said[0]
    assert check_image(("a", where, None), decode=True, max_pixels=10**6).problem == "unreadable"
    if kind == "bit":
        split_of(written, format="shards")
    else:  # seen at the start
        with pytest.raises(
            DataError, match=rf"{re.escape(where.file)} (is not there|has \d+ bytes, not)"
        ):
            split_of(written, format="shards")
        split_of(written, format="shards", bad_images="skip")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"train-00000.tar"', '"../../secret.tar"', "not an index of shards"),
        (",512,", ",999999999,", "reaches out of train-00000.tar"),
        ('"format":1', '"format":2', "has format 2, not 1"),
        ('"split":"train"', '"split":"val"', "it is of split val"),
    ],
)
def test_an_index_that_was_tampered_with_is_refused(
    written: Path, old: str, new: str, words: str
) -> None:
    path = written / "train.index.json"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(DataError, match=words):
        split_of(written, format="shards")
