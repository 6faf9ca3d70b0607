"""COCO metrics of a checkpoint or of a results json.

    python -m retina_dist.evaluate checkpoint=runs/shapes/checkpoints/best.pt
    python -m retina_dist.evaluate checkpoint=… annotations=FILE.json images=FOLDER
    python -m retina_dist.evaluate checkpoint=RetinaNet_ResNet50_FPN_Weights.COCO_V1 annotations=… images=…
    python -m retina_dist.evaluate results=FILE.json annotations=FILE.json
    torchrun --nproc-per-node 8 -m retina_dist.evaluate checkpoint=…      the images shared out over processes

Layer 4. The twelve numbers by pycocotools' definitions, and AP of each class.
"""

from __future__ import annotations

from retina_dist.config.commands import EvaluateConfig
from retina_dist.config.entry_point import entry_point
from retina_dist.detection.evaluation import evaluate, format_table
from retina_dist.strategies.launch_environment import detect_launch


@entry_point("evaluate")
def main(config: EvaluateConfig) -> None:
    """Print the table, once."""
    result = evaluate(config)
    if detect_launch().rank == 0:
        print(format_table(result))


if __name__ == "__main__":
    main()
