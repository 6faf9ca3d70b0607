"""keras-retinanet's CSV or Pascal VOC to one COCO json.

    python -m retina_dist.convert format=csv annotations=train.csv classes=classes.csv output=train.json
    python -m retina_dist.convert format=voc annotations=VOC2007 split=train output=train.json

Training reads both forms directly (`data=csv`, `data=voc`); this is for other tools.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retina_dist.config.entry_point import entry_point
from retina_dist.detection.readers.keras_csv import read_csv
from retina_dist.detection.readers.voc import read_voc
from retina_dist.files import write_atomically
from retina_dist.settings import MISSING, setting


@dataclass
class ConvertConfig:
    """`python -m retina_dist.convert`."""

    format: str = setting(MISSING, choices=("csv", "voc"))
    annotations: str = setting(MISSING, "csv: the annotations file; voc: the VOC folder")
    classes: str | None = setting(None, "csv: the classes file")
    split: str = setting("train", "voc: name of the list in ImageSets/Main")
    output: str = setting(MISSING, "COCO json to write", writes="file")
    debug: bool = False


def convert(config: ConvertConfig) -> dict[str, Any]:
    """Write `output` and return its content."""
    source = Path(config.annotations)
    if config.format == "csv":
        coco = read_csv(source, Path(config.classes) if config.classes else source.parent / "classes.csv")
    else:
        coco = read_voc(source, config.split)
    output = Path(config.output)
    write_atomically(output, lambda temporary: temporary.write_text(json.dumps(coco)))
    counts = ", ".join(f"{len(coco[key])} {key}" for key in ("images", "annotations", "categories"))
    print(f"{output}: {counts}")
    return coco


@entry_point("convert", ConvertConfig)
def main(config: ConvertConfig) -> None:
    """Convert."""
    convert(config)


if __name__ == "__main__":
    main()
