"""The model of a checkpoint for other runtimes, compared with the original before that.

    python -m retina_dist.export checkpoint=runs/shapes/checkpoints/best.pt output=model.onnx

`.onnx` and `.pt2` take one image, uint8 RGB [1, 3, h, w], already resized. Those of a detector give
boxes [N, 4] xyxy in its pixels, scores [N] and labels [N], NMS included; those of a classifier,
whose h and w are its image size, probabilities [1, K]. Categories or classes, input size and
versions are in the file. `.pt` is a state_dict for torchvision's own class, and nothing else.
"""

from retina_dist.config.entry_point import entry_point
from retina_dist.task.predictor import command_of
from retina_dist.task.settings import ExportConfig


@entry_point("export", ExportConfig)
def main(config: ExportConfig) -> None:
    """Export."""
    command_of(config, "export")(config)


if __name__ == "__main__":
    main()
