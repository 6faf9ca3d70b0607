"""Images with a title, and sheets of them."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn.functional import pad
from torchvision.transforms.v2 import functional as F
from torchvision.utils import make_grid

LONG_SIDE = 640  # px; smaller images are enlarged, so that text is readable
WHITE = 255


def enlarged(image: Tensor) -> Tensor:
    """[3, h, w] RGB, 0 to 255 -> uint8 on the CPU, with a longer side of at least `LONG_SIDE`."""
    image = image.detach().cpu()
    image = image if image.dtype == torch.uint8 else image.round().clamp(0, 255).to(torch.uint8)
    scale = LONG_SIDE / max(image.shape[-2:])
    size = [max(1, round(side * scale)) for side in image.shape[-2:]]
    return F.resize_image(image, size, antialias=True) if scale > 1 else image


def titled(image: Tensor, title: str) -> Tensor:
    """uint8 [3, h, w] -> the same on white below a line of text."""
    size = font_size(image)
    picture = F.to_pil_image(pad(image, (0, 0, 2 * size, 0), value=WHITE))
    file = font_file()
    font = ImageFont.truetype(file, size) if file else ImageFont.load_default(size)
    ImageDraw.Draw(picture).text((2, size // 3), title, font=font, fill="black")
    return F.pil_to_tensor(picture)


def sheet(pictures: Sequence[Tensor], columns: int | None = None) -> Image.Image:
    """uint8 [3, h, w] of any sizes row by row on white; by default about as many columns as rows."""
    height, width = (max(picture.shape[side] for picture in pictures) for side in (1, 2))
    cells = [pad(p, (0, width - p.shape[2], 0, height - p.shape[1]), value=WHITE) for p in pictures]
    columns = columns or round(len(pictures) ** 0.5 + 0.49)
    return F.to_pil_image(make_grid(cells, nrow=columns, padding=8, pad_value=WHITE))


def font_size(image: Tensor) -> int:
    """Pixels of a letter's height that suit the image."""
    return max(12, round(max(image.shape[-2:]) / 50))


@cache
def font_file() -> str | None:
    """DejaVu Sans, which comes with matplotlib and has accents, Greek and Cyrillic; None without matplotlib."""
    package = importlib.util.find_spec("matplotlib")
    folder = (package.submodule_search_locations or [""])[0] if package else ""
    file = Path(folder, "mpl-data", "fonts", "ttf", "DejaVuSans.ttf")
    return str(file) if file.is_file() else None
