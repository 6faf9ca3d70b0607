"""Decodes image files to RGB pixels in the orientation of their annotations.

Pillow opens and decodes every file, except upright JPEG, which torchvision decodes faster to the same bits.
A file that cannot be read raises an ImageError that names it.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from PIL import Image, ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from torch import Tensor

from retina_dist.data.image_limits import trouble_of_file, trouble_of_jpeg, trouble_of_parts
from retina_dist.data.sources import ArchiveMember, DatasetItem, RemoteFile, Source, read
from retina_dist.errors import ImageError
from retina_dist.files import check_regular

try:
    from torchvision.io import ImageReadMode, decode_jpeg
except ImportError:  # deprecated in torchvision 0.29
    decode_jpeg = None

ORIENTATION_TAG = 0x0112
TRANSPOSITIONS = {  # turns an image of each EXIF orientation upright
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
INVERSE = {o: {6: 8, 8: 6}.get(o, o) for o in TRANSPOSITIONS}  # turns an upright image back
SWAPPING = (5, 6, 7, 8)  # those that exchange width and height

MAX_PIXELS = 178_956_970  # Pillow's default limit; half a gigabyte of RGB

# Formats of untrusted images: those of cameras, phones and browsers, not all that Pillow can decode.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")

ImageFile.LOAD_TRUNCATED_IMAGES = False  # annotations describe the whole image


def read_image(
    path: Source,
    annotated_size: tuple[int, int] | None = None,
    max_pixels: int = MAX_PIXELS,
    content: bytes | None = None,
    formats: tuple[str, ...] | None = None,
) -> Tensor:
    """The pixels of an image, uint8 [3, h, w] RGB, in the orientation of its annotations.

    `content` is the file's bytes, if they were read already; `formats` are the Pillow formats to try (None: all).
    EXIF orientation is applied, as viewers and labelling tools do, unless `annotated_size`, (width, height) in the
    annotation file, shows that the annotations refer to the stored pixels. 16-bit grey is scaled to 8 bits, transparency is
    dropped, and only the first frame of an animation is read. Raises ImageError if the file is missing, damaged, or of another
    size than annotated, and, before decoding, if its header claims more than `max_pixels` or it would cost far more work than
    its pixels (see `image_limits`).
    """
    if isinstance(path, DatasetItem):
        return _made(path, annotated_size)
    if content is None and isinstance(path, (RemoteFile, ArchiveMember)):
        content = read(path)
    with _opened(path, max_pixels, content, formats) as image:
        with _decoding(path):
            trouble = trouble_of_parts(image, max_pixels)
            if isinstance(image, JpegImageFile) and image.fp is not None:
                image.fp.seek(0)
                content = image.fp.read() if content is None else content
                trouble = trouble_of_jpeg(content, image.width * image.height, max_pixels)
            if trouble:
                raise ValueError(trouble)
        if isinstance(image, PngImageFile):  # Pillow decodes a PNG to find EXIF, and would hide an error there
            with _decoding(path):
                image.load()
        stored = wanted = _orientation(image)
        if annotated_size is not None:
            wanted = _orientation_of_annotations(path, _stored_size(image), stored, annotated_size)
        applied = stored if isinstance(image, TiffImageFile) else 1  # Pillow shows TIFF upright by itself
        if image.format == "JPEG" and image.mode in ("L", "RGB") and wanted == 1:
            decoded = _decode_jpeg(content)
            if decoded is not None:
                return decoded
        with _decoding(path):
            pixels = to_rgb(image)
    if applied != wanted:
        pixels = pixels.transpose(TRANSPOSITIONS[wanted] if applied == 1 else TRANSPOSITIONS[INVERSE[applied]])
    return torch.from_numpy(np.array(pixels)).permute(2, 0, 1)


def _made(item: DatasetItem, annotated_size: tuple[int, int] | None) -> Tensor:
    """The pixels of an image that a dataset makes, whose size must be that of its boxes."""
    found = item.dataset.pixels(item.number)
    size = (found.shape[2], found.shape[1])
    if annotated_size is not None and annotated_size != size:
        raise ImageError(
            f"{item} is {size[0]} x {size[1]} pixels, but was {annotated_size[0]} x {annotated_size[1]} when its boxes were read; "
            "return the same image each time, and augment by the settings of data."
        )
    return found


def decode_image(data: bytes, max_pixels: int = MAX_PIXELS) -> Tensor:
    """As `read_image`, for the bytes of a file in one of `FORMATS`; errors call it "it". Raises ImageError."""
    return read_image("it", max_pixels=max_pixels, content=data, formats=FORMATS)


def count_pixels(data: bytes, max_pixels: int = MAX_PIXELS) -> int:
    """The number of pixels in an image's header, without decoding it. Raises ImageError."""
    with _opened("it", max_pixels, data, FORMATS) as image:
        return image.width * image.height


def _decode_jpeg(content: bytes | None) -> Tensor | None:
    """A JPEG's pixels, [3, h, w] in channels-last memory; None if torchvision fails: then Pillow decodes, or raises."""
    if decode_jpeg is None or content is None:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            data = torch.from_numpy(np.frombuffer(content, np.uint8))
            found: Tensor = decode_jpeg(data, mode=ImageReadMode.RGB)
    except RuntimeError:
        return None
    return found


@contextmanager
def _decoding(path: Source) -> Iterator[None]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:  # on damaged bytes, decoders raise almost any exception
        raise ImageError(
            f"{path} cannot be decoded ({error}); restore the file, take it out of the annotations, or set "
            "data.bad_images=skip."
        ) from error


def image_size(path: Source, max_pixels: int = MAX_PIXELS, content: bytes | None = None) -> tuple[int, int]:
    """(width, height) in the orientation a viewer shows, from the header alone. Raises ImageError."""
    if content is None and isinstance(path, (RemoteFile, ArchiveMember)):
        content = read(path)
    with _opened(path, max_pixels, content) as image:  # limited here too: to find EXIF at its end, Pillow decodes a PNG
        width, height = _stored_size(image)
        return (height, width) if _orientation(image) in SWAPPING else (width, height)


@contextmanager
def _opened(
    path: Source, max_pixels: int, content: bytes | None, formats: tuple[str, ...] | None = None
) -> Iterator[Image.Image]:
    """Pillow's image of a file whose header was read and is within the limits."""
    if Image.MAX_IMAGE_PIXELS is not None:  # Pillow refuses images of twice its limit, which must not be below ours
        Image.MAX_IMAGE_PIXELS = max(Image.MAX_IMAGE_PIXELS, -(-max_pixels // 2))
    with ExitStack() as at_end:
        try:
            if content is None:
                check_regular(str(path))
            file: BinaryIO = io.BytesIO(content) if content is not None else open(str(path), "rb")  # noqa: SIM115
            at_end.enter_context(file)
            trouble = trouble_of_file(file)
            if trouble:
                raise _unreadable(path, trouble)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                image = at_end.enter_context(Image.open(file, formats=formats))
        except FileNotFoundError as error:
            raise ImageError(
                f"{path} does not exist; check the images folder, or set data.missing_images=skip."
            ) from error
        except ImageError:
            raise
        except Image.DecompressionBombError as error:
            count = re.search(r"\d+", str(error))  # Pillow gives the size only in the message
            raise _too_large(path, count[0] if count else "far too many", max_pixels) from None
        except Exception as error:  # as above
            raise _unreadable(path, f"none of {', '.join(formats)}" if formats else str(error)) from error
        size = f"{image.width} x {image.height}"
        if image.format == "EPS" or not image.width * image.height:
            what = "an EPS, a program to be run" if image.format == "EPS" else f"of {size} pixels"
            raise _unreadable(path, f"it is {what}")
        if image.width * image.height > max_pixels:
            raise _too_large(path, size, max_pixels)
        yield image


def _unreadable(path: Source, reason: str) -> ImageError:
    return ImageError(
        f"{path} is no readable image ({reason}); restore the file, take it out of the annotations, or set data.bad_images=skip."
    )


def _too_large(path: Source, size: str, max_pixels: int) -> ImageError:
    return ImageError(
        f"{path} has {size} pixels, more than max_pixels={max_pixels}; raise data.max_pixels if the file is to be trusted, "
        "or set data.bad_images=skip."
    )


def orientation_of(file: Path | BinaryIO) -> int:
    """The EXIF orientation, 1 to 8, of an image file; 1 where it has none that can be read."""
    try:
        with warnings.catch_warnings(), Image.open(file) as image:
            warnings.simplefilter("ignore")
            return _orientation(image)
    except Exception:  # decoders raise almost any exception
        return 1


def _orientation(image: Image.Image) -> int:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = image.getexif().get(ORIENTATION_TAG, 1)
    except Exception:  # damaged EXIF raises many kinds of errors; the pixels may still be sound
        return 1
    return value if value in range(1, 9) else 1


def _stored_size(image: Image.Image) -> tuple[int, int]:
    """(width, height) of the pixels in the file; of a TIFF, Pillow from 11.0 on gives that of the upright image."""
    return (image.tag_v2[256], image.tag_v2[257]) if isinstance(image, TiffImageFile) else image.size


def _orientation_of_annotations(
    path: Source, stored: tuple[int, int], orientation: int, annotated: tuple[int, int]
) -> int:
    """The orientation to apply so that pixels agree with the annotations of an image of `annotated` size."""
    shown = stored[::-1] if orientation in SWAPPING else stored
    if annotated == shown:
        return orientation
    if annotated == stored:
        return 1
    raise ImageError(
        f"{path} is {shown[0]} x {shown[1]} pixels, but its annotation says {annotated[0]} x {annotated[1]}: it belongs "
        "to another version of the image; annotate this file, or set data.bad_images=skip."
    )


def to_rgb(image: Image.Image) -> Image.Image:
    """8-bit RGB; 16-bit grey is scaled, transparency dropped. Raises ValueError for floating-point pixels."""
    image.load()
    if image.mode == "F":
        raise ValueError("floating-point pixels of unknown range; store it with 8 bits")
    if image.mode.startswith("I"):  # "I" is what older Pillow makes of 16-bit PNG
        values = np.asarray(image, dtype=np.float64)
        return Image.fromarray((values / 257).clip(0, 255).round().astype(np.uint8)).convert("RGB")
    return image.convert("RGB")
