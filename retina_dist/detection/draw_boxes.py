"""Boxes on drawings: what the annotations say, what augmentation made of them, what a model found.

Boxes are xyxy in pixels of the drawing they are drawn on. Sizes of lines and text follow the
drawing; small drawings are enlarged so that the text is readable.
"""

from __future__ import annotations

import colorsys
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from math import ceil
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from retina_dist.detection.batch import Batch, Detections

Color = tuple[int, int, int]
Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

MIN_LONG_SIDE_PX = 640  # smaller drawings are enlarged to this
GAP_PX = 8
PAPER, INK, FAINT = (255, 255, 255), (34, 34, 34), (110, 110, 110)

# Bright, and far from each other in hue or lightness; after them colours are computed.
_PALETTE: tuple[Color, ...] = (
    (230, 57, 70),
    (46, 160, 255),
    (60, 190, 90),
    (255, 183, 3),
    (165, 90, 230),
    (0, 200, 200),
    (255, 110, 180),
    (240, 120, 30),
    (150, 220, 50),
    (70, 90, 220),
    (170, 110, 60),
    (0, 130, 110),
)


def class_color(label: int) -> Color:
    """The colour of a class, the same in every drawing; those of the first dozens of classes all differ."""
    if label < len(_PALETTE):
        return _PALETTE[label]
    # golden ratio steps never come back to a hue, and spread evenly however many there are
    hue = (label * 0.618034) % 1
    red, green, blue = colorsys.hsv_to_rgb(hue, (0.9, 0.55)[label % 2], (1.0, 0.86, 0.72)[label % 3])
    return round(red * 255), round(green * 255), round(blue * 255)


def draw_boxes(
    image: Tensor,
    boxes: Tensor,
    labels: Tensor,
    names: Sequence[str],
    scores: Tensor | None = None,
    *,
    min_long_side: int = MIN_LONG_SIDE_PX,
) -> Image.Image:
    """`image` [3, h, w] RGB, 0 to 255, as a drawing with `boxes` [n, 4] in their classes' colours, name and score.

    The drawing is enlarged, sides in proportion, where its long side is below `min_long_side`. Texts keep
    clear of each other: one that finds no free place at its box is left out, earlier boxes choose first.
    Boxes reaching out of the drawing are cut, those that are not finite are left out.
    """
    boxes = boxes.detach().cpu()
    scale = max(1.0, min_long_side / max(image.shape[-2:]))
    drawing = to_pil(image, scale)
    draw = ImageDraw.Draw(drawing)
    width, font = max(1, round(min(drawing.size) / 300)), _font(max(12, round(max(drawing.size) / 55)))
    texts = [_name(names, label) for label in labels.tolist()]
    if scores is not None:
        texts = [f"{text} {score:.2f}" for text, score in zip(texts, scores.tolist(), strict=True)]
    drawn = boxes.isfinite().all(dim=1).nonzero().flatten().tolist()
    colors = {i: class_color(int(labels[i])) for i in drawn}
    rectangles = {i: _pixels((boxes[i] * scale).tolist(), drawing.size) for i in drawn}
    for i in sorted(drawn, key=lambda i: -rectangles[i].area):  # the small ones on top
        _draw_rectangle(draw, rectangles[i], colors[i], width)
    taken: list[_Rectangle] = []
    for i in drawn:
        place = _label_place(_label_size(draw, texts[i], font, width), i, rectangles, drawing.size, taken)
        if place is not None:
            _draw_label(draw, texts[i], place, colors[i], font, width)
            taken.append(place)
    return drawing


def side_by_side(
    image: Tensor,
    truth_boxes: Tensor,
    truth_labels: Tensor,
    detections: Detections,
    names: Sequence[str],
    *,
    min_score: float = 0.3,
) -> Image.Image:
    """Ground truth on the left, detections scored `min_score` and above on the right, each under a header."""
    kept = detections["scores"] >= min_score
    boxes, labels, scores = detections["boxes"][kept], detections["labels"][kept], detections["scores"][kept]
    truth = draw_boxes(image, truth_boxes, truth_labels, names)
    found = draw_boxes(image, boxes, labels, names, scores)
    return mosaic(
        [
            _with_header(truth, f"ground truth: {_boxes(len(truth_labels))}", truth_labels, names),
            _with_header(found, f"prediction: {_boxes(len(labels))}, score {min_score:.2f} and above", labels, names),
        ],
        columns=2,
    )


def batch_mosaic(batch: Batch, names: Sequence[str]) -> Image.Image:
    """All images of a batch as the model gets them, without the padding, with the boxes it is to find."""
    drawings = []
    for i in range(len(batch)):
        height, width = batch.image_sizes[i].tolist()
        number = int(batch.num_boxes[i])
        labels = batch.labels[i, :number]
        drawing = draw_boxes(batch.images[i, :, :height, :width], batch.boxes[i, :number], labels, names)
        title = f"image {int(batch.image_ids[i])}, {width} x {height}: {_boxes(number)}"
        drawings.append(_with_header(drawing, title, labels, names))
    return mosaic(drawings)


def mosaic(drawings: Sequence[Image.Image], columns: int | None = None) -> Image.Image:
    """Images row by row on white, rows and columns aligned; by default about as many columns as rows.

    Raises ValueError when there are none.
    """
    if not drawings:
        raise ValueError("a mosaic needs at least one drawing.")
    columns = min(len(drawings), columns or round(len(drawings) ** 0.5 + 0.49))
    rows = [drawings[i : i + columns] for i in range(0, len(drawings), columns)]
    widths = [max(drawing.width for drawing in drawings[c::columns]) for c in range(columns)]
    heights = [max(drawing.height for drawing in row) for row in rows]
    lefts = list(accumulate((width + GAP_PX for width in widths), initial=GAP_PX))
    tops = list(accumulate((height + GAP_PX for height in heights), initial=GAP_PX))
    sheet = Image.new("RGB", (lefts[-1], tops[-1]), PAPER)
    for i, drawing in enumerate(drawings):
        sheet.paste(drawing, (lefts[i % columns], tops[i // columns]))
    return sheet


def to_pil(image: Tensor, scale: float = 1.0) -> Image.Image:
    """[3, h, w] RGB, 0 to 255 -> a drawing whose sides are `scale` times as long."""
    if image.is_floating_point():  # resized on the device
        image = image.round().clamp(0, 255).to(torch.uint8)
    drawing = Image.fromarray(image.detach().cpu().permute(1, 2, 0).contiguous().numpy())
    if scale == 1:
        return drawing
    size = max(1, round(drawing.width * scale)), max(1, round(drawing.height * scale))
    return drawing.resize(size, Image.Resampling.BICUBIC)


class _Rectangle(NamedTuple):
    """Whole pixels; x2 and y2 are the first ones outside."""

    x1: int
    y1: int
    x2: int
    y2: int

    @property
    def area(self) -> int:
        return max(0, self.x2 - self.x1) * max(0, self.y2 - self.y1)

    def overlap(self, other: _Rectangle) -> int:
        x1, y1 = max(self.x1, other.x1), max(self.y1, other.y1)
        x2, y2 = min(self.x2, other.x2), min(self.y2, other.y2)
        return _Rectangle(x1, y1, x2, y2).area

    def within(self, width: int, height: int) -> bool:
        return self.x1 >= 0 and self.y1 >= 0 and self.x2 <= width and self.y2 <= height


def _pixels(xyxy: Sequence[float], size: tuple[int, int]) -> _Rectangle:
    """The pixels of a box in a drawing of that size, one at least, so that a box without an area is a dot."""
    (x1, x2), (y1, y2) = (
        (min(max(round(low), 0), side - 1), min(max(round(high), 0), side))
        for low, high, side in zip(xyxy[:2], xyxy[2:], size, strict=True)
    )
    return _Rectangle(x1, y1, max(x2, x1 + 1), max(y2, y1 + 1))


def _draw_rectangle(draw: ImageDraw.ImageDraw, box: _Rectangle, color: Color, width: int) -> None:
    draw.rectangle((box.x1, box.y1, box.x2 - 1, box.y2 - 1), outline=color, width=width)


def _label_size(draw: ImageDraw.ImageDraw, text: str, font: Font, line: int) -> tuple[int, int]:
    """Width and height of a label whose lines are `line` wide; the height is the same for every text."""
    _, top, _, bottom = draw.textbbox((0, 0), "Äg", font=font)
    return ceil(draw.textlength(text, font=font)) + 4 * line, ceil(bottom - top) + 4 * line


def _label_place(
    size: tuple[int, int],
    index: int,
    boxes: Mapping[int, _Rectangle],
    within: tuple[int, int],
    taken: Sequence[_Rectangle],
) -> _Rectangle | None:
    """Where to write the label of box `index`: in the drawing, on no other label, best on no small box."""
    width, height = size
    places = []
    for x, y in _corners(boxes[index], width, height):
        x = min(max(x, 0), within[0] - width)
        place = _Rectangle(x, y, x + width, y + height)
        if place.within(*within) and not any(place.overlap(other) for other in taken):
            places.append(place)
    small = [box for box in boxes.values() if box.area < 3 * width * height]
    return min(places, key=lambda place: sum(place.overlap(box) for box in small), default=None)


def _corners(box: _Rectangle, width: int, height: int) -> Iterator[tuple[int, int]]:
    """Top left corners for a label, best first: above, within a large box, below, within any, beside."""
    above, below, inside_top, inside_bottom = box.y1 - height, box.y2, box.y1, box.y2 - height
    large = box.area > 10 * width * height
    inside = (inside_top, inside_bottom)
    for y in (above, *inside, below) if large else (above, below, *inside):
        yield box.x1, y
        yield box.x2 - width, y
    for x in (box.x2, box.x1 - width):
        yield from ((x, y) for y in inside)


def _draw_label(draw: ImageDraw.ImageDraw, text: str, place: _Rectangle, color: Color, font: Font, line: int) -> None:
    draw.rectangle((place.x1, place.y1, place.x2 - 1, place.y2 - 1), fill=color)
    _, top, _, _ = draw.textbbox((0, 0), "Äg", font=font)
    draw.text((place.x1 + 2 * line, place.y1 + 2 * line - top), text, font=font, fill=_readable_on(color))


def _with_header(drawing: Image.Image, title: str, labels: Tensor, names: Sequence[str]) -> Image.Image:
    """The drawing under its title and a line that counts the boxes of each class in the class's colour."""
    size = max(13, round(drawing.width / 45))
    font, small, line = _font(size, bold=True), _font(round(size * 0.85)), round(size * 1.6)
    sheet = Image.new("RGB", (drawing.width, drawing.height + 2 * line), PAPER)
    sheet.paste(drawing, (0, 2 * line))
    draw = ImageDraw.Draw(sheet)
    draw.text((2, line // 2), title, font=font, fill=INK, anchor="lm")
    x, y = 2.0, line * 1.45
    counts = torch.bincount(labels.cpu(), minlength=1) if len(labels) else torch.zeros(0, dtype=torch.int64)
    for label in counts.argsort(descending=True, stable=True).tolist():
        text = f"{_name(names, label)} {counts[label]}"
        width = size * 1.1 + draw.textlength(text, font=small)
        if not counts[label]:
            break
        if x + width > drawing.width - size:
            draw.text((x, y), "…", font=small, fill=FAINT, anchor="lm")
            break
        chip = round(size * 0.35)
        draw.rectangle((round(x), y - chip, round(x) + 2 * chip, y + chip), fill=class_color(label))
        draw.text((x + size * 1.1, y), text, font=small, fill=INK, anchor="lm")
        x += width + size
    return sheet


def _boxes(number: int) -> str:
    return f"{number} box" if number == 1 else f"{number} boxes"


def _name(names: Sequence[str], label: int) -> str:
    """The class's name; its number where it has none."""
    return (names[label] if 0 <= label < len(names) else "") or str(label)


def _readable_on(color: Color) -> Color:
    """Black or white, whichever stands out more (relative luminance of ITU-R BT.601)."""
    red, green, blue = color
    return (0, 0, 0) if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else (255, 255, 255)


@lru_cache(maxsize=16)
def _font(size: int, bold: bool = False) -> Font:
    """DejaVu Sans, which comes with matplotlib and has accents, Greek, Cyrillic; without it Pillow's own."""
    package = importlib.util.find_spec("matplotlib")  # finds without importing
    for folder in (package.submodule_search_locations or ()) if package else ():
        file = Path(folder, "mpl-data", "fonts", "ttf", "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf")
        if file.exists():
            return ImageFont.truetype(str(file), size)
    return ImageFont.load_default(size)
