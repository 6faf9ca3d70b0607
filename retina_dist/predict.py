"""Boxes on images, and a COCO results json.

    python -m retina_dist.predict checkpoint=runs/shapes/checkpoints/best.pt input=FILE|FOLDER|GLOB

Layer 4. A file that cannot be read is named and left out; with none left the exit code is 2.
"""

from __future__ import annotations

from retina_dist.config.commands import PredictConfig
from retina_dist.config.entry_point import entry_point
from retina_dist.detection.prediction import predict


@entry_point("predict")
def main(config: PredictConfig) -> None:
    """Draw and write."""
    predict(config)


if __name__ == "__main__":
    main()
