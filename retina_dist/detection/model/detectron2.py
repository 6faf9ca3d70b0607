"""A RetinaNet that Detectron2 trained, under our names.

Equal in arithmetic where its body has STRIDE_IN_1X1=False but for corners of anchors, which torchvision rounds to whole pixels.
P6 of the default configuration is made of C5, which does not fit variant v1: a load reports it. Names and order of anchors:
https://github.com/facebookresearch/detectron2, modeling/meta_arch/retinanet.py and modeling/anchor_generator.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from retina_dist.base.errors import CheckpointError

BGR = (103.530, 116.280, 123.675)  # its default pixel_mean, with a pixel_std of 1
NAMES = (
    (r"backbone\.bottom_up\.stem\.conv1\.norm\.(.+)", r"backbone.body.bn1.\1"),
    (r"backbone\.bottom_up\.stem\.conv1\.weight", r"backbone.body.conv1.weight"),
    (r"(.+)\.conv(\d)\.norm\.(.+)", r"\1.bn\2.\3"),
    (r"(.+)\.shortcut\.norm\.(.+)", r"\1.downsample.1.\2"),
    (r"(.+)\.shortcut\.weight", r"\1.downsample.0.weight"),
    (r"backbone\.bottom_up\.res(\d)\.(.+)", lambda m: f"backbone.body.layer{int(m[1]) - 1}.{m[2]}"),
    (
        r"backbone\.fpn_lateral(\d)\.(.+)",
        lambda m: f"backbone.fpn.inner_blocks.{int(m[1]) - 3}.0.{m[2]}",
    ),
    (
        r"backbone\.fpn_output(\d)\.(.+)",
        lambda m: f"backbone.fpn.layer_blocks.{int(m[1]) - 3}.0.{m[2]}",
    ),
    (r"backbone\.top_block\.(.+)", r"backbone.fpn.extra_blocks.\1"),
    (
        r"head\.cls_subnet\.(\d)\.(.+)",
        lambda m: f"head.classification_head.conv.{int(m[1]) // 2}.0.{m[2]}",
    ),
    (
        r"head\.bbox_subnet\.(\d)\.(.+)",
        lambda m: f"head.regression_head.conv.{int(m[1]) // 2}.0.{m[2]}",
    ),
    (r"head\.cls_score\.(.+)", r"head.classification_head.cls_logits.\1"),
    (r"head\.bbox_pred\.(.+)", r"head.regression_head.bbox_reg.\1"),
)


def is_detectron2(state: Mapping[str, Tensor]) -> bool:
    """Whether these are the tensors of Detectron2's RetinaNet."""
    return "head.cls_score.weight" in state and "head.bbox_pred.weight" in state


def from_detectron2(
    state: Mapping[str, Tensor], sizes: int, ratios: int, deviation: Tensor
) -> dict[str, Tensor]:
    """The tensors under our names, for a model with `sizes` x `ratios` anchors a cell.

    Its images are 0..255, mostly BGR, ours RGB over 255 and `deviation` [3]: the first convolution takes that over. Its anchors
    of a cell are ordered by size, then ratio, ours by ratio, then size. Raises CheckpointError for another mean than ImageNet's.
    """
    mean = state.get("pixel_mean", torch.tensor(BGR)).flatten()
    std = state.get("pixel_std", torch.ones(3)).flatten()
    if not torch.allclose(
        mean.sort()[0].double(), torch.tensor(BGR, dtype=torch.float64), atol=0.5
    ):
        raise CheckpointError(
            f"Detectron2's pixel_mean={mean.tolist()} is not ImageNet's; train with that one."
        )
    is_bgr = bool(mean[0] <= mean[-1])
    ours = {}
    for name, value in state.items():
        if name.startswith(("anchor_generator.", "pixel_")):
            continue
        if name == "backbone.bottom_up.stem.conv1.weight":
            order = [2, 1, 0] if is_bgr else [0, 1, 2]
            value = (
                value[:, order]
                * (255 * deviation.flatten().to(value) / std[order].to(value))[:, None, None]
            )
        elif (
            name.startswith(("head.cls_score.", "head.bbox_pred."))
            and len(value) % (sizes * ratios) == 0
        ):
            value = value.unflatten(0, (sizes, ratios, -1)).transpose(0, 1).flatten(0, 2)
        for pattern, new in NAMES:
            name = re.sub(f"^{pattern}$", new, name)
        ours[name] = value
    return ours
