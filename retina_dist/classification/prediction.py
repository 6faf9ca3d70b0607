"""The classes of images: a CSV file, and the images with their class and probability."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from PIL import Image, ImageDraw

from retina_dist.classification.classifier import TrainedClassifier
from retina_dist.config.commands import PredictConfig
from retina_dist.data.image_files import find_images, read_images
from retina_dist.files import write_atomically
from retina_dist.strategies.single_device import SingleDeviceStrategy
from retina_dist.text import escape


def predict(config: PredictConfig) -> Path:
    """Write `output_dir`/NAME.jpg for each image and `output_dir`/predictions.csv; return the folder.

    A row has the file, its class, that one's probability and those of all classes. A file that cannot be read is named and left
    out; with none left, DataError.
    """
    files = find_images(config.input)
    device = SingleDeviceStrategy(config.device).device
    classifier = TrainedClassifier.from_checkpoint(config.checkpoint, device=str(device), precision=config.precision)  # type: ignore[arg-type]
    folder = Path(config.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    rows = [["file", "class", "probability", *classifier.classes]]
    for _, file, pixels, name in read_images(files, config.input, config.max_pixels):
        shares = classifier.predict([pixels])[0].tolist()
        best = max(range(len(shares)), key=shares.__getitem__)
        rows.append([str(file), classifier.classes[best], *(f"{s:.6f}" for s in (shares[best], *shares))])
        label = f"{classifier.classes[best]} {shares[best]:.3f}"
        _labelled(Image.fromarray(pixels.permute(1, 2, 0).numpy()), label).save(folder / f"{name}.jpg", quality=92)
        print(escape(f"{file}: {label} -> {folder / name}.jpg"))
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows(rows)
    write_atomically(
        folder / "predictions.csv",
        lambda temporary: temporary.write_text(table.getvalue(), encoding="utf-8", errors="surrogateescape"),
    )
    print(f"{len(rows) - 1} images and predictions.csv in {folder}")
    return folder


def _labelled(image: Image.Image, text: str) -> Image.Image:
    """The image with a line of text below it."""
    line = 16
    sheet = Image.new("RGB", (max(image.width, 6 * len(text) + 8), image.height + line), "white")
    sheet.paste(image, (0, 0))
    ImageDraw.Draw(sheet).text((3, image.height + 2), text.encode("latin-1", "replace").decode("latin-1"), fill="black")
    return sheet
