"""Run a checkpoint on images: boxes and a COCO results json, or classes and a CSV file.

    python -m retina_dist.predict checkpoint=runs/shapes input=FILE|FOLDER|GLOB

If a folder has no images, its subfolders are read. An unreadable file is named and left out; if all
are unreadable, the exit code is 2. Nothing is overwritten: without output_dir the results go to
predictions, predictions-2 and so on.
"""

from __future__ import annotations

from dataclasses import dataclass

from retina_dist.base.settings import MISSING, setting
from retina_dist.config.entry_point import entry_point
from retina_dist.config.run_config import OfCheckpoint, command_of_task
from retina_dist.data.settings import MAX_PIXELS
from retina_dist.task.predictor import task_of


@dataclass
class PredictConfig(OfCheckpoint):
    """`python -m retina_dist.predict`."""

    checkpoint: str = setting(MISSING, "a run folder, whose best.pt is taken, or a .pt file")
    input: str = setting(MISSING, "file, folder or glob")
    output_dir: str | None = setting(
        None, "a folder; null: predictions, predictions-2, ...", writes="folder"
    )
    score_threshold: float = setting(0.3, at_least=0, below=1)
    format: str = setting(
        "coco", "for a tool too (detectors)", choices=("coco", "fiftyone", "label_studio", "cvat")
    )
    tile: int | None = setting(
        None, "px: detect in windows of this size too, for small objects", at_least=32
    )
    tile_overlap: float = setting(
        0.2, "share of a window that its neighbour repeats", at_least=0, below=0.9
    )
    max_pixels: int = setting(MAX_PIXELS, "a file whose header claims more is left out", at_least=1)
    device: str = "auto"
    precision: str = setting("fp32", choices=("fp32", "tf32", "bf16", "fp16"))
    debug: bool = False


@entry_point("predict", PredictConfig)
def main(config: PredictConfig) -> None:
    """Draw and write."""
    command_of_task(task_of(config), "predict")(config)


if __name__ == "__main__":
    main()
