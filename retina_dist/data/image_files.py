"""The image files that a command is given."""

from __future__ import annotations

import glob
from pathlib import Path

from retina_dist.errors import DataError
from retina_dist.files import Url, place

SUFFIXES = {".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}


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
