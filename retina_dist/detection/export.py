"""The detector as an ONNX, PT2 or state_dict file, compared with the original before it is there.

ONNX and PT2 hold the whole detector as one graph: pixels in, boxes out.
"""

import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.nn import functional as F
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2.functional import resize_image

from retina_dist.base.console import heartbeat
from retina_dist.base.errors import ConfigError, UserError, set_status
from retina_dist.base.redaction import redacted
from retina_dist.data.images import AnyImage, pixels_of
from retina_dist.detection.batch import Batch, Detections, scaled, with_area
from retina_dist.detection.data.synthetic import draw_scene
from retina_dist.detection.detector import MAX_SIZE, Detector
from retina_dist.detection.model.build import SHAPE_DIVISOR, DetectionModel
from retina_dist.detection.model.retinanet import RetinaNet, as_torchvision
from retina_dist.detection.model.weights import batch_norm_eps
from retina_dist.detection.settings import ModelConfig
from retina_dist.task.export_formats import (
    Exporter,
    Runner,
    check_ending,
    describe_export,
    images_to_compare,
)
from retina_dist.task.predictor import changed
from retina_dist.task.settings import ExportConfig

logger = logging.getLogger(__name__)

INPUT = "images"
OUTPUTS = ("boxes", "scores", "labels")
# px; below, the coarsest level is one cell high or wide, which torch.export takes for special
MIN_SIDE = 4 * SHAPE_DIVISOR + 1
TORCHVISION_EPS = 1e-5  # of the batch norms of torchvision's class


class ScaledModel(nn.Module):
    """An exportable model with the temperature of a checkpoint."""

    def __init__(self, model: nn.Module, temperature: float) -> None:
        super().__init__()
        self.model = model
        self.temperature = temperature

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        boxes, scores, labels = self.model(images)
        return boxes, scaled(scores, self.temperature), labels


def export_graph(
    model: DetectionModel, size: Sequence[int] | None = None, temperature: float = 1.0
) -> ExportedProgram:
    """The graph for images of one size (height, width), or of any.

    That of any size takes sides from `MIN_SIDE` px on where torch runs it.
    """
    # any size that gives more than one cell on the coarsest level
    example = torch.zeros(1, 3, *(size or (300, 400)), dtype=torch.uint8)
    dynamic = None if size else {INPUT: {2: Dim.AUTO, 3: Dim.AUTO}}
    with torch.inference_mode(False), torch.no_grad():
        whole = model.exportable()
        if temperature != 1:
            whole = ScaledModel(whole, temperature)
        return torch.export.export(whole.eval(), (example,), dynamic_shapes=dynamic, strict=False)


def export(config: ExportConfig) -> dict[str, float]:
    """Write `output` if it detects what the checkpoint does.

    Returns the largest differences, `boxes` in px and `scores`, and the number of `detections`.
    Raises ConfigError for settings that exclude each other, and UserError where there is nothing to
    compare or the differences are too large.
    """
    output = Path(config.output)
    check_ending(output)
    detector = Detector.from_checkpoint(config.checkpoint, model=config.outside_model)
    if output.suffix == ".pt" and set(config.limits()) != {None}:
        raise ConfigError(
            "a .pt holds no score_threshold, nms_threshold or detections_per_image; leave them out."
        )
    detector.set_limits(*config.limits())
    _check_size(detector, config.size, output)

    compared = detector
    if output.suffix == ".pt" and is_matrix(detector):
        compared = with_hard_nms(detector)
        logger.warning(
            f"torchvision's class has no model.nms=matrix, so with {output} it detects otherwise "
            f"than {config.checkpoint}: give it nms_thresh={ModelConfig.nms_threshold}, or write a "
            ".onnx or .pt2."
        )
    comparison = _Comparison(compared, config)
    exporter_of(detector, config.checkpoint, config.size).write(output, comparison.check)

    worst = comparison.worst
    describe_export(
        detector,
        config,
        f"largest difference in {worst['detections']:.0f} detections on "
        f"{len(comparison.batches)} images: "
        f"{worst['boxes']:.2g} px in boxes, {worst['scores']:.2g} in scores",
    )
    eps = batch_norm_eps(detector.model)
    if output.suffix == ".pt" and eps not in (None, TORCHVISION_EPS):
        print(
            f"set eps={eps:g} on the batch norms of the model that takes {output}: "
            "a state_dict does not hold it"
        )
    return worst


def _check_size(detector: Detector, size: list[int] | None, output: Path) -> None:
    """Raise ConfigError for a size that cannot be, or that a .pt2 of any size needs."""
    low = detector.min_size
    if size is not None:
        if len(size) != 2 or min(size) < 1 or max(size) > MAX_SIZE:
            raise ConfigError(
                f"size={size} is not a height and a width of at most {MAX_SIZE} px; "
                "give size=[800,1066]."
            )
        if output.suffix == ".pt":
            raise ConfigError(f"size={size} has no effect on a .pt; leave it out.")
    elif output.suffix == ".pt2" and low < MIN_SIDE and isinstance(detector.model, RetinaNet):
        raise ConfigError(
            f"a .pt2 for any size needs {MIN_SIDE} px a side, not {low}; "
            f"give size=[{low},{detector.max_size}]."
        )


class _Comparison:
    """What a detector finds in some images, and how far an exported file is from it (`worst`)."""

    def __init__(self, detector: Detector, config: ExportConfig) -> None:
        self.detector = detector
        self.config = config
        self.batches: list[Batch] = []
        self.expected: list[Detections] = []
        side = max(32, detector.min_size)
        with heartbeat():
            for image in images_to_compare(config, lambda rng, _: draw_scene(rng, side)[0]):
                if config.size:
                    batch = prepare_stretched(detector, config.size, image)
                else:
                    batch = detector.prepare(image)
                # boxes in pixels of the resized image
                self.batches.append(replace(batch, original_sizes=batch.image_sizes))
                self.expected += self.detector.run(self.batches[-1:])

        count = sum(len(detections["scores"]) for detections in self.expected)
        if not count:
            best = self.detector.record.get("best") or {}
            trained = ""
            if best.get("value") is not None:
                trained = f" (its run's best {best['name']} is {best['value']:.3f})"
            raise UserError(
                f"{config.checkpoint} detects nothing in {len(self.batches)} images to compare"
                f"{trained}; train it for longer, or give images=FOLDER of its objects."
            )
        self.worst = {"detections": float(count)}

    def check(self, run: Runner) -> None:
        """Raise UserError where the exported model differs by more than the tolerances."""
        config = self.config
        parts = [torch.zeros(1, 2)]
        for detections, batch in zip(self.expected, self.batches, strict=True):
            set_status(f"comparing, {len(parts) - 1} of {len(self.batches)} images")
            parts.append(
                differences(
                    self.detector, detections, run_exported(run, batch), config.score_tolerance
                )
            )
        limits = {"boxes": config.box_tolerance, "scores": config.score_tolerance}
        worst = torch.cat(parts).amax(dim=0).tolist()
        for (name, limit), found in zip(limits.items(), worst, strict=True):
            self.worst[name] = found
            if not found <= limit:
                unit = " px" if name == "boxes" else ""
                raise UserError(
                    f"{config.output} was not written: its {name} differ by up to "
                    f"{found:.3g}{unit}, more than {limit}{unit}; "
                    "report it, or raise the tolerance."
                )


def prepare_stretched(
    detector: Detector,
    size: Sequence[int],
    image: AnyImage,
    interpolation: InterpolationMode = InterpolationMode.BILINEAR,
) -> Batch:
    """`Detector.prepare` for a file of one size (height, width) in px, whatever the image's is."""
    pixels = pixels_of(image)
    stretched = resize_image(pixels, list(size), interpolation, antialias=True)
    batch = changed(detector, min_size=min(size), max_size=max(size)).prepare(stretched)
    return replace(batch, original_sizes=torch.tensor([pixels.shape[-2:]]))


def is_matrix(detector: Detector) -> bool:
    """Whether a detector has Matrix NMS, which torchvision's class has not."""
    return isinstance(detector.model, RetinaNet) and detector.model.settings.nms == "matrix"


def with_hard_nms(detector: Detector) -> Detector:
    """The detector with torchvision's NMS at the same threshold."""
    model = detector.model
    return changed(detector, model=changed(model, settings=replace(model.settings, nms="hard")))


def exporter_of(detector: Detector, checkpoint: str, size: Sequence[int] | None = None) -> Exporter:
    """The exporter of a detector, for images of one size (height, width) or of any."""
    metadata = {**detector.metadata(), "checkpoint": redacted(checkpoint)}
    if size:
        metadata["input"] += f", {size}"
    return Exporter(
        graph=partial(export_graph, detector.model, size, detector.temperature),
        input_name=INPUT,
        output_names=OUTPUTS,
        state=_state_of(detector.model),
        with_state=partial(_with_state, detector),
        metadata=metadata,
    )


def _state_of(model: DetectionModel) -> dict[str, Tensor]:
    """The tensors for torchvision's class, which has one class layer."""
    if isinstance(model, RetinaNet) and model.settings.known_classes:
        return as_torchvision(model).state_dict()
    return model.state_dict()


def run_exported(run: Runner, batch: Batch) -> Detections:
    """The detections of an exported model in an image that the detector prepared.

    Boxes are in pixels of the `original_sizes`.
    """
    height, width = batch.image_sizes[0].tolist()
    boxes, scores, labels = run(batch.images[..., :height, :width].contiguous())
    scale = (batch.original_sizes[0] / batch.image_sizes[0]).flip(0).repeat(2)
    return with_area(Detections(boxes=boxes * scale.to(boxes), scores=scores, labels=labels))


def differences(
    detector: Detector, one: Detections, other: Detections, margin: float = 0.0
) -> Tensor:
    """[N, 2]: how far box (px) and score of each detection are from its nearest on the other side.

    The nearest is one of its label; without any they are inf. Detections that the other
    side may lack do not count: with a score within `margin` of the threshold, or of the lowest one
    of an image with as many detections as the model gives.
    """
    return torch.cat((_apart(detector, one, other, margin), _apart(detector, other, one, margin)))


def _apart(detector: Detector, these: Detections, those: Detections, margin: float) -> Tensor:
    """[N, 2]: `differences` of the detections of one side."""
    lowest = scaled(torch.tensor(detector.model.score_thresh), detector.temperature).item()
    if len(those["scores"]) == detector.model.detections_per_img:  # the rest was cut off
        lowest = max(lowest, float(those["scores"].min()))
    counted = ~(these["scores"] <= lowest + margin)  # NaN too

    boxes = these["boxes"][counted][:, None].double() - those["boxes"].double()  # [N, M, 4]
    scores = these["scores"][counted][:, None].double() - those["scores"].double()  # [N, M]
    pairs = torch.stack((boxes.abs().amax(dim=2), scores.abs()), dim=2)  # [N, M, 2]
    pairs = pairs.nan_to_num(nan=torch.inf, posinf=torch.inf)
    pairs[these["labels"][counted][:, None] != those["labels"]] = torch.inf
    pairs = F.pad(pairs, (0, 0, 0, 1), value=torch.inf)  # no detection
    return pairs[torch.arange(len(pairs)), pairs.sum(dim=2).argmin(dim=1)]


def _with_state(detector: Detector, state: Mapping[str, Tensor]) -> Runner:
    model = detector.model
    if not isinstance(model, RetinaNet):
        model = copy.deepcopy(model)
        model.load_state_dict(state)
        return ScaledModel(model.exportable(), detector.temperature).eval()

    def run(image: Tensor) -> list[Tensor]:
        theirs = as_torchvision(model, image.shape[-2:])
        theirs.load_state_dict(state)
        (detections,) = theirs([image[0].float() / 255])
        detections["scores"] = scaled(detections["scores"], detector.temperature)
        return [detections[name] for name in OUTPUTS]

    return run
