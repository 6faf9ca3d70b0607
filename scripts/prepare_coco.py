#!/usr/bin/env python3
"""Download COCO 2017 (https://cocodataset.org), unpack it and check that it is whole.

  python scripts/prepare_coco.py /data/coco                          train and val: 20 GB to download, as much again while unpacking
  python scripts/prepare_coco.py /data/coco --splits val             1 GB
  python scripts/prepare_coco.py /data/coco --annotations-only
  python scripts/prepare_coco.py /data/coco --zips /downloads        take the zip files from there instead
  python scripts/prepare_coco.py /data/coco --shards /data/shards    and write them as shards too (a folder or a URL)

A second call resumes an interrupted one, within a file too, and does nothing if nothing is missing. COCO publishes no check sums
of its zip files, so this compares a file's length with what the server announced, each unpacked file's CRC-32 with that in the
zip, and the images with the names in the annotations. Needs Python and tqdm only (--shards: the package).
"""

import argparse
import errno
import http.client
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Any

from tqdm import tqdm

SITE = "http://images.cocodataset.org"
ANNOTATIONS = "annotations/annotations_trainval2017.zip"
WAITS = (1.0, 5.0, 15.0, 60.0)  # seconds before each further attempt that follows one without any progress
TIMEOUT_S = 60.0  # without a byte from the server
PIECE = 1 << 20


class PrepareError(Exception):
    """What is wrong, and what to do."""


class DamagedZip(PrepareError):
    """The content of a zip file does not match its check sums."""


def prepare(root: Path, splits: list[str], zips: Path | None, site: str, annotations_only: bool, keep: bool) -> bool:
    """Make `root` hold annotations and images of the splits; return whether anything was missing."""
    root.mkdir(parents=True, exist_ok=True)
    lacking = [annotations_of(root, split) for split in splits if not annotations_of(root, split).is_file()]
    done = bool(lacking)
    if lacking:
        with_zip(root, zips, site, ANNOTATIONS, keep, "annotations")
    for path in lacking:
        if not path.is_file():
            raise PrepareError(f"{Path(ANNOTATIONS).name} holds no {path.name}; get another one.")
    for split in [] if annotations_only else splits:
        folder = f"{split}2017"
        missing, total = missing_images(root, split)
        if missing:
            done = True
            print(f"{folder}: {len(missing)} of {total} images are not there yet", flush=True)
            with_zip(root, zips, site, f"zips/{folder}.zip", keep, folder)
            if missing := missing_images(root, split)[0]:
                raise PrepareError(
                    f"{folder}.zip lacks {len(missing)} of the {total} images that the annotations name, such as {missing[0]}; "
                    "get another one."
                )
        print(f"{split}: {total} images, all there", flush=True)
    return done


def annotations_of(root: Path, split: str) -> Path:
    """COCO's name for them."""
    return root / "annotations" / f"instances_{split}2017.json"


def missing_images(root: Path, split: str) -> tuple[list[str], int]:
    """Names in the annotations that are no file, and how many names there are."""
    path = annotations_of(root, split)
    try:
        names = [image["file_name"] for image in json.loads(path.read_bytes())["images"]]
    except (ValueError, KeyError, TypeError) as error:
        raise PrepareError(f"{path} is no COCO annotation file ({error}); delete it and start again.") from error
    folder = root / f"{split}2017"
    there = {entry.name for entry in os.scandir(folder) if entry.is_file()} if folder.is_dir() else set()
    return [name for name in names if name not in there], len(names)


def with_zip(root: Path, zips: Path | None, site: str, name: str, keep: bool, folder: str) -> None:
    """Unpack a folder of the zip file, downloaded into root/zips unless it is in `zips`; a downloaded one is then removed."""
    path = (zips or root / "zips") / Path(name).name
    if zips is not None:
        if not path.is_file():
            raise PrepareError(f"--zips {zips} has no {path.name}; put it there, or leave --zips out to download it.")
        unpack(path, root, folder)
        return
    download(f"{site}/{name}", path)
    try:
        unpack(path, root, folder)
    except DamagedZip:
        path.unlink()  # the next call needs another one
        raise
    if not keep:
        path.unlink()
        if not any(path.parent.iterdir()):
            path.parent.rmdir()


def download(url: str, target: Path) -> None:
    """Make `target` the whole file behind `url`, from target.part on if an earlier call was interrupted.

    Raises PrepareError when the server refuses, the disk is too small, or five attempts in a row bring nothing.
    """
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    part, idle = target.with_name(f"{target.name}.part"), 0
    while True:
        before = _length(part)
        try:
            _receive(url, part)
            break
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code not in (408, 429):
                raise PrepareError(f"{url} answers {error.code} {error.reason}; check the address (--site).") from error
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                raise PrepareError(f"{part} cannot be written ({error}); make room and start again.") from error
            idle = 0 if _length(part) > before else idle + 1
            if idle > len(WAITS):
                raise PrepareError(
                    f"{url} cannot be read ({error}), {idle} times in a row; start again later to resume the download."
                ) from error
        time.sleep(WAITS[max(idle, 1) - 1])
    os.replace(part, target)
    _tag(part).unlink(missing_ok=True)


def _length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _receive(url: str, part: Path) -> None:
    """One request for what `part` lacks. Raises OSError when less came than was announced."""
    have = _length(part)
    request = urllib.request.Request(url)
    if have and _tag(part).exists():
        request.add_header("Range", f"bytes={have}-")
        request.add_header("If-Range", _tag(part).read_text())  # of another version, all is sent
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # the part is as long as the file, or longer
            if error.headers.get("Content-Range", "") == f"bytes */{have}":
                return
            part.unlink()
            raise OSError(f"{part.name} was longer than the file; it was removed") from error
        raise
    with answer:
        if answer.status == 206:
            span = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", answer.headers.get("Content-Range", ""))
            if not span or int(span[1]) != have:
                part.unlink()
                raise OSError(f"bytes from {have} were asked for, the answer has {answer.headers.get('Content-Range')}")
            total: int | None = int(span[3])
        else:  # all of it, with or without a range in the request
            have, length = 0, answer.headers.get("Content-Length")
            total = int(length) if length else None
        _tag(part).unlink(missing_ok=True)
        if tag := answer.headers.get("ETag") or answer.headers.get("Last-Modified"):
            _tag(part).write_text(tag)
        if total is not None:  # the images take as much again as their zip file
            check_space(part.parent, 2 * total - have, f"the rest of {part.stem} and what is in it")
        bar = {"total": total, "initial": have, "unit": "B", "unit_scale": True}
        with part.open("r+b" if have else "wb") as file, shown(part.stem, **bar) as progress:
            file.seek(have)
            while data := answer.read(PIECE):
                file.write(data)
                progress.update(len(data))
            file.truncate()
            if total is not None and file.tell() != total:
                raise OSError(f"the connection ended after {file.tell()} of {total} bytes")


def _tag(part: Path) -> Path:
    """The server's name for the version that `part` is of."""
    return part.with_name(f"{part.name}.etag")


def unpack(path: Path, root: Path, folder: str) -> None:
    """Put the files of `folder` in the zip into root/folder, but for those that exist in full length.

    Raises PrepareError for one that would land elsewhere or is no file, DamagedZip where a CRC-32 or a length is wrong.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            wanted = [member for member in _files(archive) if PurePosixPath(member.filename).parts[0] == folder]
            wanted = [m for m in wanted if not (f := root / m.filename).is_file() or f.stat().st_size != m.file_size]
            check_space(root, sum(member.file_size for member in wanted), f"what is in {path.name}")
            for member in shown(f"unpacking {path.name}", iterable=wanted, unit=" files"):
                target = root / member.filename
                target.parent.mkdir(parents=True, exist_ok=True)
                temporary = target.with_name(f".{target.name}.part")
                try:
                    with archive.open(member) as source, temporary.open("wb") as file:
                        shutil.copyfileobj(source, file, PIECE)  # reading it to the end compares the CRC-32
                    os.replace(temporary, target)
                finally:
                    temporary.unlink(missing_ok=True)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise DamagedZip(
            f"{path} is damaged ({error}); start again to have it downloaded anew, or give another with --zips."
        ) from error


def _files(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """The members that are no folders. Raises PrepareError where one is not a file within the folder."""
    members = [member for member in archive.infolist() if not member.filename.endswith("/")]
    for member in members:
        pure, kind = PurePosixPath(member.filename), stat.S_IFMT(member.external_attr >> 16)
        # without parts are "" and ".", which are the folder itself
        outside = not pure.parts or pure.is_absolute() or ".." in pure.parts or re.search(r"[\\:\0]", member.filename)
        if outside or kind not in (0, stat.S_IFREG):
            raise PrepareError(
                f"{archive.filename} holds {member.filename!r}, which is no file within the folder; refused."
            )
    return members


def check_space(folder: Path, needed: int, what: str) -> None:
    """Raise PrepareError when the disk has less than `needed` bytes."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise PrepareError(
            f"{folder} has {free / 1e9:.1f} GB free, and {what} take {needed / 1e9:.1f} GB; make room, or give another folder."
        )


def shown(what: str, **arguments: Any) -> tqdm:
    """A progress bar, on a terminal only."""
    return tqdm(desc=what, leave=False, disable=not sys.stderr.isatty(), **arguments)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, help="folder for annotations/, train2017/ and val2017/")
    parser.add_argument("--splits", default="train,val", help="train,val (the default), train, or val")
    parser.add_argument("--annotations-only", action="store_true", help="no images")
    parser.add_argument("--zips", type=Path, help="folder that holds COCO's zip files; nothing is downloaded")
    parser.add_argument("--keep-zips", action="store_true", help="leave what was downloaded in ROOT/zips")
    parser.add_argument("--site", default=SITE, help=f"a mirror of {SITE}")
    parser.add_argument("--shards", metavar="OUTPUT", help="then write shards there, a folder or a URL")
    options = parser.parse_args()
    splits = options.splits.split(",")
    if not set(splits) <= {"train", "val"}:
        parser.error(f"--splits {options.splits} is not train, val or train,val")
    if options.shards and (options.annotations_only or "train" not in splits):
        parser.error("--shards needs the images of train")
    try:
        site, keep = options.site.rstrip("/"), options.keep_zips
        done = prepare(options.root, splits, options.zips, site, options.annotations_only, keep)
    except (PrepareError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    print(f"{options.root} is complete" if done else f"{options.root} was complete; nothing to do", flush=True)
    if options.shards:
        line = [sys.executable, "-m", "retina_dist.shards", "data=coco", f"output={options.shards}"]
        line += [f"data.root={options.root}"]
        if "val" not in splits:
            annotations = annotations_of(options.root, "train")
            line += [f"data.train_annotations={annotations}", f"data.train_images={options.root / 'train2017'}"]
        sys.exit(subprocess.run(line).returncode)


if __name__ == "__main__":
    main()
