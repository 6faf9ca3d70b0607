"""Reads the images that a task makes batches of: from the cache, a file, or a URL."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, TypeVar

from torch import Tensor
from torch.utils.data import Dataset

from retina_dist.data.images import MAX_PIXELS, read_image
from retina_dist.data.sources import Source, is_remote, read_all
from retina_dist.errors import ImageError

if TYPE_CHECKING:
    from retina_dist.data.cache import DecodedCache

logger = logging.getLogger(__name__)

BadImagePolicy = Literal["error", "skip"]
Contents = Mapping[int, bytes | ImageError]  # of images, by their number
NOTHING: Contents = MappingProxyType({})
AnyBatch = TypeVar("AnyBatch")


class ImageDataset(Dataset[AnyBatch]):
    """Images by number; a task's subclass makes whole batches of them, `dataset[spec]`.

    `sizes` [N, 2] are the annotated (height, width), if there are any. With `on_bad_image="skip"`, an image that cannot be read is
    left out of its batch with a warning, and the batch's weight shrinks by its share, so that the other images count as before.
    `cache` is a folder for decoded images; it changes only the speed.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        sizes: Tensor | None = None,
        *,
        on_bad_image: BadImagePolicy = "error",
        max_pixels: int = MAX_PIXELS,
        cache: str | None = None,
    ) -> None:
        self.on_bad_image, self.max_pixels = on_bad_image, max_pixels
        self.cache: DecodedCache | None = None
        if cache:
            from retina_dist.data.cache import DecodedCache

            self.cache = DecodedCache(cache)
        # text is smaller than a Path when it is sent to a worker
        self._sources = [str(source) if isinstance(source, Path) else source for source in sources]
        self._sizes = sizes

    def __len__(self) -> int:
        """Number of images, not of batches."""
        return len(self._sources)

    def read(self, index: int, fetched: Contents = NOTHING) -> Tensor:
        """The pixels of image `index`, whose bytes `fetch` may have got. Raises ImageError."""
        content = fetched.get(index)
        if isinstance(content, ImageError):
            raise content
        reader = self.cache.read if self.cache else read_image
        return reader(self._sources[index], self._annotated(index), self.max_pixels, content)

    def fetch(self, indices: Sequence[int]) -> Contents:
        """The bytes of those of these images that lie behind a URL, fetched at once instead of one after the other."""
        remote = [i for i in dict.fromkeys(indices) if is_remote(self._sources[i])]
        if self.cache:
            remote = [i for i in remote if not self.cache.holds(self._sources[i], self._annotated(i), self.max_pixels)]
        return dict(zip(remote, read_all([self._sources[i] for i in remote]), strict=True))

    @contextmanager
    def skipping_bad_images(self) -> Iterator[None]:
        """Within it, an ImageError ends the block with a warning where bad images are to be skipped."""
        try:
            yield
        except ImageError as error:
            if self.on_bad_image == "error":
                raise
            logger.warning(str(error))

    def _annotated(self, index: int) -> tuple[int, int] | None:
        if self._sizes is None:
            return None
        height, width = self._sizes[index].tolist()
        return width, height
