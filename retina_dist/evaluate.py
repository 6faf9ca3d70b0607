"""Metrics of a checkpoint, or of a COCO results json.

    python -m retina_dist.evaluate checkpoint=runs/shapes/checkpoints/best.pt
    python -m retina_dist.evaluate checkpoint=runs/drawn_classes/checkpoints/best.pt root=FOLDER
    python -m retina_dist.evaluate checkpoint=… root=FOLDER split=test
    python -m retina_dist.evaluate checkpoint=… annotations=FILE.json images=FOLDER
    python -m retina_dist.evaluate results=FILE.json annotations=FILE.json
    torchrun --nproc-per-node 8 -m retina_dist.evaluate checkpoint=…

`checkpoint=RetinaNet_ResNet50_FPN_Weights.COCO_V1` takes torchvision's weights. Under a launcher
the processes share the images. For a detector it prints pycocotools' twelve numbers and AP of each
class; for a classifier accuracies and, with two classes, sensitivity, specificity and ROC-AUC.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from retina_dist.base.settings import setting
from retina_dist.config.entry_point import entry_point
from retina_dist.config.run_config import command_of_task
from retina_dist.reporting.page import page_if_possible
from retina_dist.reporting.run_report import write_report
from retina_dist.strategies.launch_environment import detect_launch
from retina_dist.task.predictor import PredictorConfig, task_of


@dataclass
class EvaluateConfig(PredictorConfig):
    """`python -m retina_dist.evaluate`."""

    checkpoint: str | None = setting(
        None, "a run folder, whose best.pt is taken, or a .pt file ..."
    )
    results: str | None = setting(None, "... or a COCO results json")
    annotations: str | None = setting(None, "null: the checkpoint's validation set")
    images: str | None = None
    root: str | None = setting(None, "data.root, if the checkpoint's was moved or is behind a URL")
    split: str | None = setting(
        None, "null: what the checkpoint was validated on", choices=(None, "val", "test")
    )
    box_format: str | None = setting(
        None, "data.box_format of `annotations`", choices=(None, "xywh", "xyxy")
    )
    output_dir: str | None = setting(
        None, "a folder for metrics and their report; null: none", writes="folder"
    )
    max_detections: int | None = setting(
        None,
        "of a class on an image, in the tables and in AP@N beside COCO's numbers; null: COCO's 100",
        at_least=1,
    )
    calibrate: bool = setting(
        False, "fit a temperature of the scores to these images, and write it into the checkpoint"
    )
    batch_size: int = setting(8, at_least=1)
    num_workers: int = setting(2, at_least=0)


@entry_point("evaluate", EvaluateConfig)
def main(config: EvaluateConfig) -> None:
    """Print the table, once."""
    table = command_of_task(task_of(config), "evaluate")(config)
    if detect_launch().rank:
        return
    print(table)
    if config.output_dir:
        folder = Path(config.output_dir)
        print(f"\n{page_if_possible(partial(write_report, folder), folder)}")


if __name__ == "__main__":
    main()
