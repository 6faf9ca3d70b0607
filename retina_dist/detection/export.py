"""The detector as an ONNX, PT2 or state_dict file, compared with the original before the file is written.

ONNX and PT2 hold the whole detector as one graph: pixels in, boxes out.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.nn import functional as F
from torchvision.ops import nms
from torchvision.transforms.v2.functional import resize_image

from retina_dist.base.errors import ConfigError, UserError
from retina_dist.base.redaction import redacted
from retina_dist.data.images import AnyImage, find_images, pixels_of
from retina_dist.detection.batch import Batch, Detections
from retina_dist.detection.data.synthetic import draw_scene
from retina_dist.detection.detector import CANVAS_DIVISOR, Detector
from retina_dist.detection.model.postprocess import best_candidates, moved_by_label
from retina_dist.detection.model.retinanet import RetinaNet, as_torchvision
from retina_dist.detection.model.targets import decode
from retina_dist.detection.model.weights import batch_norm_eps
from retina_dist.task.export_formats import Exporter, Runner, check_ending
from retina_dist.task.model_card import write_card

if TYPE_CHECKING:
    from retina_dist.export import ExportConfig

INPUT, OUTPUTS = "images", ("boxes", "scores", "labels")
# px; below, the coarsest level is one cell high or wide, which torch.export takes for a special case
LEAST = 4 * CANVAS_DIVISOR + 1


class ExportableRetinaNet(nn.Module):
    """One image [1, 3, h, w] uint8 RGB -> boxes [N, 4] float32 xyxy in its pixels, scores [N] float32, labels [N] int64.

    The same as `RetinaNet` on the smallest canvas, but for the order of equal scores, and with more than 1000 candidates
    (`postprocess.MOST_MOVED_CPU`) for overlaps within float32's rounding of the NMS threshold.
    """

    def __init__(self, model: RetinaNet) -> None:
        super().__init__()
        self.model = model.eval()

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        model, (height, width) = self.model, images.shape[-2:]
        values = (images.to(torch.float32) / 255 - model.mean.float()) / model.deviation.float()
        values = F.pad(values, (0, -width % CANVAS_DIVISOR, 0, -height % CANVAS_DIVISOR))
        features = list(model.backbone(values).values())
        outputs = model.head(features)
        levels = self._anchors(values, features)
        counts = [level.shape[0] for level in levels]
        candidates = best_candidates(
            outputs["cls_logits"], counts, model.score_thresh, model.topk_candidates
        )
        scores, anchors, labels = candidates
        boxes = decode(outputs["bbox_regression"][:, anchors[0]], torch.cat(levels)[anchors])
        boxes = torch.stack(
            (boxes[..., 0::2].clamp(0, width), boxes[..., 1::2].clamp(0, height)), dim=-1
        ).flatten(2)
        is_candidate = scores > model.score_thresh  # [1, N]
        moved = moved_by_label(boxes, labels, is_candidate)
        candidate = is_candidate.nonzero()[:, 1]
        boxes, moved, scores, labels = (x[0, candidate] for x in (boxes, moved, scores, labels))
        kept = _nms(moved, scores, model.nms_thresh)[: model.detections_per_img]
        return boxes[kept], scores[kept], labels[kept]

    def _anchors(self, canvas: Tensor, features: list[Tensor]) -> list[Tensor]:
        """The anchors [A_l, 4] of each level, as torchvision's generator makes them, for sizes known when the graph runs."""
        generator = self.model.anchor_generator
        generator.set_cell_anchors(torch.float32, canvas.device)
        sizes = [feature.shape[-2:] for feature in features]
        strides = [
            [canvas.shape[-2] // height, canvas.shape[-1] // width] for height, width in sizes
        ]
        levels: list[Tensor] = generator.grid_anchors(sizes, strides)
        return levels


def _nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """`nms` of any number of boxes with scores >= 0; torchvision tells torch.export that at least two are left."""
    apart = boxes.new_tensor(
        [[-2, -2, -1, -1], [-4, -4, -3, -3]]
    )  # two that overlap with none and come last
    return nms(
        torch.cat((boxes, apart)), torch.cat((scores, scores.new_tensor([-1, -2]))), iou_threshold
    )[:-2]


def exportable(model: Any) -> nn.Module:
    """One image [1, 3, h, w] uint8 RGB to its boxes, scores and labels, as a module in evaluation mode."""
    return ExportableRetinaNet(model) if isinstance(model, RetinaNet) else model.exportable().eval()


def export_graph(model: nn.Module, size: Sequence[int] | None = None) -> ExportedProgram:
    """The graph for images of one size (height, width), or of any; run by torch, that takes sides from `LEAST` px on only."""
    height, width = size or (300, 400)  # any that give more than one cell on the coarsest level
    example = torch.zeros(1, 3, height, width, dtype=torch.uint8)
    dynamic = None if size else {INPUT: {2: Dim.AUTO, 3: Dim.AUTO}}
    with torch.inference_mode(False), torch.no_grad():
        return torch.export.export(
            exportable(model), (example,), dynamic_shapes=dynamic, strict=False
        )


def export(config: ExportConfig) -> dict[str, float]:
    """Write `output` if it detects what the checkpoint does, and return the largest differences (`boxes`, `scores`)."""
    output = Path(config.output)
    check_ending(output)
    if config.size is not None and (len(config.size) != 2 or min(config.size) < 1):
        raise ConfigError(
            f"size={config.size} is not a height and a width in px, such as [800,1066]."
        )
    if output.suffix == ".pt" and config.size is not None:
        raise ConfigError(f"size={config.size} has no effect on a .pt; leave it out.")
    detector = Detector.from_checkpoint(config.checkpoint, model=config.outside_model)
    low, high = detector.min_size, detector.max_size
    if (
        output.suffix == ".pt2"
        and config.size is None
        and low < LEAST
        and isinstance(detector.model, RetinaNet)
    ):
        raise ConfigError(
            f"a .pt2 for any size needs {LEAST} px a side, not {low}; give size=[{low},{high}]."
        )
    rng, side = np.random.default_rng(0), max(32, low)
    images: Sequence[AnyImage] = [draw_scene(rng, side)[0] for _ in range(config.num_images)]
    if config.images:
        images = find_images(config.images)[: config.num_images]
    batches = [_prepared(detector, image, config.size) for image in images]
    expected = [detections for batch in batches for detections in detector.run([batch])]
    if not any(len(detections["scores"]) for detections in expected):
        best = detector.record.get("best") or {}
        trained = (
            f" (its run's best {best['name']} is {best['value']:.3f})"
            if best.get("value") is not None
            else ""
        )
        nothing = f"{config.checkpoint} detects nothing in {len(images)} images to compare{trained}"
        raise UserError(f"{nothing}; train it for longer, or give images=FOLDER of its objects.")
    worst = {"detections": float(sum(len(detections["scores"]) for detections in expected))}

    def compare(run: Runner) -> None:
        parts = [
            differences(detector, detections, run_exported(run, batch), config.score_tolerance)
            for detections, batch in zip(expected, batches, strict=True)
        ]
        worst["boxes"], worst["scores"] = (
            torch.cat([torch.zeros(1, 2), *parts]).amax(dim=0).tolist()
        )
        for name, unit, most in (
            ("boxes", " px", config.box_tolerance),
            ("scores", "", config.score_tolerance),
        ):
            if not worst[name] <= most:
                apart = (
                    f"its {name} differ by up to {worst[name]:.3g}{unit}, more than {most}{unit}"
                )
                raise UserError(
                    f"{output} was not written: {apart}; report it, or raise the tolerance."
                )

    exporter_of(detector, config.checkpoint, config.size).write(output, compare)
    print(
        f"{output}: {output.stat().st_size / 1e6:.1f} MB; largest difference in {worst['detections']:.0f} detections on "
        f"{len(batches)} images: {worst['boxes']:.2g} px in boxes, {worst['scores']:.2g} in scores"
    )
    print(f"described in {write_card(output, detector, config.checkpoint, config.intended_use)}")
    eps = batch_norm_eps(detector.model)
    if output.suffix == ".pt" and eps not in (None, 1e-5):
        print(
            f"set eps={eps:g} on the batch norms of the model that takes {output}: a state_dict does not hold it"
        )
    return worst


def exporter_of(detector: Detector, checkpoint: str, size: Sequence[int] | None = None) -> Exporter:
    """The exporter of a detector, for images of one size (height, width) or of any."""
    metadata = {**detector.metadata(), "checkpoint": redacted(checkpoint)}
    if size:
        metadata["input"] += f", {size}"
    graph, with_state = partial(export_graph, detector.model, size), partial(_with_state, detector)
    return Exporter(graph, INPUT, OUTPUTS, detector.model.state_dict(), with_state, metadata)


def run_exported(run: Runner, batch: Batch) -> Detections:
    """The detections of an exported model in an image that the detector prepared, in pixels of the `original_sizes`."""
    height, width = batch.image_sizes[0].tolist()
    boxes, scores, labels = run(batch.images[..., :height, :width].contiguous())
    scale = (batch.original_sizes[0] / batch.image_sizes[0]).flip(0).repeat(2)
    return Detections(boxes=boxes * scale.to(boxes), scores=scores, labels=labels)


def differences(
    detector: Detector, one: Detections, other: Detections, margin: float = 0.0
) -> Tensor:
    """[N, 2]: differences of box (px) and score of each detection from the nearest of its label on the other side; else inf.

    Detections that the other side may lack do not count: with a score within `margin` of the threshold, or of the lowest one of an
    image with as many detections as the model gives.
    """
    rows = [torch.zeros(0, 2, dtype=torch.float64)]
    for these, those in ((one, other), (other, one)):
        least = getattr(detector.model, "score_thresh", -math.inf)
        if len(those["scores"]) == getattr(
            detector.model, "detections_per_img", None
        ):  # the rest was cut off
            least = max(least, float(those["scores"].min()))
        counted = ~(these["scores"] <= least + margin)  # NaN too
        apart = (
            (these["boxes"][counted][:, None].double() - those["boxes"].double()).abs().amax(dim=2)
        )  # [N, M]
        scores = (these["scores"][counted][:, None].double() - those["scores"].double()).abs()
        pairs = torch.stack((apart, scores), dim=2).nan_to_num(nan=torch.inf, posinf=torch.inf)
        pairs[these["labels"][counted][:, None] != those["labels"]] = torch.inf
        pairs = torch.cat(
            (pairs, pairs.new_full((len(pairs), 1, 2), torch.inf)), dim=1
        )  # of no detection
        rows.append(pairs[torch.arange(len(pairs)), pairs.sum(dim=2).argmin(dim=1)])
    return torch.cat(rows)


def _prepared(detector: Detector, image: AnyImage, size: list[int] | None) -> Batch:
    """The image as the detector prepares it, or resized to `size`; boxes will be in pixels of the resized image."""
    if size is not None:
        image = resize_image(pixels_of(image), list(size), antialias=True)
        low, high = sorted(size)
        detector = Detector(
            detector.model, detector.categories, min_size=low, max_size=high, device=detector.device
        )
    batch = detector.prepare(image)
    return replace(batch, original_sizes=batch.image_sizes)


def _with_state(detector: Detector, state: Mapping[str, Tensor]) -> Runner:
    if not isinstance(detector.model, RetinaNet):
        theirs = copy.deepcopy(detector.model)
        theirs.load_state_dict(state)
        return exportable(theirs)

    def run(image: Tensor) -> list[Tensor]:
        theirs = as_torchvision(detector.model, image.shape[-2:])
        theirs.load_state_dict(state)
        (detections,) = theirs([image[0].float() / 255])
        return [detections[name] for name in OUTPUTS]

    return run
