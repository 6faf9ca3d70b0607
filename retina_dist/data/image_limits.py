"""Limits on the work that decoding an image file can cause beyond decoding its pixels once.

A few bytes of JPEG, PNG or TIFF can request unbounded work or memory, whatever the size of the image. Each function finds such a
file without decoding it, and returns the reason.
"""

from __future__ import annotations

import os
import re
import struct
from itertools import islice
from typing import BinaryIO

from PIL import Image
from PIL.TiffImagePlugin import TiffImageFile

# A scan of a JPEG may be 12 bytes long and still cost a pass over all pixels. libtiff and GDAL stop at 100 scans
# (JPEG_MAX_ALLOWED_SCAN_NUMBER); encoders write about 10: an image of `max_pixels` may have 16, smaller ones more at the same cost.
MAX_SCANS = 100
SCANS_AT_MAX_PIXELS = 16
SCAN = re.compile(rb"\xff\xda")
END_OF_IMAGE, START_OF_SCAN = 0xD9, 0xDA
# The markers that libjpeg reads on from; SOI is an error and restarts have no length.
MARKER = re.compile(rb"\xff+[\xc0-\xcf\xd9-\xfe]")

# Pillow unpacks each text and profile of a PNG, 1 kB to 1 MB in 3 ms, and reads each chunk in Python, 15 us.
PNG = b"\x89PNG\r\n\x1a\n"
PNG_TEXTS = (b"tEXt", b"zTXt", b"iTXt", b"iCCP")
MAX_TEXTS = 100
MAX_CHUNKS = 10_000  # plus one for each kilobyte; libpng writes chunks of 8 kB

TIFF_PARTS = (273, 279, 324, 325)  # where strips and tiles are, and their lengths
MAX_TAGS = 4096
MAX_PARTS = 100_000
MAX_LAYERS = 8  # times that the parts of a file may cover its image; a file by planes has one for each channel


def trouble_of_file(file: BinaryIO) -> str | None:
    """Why Pillow should not open a file; None if it may. Leaves the file at its beginning."""
    head = file.read(16)
    try:
        if head.startswith(PNG):
            return _trouble_of_png(file)
        return _trouble_of_tiff(file, head) if head[:2] in (b"II", b"MM") else None
    except struct.error:  # truncated: Pillow raises the error
        return None
    finally:
        file.seek(0)


def _trouble_of_png(file: BinaryIO) -> str | None:
    most = MAX_CHUNKS + file.seek(0, os.SEEK_END) // 1024
    file.seek(len(PNG))
    chunks = texts = 0
    while len(header := file.read(8)) == 8:
        length, kind = struct.unpack(">I4s", header)
        chunks, texts = chunks + 1, texts + (kind in PNG_TEXTS)
        if chunks > most or texts > MAX_TEXTS:
            return f"it has more than {MAX_TEXTS} texts" if texts > MAX_TEXTS else f"it has more than {most} chunks"
        if kind == b"IEND":
            break
        file.seek(length + 4, os.SEEK_CUR)
    return None


def _trouble_of_tiff(file: BinaryIO, head: bytes) -> str | None:
    order, large = "<" if head[:2] == b"II" else ">", 43 in head[2:4]  # BigTIFF
    (start,) = struct.unpack_from(order + ("Q" if large else "I"), head, 8 if large else 4)
    file.seek(start)
    (count,) = struct.unpack(order + ("Q" if large else "H"), file.read(8 if large else 2))
    if count > MAX_TAGS:
        return f"it has more than {MAX_TAGS} tags"
    entry = struct.Struct(order + ("HHQQ" if large else "HHII"))
    for _ in range(count):
        tag, _kind, length, _value = entry.unpack(file.read(entry.size))
        if tag in TIFF_PARTS and length > MAX_PARTS:
            return f"it has more than {MAX_PARTS} strips or tiles"
    return None


def trouble_of_parts(image: Image.Image, max_pixels: int) -> str | None:
    """Why an opened image should not be loaded: its parts cover it many times, or are much larger than it is."""
    covered = sum((right - left) * (lower - upper) for _, (left, upper, right, lower), *_ in getattr(image, "tile", ()))
    if covered > MAX_LAYERS * image.width * image.height:
        return "its parts overlap"
    if isinstance(image, TiffImageFile):
        width, height = image.tag_v2.get(322), image.tag_v2.get(323)
        if width and height:
            pixels = -(-image.tag_v2[256] // width) * width * -(-image.tag_v2[257] // height) * height
            if pixels > max_pixels:
                return f"its tiles have {pixels} pixels, more than max_pixels={max_pixels}"
    return None


def trouble_of_jpeg(content: bytes, pixels: int, max_pixels: int) -> str | None:
    """Why a JPEG of so many pixels should not be decoded: it has many scans."""
    most = min(MAX_SCANS, SCANS_AT_MAX_PIXELS * max_pixels // pixels)
    if count_scans(content, most) > most:
        return f"it has more than {most} scans, each of which costs as much as a whole image"
    return None


def count_scans(jpeg: bytes, most: int) -> int:
    """The number of scans in a JPEG, counted until they are more than `most`, without decoding.

    Never fewer than libjpeg finds: like libjpeg, it skips a segment by its length, and data up to the next marker.
    """
    # an upper bound, in a thirtieth of the decoder's time
    found = sum(1 for _ in islice(SCAN.finditer(jpeg), most + 1))
    if found <= most:
        return found
    at, found = 2, 0  # some may belong to a thumbnail, or to a film that follows the image
    while found <= most and (marker := MARKER.search(jpeg, at)):
        at, kind = marker.end(), jpeg[marker.end() - 1]
        if kind == END_OF_IMAGE:
            break
        found += kind == START_OF_SCAN
        at += max(2, int.from_bytes(jpeg[at : at + 2], "big"))
    return found
