"""scripts/prepare_coco.py, by curl from file:// URLs, with small zip files of COCO's form."""

from __future__ import annotations

import json
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from scripts import prepare_coco

pytestmark = pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
IMAGES = {
    split: {f"{i:012d}.jpg": bytes([i]) * 3000 for i in range(start, start + 4)}
    for split, start in (("train", 1), ("val", 7))
}


def pack(path: Path, files: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    listed = {
        f"annotations/instances_{split}2017.json": json.dumps(
            {"images": [{"file_name": n} for n in names]}
        ).encode()
        for split, names in IMAGES.items()
    }
    pack(folder / "annotations/annotations_trainval2017.zip", listed)
    for split, names in IMAGES.items():
        files = {
            f"{split}2017/": b"",
            **{f"{split}2017/{name}": content for name, content in names.items()},
        }
        pack(folder / f"zips/{split}2017.zip", files)
    return folder


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["prepare_coco.py", *map(str, arguments)])
    prepare_coco.main()


def is_whole(root: Path) -> bool:
    files = {
        f"{split}2017/{name}": content
        for split, names in IMAGES.items()
        for name, content in names.items()
    }
    return all((root / name).read_bytes() == content for name, content in files.items())


def test_a_second_start_downloads_only_what_is_missing(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    root, here = tmp_path / "coco", ("--site", f"file://{site}")
    call(monkeypatch, root, *here)
    assert is_whole(root)
    assert "train2017: 4 images are there" in capfd.readouterr().out
    shutil.rmtree(site / "zips")
    call(monkeypatch, root, *here)  # asks for nothing
    (root / "val2017" / "000000000008.jpg").unlink()
    with pytest.raises(SystemExit, match="2"):
        call(monkeypatch, root, *here)
    assert "start again to resume the download" in capfd.readouterr().err


def test_zips_at_hand_damaged_and_incomplete(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    root, zips = tmp_path / "coco", tmp_path / "mine"
    zips.mkdir()
    for path in site.rglob("*.zip"):
        shutil.copy(path, zips)
    good = (zips / "val2017.zip").read_bytes()
    at = good.index(bytes([8]) * 100)
    wrong = {
        "is damaged (Bad CRC-32 for file 'val2017/000000000008.jpg')": good[:at]
        + b"\xff"
        + good[at + 1 :],
        "is damaged (File is not a zip file)": good[: len(good) // 2],
    }
    for message, content in wrong.items():
        (zips / "val2017.zip").write_bytes(content)
        with pytest.raises(SystemExit, match="2"):
            call(monkeypatch, root, "--zips", zips)
        assert message in capfd.readouterr().err
        assert not (root / "val2017" / "000000000008.jpg").exists()
    pack(zips / "val2017.zip", {f"val2017/{name}": b"x" for name in list(IMAGES["val"])[:3]})
    with pytest.raises(SystemExit, match="2"):
        call(monkeypatch, root, "--zips", zips)
    assert "lacks 1 images, such as 000000000010.jpg; get another one" in capfd.readouterr().err
    (zips / "val2017.zip").write_bytes(good)
    call(monkeypatch, root, "--zips", zips)
    assert is_whole(root)
    assert len(list(zips.iterdir())) == 3, "they are the user's"


def test_nothing_is_unpacked_outside_of_the_folder(tmp_path: Path) -> None:
    pack(
        tmp_path / "bad.zip",
        {"val2017/a.jpg": b"a", "val2017/../../out.jpg": b"b", "/out.jpg": b"c"},
    )
    (tmp_path / "root").mkdir()
    prepare_coco.unpack(tmp_path / "bad.zip", tmp_path / "root", "val2017")
    assert not list(tmp_path.glob("out*"))
    assert not Path("/out.jpg").exists()
