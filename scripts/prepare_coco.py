#!/usr/bin/env python3
"""Download COCO 2017 (https://cocodataset.org), unpack it and check that it is whole.

  python scripts/prepare_coco.py /data/coco
  python scripts/prepare_coco.py /data/coco --splits val             1 GB
  python scripts/prepare_coco.py /data/coco --zips /downloads        zip files that are there
  python scripts/prepare_coco.py /data/coco --shards /data/shards    shards too: a folder or a URL

Train and val are 20 GB to download, and take as much again while they are unpacked.
A second call resumes an interrupted one, within a file too, and does nothing if nothing is missing.
COCO publishes no checksums: the CRC-32 of each file in a zip is compared, and the images with the
names in the annotations. Needs curl (--shards: the package).
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

SITE = "http://images.cocodataset.org"
ANNOTATIONS = "annotations/annotations_trainval2017.zip"
CURL = [
    "curl",
    "--fail",
    "--location",
    "--continue-at",
    "-",
    "--retry",
    "5",
    "--retry-connrefused",
    "--progress-bar",
]


class PrepareError(Exception):
    """A fault, and its remedy."""


def prepare(root: Path, splits: list[str], zips: Path | None, site: str) -> None:
    """Make `root` hold annotations and images of the splits."""
    root.mkdir(parents=True, exist_ok=True)
    for split in splits:
        annotations = root / "annotations" / f"instances_{split}2017.json"
        if not annotations.is_file():
            unpack(fetch(ANNOTATIONS, root, zips, site), root, "annotations")
        folder = f"{split}2017"
        names = {image["file_name"] for image in json.loads(annotations.read_bytes())["images"]}
        missing = names - files_in(root / folder)
        if missing:
            print(f"{folder}: {len(missing)} of {len(names)} images are missing", flush=True)
            path = fetch(f"zips/{folder}.zip", root, zips, site)
            unpack(path, root, folder)
            missing = names - files_in(root / folder)
            if missing:
                raise PrepareError(
                    f"{path} lacks {len(missing)} images, such as {min(missing)}; get another one."
                )
            if zips is None:
                path.unlink()
        print(f"{folder}: {len(names)} images are there", flush=True)


def files_in(folder: Path) -> set[str]:
    """The names of the files in a folder, none if it does not exist."""
    if not folder.is_dir():
        return set()
    return {entry.name for entry in os.scandir(folder) if entry.is_file()}


def fetch(name: str, root: Path, zips: Path | None, site: str) -> Path:
    """The zip file `name`: that in `zips`, or downloaded to root/zips, from where an earlier call
    stopped.
    """
    path = (zips or root / "zips") / Path(name).name
    if path.is_file():
        return path
    if zips:
        raise PrepareError(
            f"--zips {zips} has no {path.name}; put it there, or leave --zips out to download it."
        )
    path.parent.mkdir(exist_ok=True)
    part = path.with_suffix(".part")
    code = subprocess.run([*CURL, "--output", str(part), f"{site}/{name}"]).returncode
    if code:
        raise PrepareError(
            f"curl could not read {site}/{name} (exit code {code}); "
            "start again to resume the download."
        )
    return part.rename(path)


def unpack(path: Path, root: Path, folder: str) -> None:
    """Unpack the files of `folder` in the zip into root/folder, but for those that exist in full
    length.
    """
    try:
        # Its extract keeps members inside of root, and compares the CRC-32.
        with zipfile.ZipFile(path) as archive:
            members = []
            for member in archive.infolist():
                if member.filename.startswith(f"{folder}/") and not member.is_dir():
                    file = root / member.filename
                    if not file.is_file() or file.stat().st_size != member.file_size:
                        members.append(member)

            needed = sum(member.file_size for member in members)
            free = shutil.disk_usage(root).free
            if needed > free:
                raise PrepareError(
                    f"{root} has {free / 1e9:.1f} GB free, and {path.name} takes "
                    f"{needed / 1e9:.1f}; make room."
                )
            for member in members:
                try:
                    archive.extract(member, root)
                except BaseException:
                    (root / member.filename).unlink(missing_ok=True)  # half a file
                    raise
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise PrepareError(f"{path} is damaged ({error}); delete it and start again.") from error


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path, help="folder for annotations/, train2017/ and val2017/")
    parser.add_argument("--splits", default="train,val", choices=("train,val", "train", "val"))
    parser.add_argument(
        "--zips", type=Path, help="folder that holds COCO's zip files; nothing is downloaded"
    )
    parser.add_argument("--site", default=SITE, help=f"a mirror of {SITE}")
    parser.add_argument(
        "--shards",
        metavar="OUTPUT",
        help="then write shards of train and val there, a folder or a URL",
    )
    options = parser.parse_args()
    if options.shards and options.splits != "train,val":
        parser.error("--shards needs --splits train,val")
    try:
        prepare(options.root, options.splits.split(","), options.zips, options.site.rstrip("/"))
    except (PrepareError, OSError, ValueError, KeyError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    if options.shards:
        settings = ["data=coco", f"data.root={options.root}", f"output={options.shards}"]
        command = [sys.executable, "-m", "retina_dist.shards", *settings]
        sys.exit(subprocess.run(command).returncode)


if __name__ == "__main__":
    main()
