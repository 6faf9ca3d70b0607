"""Metrics of a checkpoint, or of a COCO results json.

    python -m retina_dist.evaluate checkpoint=runs/shapes/checkpoints/best.pt
    python -m retina_dist.evaluate checkpoint=runs/drawn_classes/checkpoints/best.pt root=FOLDER
    python -m retina_dist.evaluate checkpoint=… root=FOLDER split=test
    python -m retina_dist.evaluate checkpoint=… annotations=FILE.json images=FOLDER
    python -m retina_dist.evaluate results=FILE.json annotations=FILE.json
    python -m retina_dist.evaluate checkpoint=… certify=[model.onnx,model.pt2]
    torchrun --nproc-per-node 8 -m retina_dist.evaluate checkpoint=…

`checkpoint=RetinaNet_ResNet50_FPN_Weights.COCO_V1` takes torchvision's weights. Under a launcher
the processes share the images. For a detector it prints pycocotools' twelve numbers and AP of each
class; for a classifier accuracies and, with two classes, sensitivity, specificity and ROC-AUC.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from retina_dist.base.errors import ConfigError
from retina_dist.base.settings import setting
from retina_dist.config.entry_point import entry_point
from retina_dist.config.run_config import command_of_task
from retina_dist.reporting.page import page_if_possible
from retina_dist.reporting.run_report import write_report
from retina_dist.serving.server import on_loopback
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
    certify: list[str] | None = setting(
        None,
        "exported files: compare them, the server and tiles with the checkpoint, and write "
        "certificate.json into output_dir, or beside the first file",
        remedy="write certify=[model.onnx,model.pt2]",
    )
    num_images: int | None = setting(None, "of a certificate, the first; null: all", at_least=1)

    def check(self) -> None:
        """Raise ConfigError where settings exclude each other."""
        super().check()
        if self.certify and (self.results or self.calibrate or self.max_detections):
            raise ConfigError(
                "certify compares a checkpoint with files that were exported from it; leave out "
                "results, calibrate and max_detections."
            )
        if self.num_images and not self.certify:
            raise ConfigError(
                f"num_images={self.num_images} has no effect without certify: "
                "evaluate takes all images; leave it out."
            )


@entry_point("evaluate", EvaluateConfig)
def main(config: EvaluateConfig) -> None:
    """Print the table, once, or the certificate."""
    if config.certify:
        if detect_launch().world_size > 1:
            raise ConfigError("certify is for one process; leave out the launcher.")
        command_of_task(task_of(config), "certify")(config, on_loopback)
        return
    table = command_of_task(task_of(config), "evaluate")(config)
    if detect_launch().rank:
        return
    print(table)
    if config.output_dir:
        folder = Path(config.output_dir)
        print(f"\n{page_if_possible(partial(write_report, folder), folder)}")


if __name__ == "__main__":
    main()
