"""RetinaNet on a ResNet with a feature pyramid: torchvision's modules and names, a batched training path.

`RetinaNet` is a subclass of torchvision's class with the same parameters and buffers under the same names, so a
state_dict goes from one to the other unchanged. It takes a `Batch` (images already resized onto one canvas) where
torchvision takes lists.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torchvision.models import resnet
from torchvision.models.detection import RetinaNet as TorchvisionRetinaNet
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.retinanet import RetinaNetHead
from torchvision.ops import FrozenBatchNorm2d
from torchvision.ops.feature_pyramid_network import LastLevelP6P7

from retina_dist.detection.batch import Batch, Detections
from retina_dist.detection.model.losses import BoxLoss, retinanet_losses
from retina_dist.detection.model.postprocess import postprocess
from retina_dist.detection.model.targets import match
from retina_dist.errors import ConfigError
from retina_dist.model.layers import (
    FoldedBatchNorm2d,
    FoldedConv2d,
    StridedConv2d,
    as_kind,
    fold_frozen_norms,
    replace_modules,
    replace_strided_convs,
)
from retina_dist.model.sync_batch_norm import BatchNorm2d, SyncBatchNorm2d, count_only

BACKBONES = ("resnet18", "resnet34", "resnet50", "resnet101", "resnext50_32x4d")
MAX_PARAMETERS = 10**9  # of pyramid and heads; 4 GB, and three times that in training
MAX_ANCHORS = 1000  # of one cell; nine are usual
Norm = Literal["frozen_bn", "bn", "sync_bn"]
LossImpl = Literal["batched", "torchvision"]

# Lin et al. 2017, section 4: three sizes an octave on P3..P7, rounded down as torchvision does.
ANCHOR_SIZES = tuple((x, int(x * 2 ** (1 / 3)), int(x * 2 ** (2 / 3))) for x in (32, 64, 128, 256, 512))
ASPECT_RATIOS = (0.5, 1.0, 2.0)


class RetinaNet(TorchvisionRetinaNet):
    """torchvision's RetinaNet with a batched loss; build it with `build_retinanet`."""

    def __init__(
        self,
        backbone: nn.Module,
        num_classes: int,
        *,
        focal_alpha: float = 0.25,
        focal_gamma: float = 2.0,
        box_loss: BoxLoss = "l1",
        smooth_l1_beta: float = 1.0 / 9,
        loss_impl: LossImpl = "batched",
        **torchvision_arguments: Any,
    ) -> None:
        super().__init__(backbone, num_classes, **torchvision_arguments)
        self.focal_alpha, self.focal_gamma = focal_alpha, focal_gamma
        self.box_loss, self.smooth_l1_beta = box_loss, smooth_l1_beta
        self.loss_impl = loss_impl
        self.head.regression_head._loss_type = box_loss  # what torchvision's own loss path reads
        self._anchors: dict[tuple[int, int, torch.device], list[Tensor]] = {}
        self._statistics: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}

    def forward(self, batch: Batch) -> dict[str, Tensor] | list[Detections]:  # type: ignore[override]
        """In training mode the losses (name -> scalar, mean over real images), else the detections of each image."""
        if self.training:
            outputs, levels = self.predict(batch)
            return self.losses(outputs, torch.cat(levels), batch)
        return self.evaluate(batch)[1]

    def evaluate(self, batch: Batch) -> tuple[dict[str, Tensor], list[Detections]]:
        """Losses and detections of one forward pass; boxes in pixels of the stored images."""
        outputs, levels = self.predict(batch)
        return self.losses(outputs, torch.cat(levels), batch), self.detections(outputs, levels, batch)

    def backbone_parameters(self) -> Iterator[nn.Parameter]:
        """Those of the ResNet, whose learning rate `optimizer.backbone_lr_scale` multiplies."""
        return self.backbone.body.parameters()  # type: ignore[union-attr, operator]

    def predict(self, batch: Batch) -> tuple[dict[str, Tensor], list[Tensor]]:
        """The heads' outputs (cls_logits [B, A, K], bbox_regression [B, A, 4]) and the anchors of each pyramid level."""
        with count_only(self.backbone, batch.real):
            features = list(self.backbone(self.normalized(batch)).values())
        return self.head(features), self.anchors(batch.images.shape[-2:], features)

    def normalized(self, batch: Batch) -> Tensor:
        """Images [B, 3, H, W] in the network's type: ImageNet mean and deviation removed, zeros outside the image."""
        images = batch.images
        parameter = next(self.parameters())
        dtype = torch.promote_types(parameter.dtype, torch.float32)
        mean, deviation = self._statistics_of_images(images.device, dtype)
        height, width = images.shape[-2:]
        inside_y = torch.arange(height, device=images.device) < batch.image_sizes[:, :1]  # [B, H]
        inside_x = torch.arange(width, device=images.device) < batch.image_sizes[:, 1:]  # [B, W]
        inside = inside_y[:, None, :, None] & inside_x[:, None, None, :]
        # Divide in two steps, as torchvision does, so that the last bit agrees.
        values = (images.to(dtype) / 255 - mean) / deviation
        layout = torch.channels_last if _is_channels_last(self) else torch.contiguous_format
        return torch.where(inside, values, 0.0).contiguous(memory_format=layout)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """nn.Module.compile after filling the caches, which avoids one recompile."""
        parameter = next(self.parameters())
        self._statistics_of_images(parameter.device, torch.promote_types(parameter.dtype, torch.float32))
        super().compile(*args, **kwargs)

    def _statistics_of_images(self, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Mean and deviation [3, 1, 1], made once: a tensor of Python numbers would be copied and waited for each time."""
        if (device, dtype) not in self._statistics:
            lists = (self.transform.image_mean, self.transform.image_std)
            mean, deviation = (torch.tensor(x, device=device, dtype=dtype)[:, None, None] for x in lists)
            self._statistics[device, dtype] = mean, deviation
        return self._statistics[device, dtype]

    def anchors(self, canvas: Sequence[int], features: Sequence[Tensor]) -> list[Tensor]:
        """Anchors of each level [A_l, 4] xyxy float32 in canvas pixels, made once for each canvas.

        Always float32: in bfloat16 most anchors move by pixels and assignments change.
        """
        device = features[0].device
        key = (int(canvas[0]), int(canvas[1]), device)
        if torch.compiler.is_dynamo_compiling():  # filling the cache would cost a recompile
            return self._new_anchors(key[:2], features)
        if key not in self._anchors:
            self._anchors[key] = self._new_anchors(key[:2], features)
        return self._anchors[key]

    def _new_anchors(self, canvas: tuple[int, int], features: Sequence[Tensor]) -> list[Tensor]:
        device = features[0].device
        shapes = [torch.empty((1, 1, *f.shape[-2:]), device=device) for f in features]
        images = ImageList(torch.empty((1, 1, *canvas), device="meta"), [canvas])
        per_cell = self.anchor_generator.num_anchors_per_location()
        counts = [f.shape[-2] * f.shape[-1] * n for f, n in zip(features, per_cell, strict=True)]
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            return list(self.anchor_generator(images, shapes)[0].split(counts))

    def losses(self, outputs: dict[str, Tensor], anchors: Tensor, batch: Batch) -> dict[str, Tensor]:
        """`classification` and `bbox_regression`: scalars, mean over the real images of the batch, 0 if it has none."""
        with torch.autocast(anchors.device.type, enabled=False):
            if self.loss_impl == "torchvision":
                return self._torchvision_losses(outputs, anchors, batch)
            matcher = self.proposal_matcher
            with torch.no_grad():
                matched = match(batch.boxes, batch.num_boxes, anchors, matcher.high_threshold, matcher.low_threshold)
            return retinanet_losses(
                outputs["cls_logits"],
                outputs["bbox_regression"],
                anchors,
                matched,
                batch.boxes,
                batch.labels,
                real=batch.real,
                alpha=self.focal_alpha,
                gamma=self.focal_gamma,
                box_loss=self.box_loss,
                smooth_l1_beta=self.smooth_l1_beta,
            )

    def _torchvision_losses(self, outputs: dict[str, Tensor], anchors: Tensor, batch: Batch) -> dict[str, Tensor]:
        rows, counts = batch.real_rows(), batch.num_boxes.tolist()
        targets = [{"boxes": batch.boxes[i, : counts[i]], "labels": batch.labels[i, : counts[i]]} for i in rows]
        full = {k: v.to(torch.promote_types(v.dtype, torch.float32)) for k, v in outputs.items()}
        if not targets:
            nothing = torch.stack([v.sum() for v in full.values()]).sum() * 0.0
            return {"classification": nothing, "bbox_regression": nothing}
        if len(rows) < len(batch):
            full = {k: v[rows] for k, v in full.items()}
        return self.compute_loss(targets, full, [anchors] * len(targets))

    def detections(self, outputs: dict[str, Tensor], levels: list[Tensor], batch: Batch) -> list[Detections]:
        """What torchvision's `postprocess_detections` finds, for the whole batch at once; boxes in stored-image pixels."""
        with torch.autocast(levels[0].device.type, enabled=False):
            return postprocess(
                outputs["cls_logits"],
                outputs["bbox_regression"],
                levels,
                batch.image_sizes,
                batch.original_sizes,
                score_threshold=self.score_thresh,
                nms_threshold=self.nms_thresh,
                topk_candidates=self.topk_candidates,
                detections_per_image=self.detections_per_img,
            )


# Names of the parts in torchvision's model.
TORCHVISIONS: dict[type[nn.Module], type[nn.Module]] = {
    RetinaNet: TorchvisionRetinaNet,
    StridedConv2d: nn.Conv2d,
    FoldedConv2d: nn.Conv2d,
    FoldedBatchNorm2d: FrozenBatchNorm2d,
    BatchNorm2d: nn.BatchNorm2d,
    SyncBatchNorm2d: nn.BatchNorm2d,
}


def build_retinanet(
    *,
    num_classes: int,
    backbone: str = "resnet50",
    variant: Literal["v1", "v2"] = "v1",
    fpn_channels: int = 256,
    trainable_layers: int = 5,
    norm: Norm = "bn",
    norm_eps: float = 1e-5,
    anchor_sizes: Sequence[Sequence[int]] = ANCHOR_SIZES,
    aspect_ratios: Sequence[float] = ASPECT_RATIOS,
    score_threshold: float = 0.05,
    nms_threshold: float = 0.5,
    detections_per_image: int = 300,
    topk_candidates: int = 1000,
    foreground_iou: float = 0.5,
    background_iou: float = 0.4,
    focal_alpha: float = 0.25,
    focal_gamma: float = 2.0,
    box_loss: BoxLoss | None = None,
    smooth_l1_beta: float = 1.0 / 9,
    loss_impl: LossImpl = "batched",
) -> RetinaNet:
    """A RetinaNet with random weights.

    `variant="v1"` is torchvision's `retinanet_resnet50_fpn` (P6 from P5, plain heads, L1 boxes), `"v2"` its
    `retinanet_resnet50_fpn_v2` (P6 from C5, group-normalised heads, GIoU boxes). `trainable_layers` counts ResNet stages
    from the last, 5 being all. `norm` is that of the body: "frozen_bn" keeps statistics and scale fixed (torchvision's
    choice with pretrained weights), "bn" normalises each process's batch, "sync_bn" the batch of all processes once
    `sync_batch_norm.connect` was called. `box_loss=None` takes the variant's own. `num_classes` counts labels 0..K-1; there is no
    background class. Raises ConfigError for a setting that cannot work.
    """
    if backbone not in BACKBONES:
        raise ConfigError(f"model.backbone={backbone} is not known; use one of {', '.join(BACKBONES)}.")
    if not 0 <= trainable_layers <= 5:
        raise ConfigError(f"model.trainable_layers={trainable_layers} is not within 0..5 (5 trains the whole ResNet).")
    if variant == "v2" and (fpn_channels % 32 or fpn_channels < 64):
        raise ConfigError(
            f"model.fpn_channels={fpn_channels} does not make the 32 groups of two channels or more that variant v2 normalises "
            "over; use 64, 96, 128 or another multiple of 32."
        )
    per_cell = len(anchor_sizes[0]) * len(aspect_ratios)
    if per_cell > MAX_ANCHORS:
        raise ConfigError(
            f"model.anchor_sizes and model.aspect_ratios make {per_cell} anchors a cell; {MAX_ANCHORS} are the most."
        )
    # the pyramid's five convolutions of 3 x 3, the heads' eight, and their last two
    num_parameters = 9 * fpn_channels * (13 * fpn_channels + per_cell * (num_classes + 4))
    if num_parameters > MAX_PARAMETERS:
        raise ConfigError(
            f"model.fpn_channels={fpn_channels} with num_classes={num_classes} and {per_cell} anchors a cell makes "
            f"{num_parameters / 1e9:.1f} billion parameters; lower one of them to stay within {MAX_PARAMETERS / 1e9:g} billion."
        )
    box_loss = box_loss or ("giou" if variant == "v2" else "l1")
    if loss_impl == "torchvision" and (focal_alpha, focal_gamma) != (0.25, 2.0):
        raise ConfigError(
            f"model.loss_impl=torchvision has focal_alpha 0.25 and focal_gamma 2 built in, not {focal_alpha} and "
            f"{focal_gamma}; use model.loss_impl=batched."
        )

    body = resnet.__dict__[backbone](weights=None, norm_layer=_norm_layer(norm, norm_eps))
    _freeze(body, trainable_layers)
    if norm == "frozen_bn":
        fold_frozen_norms(body)
    width = body.inplanes // 8  # channels of layer1
    pyramid = BackboneWithFPN(
        body,
        return_layers={"layer2": "0", "layer3": "1", "layer4": "2"},
        in_channels_list=[2 * width, 4 * width, 8 * width],
        out_channels=fpn_channels,
        extra_blocks=LastLevelP6P7(fpn_channels if variant == "v1" else 8 * width, fpn_channels),
    )
    generator = anchor_generator(anchor_sizes, aspect_ratios)
    head = RetinaNetHead(
        fpn_channels,
        generator.num_anchors_per_location()[0],
        num_classes,
        norm_layer=partial(nn.GroupNorm, 32) if variant == "v2" else None,
    )
    model = RetinaNet(
        pyramid,
        num_classes,
        focal_alpha=focal_alpha,
        focal_gamma=focal_gamma,
        box_loss=box_loss,
        smooth_l1_beta=smooth_l1_beta,
        loss_impl=loss_impl,
        anchor_generator=generator,
        head=head,
        score_thresh=score_threshold,
        nms_thresh=nms_threshold,
        detections_per_img=detections_per_image,
        topk_candidates=topk_candidates,
        fg_iou_thresh=foreground_iou,
        bg_iou_thresh=background_iou,
    )
    replace_strided_convs(model)
    return model


def as_torchvision(model: RetinaNet, canvas: Sequence[int] | None = None) -> TorchvisionRetinaNet:
    """torchvision's own model with a copy of these weights, made of torchvision's classes only.

    With `canvas` (height, width) its transform leaves images of that size as they are.
    """
    theirs = as_kind(TorchvisionRetinaNet, copy.deepcopy(model))
    replace_modules(theirs, lambda m: as_kind(TORCHVISIONS[type(m)], m) if type(m) in TORCHVISIONS else m)
    if canvas is not None:
        theirs.transform.min_size, theirs.transform.max_size = (min(canvas),), max(canvas)
    return theirs.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload, no-any-return]


def anchor_generator(anchor_sizes: Sequence[Sequence[int]], aspect_ratios: Sequence[float]) -> AnchorGenerator:
    """torchvision's generator for the five levels P3 to P7, with the same aspect ratios (height / width) on each."""
    if len(anchor_sizes) != 5:
        raise ConfigError(f"model.anchor_sizes has {len(anchor_sizes)} levels; RetinaNet has five, P3 to P7.")
    return AnchorGenerator(tuple(map(tuple, anchor_sizes)), (tuple(aspect_ratios),) * 5)


def _norm_layer(kind: Norm, eps: float) -> Any:
    layers = {"frozen_bn": FrozenBatchNorm2d, "bn": BatchNorm2d, "sync_bn": SyncBatchNorm2d}
    return partial(layers[kind], eps=eps)


def _freeze(body: nn.Module, trainable_layers: int) -> None:
    """Stop the gradients of all but the last `trainable_layers` stages; with 5 the stem's norm trains too."""
    stages = ("layer4", "layer3", "layer2", "layer1", "conv1")[:trainable_layers]
    if trainable_layers == 5:
        stages += ("bn1",)
    for name, parameter in body.named_parameters():
        parameter.requires_grad_(name.startswith(("fc", *stages)))


def _is_channels_last(model: nn.Module) -> bool:
    return model.backbone.body.conv1.weight.is_contiguous(memory_format=torch.channels_last)  # type: ignore[union-attr, operator]
