#!/usr/bin/env python3
"""Cut the boxes of a detection data set out of its images, into a folder for each class: data for
task=classification.

  python scripts/crop_boxes.py DATA/annotations/instances_train.json DATA/train CELLS/train
  python scripts/crop_boxes.py DATA/annotations/instances_val.json DATA/val CELLS/val --margin 0.1
  python scripts/crop_boxes.py converted.json DATA CELLS/train    after retina-dist convert, whose
                                                                  file names start from its root

Annotations are COCO json, read as training reads them: crowd regions and boxes without an area are
left out, EXIF orientation is applied. Crops are PNG files CLASS/IMAGE-ID-NUMBER.png, NUMBER
counting the boxes of an image.
"""

import argparse
import math
import sys
from collections import Counter
from pathlib import Path

import torch
from torchvision.io import write_png

from retina_dist.base.errors import DataError, UserError
from retina_dist.base.text import pluralize
from retina_dist.data.images import read_image
from retina_dist.detection.readers.load import load_annotations


def crop_boxes(annotations: Path, images: Path, output: Path, margin: float = 0.0) -> Counter[str]:
    """Write the crops of all boxes below `output` and return how many each class has.

    A crop is its box, rounded outwards to whole pixels, and `margin` times its sides around it, as
    far as the image goes. Raises DataError for a class name that cannot be a folder's, and where
    `output` is not empty.
    """
    remedy = f"give, in place of {images}, the folder that the file names start from"
    data = load_annotations(annotations, images, remedy=remedy)
    names = data.categories.names
    for name in names:
        if name in (".", "..") or {"/", "\\", "\0"} & set(name):
            raise DataError(f"{annotations}: category {name!r} cannot name a folder; rename it.")
    if output.exists() and any(output.iterdir()):
        raise DataError(f"{output} is not empty; give another folder.")
    counts: Counter[str] = Counter()
    for record, boxes, labels in zip(data.records, data.boxes, data.labels, strict=True):
        pixels = read_image(record.path, annotated_size=(record.width, record.height))
        height, width = pixels.shape[-2:]
        stem = f"{Path(record.file_name).stem}-{record.image_id}"
        pairs = zip(boxes.tolist(), labels.tolist(), strict=True)
        for number, ((left, top, right, bottom), label) in enumerate(pairs):
            rows = span(top, bottom, margin, height)
            columns = span(left, right, margin, width)
            crop = pixels[:, rows, columns].contiguous(memory_format=torch.contiguous_format)
            path = output / names[label] / f"{stem}-{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_png(crop, str(path))
            counts[names[label]] += 1
    return counts


def span(start: float, stop: float, margin: float, length: int) -> slice:
    """The whole pixels from `start` to `stop` and `margin` times as many around, below `length`."""
    extra = margin * (stop - start)
    return slice(max(0, math.floor(start - extra)), min(length, math.ceil(stop + extra)))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("annotations", type=Path, help="COCO json")
    parser.add_argument("images", type=Path, help="folder that its file names start from")
    parser.add_argument("output", type=Path, help="folder for CLASS/*.png; new or empty")
    parser.add_argument(
        "--margin", type=float, default=0.0, help="share of a box's sides to add around it (0)"
    )
    options = parser.parse_args()
    if not 0 <= options.margin <= 10:
        parser.error(f"--margin {options.margin} is not from 0 to 10")
    try:
        counts = crop_boxes(options.annotations, options.images, options.output, options.margin)
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    listed = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    print(f"{options.output}: {pluralize(counts.total(), 'crop')} ({listed})")


if __name__ == "__main__":
    main()
