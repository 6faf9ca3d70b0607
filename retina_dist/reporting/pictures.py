"""Images with a title, sheets of images, and the images of a report."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import count
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn.functional import pad
from torchvision.transforms.v2 import functional as F
from torchvision.utils import make_grid

from retina_dist.base.errors import DataError, ImageError
from retina_dist.base.files import write_json
from retina_dist.reporting.run_files import LISTS, MAX_LISTED, Details, read_typed

MAX_SIDE = 960  # px of an image that is kept
LONG_SIDE = 640  # px; smaller images are enlarged, so that text is readable
WHITE = 255


def enlarged(image: Tensor) -> Tensor:
    """[3, h, w] RGB, 0 to 255 -> uint8 on the CPU, with a longer side of at least `LONG_SIDE`."""
    image = image.detach().cpu()
    if image.dtype != torch.uint8:
        image = image.round().clamp(0, 255).to(torch.uint8)
    return _scaled(image, max(1.0, LONG_SIDE / max(image.shape[-2:])))


def _scaled(image: Tensor, scale: float) -> Tensor:
    """The image with its sides times `scale`; the image itself for 1."""
    if scale == 1:
        return image
    size = [max(1, round(side * scale)) for side in image.shape[-2:]]
    return F.resize_image(image, size, antialias=True)


def titled(image: Tensor, title: str) -> Tensor:
    """uint8 [3, h, w] -> the same on white below a line of text."""
    size = font_size(image)
    picture = F.to_pil_image(pad(image, (0, 0, 2 * size, 0), value=WHITE))
    ImageDraw.Draw(picture).text((2, size // 3), title, font=font_of(size), fill="black")
    return F.pil_to_tensor(picture)


def sheet(pictures: Sequence[Tensor], columns: int | None = None) -> Image.Image:
    """uint8 [3, h, w] of any sizes row by row on white, by default nearly as a square."""
    _, heights, widths = zip(*(picture.shape for picture in pictures), strict=True)
    cells = []
    for picture, height, width in zip(pictures, heights, widths, strict=True):
        margins = (0, max(widths) - width, 0, max(heights) - height)
        cells.append(pad(picture, margins, value=WHITE))
    columns = columns or round(len(pictures) ** 0.5 + 0.49)
    return F.to_pil_image(make_grid(cells, nrow=columns, padding=8, pad_value=WHITE))


def font_size(image: Tensor) -> int:
    """Pixels of a letter's height that suit the image."""
    return max(12, round(max(image.shape[-2:]) / 50))


def write_details(
    folder: Path,
    read: Callable[[int], Tensor],
    marks: Callable[[int, Mapping[str, object]], list[dict[str, object]]] | None = None,
    **more: object,
) -> None:
    """Write details.json, and the images that analysis.json lists first.

    An image that cannot be read is left out; images of earlier details are deleted.

    Args:
        folder: where analysis.json is, and details.json and images/ will be.
        read: gives an image, uint8 [3, h, w], by its id.
        marks: gives what is on an image: `kind` ("object" or "prediction"), `text`, and `place`:
            x, y, width and height in its pixels.
        more: other content of details.json.
    """
    _delete_earlier(folder)
    analysis: Mapping[str, Any] = {}
    if (folder / "analysis.json").is_file():
        analysis = json.loads((folder / "analysis.json").read_text(encoding="utf-8"))
    listed: list[dict[str, object]] = []
    for kind in LISTS:
        listed += analysis.get(kind, ())[:MAX_LISTED]

    images = {}
    for image_id in dict.fromkeys(map(itemgetter("image_id"), listed)):
        try:
            pixels = read(image_id)
        except ImageError:
            continue
        height, width = pixels.shape[-2:]
        images[image_id] = {
            "file": _save_small(pixels, folder, image_id),
            "width": width,
            "height": height,
            "marks": marks(image_id, analysis) if marks else [],
        }
    write_json(folder / "details.json", {**more, "images": images}, indent=None)


def _delete_earlier(folder: Path) -> None:
    """Delete the images that an earlier details.json lists; images/ may have other files."""
    try:
        before = read_typed(folder / "details.json", Details)
    except DataError:  # it is not ours
        return
    for picture in before.images.values():
        name = Path(picture.file).name
        if name and not (folder / "images").is_symlink():
            (folder / "images" / name).unlink(missing_ok=True)


def _save_small(pixels: Tensor, folder: Path, image_id: int) -> str:
    """Save an image of at most MAX_SIDE pixels a side below `folder`/images; return its name."""
    for n in count():
        name = f"images/{image_id}{'_' * n}.jpg"
        if not (folder / name).exists():  # another file is not ours
            break

    pixels = _scaled(pixels, min(1.0, MAX_SIDE / max(pixels.shape[-2:])))
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    F.to_pil_image(pixels).save(folder / name, quality=85)
    return name


@cache
def font_of(size: int) -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    """DejaVu Sans, which has accents, Greek and Cyrillic, or Pillow's own font, which has ASCII."""
    try:
        return ImageFont.truetype("DejaVuSans.ttf", size)
    except OSError:
        return ImageFont.load_default(size)
