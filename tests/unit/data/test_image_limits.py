"""Files that would make a decoder work or allocate without bound are refused before, and ordinary ones are not."""

from __future__ import annotations

import io
import struct
import time
import zlib
from pathlib import Path

import pytest
from PIL import Image, PngImagePlugin

from retina_dist.data.images import decode_image, image_size, read_image
from retina_dist.detection.doctor.data_checks import check_image
from retina_dist.detection.readers.records import ImageRecord
from retina_dist.errors import ImageError


def png(*chunks: tuple[bytes, bytes], last: bool = False) -> bytes:
    """8 x 8 pixels with these chunks, in front of the pixels or after them."""
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "PNG")
    content = file.getvalue()
    more = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    at = len(content) - 12 if last else 33
    return content[:at] + more + content[at:]


def tiff(tags: dict[int, int | list[int]], data: bytes, order: str = "<") -> bytes:
    """A grey TIFF of `tags`, 32-bit numbers, whose strips or tiles lie in `data`: offsets (273, 324) count from its beginning."""
    tags = {256: 16, 257: 16, 258: 8, 259: 1, 262: 1, 277: 1, **tags}
    values = {tag: value if isinstance(value, list) else [value] for tag, value in tags.items()}
    behind = 8 + 2 + 12 * len(values) + 4  # where lists begin
    start = behind + sum(4 * len(value) for value in values.values() if len(value) > 1)
    head, lists = struct.pack(f"{order}H", len(values)), b""
    for tag, value in sorted(values.items()):
        numbers = struct.pack(f"{order}{len(value)}I", *(v + start * (tag in (273, 324)) for v in value))
        where = numbers if len(value) == 1 else struct.pack(f"{order}I", behind + len(lists))
        head += struct.pack(f"{order}HHI", tag, 4, len(value)) + where
        lists += numbers if len(value) > 1 else b""
    return (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}I", 8) + head + bytes(4) + lists + data


SPOILT = zlib.compress(bytes(2**20 - 1), 9)[:-4] + b"none"  # a megabyte of nothing, with a wrong sum, in a kilobyte
TILE = zlib.compress(bytes(16_000**2), 1)
PIXELS = bytes(range(256))
BOMBS = {
    "iCCP": (png(*[(b"iCCP", b"x\0\0" + zlib.compress(bytes(2**20 - 1), 9))] * 2000), "more than 100 texts"),
    "zTXt": (png(*[(b"zTXt", b"x\0\0" + SPOILT)] * 2000), "more than 100 texts"),
    "after": (png(*[(b"iTXt", b"x\0\1\0\0\0" + SPOILT)] * 2000, last=True), "more than 100 texts"),
    "chunks": (png(*[(b"teSt", b"")] * 200_000), r"more than 1\d{4} chunks"),
    "strips": (tiff({257: 1000, 256: 1000, 278: 500, 273: [0] * 50_000}, bytes(500_000)), "its parts overlap"),
    "offsets": (tiff({278: 1, 273: [0] * 1_000_000}, PIXELS), "more than 100000 strips or tiles"),
    "offsets, big-endian": (tiff({278: 1, 273: [0] * 100_001}, PIXELS, ">"), "more than 100000 strips or tiles"),
    "tiles": (
        tiff({257: 64_000, 259: 8, 322: 16_000, 323: 16_000, 324: [0] * 4, 325: [len(TILE)] * 4}, TILE),
        "its tiles have 1024000000 pixels, more than max_pixels=178956970",
    ),
    "tags": (b"II*\0\x08\0\0\0\xff\xff" + bytes(12 * 65_535 + 4), "more than 4096 tags"),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", BOMBS)
def test_a_file_that_asks_for_much_is_refused_at_once(tmp_path: Path, name: str):
    content, message = BOMBS[name]
    path = tmp_path / "bomb"
    path.write_bytes(content)
    start = time.process_time()
    with pytest.raises(ImageError, match=rf"it .* \(.*{message}\); restore the file"):
        decode_image(content)
    with pytest.raises(ImageError, match=rf"bomb .* \(.*{message}\); restore the file"):
        read_image(path)
    checked = check_image(ImageRecord(1, path, "bomb", 0, 0), decode=True, max_pixels=178_956_970)
    assert time.process_time() - start < 10
    assert checked.problem == "unreadable"
    if name not in ("strips", "tiles"):  # for these Pillow's own reading of the header is what costs
        with pytest.raises(ImageError, match=message):
            image_size(path)


def test_ordinary_files_are_read(tmp_path: Path):
    text = PngImagePlugin.PngInfo()
    for i in range(100):
        text.add_text(f"key {i}", "words " * 50, zip=i % 2 == 0)
    many = [Image.new("L", (8, 8), i % 256) for i in range(600)]
    Image.new("RGB", (8, 8)).save(tmp_path / "texts.png", pnginfo=text)
    many[0].save(tmp_path / "frames.png", save_all=True, append_images=many[1:])
    Image.effect_noise((600, 500), 90).save(tmp_path / "noise.png", compress_level=0)
    for name in ("texts.png", "frames.png", "noise.png"):
        assert read_image(tmp_path / name).shape[0] == 3
    for order in "<>":
        rows = [16 * y for y in range(16)]
        strips = tiff({278: 1, 273: rows, 279: [16] * 16}, PIXELS, order)
        tiles = tiff({256: 20, 257: 20, 322: 16, 323: 16, 324: [0, 0, 0, 0], 325: [256] * 4}, PIXELS, order)
        planes = tiff({262: 2, 277: 3, 258: [8, 8, 8], 284: 2, 278: 16, 273: [0, 0, 0], 279: [256] * 3}, PIXELS, order)
        assert read_image(tmp_path / "a", content=strips)[0].flatten().tolist() == list(PIXELS)
        assert read_image(tmp_path / "a", content=tiles).shape == (3, 20, 20)
        assert read_image(tmp_path / "a", content=planes)[2].flatten().tolist() == list(PIXELS)


def test_what_is_cut_off_is_left_to_the_decoder():
    for content in (png()[:20], png()[:36], tiff({273: 0}, PIXELS)[:9], tiff({273: 0}, PIXELS)[:30], b"II", b"MM\0+"):
        with pytest.raises(ImageError, match="it (is no readable image|cannot be decoded)"):
            decode_image(content)
