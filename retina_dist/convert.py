"""Convert a data set of any supported format to COCO json.

    python -m retina_dist.convert root=/data/mine output=train.json
    python -m retina_dist.convert root=/data/mine split=val output=val.json
    python -m retina_dist.convert annotations=rows.csv classes=classes.csv output=train.json

The format is recognised. For other tools: training reads all formats directly (`data.root=FOLDER`).
"""

from retina_dist.config.entry_point import entry_point
from retina_dist.detection.convert import ConvertConfig, convert


@entry_point("convert", ConvertConfig)
def main(config: ConvertConfig) -> None:
    """Convert."""
    convert(config)


if __name__ == "__main__":
    main()
