"""Decodes image files to RGB pixels in the orientation of their annotations.

Pillow opens every file and decodes it, except JPEG, which TorchCodec decodes faster to the same
bits.
"""

import glob
import io
import mimetypes
import os
import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path, PurePath

import numpy as np
import torch
from PIL import Image, ImageFile, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile
from PIL.TiffImagePlugin import TiffImageFile
from torch import Tensor
from torchcodec.decoders import decode_jpeg

from retina_dist.base.errors import DataError, ImageError
from retina_dist.base.files import Url, is_packed, open_regular, parse_path, spelt_alike
from retina_dist.data.settings import MAX_PIXELS
from retina_dist.data.sources import ArchiveMember, DatasetItem, RemoteFile, Source, read

Size = tuple[int, int]  # (width, height)
ORIENTATION_TAG = 0x0112
SWAPPING = (5, 6, 7, 8)  # EXIF orientations that exchange width and height
# The sides that are mirrored to turn an image of each orientation upright, after width and height
# were exchanged.
MIRRORED: tuple[tuple[int, ...], ...] = ((), (2,), (1, 2), (1,)) * 2  # orientations 1 to 8

# A scan of a JPEG may be 12 bytes long and still cost a pass over all pixels. GDAL stops at 100
# scans, encoders write about 10: an image of `max_pixels` may have 16, smaller ones more at the
# same cost.
MAX_SCANS = 100
SCANS_AT_MAX_PIXELS = 16
# The markers that libjpeg reads on from; SOI is an error and restarts have no length.
MARKER = re.compile(rb"\xff+[\xc0-\xcf\xd9-\xfe]")
END_OF_IMAGE, START_OF_SCAN, APP1, COMMENT = 0xD9, 0xDA, 0xE1, 0xFE

# What is white in grey of more than 8 bits: the first that no value exceeds, since the type of a
# file says little of the range that its writer used.
LARGEST = (2**8 - 1, 2**16 - 1, 2**32 - 1)

# Formats of untrusted images, from cameras, phones and browsers; Pillow can decode more.
FORMATS = ("JPEG", "PNG", "WEBP")

ImageFile.LOAD_TRUNCATED_IMAGES = False  # annotations describe the whole image


def read_image(
    path: Source,
    annotated_size: Size | None = None,
    max_pixels: int = MAX_PIXELS,
    content: bytes | None = None,
    formats: tuple[str, ...] | None = None,
) -> Tensor:
    """The pixels of an image, uint8 [3, h, w] RGB, in the orientation of its annotations.

    `content` is the file's bytes, if they were read already; `formats` are the Pillow formats to
    try (None: all). EXIF orientation is applied, as viewers and labelling tools do, unless
    `annotated_size`, (width, height) in the annotation file, shows that the annotations refer to
    the stored pixels. Grey of 16 and 32 bits is scaled to 8, transparency is dropped, and only the
    first frame of an animation is read. Raises ImageError if the file is missing, damaged, or of
    another size than annotated, and, before decoding, for more than `max_pixels` or a JPEG of far
    more scans than encoders write.
    """
    if isinstance(path, DatasetItem):
        made: Tensor = path.dataset.pixels(path.number)
        _orientation_of_annotations(path, (made.shape[2], made.shape[1]), 1, annotated_size)
        return made
    with _opened(path, max_pixels, content, formats) as image:
        try:
            pixels = None
            if isinstance(image, JpegImageFile):
                pixels = _decode_jpeg(image, max_pixels)
            if pixels is None:
                pixels = _rgb(image)
        except Exception as error:  # on damaged bytes, decoders raise almost any exception
            raise ImageError(
                f"{path} cannot be decoded ({error}); "
                "restore the file, or set data.bad_images=skip."
            ) from error
        # after decoding: Pillow decodes a PNG to find EXIF, and hides an error there
        orientation = _orientation_of_annotations(
            path, image.size, _orientation(image), annotated_size
        )
    return _turned(pixels, orientation)


def decode_image(data: bytes, max_pixels: int = MAX_PIXELS) -> Tensor:
    """As `read_image`, for the bytes of a file in one of `FORMATS`; errors call it "it".

    Raises ImageError.
    """
    return read_image("it", max_pixels=max_pixels, content=data, formats=FORMATS)


def image_sizes(
    path: Source, max_pixels: int = MAX_PIXELS, content: bytes | None = None
) -> list[Size]:
    """(width, height) as a viewer shows them, and as stored, before EXIF orientation; from the
    header alone. Raises ImageError.
    """
    # limited here too: to find EXIF at its end, Pillow decodes a PNG
    with _opened(path, max_pixels, content) as image:
        stored = image.size
        return [_shown(stored, _orientation(image)), stored]


def _rgb(image: Image.Image) -> Tensor:
    """uint8 [3, h, w]; grey of 16 and 32 bits is scaled by `LARGEST`, transparency dropped.

    Raises ValueError for floating-point pixels.
    """
    image.load()
    if image.mode == "F":
        raise ValueError("floating-point pixels of unknown range; store it with 8 bits")
    if image.mode.startswith("I"):  # "I" is what older Pillow makes of 16-bit PNG
        values = np.asarray(image, dtype=np.float64)
        largest = next(limit for limit in LARGEST if values.max() <= limit)
        image = Image.fromarray((values * 255 / largest).clip(0, 255).round().astype(np.uint8))
    return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)


def has_more_scans(jpeg: bytes, most: int) -> bool:
    """Whether libjpeg would read more than `most` scans of a JPEG; nothing is decoded."""
    # thumbnails and films after the image count here, too
    if jpeg.count(bytes((0xFF, START_OF_SCAN))) <= most:
        return False
    scans = (at for at, kind in _segments(jpeg) if kind == START_OF_SCAN)
    return next(islice(scans, most, None), None) is not None


def _segments(jpeg: bytes) -> Iterator[Size]:
    """(position of the marker's code, code) of each segment, which libjpeg skips by its length.

    Data are skipped up to a marker.
    """
    at = 2
    marker = MARKER.search(jpeg, at)
    while marker is not None:
        at = marker.end()
        code = jpeg[at - 1]
        if code == END_OF_IMAGE:
            return
        yield at - 1, code
        at += max(2, int.from_bytes(jpeg[at : at + 2], "big"))
        marker = MARKER.search(jpeg, at)


def _decode_jpeg(image: JpegImageFile, max_pixels: int) -> Tensor | None:
    """The stored pixels, in channels-last memory.

    None where Pillow is to decode them. Raises ValueError for many scans.
    """
    assert image.fp is not None
    image.fp.seek(0)
    content = image.fp.read()
    most = min(MAX_SCANS, SCANS_AT_MAX_PIXELS * max_pixels // (image.width * image.height))
    if has_more_scans(content, most):
        raise ValueError(
            f"it has more than {most} scans, each of which costs as much as a whole image"
        )
    if image.format != "JPEG" or image.mode not in ("L", "RGB"):
        return None
    data = np.frombuffer(content, np.uint8)
    if b"\xff\xe1" in content:
        # TorchCodec would apply the EXIF orientation, which the annotations decide here
        data = data.copy()
        data[[at for at, kind in _segments(content) if kind == APP1]] = COMMENT
    try:
        pixels = decode_jpeg(torch.from_numpy(data), mode="RGB")
    except RuntimeError:
        return None
    assert isinstance(pixels, Tensor), "one image in, one out"
    return pixels


def _turned(pixels: Tensor, orientation: int) -> Tensor:
    """[3, h, w] of an EXIF orientation, upright; in channels-last memory, as it came."""
    if orientation == 1:
        return pixels
    upright = pixels.transpose(1, 2) if orientation in SWAPPING else pixels
    return upright.flip(MIRRORED[orientation - 1]).permute(1, 2, 0).contiguous().permute(2, 0, 1)


@contextmanager
def _opened(
    path: Source, max_pixels: int, content: bytes | None, formats: tuple[str, ...] | None = None
) -> Iterator[Image.Image]:
    """Pillow's image of a file whose header was read and is within the limits.

    Pillow's warnings are off.
    """
    if content is None and isinstance(path, (RemoteFile, ArchiveMember)):
        content = read(path)
    if Image.MAX_IMAGE_PIXELS is not None:
        # Pillow refuses images of twice its limit, which must not be below ours
        Image.MAX_IMAGE_PIXELS = max(Image.MAX_IMAGE_PIXELS, (max_pixels + 1) // 2)
    with ExitStack() as at_end, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if content is None:
                file = open_regular(str(path))
            else:
                file = io.BytesIO(content)
            at_end.enter_context(file)
            image = at_end.enter_context(Image.open(file, formats=formats))
        except FileNotFoundError as error:
            raise ImageError(
                f"{path} does not exist; check its folder, or set data.missing_images=skip."
            ) from error
        except Image.DecompressionBombError as error:
            count = re.findall(r"\d+", str(error))[0]  # Pillow gives the size only in the message
            raise _too_large(path, count, max_pixels) from None
        except Exception as error:  # as for a decoder
            reason = str(error)
            if isinstance(error, UnidentifiedImageError):
                reason = "in no known format; git lfs pull replaces a pointer of Git LFS"
            if formats:
                reason = f"not {', '.join(formats)}"
            raise _unreadable(path, reason) from error
        _check_header(path, image, max_pixels)
        yield image


def _check_header(path: Source, image: Image.Image, max_pixels: int) -> None:
    size = f"{image.width} x {image.height}"
    if image.format == "EPS":
        raise _unreadable(path, "an EPS, a program to be run")
    if not image.width * image.height:
        raise _unreadable(path, f"{size} pixels")
    if image.width * image.height > max_pixels:
        raise _too_large(path, size, max_pixels)


def _unreadable(path: Source, reason: str) -> ImageError:
    return ImageError(
        f"{path} is not a readable image ({reason}); restore the file, or set data.bad_images=skip."
    )


def _too_large(path: Source, size: str, most: int) -> ImageError:
    return ImageError(
        f"{path} has {size} pixels, more than max_pixels={most}; "
        "raise it, or set data.bad_images=skip."
    )


def _orientation(image: Image.Image) -> int:
    if isinstance(image, TiffImageFile):  # Pillow turns it upright by itself
        return 1
    try:
        value = image.getexif().get(ORIENTATION_TAG, 1)
    except Exception:  # damaged EXIF raises many kinds of errors; the pixels may still be sound
        return 1
    return value if value in range(1, 9) else 1


def _orientation_of_annotations(
    path: Source, stored: Size, orientation: int, annotated: Size | None
) -> int:
    """The orientation to apply so that pixels agree with the annotations of an image of `annotated`
    size.
    """
    shown = _shown(stored, orientation)
    if annotated is None or annotated == shown:
        return orientation
    if annotated == stored:
        return 1
    raise ImageError(
        f"{path} is {shown[0]} x {shown[1]} pixels, "
        f"but its annotation says {annotated[0]} x {annotated[1]}; "
        "give the image that was annotated, in its size (training resizes it) and the same each "
        "time, or set data.bad_images=skip."
    )


def _shown(stored: Size, orientation: int) -> Size:
    """(width, height) as a viewer shows an image, of those that are stored."""
    width, height = stored
    if orientation in SWAPPING:
        return height, width
    return width, height


SUFFIXES = {
    ".jpg",
    ".jpeg",
    ".jpe",
    ".jfif",
    ".png",
    ".gif",
    ".bmp",
    ".webp",
    ".tif",
    ".tiff",
    ".ppm",
    ".pgm",
}

ENDINGS = ", ".join(sorted(SUFFIXES))  # for messages


def is_image(name: str | PurePath) -> bool:
    """Whether a file name has an image's ending."""
    return os.path.splitext(name)[1].lower() in SUFFIXES


def find_images(pattern: str) -> list[Path]:
    """The file, the images of the folder (if it has none, of its subfolders) or of the glob,
    sorted. Raises DataError for none.
    """
    path = parse_path(pattern)
    if isinstance(path, Url):
        raise DataError(
            f"input={pattern} is a URL; copy the images, and give a local file, folder or glob."
        )
    if path.is_file():
        if is_packed(path):
            raise DataError(f"input={pattern} is not an image; unpack it, and give the folder.")
        if path.suffix in (".txt", ".json", ".csv", ".yaml", ".pt"):
            raise DataError(
                f"input={pattern} is not an image; give their folder, or 'photos/*.jpg'."
            )
        if str(mimetypes.guess_type(path.name)[0]).startswith("video/"):
            raise DataError(
                f"input={pattern} is a video; write its frames into a folder, as with "
                "ffmpeg -i FILE FOLDER/%06d.jpg, and give the folder."
            )
        return [path]
    if path.is_dir():
        places: list[Iterable[Path]] = [path.iterdir(), path.rglob("*")]
    else:
        places = [map(Path, glob.glob(pattern, recursive=True))]
    for place in places:
        files = sorted(file for file in place if file.is_file() and is_image(file))
        if files:
            return files
    remedy = spelt_alike(path, "give a file, folder or glob")
    raise DataError(f"input={pattern} names no image ({ENDINGS}); {remedy}.")


AnyImage = str | Path | Image.Image | np.ndarray | Tensor
FORMS = "a file, a PIL image, an array [h, w, 3] or a tensor [3, h, w], uint8 or floats from 0 to 1"


def pixels_of(image: AnyImage) -> Tensor:
    """uint8 [3, h, w] RGB of an image: a file, a PIL image, an array [h, w, 3] or [h, w], or a
    tensor [3, h, w].

    A file is turned as its EXIF orientation says, other images are taken as they are. Raises
    DataError.
    """
    if isinstance(image, str | Path):
        return _pixels_of_file(image)
    if isinstance(image, Image.Image):
        try:
            return _rgb(image)
        except (OSError, ValueError) as error:
            # Pillow decodes a file when its pixels are asked for
            raise DataError(
                f"a PIL image cannot be converted to RGB ({error}); give {FORMS}."
            ) from error
    if isinstance(image, np.ndarray):
        pixels = _pixels_of_array(image)
    elif isinstance(image, Tensor):
        pixels = image.detach().cpu()
    else:
        raise DataError(f"an image is of type {type(image).__name__}; give {FORMS}.")
    if pixels.ndim != 3 or len(pixels) != 3 or not pixels.numel():
        raise DataError(f"an image has the shape {list(image.shape)}; {_shape_remedy(image)}.")
    if pixels.is_floating_point():
        pixels = _from_floats(pixels)
    if pixels.dtype != torch.uint8:
        raise DataError(f"an image has values of {pixels.dtype}; give {FORMS}.")
    return pixels.as_subclass(Tensor)


def _shape_remedy(image: np.ndarray | Tensor) -> str:
    """How an image of another shape is brought into a known one."""
    shape = tuple(image.shape)
    is_array = isinstance(image, np.ndarray)
    if len(shape) == 4:
        return "give image[0], or of several images a list, list(images)"
    if len(shape) == 3 and is_array and shape[0] == 3:
        return "write image.transpose(1, 2, 0), for [h, w, 3]"
    if len(shape) == 3 and not is_array and shape[2] == 3:
        return "write image.permute(2, 0, 1), for [3, h, w]"
    if len(shape) == 3 and shape[-1 if is_array else 0] == 4:
        return f"leave the fourth channel out, {'image[..., :3]' if is_array else 'image[:3]'}"
    return f"give {FORMS}"


def _pixels_of_file(path: str | Path) -> Tensor:
    if not Path(path).is_file():
        raise DataError(
            f"{path} is not a local file; give the path of one, or a list of paths, such as "
            'Path(FOLDER).glob("*.jpg").'
        )
    try:
        return read_image(Path(path))
    except ImageError as error:  # without the settings of a run
        raise ImageError(f"{str(error).rpartition(';')[0]}; give another file.") from error


def _pixels_of_array(image: np.ndarray) -> Tensor:
    """[h, w, 3] or [h, w] -> [3, h, w]; another shape stays as it is."""
    # torch has no read-only tensors, and neither another byte order nor negative strides
    writable = np.require(image, image.dtype.newbyteorder("="), ["C", "W"])
    pixels = torch.from_numpy(writable)
    if pixels.ndim == 2:
        pixels = pixels[..., None].expand(-1, -1, 3)
    return pixels.permute(2, 0, 1) if pixels.ndim == 3 else pixels


def _from_floats(pixels: Tensor) -> Tensor:
    low = float(pixels.min())
    high = float(pixels.max())
    if not 0 <= low <= high <= 1:
        raise DataError(
            f"an image has floats from {low:.3g} to {high:.3g}; give uint8 or floats from 0 to 1."
        )
    return (pixels * 255).round().to(torch.uint8)
