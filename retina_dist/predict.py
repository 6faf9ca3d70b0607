"""What a checkpoint finds in images: boxes and a COCO results json, or classes and a CSV file.

    python -m retina_dist.predict checkpoint=runs/shapes/checkpoints/best.pt input=FILE|FOLDER|GLOB

A file that cannot be read is named and left out; with none left the exit code is 2.
"""

from __future__ import annotations

from retina_dist.config.commands import PredictConfig
from retina_dist.config.entry_point import entry_point
from retina_dist.run.build import task_of


@entry_point("predict")
def main(config: PredictConfig) -> None:
    """Draw and write."""
    task_of(config.checkpoint).predict(config)


if __name__ == "__main__":
    main()
