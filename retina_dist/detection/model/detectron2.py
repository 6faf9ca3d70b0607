"""A RetinaNet that Detectron2 trained, under our names.

Equal in arithmetic where its backbone has STRIDE_IN_1X1=False but for corners of anchors, which
torchvision rounds to whole pixels. P6 of the default configuration is made of C5, which does not
fit variant v1: a load reports it. Names and order of anchors:
https://github.com/facebookresearch/detectron2, modeling/meta_arch/retinanet.py and
modeling/anchor_generator.py.
"""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from retina_dist.base.errors import CheckpointError

BGR = (103.530, 116.280, 123.675)  # its default pixel_mean, with a pixel_std of 1
# Theirs, as a pattern, and ours; `_our_name` counts stages, maps and children as torchvision does.
NAMES = (
    (r"backbone\.bottom_up\.stem\.conv1\.norm\.(?P<rest>.+)", "backbone.body.bn1.{rest}"),
    (r"backbone\.bottom_up\.stem\.conv1\.weight", "backbone.body.conv1.weight"),
    (r"(?P<block>.+)\.conv(?P<i>\d)\.norm\.(?P<rest>.+)", "{block}.bn{i}.{rest}"),
    (r"(?P<block>.+)\.shortcut\.norm\.(?P<rest>.+)", "{block}.downsample.1.{rest}"),
    (r"(?P<block>.+)\.shortcut\.weight", "{block}.downsample.0.weight"),
    (r"backbone\.bottom_up\.res(?P<stage>\d)\.(?P<rest>.+)", "backbone.body.layer{layer}.{rest}"),
    (r"backbone\.fpn_lateral(?P<map>\d)\.(?P<rest>.+)", "backbone.fpn.inner_blocks.{n}.0.{rest}"),
    (r"backbone\.fpn_output(?P<map>\d)\.(?P<rest>.+)", "backbone.fpn.layer_blocks.{n}.0.{rest}"),
    (r"backbone\.top_block\.(?P<rest>.+)", "backbone.fpn.extra_blocks.{rest}"),
    (
        r"head\.cls_subnet\.(?P<child>\d)\.(?P<rest>.+)",
        "head.classification_head.conv.{conv}.0.{rest}",
    ),
    (
        r"head\.bbox_subnet\.(?P<child>\d)\.(?P<rest>.+)",
        "head.regression_head.conv.{conv}.0.{rest}",
    ),
    (r"head\.cls_score\.(?P<rest>.+)", "head.classification_head.cls_logits.{rest}"),
    (r"head\.bbox_pred\.(?P<rest>.+)", "head.regression_head.bbox_reg.{rest}"),
)


def is_detectron2(state: Mapping[str, Tensor]) -> bool:
    """Whether these are the tensors of Detectron2's RetinaNet."""
    return "head.cls_score.weight" in state and "head.bbox_pred.weight" in state


def from_detectron2(
    state: Mapping[str, Tensor], sizes: int, ratios: int, std: Tensor
) -> dict[str, Tensor]:
    """The tensors under our names.

    Its images are 0..255, mostly BGR, ours RGB over 255 and `std`: the first convolution takes that
    over. Its anchors of a cell are ordered by size, then ratio, ours by ratio, then size.

    Args:
        state: the tensors under Detectron2's names.
        sizes: anchor sizes of a cell.
        ratios: aspect ratios of a cell.
        std: [3], what our images are divided by after 255.

    Raises CheckpointError for another mean than ImageNet's.
    """
    mean = state.get("pixel_mean", torch.tensor(BGR)).flatten()
    their_std = state.get("pixel_std", torch.ones(3)).flatten()
    if not torch.allclose(
        mean.sort()[0].double(), torch.tensor(BGR, dtype=torch.float64), atol=0.5
    ):
        raise CheckpointError(
            f"Detectron2's pixel_mean={mean.tolist()} is not ImageNet's; train with that one."
        )
    order = [2, 1, 0] if bool(mean[0] <= mean[-1]) else [0, 1, 2]
    per_anchor = ("head.cls_score.", "head.bbox_pred.")
    ours = {}
    for name, value in state.items():
        if name.startswith(("anchor_generator.", "pixel_")):
            continue
        if name == "backbone.bottom_up.stem.conv1.weight":
            value = (
                value[:, order]
                * (255 * std.flatten().to(value) / their_std[order].to(value))[:, None, None]
            )
        elif name.startswith(per_anchor) and len(value) % (sizes * ratios) == 0:
            value = value.unflatten(0, (sizes, ratios, -1)).transpose(0, 1).flatten(0, 2)
        ours[_our_name(name)] = value
    return ours


def _our_name(name: str) -> str:
    """The name after all of `NAMES`, in order: a block's own name changes after its layer's."""
    for pattern, new in NAMES:
        match = re.fullmatch(pattern, name)
        if match:
            found = match.groupdict("0")
            numbers = {
                "layer": int(found.get("stage", 1)) - 1,  # res2 is layer1
                "n": int(found.get("map", 3)) - 3,  # C3 is the first map
                # ReLUs between the convolutions are children, too
                "conv": int(found.get("child", 0)) // 2,
            }
            name = new.format(**numbers, **found)
    return name
