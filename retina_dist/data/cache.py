"""A cache of decoded images on disk, for machines whose CPU cores cannot decode as fast as their GPUs train.

Each image has one file: its pixels from `read_image`, then its size and a checksum; read by memory mapping.
The file name is a hash of the image's path, its version (for a local file, size and modification time) and the annotated size, so
a changed image is decoded again. Files are written under a temporary name and renamed, so several processes can share a folder.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from retina_dist.data.images import MAX_PIXELS, read_image
from retina_dist.data.sources import Source, version_of
from retina_dist.errors import ConfigError

logger = logging.getLogger(__name__)

VERSION = 1
LEAST_FREE = 2**30  # bytes left on the disk for everything else, checkpoints above all
TRAILER = 3  # 64-bit words at the end of a file: height, width, checksum


class DecodedCache:
    """Reads images as `read_image` does, from `folder` if it holds them; otherwise it decodes and stores them.

    A damaged file is decoded and written again. When the disk is full, or has less than a gigabyte left, or cannot be written,
    images are decoded as without a cache. It warns of both, of the second once.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).absolute()
        self._writes = True
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"data.cache={folder} cannot be made ({error}); give another folder, or data.cache=null."
            ) from error

    def holds(self, path: Source, annotated_size: tuple[int, int] | None) -> bool:
        """Whether the cache has an image, so that its file need not be read."""
        kept = self._place(path, annotated_size)
        return kept is not None and kept.exists()

    def read(
        self,
        path: Source,
        annotated_size: tuple[int, int] | None,
        max_pixels: int = MAX_PIXELS,
        content: bytes | None = None,
    ) -> Tensor:
        """`read_image(path, annotated_size, max_pixels, content)`, bit for bit. Raises ImageError as that does."""
        kept = self._place(path, annotated_size)
        if kept is None or (annotated_size and annotated_size[0] * annotated_size[1] > max_pixels):
            return read_image(path, annotated_size, max_pixels, content)  # raises the error
        if kept.exists():
            pixels = _load(kept, annotated_size)
            if pixels is not None:
                fits = pixels[0].numel() <= max_pixels  # an earlier reader may have set it higher
                return pixels if fits else read_image(path, annotated_size, max_pixels, content)
            logger.warning(f"{kept} of data.cache is damaged; {path} is decoded instead.")
        pixels = read_image(path, annotated_size, max_pixels, content)
        if self._writes:
            try:
                self._write(kept, pixels)
            except OSError as error:
                self._writes = False
                logger.warning(
                    f"data.cache={self.folder} cannot be written ({error}); this process decodes the images that it does not hold."
                )
        return pixels

    def _place(self, path: Source, annotated_size: tuple[int, int] | None) -> Path | None:
        """The file of an image; None if nothing tells this version of the image from others."""
        version = version_of(path)
        if version is None:
            return None
        facts = (VERSION, *version, *(annotated_size or ()))
        name = hashlib.blake2b("\0".join(map(str, facts)).encode(errors="surrogateescape"), digest_size=16).hexdigest()
        return self.folder / name[:2] / f"{name[2:]}.pixels"

    def _write(self, kept: Path, pixels: Tensor) -> None:
        content = np.ascontiguousarray(pixels.permute(1, 2, 0).numpy()).tobytes()
        if shutil.disk_usage(self.folder).free - len(content) < LEAST_FREE:
            raise OSError(f"less than {LEAST_FREE / 2**30:.0f} GiB is free on its disk")
        content += bytes(-len(content) % 8)
        trailer = np.array([*pixels.shape[1:], _sum(np.frombuffer(content, np.uint64))], np.uint64)
        kept.parent.mkdir(exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=kept.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.write(trailer.tobytes())
            os.chmod(temporary, 0o644)  # for other users of the folder; temporary files are private
            os.replace(temporary, kept)
        except BaseException:
            os.unlink(temporary)
            raise


def _load(kept: Path, annotated_size: tuple[int, int] | None) -> Tensor | None:
    """The pixels in a file of the cache; None if it is damaged."""
    try:
        content = np.memmap(kept, np.uint64, mode="c")  # copy on write: the file never changes
    except (OSError, ValueError):
        return None
    height, width, check = content[-TRAILER:].tolist() if len(content) > TRAILER else (0, 0, 0)
    length = height * width * 3
    if (
        annotated_size not in (None, (width, height))
        or len(content) != -(-length // 8) + TRAILER
        or _sum(content[:-TRAILER]) != check
    ):
        return None
    pixels = content.view(np.uint8)[:length].reshape(height, width, 3)
    return torch.from_numpy(np.asarray(pixels)).permute(2, 0, 1)


def _sum(words: np.ndarray) -> int:
    """Checksum modulo 2^64. It costs as much as reading; a CRC would cost as much as decoding."""
    return int(np.add.reduce(words, dtype=np.uint64))
