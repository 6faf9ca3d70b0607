"""Metrics of a checkpoint, or of a COCO results json.

    python -m retina_dist.evaluate checkpoint=runs/shapes/checkpoints/best.pt
    python -m retina_dist.evaluate checkpoint=runs/drawn_classes/checkpoints/best.pt root=FOLDER
    python -m retina_dist.evaluate checkpoint=… annotations=FILE.json images=FOLDER
    python -m retina_dist.evaluate checkpoint=RetinaNet_ResNet50_FPN_Weights.COCO_V1 annotations=… images=…
    python -m retina_dist.evaluate results=FILE.json annotations=FILE.json
    torchrun --nproc-per-node 8 -m retina_dist.evaluate checkpoint=…      the images shared out over processes

Of a detector the twelve numbers by pycocotools' definitions, and AP of each class; of a classifier accuracies, and for two
classes sensitivity, specificity and ROC-AUC.
"""

from __future__ import annotations

from retina_dist.config.commands import EvaluateConfig
from retina_dist.config.entry_point import entry_point
from retina_dist.run.build import task_of
from retina_dist.strategies.launch_environment import detect_launch


@entry_point("evaluate")
def main(config: EvaluateConfig) -> None:
    """Print the table, once."""
    table = task_of(config.checkpoint).evaluate(config)
    if detect_launch().rank == 0:
        print(table)


if __name__ == "__main__":
    main()
