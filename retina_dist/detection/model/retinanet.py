"""RetinaNet on a classifier with a feature pyramid: torchvision's modules and names, a batched
training path.

Parameters and buffers have torchvision's names, so that a state_dict goes from one to the other
unchanged.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.detection import RetinaNet as TorchvisionRetinaNet
from torchvision.models.detection._utils import Matcher
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.retinanet import RetinaNetHead
from torchvision.models.detection.transform import GeneralizedRCNNTransform
from torchvision.ops import FrozenBatchNorm2d, clip_boxes_to_image, nms
from torchvision.ops.feature_pyramid_network import FeaturePyramidNetwork, LastLevelP6P7

from retina_dist.base.arguments import check_types, public
from retina_dist.base.errors import ConfigError
from retina_dist.base.settings import validate
from retina_dist.detection.batch import Batch, Detections
from retina_dist.detection.model.added_classes import GroupedClassLayer
from retina_dist.detection.model.backbone import Backbone, Pyramid, children_of
from retina_dist.detection.model.build import SHAPE_DIVISOR, DetectionModel
from retina_dist.detection.model.losses import retinanet_losses
from retina_dist.detection.model.postprocess import (
    Limits,
    best_candidates,
    matrix_nms,
    offset_by_label,
    postprocess,
)
from retina_dist.detection.model.targets import decode, match
from retina_dist.detection.model.weights import (
    batch_norm_eps,
    eps_of,
    load_backbone_weights,
    load_weights,
    set_batch_norm_eps,
    weights_of,
)
from retina_dist.detection.settings import ModelConfig
from retina_dist.engine.checkpoint.store import located
from retina_dist.model.layers import (
    FoldedBatchNorm2d,
    FoldedConv2d,
    StridedConv2d,
    as_kind,
    replace_modules,
    replace_strided_convs,
)
from retina_dist.model.sync_batch_norm import BatchNorm2d, SyncBatchNorm2d, count_only

logger = logging.getLogger(__name__)


class RetinaNet(DetectionModel, TorchvisionRetinaNet):
    """torchvision's RetinaNet on a `Batch`, with a batched loss and random weights.

    `variant="v1"` is torchvision's `retinanet_resnet50_fpn` (P6 from P5, plain heads, L1 boxes),
    `"v2"` its `retinanet_resnet50_fpn_v2` (P6 from C5, group-normalised heads, GIoU boxes). `norm`
    is the body's: "frozen_bn" keeps statistics and scale fixed, "bn" normalises each process's
    batch, "sync_bn" the batch of all processes once `sync_batch_norm.connect` was called. Labels
    are 0..num_classes-1, without a background class.
    """

    mean: Tensor
    std: Tensor
    class_weights: Tensor | None  # [K] in the classification loss of a training
    # torchvision's, which has no types
    backbone: Pyramid
    anchor_generator: AnchorGenerator
    head: RetinaNetHead
    proposal_matcher: Matcher
    transform: GeneralizedRCNNTransform
    detections_per_img: int
    topk_candidates: int

    settings: Any = ModelConfig
    loss_names = ("classification", "bbox_regression")

    def __init__(self, settings: ModelConfig, num_classes: int) -> None:
        settings.check_size(num_classes)
        channels = settings.fpn_channels
        is_v2 = settings.variant == "v2"
        assert settings.norm, "settled by the settings"
        body = Backbone(
            settings.backbone,
            settings.norm,
            eps=settings.norm_eps,
            checkpointing=settings.activation_checkpointing,
        )
        body.freeze(settings.trainable_layers)
        fpn = FeaturePyramidNetwork(
            body.channels,
            channels,
            extra_blocks=LastLevelP6P7(body.channels[-1] if is_v2 else channels, channels),
        )
        generator = anchor_generator(settings.anchor_sizes, settings.aspect_ratios)
        norm = partial(nn.GroupNorm, 32) if is_v2 else None
        TorchvisionRetinaNet.__init__(
            self,
            Pyramid(body, fpn, channels),
            num_classes,
            anchor_generator=generator,
            head=RetinaNetHead(channels, settings.anchors_per_cell, num_classes, norm_layer=norm),
            score_thresh=settings.score_threshold,
            nms_thresh=settings.nms_threshold,
            detections_per_img=settings.detections_per_image,
            topk_candidates=settings.topk_candidates,
            fg_iou_thresh=settings.foreground_iou,
            bg_iou_thresh=settings.background_iou,
        )
        for branch in (self.head.classification_head, self.head.regression_head):
            del branch.conv[settings.head_convs :]
        replace_strided_convs(self)
        if settings.known_classes:
            sizes = list(map(len, settings.known_classes))
            sizes.append(num_classes - sum(sizes))
            layer = GroupedClassLayer(channels, settings.anchors_per_cell, sizes)
            self.head.classification_head.cls_logits = layer
            self.requires_grad_(False)
            layer.added[-1].requires_grad_(True)
        self.settings = settings
        self.num_classes = num_classes
        self.focal_alpha = settings.focal_alpha
        self.focal_gamma = settings.focal_gamma
        self.smooth_l1_beta = settings.smooth_l1_beta
        self.box_loss = settings.box_loss or ("giou" if is_v2 else "l1")
        self.head.regression_head._loss_type = self.box_loss  # what torchvision's own loss reads
        # float64, so that a model made float64 later has all digits
        for name, values in (
            ("mean", self.transform.image_mean),
            ("std", self.transform.image_std),
        ):
            self.register_buffer(
                name, torch.tensor(values, dtype=torch.float64)[:, None, None], persistent=False
            )
        self.register_buffer("class_weights", None, persistent=False)
        self._anchors: dict[tuple[object, ...], list[Tensor]] = {}

    def load_state_dict(
        self, state_dict: Mapping[str, object], strict: bool = True, assign: bool = False
    ) -> object:
        """As of any module. Raises ConfigError for a whole checkpoint, which holds one."""
        if "model_arguments" in state_dict:
            raise ConfigError(
                "load_state_dict was given a checkpoint; write "
                'rd.Detector.from_checkpoint(PATH).model, or give its ["model"].'
            )
        return super().load_state_dict(state_dict, strict, assign)

    def train(self, mode: bool = True) -> RetinaNet:
        """Set the mode; a backbone of known classes stays in eval mode, so no statistic changes."""
        super().train(mode)
        if self.settings.known_classes:
            self.backbone.eval()
        return self

    def forward(  # type: ignore[override]
        self, batch: Batch, *targets: object
    ) -> dict[str, Tensor] | list[Detections]:
        """In training mode the losses (name -> scalar, mean over real images), else the detections
        of each image.
        """
        if targets or not isinstance(batch, Batch):
            raise ConfigError(
                f"RetinaNet takes a Batch, not a {type(batch).__name__}; call "
                "rd.Detector(model, categories=NAMES).predict(IMAGES), or torchvision's own, "
                "retina_dist.detection.model.retinanet.as_torchvision(model)."
            )
        if self.training:
            outputs, levels = self.predict(batch)
            return self.losses(outputs, torch.cat(levels), batch)
        return self.evaluate(batch)[1]

    def evaluate(self, batch: Batch) -> tuple[dict[str, Tensor], list[Detections]]:
        """Losses and detections of one forward pass; boxes in pixels of the stored images."""
        outputs, levels = self.predict(batch)
        return self.losses(outputs, torch.cat(levels), batch), self.detections(
            outputs, levels, batch
        )

    @classmethod
    def check(cls, settings: ModelConfig, pretrained: bool) -> None:
        """Check the settings before the data is read.

        Raises ConfigError for an unknown backbone; if `pretrained`, also for weights of another
        network, and CheckpointError for a file that does not exist.
        """
        children_of(settings.backbone)
        if pretrained:
            weights_of(settings)

    def load_pretrained(self, categories: Sequence[str] | None) -> None:
        """Load `weights`, or `backbone_weights`, and log what was left out."""
        settings = self.settings
        source = weights_of(settings)
        if source is None:
            return
        if settings.weights:
            logger.info(load_weights(self, str(located(source)), categories))
        else:
            logger.info(load_backbone_weights(self, str(located(source)), settings.backbone))
        if settings.norm_eps is not None:
            set_batch_norm_eps(self, settings.norm_eps)

    def arguments(self) -> dict[str, object]:
        """The arguments of `build_retinanet`, with the epsilon of the weights."""
        found = asdict(self.settings)
        del found["weights"], found["backbone_weights"]
        return found | {"num_classes": self.num_classes, "norm_eps": batch_norm_eps(self)}

    def take(self, arguments: Mapping[str, object]) -> None:
        """Take the epsilon of the batch norms, unless the settings give one."""
        eps = eps_of(arguments)
        if self.settings.norm_eps is None and eps is not None:
            set_batch_norm_eps(self, eps)

    def exportable(self) -> ExportableRetinaNet:
        return ExportableRetinaNet(self)

    def backbone_parameters(self) -> Iterator[nn.Parameter]:
        """Those of the backbone without its pyramid, whose learning rate
        `optimizer.backbone_lr_scale` multiplies.
        """
        return self.get_submodule("backbone.body").parameters()

    def predict(self, batch: Batch) -> tuple[dict[str, Tensor], list[Tensor]]:
        """The heads' outputs (cls_logits [B, A, K], bbox_regression [B, A, 4]) and the anchors of
        each pyramid level.
        """
        with count_only(self.backbone, batch.real):
            features = list(self.backbone(self.normalized(batch)).values())
        return self.head(features), self.anchors(batch.images.shape[-2:], features)

    def normalized(self, batch: Batch) -> Tensor:
        """Images [B, 3, H, W] in the network's type.

        ImageNet's mean is subtracted, its standard deviation divides, and padding is zero.
        """
        images = batch.images
        parameter = next(self.parameters())  # the first convolution's weight
        dtype = torch.promote_types(parameter.dtype, torch.float32)
        height, width = images.shape[-2:]
        inside_y = torch.arange(height, device=images.device) < batch.image_sizes[:, :1]  # [B, H]
        inside_x = torch.arange(width, device=images.device) < batch.image_sizes[:, 1:]  # [B, W]
        inside = inside_y[:, None, :, None] & inside_x[:, None, None, :]
        # Divide in two steps, as torchvision does, so that the last bit agrees.
        values = (images.to(dtype) / 255 - self.mean.to(dtype)) / self.std.to(dtype)
        is_channels_last = parameter.is_contiguous(memory_format=torch.channels_last)
        layout = torch.channels_last if is_channels_last else torch.contiguous_format
        return torch.where(inside, values, 0.0).contiguous(memory_format=layout)

    def anchors(self, padded_shape: Sequence[int], features: Sequence[Tensor]) -> list[Tensor]:
        """Anchors of each level [A_l, 4] xyxy in pixels of the padded image.

        Made once for each padded shape (height, width).
        """
        if torch.compiler.is_dynamo_compiling():  # filling the cache would cost a recompile
            return self.new_anchors(padded_shape, features)
        key = (*padded_shape, features[0].device)
        if key not in self._anchors:
            self._anchors[key] = self.new_anchors(padded_shape, features)
        return self._anchors[key]

    def new_anchors(self, padded_shape: Sequence[int], features: Sequence[Tensor]) -> list[Tensor]:
        """`anchors`, made now; float32, as bfloat16 moves them."""
        device = features[0].device
        sizes = [feature.shape[-2:] for feature in features]
        strides = []
        for height, width in sizes:
            strides.append([padded_shape[0] // height, padded_shape[1] // width])
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            self.anchor_generator.set_cell_anchors(torch.float32, device)
            return self.anchor_generator.grid_anchors(sizes, strides)

    def losses(
        self, outputs: dict[str, Tensor], anchors: Tensor, batch: Batch
    ) -> dict[str, Tensor]:
        """`classification` and `bbox_regression`: scalars, mean over the real images of the batch,
        0 if it has none.
        """
        matcher = self.proposal_matcher
        class_weights = None
        if self.training:
            class_weights = self.class_weights
        with torch.autocast(anchors.device.type, enabled=False):
            with torch.no_grad():
                matched = match(
                    batch.boxes,
                    batch.num_boxes,
                    anchors,
                    matcher.high_threshold,
                    matcher.low_threshold,
                )
            return retinanet_losses(
                outputs,
                anchors,
                matched,
                batch,
                self.box_loss,
                self.smooth_l1_beta,
                alpha=self.focal_alpha,
                gamma=self.focal_gamma,
                class_weights=class_weights,
            )

    def detections(
        self, outputs: dict[str, Tensor], levels: list[Tensor], batch: Batch
    ) -> list[Detections]:
        """As torchvision's `postprocess_detections`, for the whole batch at once.

        Boxes in stored-image pixels.
        """
        limits = Limits(
            score_threshold=self.score_thresh,
            nms_threshold=self.nms_thresh,
            topk_candidates=self.topk_candidates,
            detections_per_image=self.detections_per_img,
            nms=self.settings.nms,
        )
        with torch.autocast(levels[0].device.type, enabled=False):
            return postprocess(
                outputs["cls_logits"],
                outputs["bbox_regression"],
                levels,
                batch.image_sizes,
                batch.original_sizes,
                limits,
            )


class ExportableRetinaNet(nn.Module):
    """One image [1, 3, h, w] uint8 RGB -> boxes [N, 4], scores [N], both float32, and labels [N].

    Boxes are xyxy in pixels of the image, labels int64. The same as `RetinaNet` on the smallest
    canvas, but for the order of equal scores, and with more than 1000 candidates
    (`postprocess.MAX_OFFSET_CPU`) for overlaps within float32's rounding of the NMS threshold.
    """

    def __init__(self, model: RetinaNet) -> None:
        super().__init__()
        self.model = model.eval()

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        model = self.model
        height, width = images.shape[-2:]
        values = (images.to(torch.float32) / 255 - model.mean.float()) / model.std.float()
        values = F.pad(values, (0, -width % SHAPE_DIVISOR, 0, -height % SHAPE_DIVISOR))

        features = list(model.backbone(values).values())
        outputs = model.head(features)
        levels = model.new_anchors(values.shape[-2:], features)
        scores, anchors, labels = best_candidates(
            outputs["cls_logits"], levels, model.score_thresh, model.topk_candidates
        )

        boxes = decode(outputs["bbox_regression"][:, anchors[0]], torch.cat(levels)[anchors])
        boxes = clip_boxes_to_image(boxes, (height, width))  # [1, N, 4]
        is_candidate = (scores > model.score_thresh) & ~boxes.isnan().any(dim=-1)  # [1, N]
        if model.settings.nms == "matrix":
            scores = matrix_nms(boxes, torch.where(is_candidate, scores, 0.0), labels)
            is_candidate = scores > model.score_thresh
        moved = offset_by_label(boxes, labels, is_candidate)

        candidate = is_candidate.nonzero()[:, 1]
        boxes = boxes[0, candidate]
        scores = scores[0, candidate]
        labels = labels[0, candidate]
        # torchvision tells torch.export that at least two are left, so two are added that overlap
        # with none and come last.
        apart = boxes.new_tensor([[-2, -2, -1, -1], [-4, -4, -3, -3]])
        moved = torch.cat((moved[0, candidate], apart))
        kept = nms(moved, F.pad(scores, (0, 2), value=-1.0), model.nms_thresh)[:-2]
        kept = kept[: model.detections_per_img]
        return boxes[kept], scores[kept], labels[kept]


# Names of the parts in torchvision's model.
TORCHVISIONS: dict[type[nn.Module], type[nn.Module]] = {
    RetinaNet: TorchvisionRetinaNet,
    StridedConv2d: nn.Conv2d,
    FoldedConv2d: nn.Conv2d,
    FoldedBatchNorm2d: FrozenBatchNorm2d,
    BatchNorm2d: nn.BatchNorm2d,
    SyncBatchNorm2d: nn.BatchNorm2d,
}


@public
def build_retinanet(*, num_classes: int, **settings: Any) -> RetinaNet:
    """A `RetinaNet` with random weights, as the `settings` of a `ModelConfig` describe it.

    No weights are loaded. Raises ConfigError.
    """
    if settings.get("weights") or settings.get("backbone_weights"):
        raise ConfigError(
            "build_retinanet loads no weights; leave them out, or use rd.Trainer or "
            "rd.Detector.from_checkpoint(PATH)."
        )
    if not isinstance(num_classes, int):
        raise ConfigError(
            f"num_classes={num_classes!r} is not a whole number; give the number of classes."
        )
    config = ModelConfig(num_classes=num_classes, **settings)
    check_types(config, ModelConfig)
    validate(config)
    return RetinaNet(config, num_classes)


def as_torchvision(
    model: RetinaNet, padded_shape: Sequence[int] | None = None
) -> TorchvisionRetinaNet:
    """torchvision's own model with a copy of these weights, made of torchvision's classes only.

    With `padded_shape` (height, width) its transform leaves images of that size as they are.
    """
    theirs = as_kind(TorchvisionRetinaNet, copy.deepcopy(model))
    replace_modules(theirs, _as_torchvisions)
    if padded_shape is not None:
        theirs.transform.min_size = (min(padded_shape),)
        theirs.transform.max_size = max(padded_shape)
    for parameter in theirs.parameters():
        parameter.data = parameter.data.contiguous()  # not channels_last
    return theirs


def _as_torchvisions(module: nn.Module) -> nn.Module:
    if isinstance(module, GroupedClassLayer):
        return module.merged()
    kind = TORCHVISIONS.get(type(module))
    return as_kind(kind, module) if kind else module


def anchor_generator(
    anchor_sizes: Sequence[Sequence[int]], aspect_ratios: Sequence[float]
) -> AnchorGenerator:
    """torchvision's generator for the five levels P3 to P7, with the same aspect ratios (height /
    width) on each.
    """
    sizes = tuple(map(tuple, anchor_sizes))
    return AnchorGenerator(sizes, (tuple(aspect_ratios),) * len(sizes))
