"""Run a checkpoint on images: boxes and a COCO results json, or classes and a CSV file.

    python -m retina_dist.predict checkpoint=runs/shapes input=FILE|FOLDER|GLOB

If a folder has no images, its subfolders are read. An unreadable file is named and left out; if all
are unreadable, the exit code is 2. Nothing is overwritten: without output_dir the results go to
predictions, predictions-2 and so on.
"""

from retina_dist.config.entry_point import entry_point
from retina_dist.task.predictor import command_of
from retina_dist.task.settings import PredictConfig


@entry_point("predict", PredictConfig)
def main(config: PredictConfig) -> None:
    """Draw and write."""
    command_of(config, "predict")(config)


if __name__ == "__main__":
    main()
