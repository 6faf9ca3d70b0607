"""Run a checkpoint on images: boxes and a COCO results json, or classes and a CSV file.

    python -m retina_dist.predict checkpoint=runs/shapes input=FILE|FOLDER|GLOB

If a folder has no images, its subfolders are read. An unreadable file is named and left out; if all
are unreadable, the exit code is 2. Nothing is overwritten: without output_dir the results go to
predictions, predictions-2 and so on.
"""

from dataclasses import dataclass

from retina_dist.base.settings import MISSING, setting
from retina_dist.config.entry_point import entry_point
from retina_dist.config.run_config import command_of_task
from retina_dist.data.settings import MAX_PIXELS
from retina_dist.task.predictor import PredictorConfig, task_of


@dataclass
class PredictConfig(PredictorConfig):
    """`python -m retina_dist.predict`."""

    checkpoint: str = setting(MISSING, "a run folder, whose best.pt is taken, or a .pt file")
    input: str = setting(MISSING, "file, folder or glob")
    output_dir: str | None = setting(
        None, "a folder; null: predictions, predictions-2, ...", writes="folder"
    )
    format: str = setting(
        "coco", "for a tool too (detectors)", choices=("coco", "fiftyone", "label_studio", "cvat")
    )
    max_pixels: int = setting(MAX_PIXELS, "a file whose header claims more is left out", at_least=1)


@entry_point("predict", PredictConfig)
def main(config: PredictConfig) -> None:
    """Draw and write."""
    command_of_task(task_of(config), "predict")(config)


if __name__ == "__main__":
    main()
