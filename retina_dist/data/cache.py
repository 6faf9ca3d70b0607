"""A cache of decoded images on disk, for machines whose CPU cores cannot decode as fast as their GPUs train.

Each image has one file: its pixels from `read_image`, then its size and a checksum; read by memory mapping.
The file name is a hash of the image's path, its version (for a local file, size and modification time), the annotated size and the
pixel limit, so a changed image is decoded again. Several processes can share a folder.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import uuid
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from retina_dist.data.images import MAX_PIXELS, read_image
from retina_dist.data.sources import ArchiveMember, RemoteFile, Source
from retina_dist.errors import ConfigError

logger = logging.getLogger(__name__)

VERSION = 2
LEAST_FREE = 2**30  # bytes left on the disk for everything else, checkpoints above all
TRAILER = 3  # 64-bit words at the end of a file: height, width, checksum


class DecodedCache:
    """Reads images as `read_image` does, from `folder` if it holds them; otherwise it decodes and stores them.

    A damaged file is decoded and written again, with a warning. When the disk cannot be written, or has less than a gigabyte left,
    images are decoded as without a cache, after one warning. Raises ConfigError for a folder that cannot be made.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).absolute()
        self._writes = True
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"data.cache={folder} cannot be made ({error.strerror}); give another folder, or data.cache=null."
            ) from error

    def holds(self, path: Source, annotated_size: tuple[int, int] | None, max_pixels: int = MAX_PIXELS) -> bool:
        """Whether the cache has an image, so that its file need not be read."""
        kept = self._file(path, annotated_size, max_pixels)
        return kept is not None and kept.exists()

    def read(
        self,
        path: Source,
        annotated_size: tuple[int, int] | None,
        max_pixels: int = MAX_PIXELS,
        content: bytes | None = None,
    ) -> Tensor:
        """`read_image(path, annotated_size, max_pixels, content)`, bit for bit. Raises ImageError as that does."""
        kept = self._file(path, annotated_size, max_pixels)
        if kept is not None and kept.exists():
            if (pixels := _load(kept)) is not None:
                return pixels
            logger.warning(f"{kept} of data.cache is damaged; {path} is decoded instead.")
        pixels = read_image(path, annotated_size, max_pixels, content)
        if kept is not None and self._writes:
            try:
                _write(kept, pixels)
            except OSError as error:
                self._writes = False
                logger.warning(
                    f"data.cache={self.folder} cannot be written ({error}); this process decodes the images that it does not hold."
                )
        return pixels

    def _file(self, source: Source, annotated_size: tuple[int, int] | None, max_pixels: int) -> Path | None:
        """The file of an image; None if nothing tells this version of the image from others."""
        version: tuple[object, ...]
        if isinstance(source, str | Path):
            try:
                facts = os.stat(source)
            except OSError:
                return None
            version = os.path.abspath(source), facts.st_size, facts.st_mtime_ns
        elif isinstance(source, ArchiveMember) or (isinstance(source, RemoteFile) and source.version):
            version = source
        else:  # the image of a Dataset can change unseen
            return None
        key = "\0".join(map(str, (VERSION, *version, annotated_size, max_pixels)))
        name = hashlib.blake2b(key.encode(errors="surrogateescape"), digest_size=16).hexdigest()
        return self.folder / name[:2] / f"{name[2:]}.pixels"


def _write(kept: Path, pixels: Tensor) -> None:
    content = np.ascontiguousarray(pixels.permute(1, 2, 0).numpy()).tobytes()
    if shutil.disk_usage(kept.parents[1]).free - len(content) < LEAST_FREE:
        raise OSError(f"less than {LEAST_FREE / 2**30:.0f} GiB is free on its disk")
    content += bytes(-len(content) % 8)
    trailer = np.array([*pixels.shape[1:], _sum(np.frombuffer(content, np.uint64))], np.uint64)
    kept.parent.mkdir(exist_ok=True)
    temporary = kept.with_name(f"{kept.name}.{uuid.uuid4().hex}")
    try:
        temporary.write_bytes(content + trailer.tobytes())
        os.replace(temporary, kept)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _load(kept: Path) -> Tensor | None:
    """The pixels in a file of the cache; None if it is damaged."""
    try:
        content = np.memmap(kept, np.uint64, mode="c")  # copy on write: the file never changes
    except (OSError, ValueError):
        return None
    height, width, check = content[-TRAILER:].tolist() if len(content) > TRAILER else (0, 0, 0)
    length = height * width * 3
    if not length or len(content) != -(-length // 8) + TRAILER or _sum(content[:-TRAILER]) != check:
        return None
    pixels = content.view(np.uint8)[:length].reshape(height, width, 3)
    return torch.from_numpy(np.asarray(pixels)).permute(2, 0, 1)


def _sum(words: np.ndarray) -> int:
    """Checksum modulo 2^64. It costs as much as reading; a CRC would cost as much as decoding."""
    return int(np.add.reduce(words, dtype=np.uint64))
