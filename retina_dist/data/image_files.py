"""The image files that a command is given."""

from __future__ import annotations

import glob
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from retina_dist.data.images import read_image
from retina_dist.errors import DataError, ImageError
from retina_dist.files import Url, place
from retina_dist.text import escape

SUFFIXES = {".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}


class ReadImage(NamedTuple):
    """An image of a list of files."""

    number: int  # in the list, unreadable files counted
    file: Path
    pixels: Tensor  # [3, h, w] uint8
    name: str  # the file's without its ending, and with the number where an earlier image has that


def find_images(pattern: str) -> list[Path]:
    """The file, the image files of the folder, or what the glob matches, sorted. Raises DataError when there is none."""
    path = place(pattern)
    if isinstance(path, Url):
        raise DataError(f"input={pattern} is a URL; copy the images, and give a local file, folder or glob.")
    if path.is_file():
        return [path]
    found = path.iterdir() if path.is_dir() else map(Path, glob.glob(pattern, recursive=True))
    files = sorted(f for f in found if f.is_file() and f.suffix.lower() in SUFFIXES)
    if not files:
        raise DataError(
            f"input={pattern} is no image, no folder with images ({', '.join(sorted(SUFFIXES))}) and no glob that "
            "matches any; quote a glob for the shell."
        )
    return files


def read_images(files: Sequence[Path], pattern: str, max_pixels: int) -> Iterator[ReadImage]:
    """Each readable image of `files`, which `pattern` gave; a warning names each of the others. With none left, DataError."""
    names: set[str] = set()
    for number, file in enumerate(files):
        try:
            pixels = read_image(file, max_pixels=max_pixels)
        except ImageError as error:
            print(f"warning: {escape(str(error).split(';')[0])}; left out", file=sys.stderr)
            continue
        name = file.stem
        while name in names:
            name += f"_{number}"
        names.add(name)
        yield ReadImage(number, file, pixels, name)
    if not names:
        raise DataError(f"none of the {len(files)} files of input={pattern} is a readable image.")
