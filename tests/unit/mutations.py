"""Ways to damage what a user hands in, drawn from a seeded generator, and a guard that lets nothing
but one named error pass.
"""

from __future__ import annotations

import copy
import io
import json
import random
import signal
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from PIL import Image, PngImagePlugin

from retina_dist.base.errors import UserError

LIMIT_S = 10.0  # of one case
LONGEST = 12_000  # characters of one sentence, which may hold a name of 5000 twice

JUNK = [
    *(
        None,
        True,
        -1,
        0,
        1,
        1.5,
        2**31,
        2**53,
        2**53 + 1,
        2**64,
        10**400,
        1e308,
        5e-324,
        -0.0,
        float("nan"),
    ),
    *(
        float("inf"),
        -float("inf"),
        "",
        "1",
        "\0",
        "a\0b",
        "\ud800",
        "\udc80.png",
        "a\nb",
        "\ufeff",
        "../x",
    ),
    *("/etc/passwd", "..", ".", "C:\\a.png", "x" * 5000, "/".join("ab" * 900), "b.png"),
    *([], [1], [[1]], [1, 2, 3, 4], [-5, -5, -5, -5], {}, {"id": 1}, "@raw"),
]
# What no json.dumps writes, put where "@raw" stands.
RAW = [
    *(
        b"1e400",
        b"-1e400",
        b"1" * 5000,
        b"NaN",
        b'"\xff\xfe"',
        b'"\\ud800"',
        b'"\\u0000"',
        b"\xed\xa0\x80",
        b"//",
    ),
    *(
        b"[" * depth + b"]" * depth
        for depth in (50, 300, 900, 940, 960, 980, 990, 995, 2000, 100_000)
    ),
    *(b'{"a":' * depth + b"1" + b"}" * depth for depth in (300, 940, 980, 990, 2000, 100_000)),
]


class HangError(BaseException):
    """Not an Exception: code that catches everything must not catch this."""


def is_read(function: Callable[[], object], one_line: bool) -> bool:
    """Whether it succeeds, in LIMIT_S, or else raises a UserError, in `one_line` if so required;
    any other error passes.
    """
    before = signal.signal(signal.SIGALRM, _hang)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        function()
        return True
    except UserError as error:
        text = str(error)
        assert len(text) <= LONGEST
        assert not (one_line and "\n" in text), repr(text)
        return False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _hang(*_: object) -> None:
    raise HangError


def places(node: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value below `node`."""
    for key in (
        node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
    ):
        yield (*above, key)
        yield from places(node[key], (*above, key))


def mutated_json(content: dict[str, Any], draw: random.Random) -> bytes:
    """The file with bytes changed, or with a few values replaced, left out, repeated
    or exchanged.
    """
    if draw.random() < 0.2:
        return mutated_bytes(json.dumps(content).encode(), draw)
    content = copy.deepcopy(content)
    for _ in range(draw.choice((1, 1, 2, 4))):
        everywhere = list(places(content))
        if not everywhere:
            break
        *above, key = draw.choice(everywhere)
        parent: Any = content
        for step in above:
            parent = parent[step]
        what = draw.randrange(5)
        if what == 0:
            del parent[key]
        elif what == 1 and isinstance(parent, list):
            parent.append(copy.deepcopy(parent[key]))
        elif what == 2:
            other: Any = content
            for step in draw.choice(everywhere):
                other = other[step]
            parent[key] = copy.deepcopy(other)
        else:
            parent[key] = draw.choice(JUNK)
    text = json.dumps(content).encode()
    while b'"@raw"' in text:
        text = text.replace(b'"@raw"', draw.choice(RAW), 1)
    return text


def mutated_bytes(content: bytes, draw: random.Random, head: int = 64) -> bytes:
    """Bytes changed, half of them in the first `head`; cut off, doubled, or with a mark of some
    encoding put in.
    """
    found = bytearray(content or b" ")
    for _ in range(draw.choice((1, 1, 3, 20))):
        at = draw.randrange(min(head, len(found)) if draw.random() < 0.5 else len(found))
        what = draw.randrange(8)
        if what < 3:
            found[at] = draw.randrange(256)
        elif what == 3:
            found[at] ^= 1 << draw.randrange(8)
        elif what == 4:
            del found[at + 1 :]
        elif what == 5:
            found[at:at] = found[at : at + draw.choice((1, 4, 100, 5000))]
        elif what == 6:
            del found[at : at + draw.choice((1, 4, 100))]
        else:
            marks = (
                b"\0",
                b"\xef\xbb\xbf",
                b"\xff\xfe",
                b"\xed\xa0\x80",
                b"\xff" * 4,
                b"\x80",
                b"\n",
                b'"',
            )
            found[at:at] = draw.choice(marks)
        found = found or bytearray(b" ")
    return bytes(found)


def mutated_lines(text: str, separators: str, draw: random.Random) -> bytes:
    """Lines left out, doubled or exchanged, and values between `separators` replaced by junk."""
    if draw.random() < 0.3:
        return mutated_bytes(text.encode(), draw)
    lines = text.splitlines()
    for _ in range(draw.choice((1, 1, 2, 4))):
        at = draw.randrange(len(lines))
        what = draw.randrange(4)
        if what == 0 and len(lines) > 1:
            del lines[at]
        elif what == 1:
            lines.insert(draw.randrange(len(lines)), lines[at])
        else:
            start = draw.randrange(len(lines[at]) + 1)
            while start and lines[at][start - 1] not in separators:
                start -= 1
            end = next(
                (i for i in range(start, len(lines[at])) if lines[at][i] in separators),
                len(lines[at]),
            )
            junk = draw.choice([*JUNK, *(raw.decode(errors="surrogateescape") for raw in RAW[:9])])
            lines[at] = lines[at][:start] + str(junk) + lines[at][end:]
    return "\n".join(lines).encode(errors="surrogatepass")


SIZES = (0, 1, 2, 4, 7, 255, 1001, 65535, 2**24, 2**31 - 1, 2**31, 2**32 - 1)


def with_claimed_size(content: bytes, draw: random.Random) -> bytes:
    """A PNG, JPEG or BMP whose header claims other sides, checksums set right; others as
    they are.
    """
    found = bytearray(content)
    width, height = draw.choice(SIZES), draw.choice(SIZES)
    if content.startswith(b"\x89PNG"):
        found[16:24] = struct.pack(">II", width, height)
        found[29:33] = struct.pack(">I", zlib.crc32(bytes(found[12:29])))
    elif content.startswith(b"\xff\xd8"):
        start = max(content.find(b"\xff\xc0"), content.find(b"\xff\xc2"))
        found[start + 5 : start + 9] = struct.pack(">HH", height & 0xFFFF, width & 0xFFFF)
    elif content.startswith(b"BM"):
        found[18:26] = struct.pack("<II", width, height)
    return bytes(found)


def drawn_images() -> dict[str, bytes]:
    """Small images of every common kind, by file name."""
    colours = Image.linear_gradient("L").resize((24, 16))
    image = Image.merge("RGB", (colours, colours.rotate(90), colours.rotate(180)))
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "a description"
    text = PngImagePlugin.PngInfo()
    text.add_text("comment", "words " * 50, zip=True)
    wanted: dict[str, tuple[Image.Image, dict[str, Any]]] = {
        "plain.jpg": (image, {}),
        "turned.jpg": (image, {"exif": exif}),
        "progressive.jpg": (image, {"progressive": True}),
        "cmyk.jpg": (image.convert("CMYK"), {}),
        "plain.png": (image, {"pnginfo": text}),
        "turned.png": (image, {"exif": exif}),
        "palette.png": (image.quantize(16), {"transparency": 0}),
        "deep.png": (colours.convert("I;16"), {}),
        "lossy.webp": (image, {"exif": exif}),
        "lossless.webp": (image, {"lossless": True}),
        "moving.gif": (image, {"save_all": True, "append_images": [image.rotate(9)]}),
        "plain.bmp": (image, {}),
        "plain.tiff": (image, {"exif": exif}),
        "packed.tiff": (image, {"compression": "tiff_lzw"}),
        "plain.ppm": (image, {}),
        "plain.ico": (image, {"sizes": [(16, 16)]}),
        "plain.tga": (image, {}),
        "plain.eps": (image, {}),
    }
    found = {}
    for name, (image, options) in wanted.items():
        file = io.BytesIO()
        image.save(file, {"jpg": "jpeg"}.get(name[-3:], name.split(".")[1]), **options)
        found[name] = file.getvalue()
    return found
