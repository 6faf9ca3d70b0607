"""scripts/prepare_coco.py against a web server that can be told to misbehave, with small zip files of COCO's form."""

from __future__ import annotations

import io
import json
import re
import shutil
import stat
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from scripts import prepare_coco
from scripts.prepare_coco import PrepareError, download, main, unpack

IMAGES = {
    split: {f"{i:012d}.jpg": bytes([i]) * 3000 for i in range(start, start + 4)}
    for split, start in (("train", 1), ("val", 7))
}


def packed(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def coco_zips() -> dict[str, bytes]:
    listed = {
        f"annotations/instances_{split}2017.json": json.dumps(
            {"images": [{"file_name": name} for name in names]}
        ).encode()
        for split, names in IMAGES.items()
    }
    images = {
        f"/zips/{split}2017.zip": packed({f"{split}2017/": b"", **{f"{split}2017/{n}": c for n, c in names.items()}})
        for split, names in IMAGES.items()
    }
    return {"/annotations/annotations_trainval2017.zip": packed(listed), **images}


class Site(ThreadingHTTPServer):
    """Serves `files`; each of `tricks`, in turn, is played on one answer that has a body."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.tricks, self.asked = coco_zips(), [], []  # type: ignore[var-annotated]
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.tag: str | None = '"1"'


class Handler(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        site = self.server
        first = re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))
        site.asked.append((self.path, int(first[1]) if first else None))
        data = site.files.get(self.path)
        trick = site.tricks.pop(0) if site.tricks and data else ""
        if data is None or trick == "busy":
            self.send_error(503 if trick else 404)
            return
        start = int(first[1]) if first and self.headers.get("If-Range") == site.tag and trick != "no ranges" else None
        if start is not None and start >= len(data):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(data)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = data[start or 0 :]
        self.send_response(200 if start is None else 206)
        if start is not None:
            begin = start + 1 if trick == "other range" else start
            self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        if site.tag:
            self.send_header("ETag", site.tag)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if trick == "cut" else body)

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(prepare_coco, "WAITS", (0.0,) * 4)
    server = Site()
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["prepare_coco.py", *map(str, arguments)])
    main()


def whole(root: Path) -> bool:
    files = {f"{split}2017/{name}": content for split, names in IMAGES.items() for name, content in names.items()}
    return all((root / name).read_bytes() == content for name, content in files.items())


VAL = "/zips/val2017.zip"


def test_all_of_it_and_then_nothing(site, tmp_path, monkeypatch, capsys):
    call(monkeypatch, tmp_path / "coco", "--site", site.url)
    assert whole(tmp_path / "coco")
    assert {p.name for p in (tmp_path / "coco").iterdir()} == {"annotations", "train2017", "val2017"}
    assert "train: 4 images, all there" in capsys.readouterr().out
    site.asked.clear()
    call(monkeypatch, tmp_path / "coco", "--site", site.url)
    assert site.asked == []
    assert "was complete; nothing to do" in capsys.readouterr().out


def test_what_is_missing_is_brought_and_no_more(site, tmp_path, monkeypatch):
    call(monkeypatch, tmp_path, "--site", site.url, "--splits", "val", "--annotations-only")
    assert [path for path, _ in site.asked] == ["/annotations/annotations_trainval2017.zip"]
    call(monkeypatch, tmp_path, "--site", site.url, "--splits", "val", "--keep-zips")
    assert not (tmp_path / "train2017").exists()
    (tmp_path / "val2017" / "000000000008.jpg").unlink()
    site.asked.clear()
    call(monkeypatch, tmp_path, "--site", site.url)
    assert [path for path, _ in site.asked] == ["/zips/train2017.zip"]  # that of val has been kept
    assert whole(tmp_path)


def test_zips_at_hand(site, tmp_path, monkeypatch, capsys):
    (tmp_path / "zips").mkdir()
    for name, content in site.files.items():
        (tmp_path / "zips" / Path(name).name).write_bytes(content)
    call(monkeypatch, tmp_path / "coco", "--zips", tmp_path / "zips")
    assert whole(tmp_path / "coco")
    assert len(list((tmp_path / "zips").iterdir())) == 3  # they are the user's
    shutil.rmtree(tmp_path / "coco" / "val2017")
    (tmp_path / "zips" / "val2017.zip").unlink()
    with pytest.raises(SystemExit, match="2"):
        call(monkeypatch, tmp_path / "coco", "--zips", tmp_path / "zips")
    assert "has no val2017.zip" in capsys.readouterr().err


def test_a_download_goes_on_where_it_was_cut(site, tmp_path):
    site.tricks = ["cut", "busy", "cut", ""]
    download(site.url + VAL, tmp_path / "val.zip")
    size = len(site.files[VAL])
    starts = [start for _, start in site.asked]
    assert starts == [None, size // 2, size // 2, size // 2 + (size - size // 2) // 2]
    assert (tmp_path / "val.zip").read_bytes() == site.files[VAL]
    assert [p.name for p in tmp_path.iterdir()] == ["val.zip"]


@pytest.mark.parametrize("trick", ["no ranges", "other range", "changed", "no tag", "too long", "just done"])
def test_whatever_the_server_makes_of_a_range_the_file_is_right(site, tmp_path, trick):
    """After an interruption: it sends all, or another part, has another file, or cannot say which it has."""
    part, size = tmp_path / "val.zip.part", len(site.files[VAL])
    part.write_bytes(site.files[VAL][: size // 3])
    (tmp_path / "val.zip.part.etag").write_text('"1"')
    if trick == "changed":
        part.write_bytes(b"x" * (size // 3))
        site.tag = '"2"'
    elif trick == "no tag":
        part.write_bytes(b"x" * (size // 3))
        site.tag = None
    elif trick in ("too long", "just done"):
        part.write_bytes(site.files[VAL] + b"x" * (trick == "too long"))
    else:
        site.tricks = [trick]
    download(site.url + VAL, tmp_path / "val.zip")
    assert (tmp_path / "val.zip").read_bytes() == site.files[VAL]
    assert len(site.asked) == (2 if trick in ("other range", "too long") else 1)


def test_a_server_that_gives_nothing_is_left_in_peace(site, tmp_path):
    site.tricks = ["busy"] * 9
    with pytest.raises(PrepareError, match=r"Error 503: .*5 times in a row; start again later"):
        download(site.url + VAL, tmp_path / "val.zip")
    assert len(site.asked) == 5
    with pytest.raises(PrepareError, match="answers 404"):
        download(site.url + "/none.zip", tmp_path / "none.zip")
    assert len(site.asked) == 6


def test_a_damaged_zip_is_said_and_brought_anew(site, tmp_path, monkeypatch, capsys):
    good = site.files[VAL]
    at = good.index(bytes([8]) * 100)
    site.files[VAL] = good[:at] + b"\xff" + good[at + 1 :]
    with pytest.raises(SystemExit, match="2"):
        call(monkeypatch, tmp_path, "--site", site.url, "--splits", "val")
    assert re.search(
        r"val2017\.zip is damaged \(Bad CRC-32 for file 'val2017/000000000008\.jpg'\)", capsys.readouterr().err
    )
    assert not (tmp_path / "zips" / "val2017.zip").exists()
    assert not (tmp_path / "val2017" / "000000000008.jpg").exists()
    site.files[VAL] = good[: len(good) // 2]  # no directory at its end
    with pytest.raises(SystemExit, match="2"):
        call(monkeypatch, tmp_path, "--site", site.url, "--splits", "val")
    site.files[VAL] = good
    call(monkeypatch, tmp_path, "--site", site.url)
    assert whole(tmp_path)


def test_a_zip_without_all_images_is_said(site, tmp_path, monkeypatch, capsys):
    site.files[VAL] = packed({f"val2017/{name}": b"x" for name in list(IMAGES["val"])[:3]})
    with pytest.raises(SystemExit, match="2"):
        call(monkeypatch, tmp_path, "--site", site.url, "--splits", "val")
    assert "lacks 1 of the 4 images that the annotations name, such as 000000000010.jpg" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["../out.jpg", "val2017/../../out.jpg", "/out.jpg", "val2017\\..\\out.jpg", "C:out.jpg", ".", "./."]
)
def test_nothing_is_unpacked_outside_of_the_folder(tmp_path, name):
    (tmp_path / "bad.zip").write_bytes(packed({"val2017/a.jpg": b"a", name: b"b"}))
    with pytest.raises(PrepareError, match="refused"):
        unpack(tmp_path / "bad.zip", tmp_path / "root", "val2017")
    assert [p.name for p in tmp_path.rglob("*")] == ["bad.zip"]


def test_a_member_without_a_name_is_refused(tmp_path):
    member = zipfile.ZipInfo("a")
    member.filename = ""
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as archive, archive.open(member, "w") as file:
        file.write(b"b")
    with pytest.raises(PrepareError, match="holds '', which is no file within the folder; refused"):
        unpack(tmp_path / "bad.zip", tmp_path / "root", "val2017")


def test_links_are_not_unpacked(tmp_path):
    link = zipfile.ZipInfo("val2017/link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as archive:
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(PrepareError, match="refused"):
        unpack(tmp_path / "bad.zip", tmp_path, "val2017")


def test_a_small_disk_is_seen_before(site, tmp_path, monkeypatch):
    class Usage:
        free = 2 * len(site.files[VAL]) - 1

    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage)
    with pytest.raises(PrepareError, match="make room"):
        download(site.url + VAL, tmp_path / "val.zip")
    assert not any(p.suffix in (".zip", ".part") for p in tmp_path.iterdir())
