"""The model of a checkpoint for other runtimes, compared with the original before the file is there.

    python -m retina_dist.export checkpoint=runs/shapes/checkpoints/best.pt output=model.onnx

`.onnx` and `.pt2` take one image, uint8 RGB [1, 3, h, w], already resized. Of a detector they give boxes [N, 4] xyxy in its pixels,
scores [N] and labels [N], NMS included; of a classifier, whose h and w are its image size, probabilities [1, K]. Categories or
classes, input size and versions are in the file. `.pt` is a state_dict for torchvision's own class, and nothing else.
"""

from __future__ import annotations

from retina_dist.config.commands import ExportConfig
from retina_dist.config.entry_point import entry_point
from retina_dist.run.build import task_of


@entry_point("export")
def main(config: ExportConfig) -> None:
    """Export."""
    task_of(config.checkpoint).export(config)


if __name__ == "__main__":
    main()
