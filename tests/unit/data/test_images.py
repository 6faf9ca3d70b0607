"""Every test on files it writes itself; `real_data` repeats the important ones on files found in the wild."""

from __future__ import annotations

import io
import struct
import time
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from retina_dist.data.image_limits import count_scans
from retina_dist.data.images import MAX_PIXELS, decode_image, image_size, read_image
from retina_dist.detection.doctor.data_checks import check_image
from retina_dist.detection.readers.records import ImageRecord
from retina_dist.errors import ImageError

ORIENTATION = 0x0112
CORNERS = np.arange(6, dtype=np.uint8).reshape(2, 3) * 40  # 2 high, 3 wide, all six pixels different


def save(path: Path, orientation: int | None = None) -> Path:
    """CORNERS as a lossless grey image."""
    image = Image.fromarray(CORNERS)
    exif = image.getexif()
    if orientation is not None:
        exif[ORIENTATION] = orientation
    image.save(path, exif=exif)
    return path


def test_layout_and_channel_order(tmp_path: Path):
    pixels = np.zeros((2, 3, 3), dtype=np.uint8)
    pixels[0, 2] = (10, 20, 30)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    found = read_image(tmp_path / "a.png")
    assert found.shape == (3, 2, 3)
    assert found[:, 0, 2].tolist() == [10, 20, 30]
    assert int(found.sum()) == 60


@pytest.mark.parametrize(
    ("orientation", "upright"),
    [
        (1, [[0, 40, 80], [120, 160, 200]]),
        (2, [[80, 40, 0], [200, 160, 120]]),
        (3, [[200, 160, 120], [80, 40, 0]]),
        (4, [[120, 160, 200], [0, 40, 80]]),
        (5, [[0, 120], [40, 160], [80, 200]]),
        (6, [[120, 0], [160, 40], [200, 80]]),
        (7, [[200, 80], [160, 40], [120, 0]]),
        (8, [[80, 200], [40, 160], [0, 120]]),
        (9, [[0, 40, 80], [120, 160, 200]]),  # no such orientation
    ],
)
def test_exif_orientation_is_applied(tmp_path: Path, orientation: int, upright: list[list[int]]):
    path = save(tmp_path / "a.png", orientation)
    assert read_image(path)[0].tolist() == upright
    assert image_size(path) == (len(upright[0]), len(upright))


def test_annotated_size_says_which_pixels_the_boxes_are_on(tmp_path: Path):
    path = save(tmp_path / "a.png", 6)
    assert read_image(path, (2, 3)).shape == (3, 3, 2)  # boxes drawn on the upright image
    assert read_image(path, (3, 2))[0].tolist() == CORNERS.tolist()  # boxes drawn on the pixels as stored
    with pytest.raises(ImageError, match=r"a.png is 2 x 3 pixels, but its annotation says 4 x 4"):
        read_image(path, (4, 4))


@pytest.mark.parametrize("kind", ["jpg", "png", "webp", "tiff"])
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
    with Image.open(path) as stored:  # Pillow turns a TIFF when it is loaded
        as_stored = noise if kind == "tiff" else np.asarray(stored.convert("RGB"))
    size = (7, 5) if orientation < 5 else (5, 7)
    assert image_size(path) == size
    for annotated in (None, size):
        assert np.array_equal(read_image(path, annotated).permute(1, 2, 0), upright)
    if orientation >= 5:
        assert np.array_equal(read_image(path, size[::-1]).permute(1, 2, 0), as_stored)


def test_a_half_turn_is_applied_though_sizes_agree(tmp_path: Path):
    assert read_image(save(tmp_path / "a.png", 3), (3, 2))[0, 0, 0] == 200


@pytest.mark.parametrize(
    ("name", "image", "expected"),
    [
        ("grey.png", Image.new("L", (1, 1), 7), [7, 7, 7]),
        ("grey_alpha.png", Image.new("LA", (1, 1), (7, 0)), [7, 7, 7]),
        ("alpha.png", Image.new("RGBA", (1, 1), (1, 2, 3, 0)), [1, 2, 3]),
        ("one_bit.png", Image.new("1", (1, 1), 1), [255, 255, 255]),
        ("palette.png", Image.new("RGB", (1, 1), (1, 2, 3)).quantize(2), [1, 2, 3]),
        ("cmyk.jpg", Image.new("CMYK", (1, 1), (0, 0, 0, 255)), [0, 0, 0]),
        ("cmyk.tiff", Image.new("CMYK", (1, 1), (255, 0, 0, 0)), [0, 255, 255]),
        ("dark_16.png", Image.fromarray(np.array([[257]], dtype=np.uint16)), [1, 1, 1]),
        ("light_16.png", Image.fromarray(np.array([[65535]], dtype=np.uint16)), [255, 255, 255]),
        ("middle_16.tiff", Image.fromarray(np.array([[32768]], dtype=np.uint16)), [128, 128, 128]),
        ("nearly_16.png", Image.fromarray(np.array([[255 * 256]], dtype=np.uint16)), [254, 254, 254]),
    ],
)
def test_modes(tmp_path: Path, name: str, image: Image.Image, expected: list[int]):
    image.save(tmp_path / name)
    found = read_image(tmp_path / name)
    assert found.shape == (3, 1, 1)
    assert found.flatten().tolist() == expected


def test_palette_and_first_frame_of_an_animation(tmp_path: Path):
    frames = [Image.new("RGB", (4, 4), color) for color in ((200, 0, 0), (0, 200, 0))]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    with Image.open(tmp_path / "a.gif") as stored:
        assert stored.mode == "P"
        assert stored.n_frames == 2
    assert read_image(tmp_path / "a.gif")[:, 0, 0].tolist() == [200, 0, 0]


def test_floating_point_pixels_are_refused_not_turned_black(tmp_path: Path):
    Image.fromarray(np.ones((2, 2), dtype=np.float32)).save(tmp_path / "a.tiff")
    with pytest.raises(ImageError, match="a.tiff cannot be decoded .*floating-point"):
        read_image(tmp_path / "a.tiff")


@pytest.mark.filterwarnings("error")
def test_damaged_exif_does_not_cost_the_image(tmp_path: Path):
    Image.fromarray(CORNERS).save(tmp_path / "a.jpg", exif=b"Exif\0\0II*\0\x08\0\0\0\xff\xff")
    assert read_image(tmp_path / "a.jpg").shape == (3, 2, 3)
    assert image_size(tmp_path / "a.jpg") == (3, 2)


@pytest.mark.parametrize("kind", ["jpg", "png", "gif", "webp", "bmp", "tiff"])
def test_a_truncated_image_raises_image_error(tmp_path: Path, kind: str):
    noise = np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8)
    path = tmp_path / f"a.{kind}"
    Image.fromarray(noise).save(path)
    read_image(path)
    content = path.read_bytes()
    for length in (1, 10, len(content) // 4, len(content) // 2):
        path.write_bytes(content[:length])
        with pytest.raises(ImageError, match=f"a.{kind} .*data.bad_images=skip"):
            read_image(path)


def test_whatever_a_decoder_raises_is_an_image_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Damaged AVIF is a RuntimeError, for one; not every Pillow has the plugin to show it."""
    path = save(tmp_path / "a.png")
    monkeypatch.setattr("retina_dist.data.images.to_rgb", lambda image: {}["tile"])
    with pytest.raises(ImageError, match="a.png cannot be decoded"):
        read_image(path)
    monkeypatch.setattr(Image, "open", lambda path: {}["tile"])
    with pytest.raises(ImageError, match="a.png is no readable image"):
        read_image(path)


def test_transparent_palette(tmp_path: Path):
    """Transparency is dropped, not blended: the colour below it stays."""
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putpixel((1, 0), 1)
    image.save(tmp_path / "a.png", transparency=0)
    assert read_image(tmp_path / "a.png").flatten(1).T.tolist() == [[10, 20, 30], [40, 50, 60]]


def test_16_bit_values_are_scaled_not_cut(tmp_path: Path):
    """v / 257, which takes 0..65535 to 0..255, rounded to the nearest, ties to even."""
    values = np.array([[0, 128, 129, 257, 385, 386, 32767, 32768, 65406, 65407, 65535]], dtype=np.uint16)
    Image.fromarray(values).save(tmp_path / "a.png")
    assert read_image(tmp_path / "a.png")[1, 0].tolist() == [0, 0, 1, 1, 1, 2, 127, 128, 254, 255, 255]


def test_missing_and_foreign_files(tmp_path: Path):
    with pytest.raises(ImageError, match="absent.jpg does not exist.*data.missing_images=skip"):
        read_image(tmp_path / "absent.jpg")
    (tmp_path / "page.jpg").write_text("<html>404</html>")
    for function in (read_image, image_size):
        with pytest.raises(ImageError, match="page.jpg is no readable image"):
            function(tmp_path / "page.jpg")
    (tmp_path / "empty.jpg").touch()
    for path in (tmp_path, tmp_path / "empty.jpg", tmp_path / ("a" * 5000), tmp_path / "\0"):
        for function in (read_image, image_size):
            with pytest.raises(ImageError, match="is no readable image"):
                function(path)


def test_limit_on_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = save(tmp_path / "a.png")
    assert read_image(path, max_pixels=6).shape == (3, 2, 3)
    for function in (read_image, image_size):
        with pytest.raises(
            ImageError, match=r"a.png has 3 x 2 pixels, more than max_pixels=5; raise data.max_pixels .*skip"
        ):
            function(path, max_pixels=5)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2)  # Pillow refuses from twice this
    with pytest.raises(ImageError, match=r"a.png has 6 pixels, more than max_pixels=4; raise data.max_pixels"):
        read_image(path, max_pixels=4)
    assert read_image(path, max_pixels=6).shape == (3, 2, 3)  # the limit that is set is the one that holds


def claiming(path: Path, width: int, height: int, *chunks: tuple[bytes, bytes], last: bool = False) -> Path:
    """A PNG of next to no bytes that claims to be so large, with further chunks before its pixels or after them."""
    Image.new("L", (1, 1)).save(path)
    content = path.read_bytes()
    header = b"IHDR" + struct.pack(">II", width, height) + content[24:29]
    more = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    pixels, end = content[33:-12], content[-12:]
    path.write_bytes(
        content[:12] + header + struct.pack(">I", zlib.crc32(header)) + (pixels + more if last else more + pixels) + end
    )
    return path


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("sides", "size"),
    [((13378, 13378), "13378 x 13378|178970884"), ((60_000, 60_000), "3600000000"), ((2**31 - 1,) * 2, "46116860141")],
)
def test_a_bomb_is_refused_by_what_it_claims(tmp_path: Path, sides: tuple[int, int], size: str):
    path = claiming(tmp_path / "a.png", *sides)
    for function in (read_image, image_size):
        tracemalloc.start()
        with pytest.raises(ImageError, match=f"a.png has ({size}).* pixels, more than max_pixels=178956970; raise"):
            function(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        tracemalloc.stop()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("last", [False, True])
def test_text_that_unpacks_without_end_is_refused(tmp_path: Path, last: bool):
    path = claiming(tmp_path / "a.png", 1, 1, (b"zTXt", b"a\0\0" + zlib.compress(bytes(1 << 26))), last=last)
    with pytest.raises(ImageError, match="a.png .*Decompressed data too large.*data.bad_images=skip"):
        read_image(path)


def test_a_damaged_png_is_not_read_in_part(tmp_path: Path):
    """Pillow decodes all of a PNG to find EXIF; after a failure there it would go on as if the rest were black."""
    noise = np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "a.png")
    content = bytearray((tmp_path / "a.png").read_bytes())
    content[len(content) // 2 : len(content) // 2 + 8] = bytes(8)
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(ImageError, match="a.png cannot be decoded"):
        read_image(tmp_path / "a.png")


def test_a_program_is_no_image(tmp_path: Path):
    """Pillow would have Ghostscript run it."""
    Image.new("RGB", (3, 2)).save(tmp_path / "a.eps")
    (tmp_path / "a.eps").rename(tmp_path / "a.jpg")
    with pytest.raises(ImageError, match=r"a.jpg is no readable image \(it is an EPS, a program to be run\)"):
        read_image(tmp_path / "a.jpg")


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")  # from the reference, exif_transpose
def test_odd_images_agree_with_pillow(real_data: Path):
    paths = [p for p in sorted((real_data / "odd-images").iterdir()) if p.suffix in (".jpg", ".png", ".gif")]
    sound = [path for path in paths if "truncated" not in path.name]
    assert len(sound) == 23
    assert len(paths) == 24
    for path in sound:
        found = read_image(path).permute(1, 2, 0).numpy()
        assert image_size(path) == (found.shape[1], found.shape[0]), path.name
        with Image.open(path) as image:
            expected = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
        assert np.array_equal(found, expected), path.name


def test_real_orientations_show_the_same_image(real_data: Path):
    folder = real_data / "odd-images"
    upright = read_image(folder / "pillow_hopper.jpg").float()
    for orientation in range(2, 9):
        found = read_image(folder / f"pillow_hopper_orientation_{orientation}.jpg").float()
        # Compressed anew after turning: 4.9 levels off at most, where the nearest wrong orientation is 58 off.
        assert (found - upright).abs().mean() < 10, orientation


def test_real_truncated_image(real_data: Path):
    with pytest.raises(ImageError, match="pillow_truncated_jpeg.jpg cannot be decoded .*truncated"):
        read_image(real_data / "odd-images" / "pillow_truncated_jpeg.jpg")


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("options", [{}, {"quality": 50, "subsampling": 0}, {"progressive": True}, {"subsampling": 1}])
def test_jpeg_has_pillows_bits_whoever_decodes_it(tmp_path: Path, mode: str, options: dict, monkeypatch):
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (45, 67, 3), dtype=np.uint8)).resize((201, 135))
    noise.convert(mode).save(tmp_path / "a.jpg", **options)
    found = read_image(tmp_path / "a.jpg")
    with Image.open(tmp_path / "a.jpg") as image:
        assert np.array_equal(found.permute(1, 2, 0).numpy(), np.asarray(image.convert("RGB")))

    def refuse(data, mode):
        raise RuntimeError("cannot")

    for other in (None, refuse):  # not in this torchvision, or not able to
        monkeypatch.setattr("retina_dist.data.images.decode_jpeg", other)
        assert np.array_equal(read_image(tmp_path / "a.jpg").numpy(), found.numpy())


def test_upright_jpeg_does_not_go_through_pillows_decoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    Image.new("RGB", (4, 4), (200, 0, 0)).save(tmp_path / "a.jpg")
    monkeypatch.setattr("retina_dist.data.images.to_rgb", lambda image: {}["tile"])
    assert read_image(tmp_path / "a.jpg").shape == (3, 4, 4)


def with_scans(scans: int, side: int = 1000) -> bytes:
    """A progressive JPEG of that many scans, 12 bytes each after the ninth."""
    file = io.BytesIO()
    Image.new("RGB", (side, side), (1, 2, 3)).save(file, "JPEG", progressive=True)
    content = file.getvalue()
    last, end = content.rfind(b"\xff\xda"), content.rfind(b"\xff\xd9")
    return content[:end] + content[last:end] * (scans - content.count(b"\xff\xda")) + content[end:]


def test_a_jpeg_of_many_scans_is_refused_before_it_is_decoded(tmp_path: Path):
    (tmp_path / "a.jpg").write_bytes(with_scans(33_000))  # 400 kB that a decoder takes 20 s for
    start = time.process_time()
    for options in ({}, {"content": (tmp_path / "a.jpg").read_bytes()}):
        with pytest.raises(
            ImageError, match=r"a.jpg cannot be decoded \(it has more than 100 scans, .*bad_images=skip"
        ):
            read_image(tmp_path / "a.jpg", **options)
    with pytest.raises(ImageError, match="more than 100 scans"):
        decode_image((tmp_path / "a.jpg").read_bytes())
    checked = check_image(ImageRecord(1, tmp_path / "a.jpg", "a.jpg", 0, 0), decode=True, max_pixels=MAX_PIXELS)
    assert (checked.problem, "more than 100 scans" in checked.detail) == ("unreadable", True)
    assert time.process_time() - start < 10
    assert decode_image(with_scans(100, side=64)).shape == (3, 64, 64)


def test_a_large_jpeg_may_have_fewer_scans():
    content = with_scans(20, side=64)
    assert decode_image(content, max_pixels=64 * 64 * 20 // 16).shape == (3, 64, 64)
    with pytest.raises(ImageError, match="it has more than 16 scans"):
        decode_image(content, max_pixels=64 * 64)


def test_scans_are_counted_as_libjpeg_reads_them():
    content = with_scans(12, side=16)
    assert count_scans(content, 100) == 12
    assert count_scans(content, 11) == 12
    assert count_scans(content, 5) == 6  # no further than needed
    inside = b"\xff\xe1" + (4002).to_bytes(2, "big") + b"\xff\xda" * 2000  # a segment, as of a thumbnail
    assert count_scans(content[:2] + inside + content[2:], 100) == 12
    assert count_scans(content + b"\xff\xda" * 2000, 100) == 12  # a film after the image
    assert count_scans(content[:-2] + b"\xff\xda\x00\x00" * 2000 + content[-2:], 100) == 101  # no length hides one
    assert (
        count_scans(content[:-2] + b"\xff\x02\x0f\xff" + b"\xff\xda\x00\x02" * 2000 + content[-2:], 100) == 101
    )  # nor no marker
