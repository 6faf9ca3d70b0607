"""Write a data set of any supported format as COCO json: `retina_dist.convert`."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from retina_dist.base.console import print_redacted
from retina_dist.base.errors import ConfigError, UserError
from retina_dist.base.files import check_folder, write_json
from retina_dist.base.registry import names
from retina_dist.base.settings import MISSING, setting
from retina_dist.base.unknown_keys import in_settings_of
from retina_dist.detection.settings import DetectionData
from retina_dist.detection.splits import read_split, sized_coco


@dataclass
class ConvertConfig:
    """`python -m retina_dist.convert`."""

    root: str | None = setting(None, "the data set's folder, as data.root")
    annotations: str | None = setting(None, "an annotation file instead of root")
    images: str | None = setting(None, "the folder of its images; null: the file's")
    format: str = setting("auto", "as data.format", choices=partial(names, "reader"))
    classes: str | None = setting(None, "csv: the classes file")
    split: str = setting("train", choices=("train", "val", "test"))
    output: str = setting(MISSING, "COCO json to write", writes="file")
    debug: bool = False


def convert(config: ConvertConfig) -> dict[str, object]:
    """Write `output` and return its content.

    Images are needed only for sizes that the annotations do not have. Raises ConfigError where
    `output` exists, which may be the annotations of another tool.
    """
    if not config.output.endswith(".json"):
        raise ConfigError(
            f"output={config.output} has no ending .json; give FILE.json, since convert writes "
            "COCO json alone (format=… is that of the data it reads)."
        )
    if Path(config.output).exists():
        raise ConfigError(f"output={config.output} exists; remove it, or give another file.")
    named = "train" if config.annotations else config.split
    files: dict[str, Any] = {}
    if named != "test":
        files = {f"{named}_annotations": config.annotations, f"{named}_images": config.images}
    data = DetectionData(
        name="convert", format=config.format, root=config.root, classes=config.classes, **files
    )
    data.check()
    if config.root:
        check_folder(config.root)
    elif not config.annotations:
        raise ConfigError("give root=FOLDER or annotations=FILE.")
    try:
        part = read_split(data.with_values(missing_images="ignore"), named, check=False)
    except UserError as error:
        raise type(error)(in_settings_of(ConvertConfig, str(error))) from error
    if part is None:
        raise ConfigError(
            f"root={config.root} has no {config.split} split; "
            "leave split out, or name annotations=FILE."
        )
    coco = sized_coco(part, data.max_pixels)
    write_json(Path(config.output), coco, indent=None)
    summary = f"{config.output}: {part.describe()}"
    unsized = sum("width" not in image for image in coco["images"])
    if unsized:
        summary += f"; {unsized} without a size, whose files are not there"
    print_redacted(summary)
    for warning in part.warnings:
        print_redacted(f"warning: {warning}")
    return coco
