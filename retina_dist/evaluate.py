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

from functools import partial
from pathlib import Path

from retina_dist.config.entry_point import entry_point
from retina_dist.reporting.page import page_if_possible
from retina_dist.reporting.run_report import write_report
from retina_dist.serving.server import on_loopback
from retina_dist.task.predictor import command_of
from retina_dist.task.settings import EvaluateConfig


@entry_point("evaluate", EvaluateConfig)
def main(config: EvaluateConfig) -> None:
    """Print the table, once, or the certificate."""
    if config.certify:
        command_of(config, "certify")(config, on_loopback)
        return
    table = command_of(config, "evaluate")(config)
    if table:  # on the main rank
        print(table)
    if table and config.output_dir:
        folder = Path(config.output_dir)
        print(f"\n{page_if_possible(partial(write_report, folder), folder)}")


if __name__ == "__main__":
    main()
