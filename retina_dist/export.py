"""The model of a checkpoint for other runtimes, compared with the original before that.

    python -m retina_dist.export checkpoint=runs/shapes/checkpoints/best.pt output=model.onnx

`.onnx` and `.pt2` take one image, uint8 RGB [1, 3, h, w], already resized. Those of a detector give
boxes [N, 4] xyxy in its pixels, scores [N] and labels [N], NMS included; those of a classifier,
whose h and w are its image size, probabilities [1, K]. Categories or classes, input size and
versions are in the file. `.pt` is a state_dict for torchvision's own class, and nothing else.
"""

from dataclasses import dataclass

from retina_dist.base.settings import MISSING, setting
from retina_dist.config.entry_point import entry_point
from retina_dist.config.run_config import command_of_task
from retina_dist.task.predictor import DetectionLimits, task_of


@dataclass
class ExportConfig(DetectionLimits):
    """`python -m retina_dist.export`."""

    checkpoint: str = setting(MISSING, "a run folder, whose best.pt is taken, or a .pt file")
    output: str = setting(
        MISSING, "FILE.onnx, FILE.pt2 (torch.export), or FILE.pt (a state_dict)", writes="file"
    )
    size: list[int] | None = setting(
        None,
        "height and width in px of the only input taken; null: any",
        remedy="write size=[640,640] for 640 px a side",
    )
    images: str | None = setting(
        None, "a file, folder or glob of images to compare on; null: drawn shapes"
    )
    num_images: int = setting(3, "images to compare on", at_least=1, at_most=1000)
    box_tolerance: float = setting(
        0.1, "px; a larger difference to PyTorch is an error", at_least=0
    )
    score_tolerance: float = setting(1e-3, at_least=0)
    intended_use: str | None = setting(None, "for the model card; null: a general sentence")
    debug: bool = False


@entry_point("export", ExportConfig)
def main(config: ExportConfig) -> None:
    """Export."""
    command_of_task(task_of(config), "export")(config)


if __name__ == "__main__":
    main()
