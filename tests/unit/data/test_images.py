"""Every test on files it writes itself.

`real_data` repeats the important ones on files found in the wild.
"""

from __future__ import annotations

import io
import struct
import tracemalloc
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from retina_dist.base.errors import DataError, ImageError
from retina_dist.data.file_checks import check_image
from retina_dist.data.images import (
    MAX_PIXELS,
    decode_image,
    has_more_scans,
    image_sizes,
    is_image,
    pixels_of,
    read_image,
)
from retina_dist.task.predict_files import plan_predictions, predict_files

ORIENTATION = 0x0112
FRAMES = [Image.new("RGB", (1, 1), colour) for colour in ((200, 0, 0), (0, 200, 0))]


@pytest.mark.parametrize("kind", ["jpg", "png", "tiff"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientations_agree_with_pillow(tmp_path: Path, orientation: int, kind: str):
    """Boxes drawn on the upright image, and boxes drawn on it as stored."""
    noise = np.random.default_rng(0).integers(0, 255, (5, 7, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    path = tmp_path / f"a.{kind}"
    image.save(path, exif=exif)
    with Image.open(path) as stored:
        assert stored.getexif()[ORIENTATION] == orientation
        upright = np.asarray(ImageOps.exif_transpose(stored).convert("RGB"))
    with Image.open(path) as stored:  # Pillow turns a TIFF when it is opened
        as_stored = np.asarray(stored.convert("RGB"))
    size = (7, 5) if orientation < 5 else (5, 7)
    assert image_sizes(path, MAX_PIXELS)[0] == size
    for annotated in (None, size):
        assert np.array_equal(read_image(path, annotated).permute(1, 2, 0), upright)
    if orientation >= 5 and kind != "tiff":
        assert np.array_equal(read_image(path, size[::-1]).permute(1, 2, 0), as_stored)
    with pytest.raises(
        ImageError,
        match=rf"a.{kind} is {size[0]} x {size[1]} pixels, but its annotation says 4 x 4",
    ):
        read_image(path, (4, 4))


@pytest.mark.parametrize(
    ("name", "image", "expected"),
    [
        ("grey.png", Image.new("L", (1, 1), 7), [7, 7, 7]),
        ("alpha.png", Image.new("RGBA", (1, 1), (1, 2, 3, 0)), [1, 2, 3]),
        ("palette.png", Image.new("RGB", (1, 1), (1, 2, 3)).quantize(2), [1, 2, 3]),
        ("cmyk.jpg", Image.new("CMYK", (1, 1), (0, 0, 0, 255)), [0, 0, 0]),
        ("first_frame.gif", FRAMES[0], [200, 0, 0]),
        (
            "nearly_16.png",
            Image.fromarray(np.array([[255 * 256]], dtype=np.uint16)),
            [254, 254, 254],
        ),
        ("8_in_16.png", Image.fromarray(np.array([[200]], dtype=np.uint16)), [200, 200, 200]),
        ("8_in_32.tiff", Image.fromarray(np.array([[200]], dtype=np.int32)), [200, 200, 200]),
        ("16_in_32.tiff", Image.fromarray(np.array([[51400]], dtype=np.int32)), [200, 200, 200]),
        ("32.tiff", Image.fromarray(np.array([[2**30]], dtype=np.int32)), [64, 64, 64]),
        ("a.jfif", Image.new("L", (1, 1), 7), [7, 7, 7]),
    ],
)
def test_modes(tmp_path: Path, name: str, image: Image.Image, expected: list[int]):
    frames = {"save_all": True, "append_images": FRAMES[1:]} if name == "first_frame.gif" else {}
    image.save(tmp_path / name, **frames)
    assert is_image(name)
    found = read_image(tmp_path / name)
    assert found.shape == (3, 1, 1)
    assert found.flatten().tolist() == expected


@pytest.mark.filterwarnings("error")
def test_damaged_exif_does_not_cost_the_image(tmp_path: Path):
    Image.new("L", (3, 2)).save(tmp_path / "a.jpg", exif=b"Exif\0\0II*\0\x08\0\0\0\xff\xff")
    assert read_image(tmp_path / "a.jpg").shape == (3, 2, 3)
    assert image_sizes(tmp_path / "a.jpg", MAX_PIXELS)[0] == (3, 2)


@pytest.mark.parametrize("kind", ["jpg", "png"])
def test_a_truncated_image_raises_image_error(tmp_path: Path, kind: str):
    """Nor is a damaged PNG read in part:

    Pillow decodes all of it to find EXIF, and would go on as if the rest were black.
    """
    noise = np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8)
    path = tmp_path / f"a.{kind}"
    Image.fromarray(noise).save(path)
    read_image(path)
    content = path.read_bytes()
    half = len(content) // 2
    damaged = [content[:length] for length in (1, 10, half // 2, half)]
    if kind == "png":
        damaged.append(content[:half] + bytes(8) + content[half + 8 :])
    for wrong in damaged:
        path.write_bytes(wrong)
        with pytest.raises(ImageError, match=f"a.{kind} .*data.bad_images=skip"):
            read_image(path)


def test_missing_and_foreign_files(tmp_path: Path):
    with pytest.raises(ImageError, match="absent.jpg does not exist.*data.missing_images=skip"):
        read_image(tmp_path / "absent.jpg")
    (tmp_path / "page.jpg").write_text("<html>404</html>")
    for function in (read_image, image_sizes):
        with pytest.raises(ImageError, match="page.jpg is not a readable image"):
            function(tmp_path / "page.jpg")
    (tmp_path / "empty.jpg").touch()
    for path in (tmp_path, tmp_path / "empty.jpg", tmp_path / ("a" * 5000), tmp_path / "\0"):
        for function in (read_image, image_sizes):
            with pytest.raises(ImageError, match="is not a readable image"):
                function(path)


def test_limit_on_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "a.png"
    Image.new("L", (3, 2)).save(path)
    assert read_image(path, max_pixels=6).shape == (3, 2, 3)
    for function in (read_image, image_sizes):
        with pytest.raises(
            ImageError, match=r"a.png has 3 x 2 pixels, more than max_pixels=5; raise it, .*skip"
        ):
            function(path, max_pixels=5)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2)  # Pillow refuses from twice this
    with pytest.raises(ImageError, match=r"a.png has 6 pixels, more than max_pixels=4; raise it"):
        read_image(path, max_pixels=4)
    assert read_image(path, max_pixels=6).shape == (
        3,
        2,
        3,
    )  # the limit that is set is the one that holds


def claiming(path: Path, width: int, height: int) -> Path:
    """A PNG of next to no bytes that claims to be so large."""
    Image.new("L", (1, 1)).save(path)
    content = path.read_bytes()
    header = b"IHDR" + struct.pack(">II", width, height) + content[24:29]
    path.write_bytes(content[:12] + header + struct.pack(">I", zlib.crc32(header)) + content[33:])
    return path


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("sides", "size"),
    [
        ((13378, 13378), "13378 x 13378|178970884"),
        ((60_000, 60_000), "3600000000"),
        ((2**31 - 1,) * 2, "46116860141"),
    ],
)
def test_a_bomb_is_refused_by_what_it_claims(tmp_path: Path, sides: tuple[int, int], size: str):
    path = claiming(tmp_path / "a.png", *sides)
    for function in (read_image, image_sizes):
        tracemalloc.start()
        with pytest.raises(
            ImageError, match=f"a.png has ({size}).* pixels, more than max_pixels=178956970; raise"
        ):
            function(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        tracemalloc.stop()


def test_a_program_is_refused(tmp_path: Path):
    """Pillow would have Ghostscript run it."""
    Image.new("RGB", (3, 2)).save(tmp_path / "a.eps")
    (tmp_path / "a.eps").rename(tmp_path / "a.jpg")
    with pytest.raises(
        ImageError, match=r"a.jpg is not a readable image \(an EPS, a program to be run\)"
    ):
        read_image(tmp_path / "a.jpg")


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")  # from the reference, exif_transpose
def test_odd_images_agree_with_pillow(real_data: Path):
    paths = [
        p
        for p in sorted((real_data / "odd-images").iterdir())
        if p.suffix in (".jpg", ".png", ".gif")
    ]
    sound = [path for path in paths if "truncated" not in path.name]
    assert len(sound) == 23
    assert len(paths) == 24
    for path in sound:
        found = read_image(path).permute(1, 2, 0).numpy()
        assert image_sizes(path, MAX_PIXELS)[0] == (found.shape[1], found.shape[0]), path.name
        with Image.open(path) as image:
            expected = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
        assert np.array_equal(found, expected), path.name


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize(
    "options", [{}, {"quality": 50, "subsampling": 0}, {"progressive": True}, {"subsampling": 1}]
)
def test_jpeg_has_pillows_bits_whoever_decodes_it(
    tmp_path: Path, mode: str, options: dict, monkeypatch
):
    noise = Image.fromarray(
        np.random.default_rng(0).integers(0, 256, (45, 67, 3), dtype=np.uint8)
    ).resize((201, 135))
    noise.convert(mode).save(tmp_path / "a.jpg", **options)
    found = read_image(tmp_path / "a.jpg")
    with Image.open(tmp_path / "a.jpg") as image:
        assert np.array_equal(found.permute(1, 2, 0).numpy(), np.asarray(image.convert("RGB")))

    def refuse(data, mode):
        raise RuntimeError("cannot")

    monkeypatch.setattr("retina_dist.data.images.decode_jpeg", refuse)
    assert np.array_equal(read_image(tmp_path / "a.jpg").numpy(), found.numpy())


@pytest.mark.parametrize("kind", ["LONG", "another name", "padded"])
def test_torchcodec_never_turns_a_jpeg(tmp_path: Path, kind: str):
    """It takes EXIF that Pillow does not.

    The pixels must be the stored ones, turned once by what Pillow reads.
    """
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (45, 67, 3), dtype=np.uint8))
    noise.save(tmp_path / "a.jpg", exif=exif)
    content = (tmp_path / "a.jpg").read_bytes()
    at = content.index(b"\xff\xe1")
    segment = content[at : at + 2 + int.from_bytes(content[at + 2 : at + 4], "big")]
    changed = {
        "LONG": segment.replace(b"\x01\x12\x00\x03", b"\x01\x12\x00\x04"),
        "another name": segment.replace(b"Exif", b"none"),
        "padded": b"\xff\xff" + segment,
    }[kind]
    (tmp_path / "a.jpg").write_bytes(content.replace(segment, changed))
    with Image.open(tmp_path / "a.jpg") as image:
        as_stored, upright = np.asarray(image), np.asarray(ImageOps.exif_transpose(image))
    assert np.array_equal(read_image(tmp_path / "a.jpg").permute(1, 2, 0), upright)
    assert np.array_equal(read_image(tmp_path / "a.jpg", (67, 45)).permute(1, 2, 0), as_stored)


def with_scans(scans: int, side: int = 1000) -> bytes:
    """A progressive JPEG of that many scans, 12 bytes each after the ninth."""
    file = io.BytesIO()
    Image.new("RGB", (side, side), (1, 2, 3)).save(file, "JPEG", progressive=True)
    content = file.getvalue()
    last, end = content.rfind(b"\xff\xda"), content.rfind(b"\xff\xd9")
    return content[:end] + content[last:end] * (scans - content.count(b"\xff\xda")) + content[end:]


def test_a_jpeg_of_many_scans_is_refused_before_it_is_decoded(tmp_path: Path):
    (tmp_path / "a.jpg").write_bytes(with_scans(33_000))  # 400 kB that a decoder takes 20 s for
    for options in ({}, {"content": (tmp_path / "a.jpg").read_bytes()}):
        with pytest.raises(
            ImageError,
            match=r"a.jpg cannot be decoded \(it has more than 100 scans, .*bad_images=skip",
        ):
            read_image(tmp_path / "a.jpg", **options)
    with pytest.raises(ImageError, match="more than 100 scans"):
        decode_image((tmp_path / "a.jpg").read_bytes())
    checked = check_image(("a.jpg", tmp_path / "a.jpg", None), decode=True, max_pixels=MAX_PIXELS)
    assert (checked.problem, "more than 100 scans" in checked.detail) == ("unreadable", True)
    assert decode_image(with_scans(100, side=64)).shape == (3, 64, 64)
    content = with_scans(20, side=64)  # a large one may have fewer
    assert decode_image(content, max_pixels=64 * 64 * 20 // 16).shape == (3, 64, 64)
    with pytest.raises(ImageError, match="it has more than 16 scans"):
        decode_image(content, max_pixels=64 * 64)


def test_scans_are_counted_as_libjpeg_reads_them():
    content = with_scans(12, side=16)
    assert has_more_scans(content, 11)
    assert not has_more_scans(content, 12)
    inside = (
        b"\xff\xe1" + (4002).to_bytes(2, "big") + b"\xff\xda" * 2000
    )  # a segment, as of a thumbnail
    assert not has_more_scans(content[:2] + inside + content[2:], 12)
    assert not has_more_scans(content + b"\xff\xda" * 2000, 12)  # a film after the image
    assert has_more_scans(
        content[:-2] + b"\xff\xda\x00\x00" * 2000 + content[-2:], 100
    )  # no length hides one
    hidden = b"\xff\x02\x0f\xff" + b"\xff\xda\x00\x02" * 2000  # nor does a marker
    assert has_more_scans(content[:-2] + hidden + content[-2:], 100)


def test_each_readable_image_has_a_name_that_no_other_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / name for name in ("x/a.png", "x/y_a.png", "x/z.png", "y/a.png", "y/z.png")]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        Image.new("RGB", (4, 3)).save(file)
    files[2].write_bytes(b"no image")
    model: Any = SimpleNamespace(run_each=lambda pixels: [pixels.shape])

    def predict(pattern: str, folder: str) -> dict[int, tuple[Path, Any]]:
        plan = plan_predictions(f"{tmp_path}/{pattern}", str(tmp_path / folder))
        draw = lambda *_: (Image.new("RGB", (4, 3)), "drawn")  # noqa: E731
        return predict_files(model, plan, draw, max_pixels=100)

    assert predict("*/*.png", "out") == {
        number: (files[number], (3, 3, 4)) for number in (0, 1, 3, 4)
    }
    assert sorted(path.stem for path in (tmp_path / "out").iterdir()) == [
        "a",
        "y_a",
        "y_a_3",
        "y_z",
    ]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: ")
    assert line.endswith("; left out")
    with pytest.raises(
        DataError, match=r"none of the 1 files of input=.*/x/z\*.png is a readable image"
    ):
        predict("x/z*.png", "none")


@pytest.mark.parametrize(
    "array",
    [
        np.asarray(Image.new("RGB", (4, 3), (1, 2, 3))),  # Pillow's memory is read-only
        np.broadcast_to(np.array([1, 2, 3], np.uint8), (3, 4, 3)),
        np.full((3, 4, 3), (1, 2, 3), ">u2").astype("u1")[::-1],
    ],
)
@pytest.mark.filterwarnings("error")
def test_an_array_that_torch_cannot_share_is_copied_without_a_warning(array: np.ndarray):
    pixels = pixels_of(array)
    assert pixels.shape == (3, 3, 4)
    assert pixels[:, 0, 0].tolist() == [1, 2, 3]
