"""The detector as an ONNX, PT2 or state_dict file, compared with the original before the file is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from retina_dist.config.commands import ExportConfig
from retina_dist.data.images import find_images, read_image
from retina_dist.detection.batch import Batch, Detections
from retina_dist.detection.data.shapes import draw_scene
from retina_dist.detection.detector import Detector
from retina_dist.detection.model.exportable import INPUT, LEAST, OUTPUTS, export_graph
from retina_dist.detection.model.retinanet import as_torchvision
from retina_dist.detection.model.weights import batch_norm_eps
from retina_dist.errors import ConfigError, UserError
from retina_dist.files import write_atomically
from retina_dist.model import exporters
from retina_dist.redaction import redacted
from retina_dist.torch_files import load_torch

Runner = Callable[[Tensor], Detections]  # of an image [1, 3, h, w] uint8


def export(config: ExportConfig) -> dict[str, float]:
    """Write `output` if it finds what the checkpoint's detector finds, and return the largest differences (`boxes`, `scores`)."""
    output = Path(config.output)
    if output.suffix not in WRITERS:
        raise ConfigError(f"output={output} has no known ending; use one of {', '.join(WRITERS)}.")
    if config.size is not None and (len(config.size) != 2 or min(config.size) < 1):
        raise ConfigError(f"size={config.size} is not a height and a width in px, such as [800,1066].")
    detector = Detector.from_checkpoint(config.checkpoint)
    if output.suffix == ".pt2" and config.size is None and detector.min_size < LEAST:
        raise ConfigError(
            f"a .pt2 for images of any size needs {LEAST} px a side, and this detector's have {detector.min_size} px; give "
            f"their one size, such as size=[{detector.min_size},{detector.max_size}], or output={output.with_suffix('.onnx')}."
        )
    batches = [_prepared(detector, pixels, config.size) for pixels in _images(config, detector)]
    write, reopen = WRITERS[output.suffix]
    found: dict[str, float] = {}

    def make(temporary: Path) -> None:
        with exporters.quiet():
            write(detector, temporary, config)
            found.update(compare(detector, reopen(detector, temporary), batches, config))

    write_atomically(output, make)
    print(
        f"{output}: {output.stat().st_size / 1e6:.1f} MB; largest difference in {found['detections']:.0f} detections on "
        f"{len(batches)} images: {found['boxes']:.2g} px in boxes, {found['scores']:.2g} in scores"
    )
    eps = batch_norm_eps(detector.model)
    if output.suffix == ".pt" and eps != 1e-5:
        print(f"set eps={eps:g} on the batch norms of the model that takes {output}: a state_dict does not hold it")
    return found


def compare(detector: Detector, run: Runner, batches: Sequence[Batch], config: ExportConfig) -> dict[str, float]:
    """The largest differences between the detector and `run`, and the number of detections.

    Raises UserError for a difference past its tolerance, and where there was nothing to compare.
    """
    worst = {"boxes": 0.0, "scores": 0.0, "detections": 0.0}
    for batch in batches:
        height, width = batch.image_sizes[0].tolist()
        (expected,) = detector.run([batch])
        found = run(batch.images[..., :height, :width].contiguous())
        worst["detections"] += len(expected["scores"])
        for one, other in ((expected, found), (found, expected)):
            least = detector.model.score_thresh
            if len(other["scores"]) == detector.model.detections_per_img:  # what was cut off there is no difference
                least = max(least, float(other["scores"].min()))
            for name, value in _differences(one, other, least + config.score_tolerance).items():
                worst[name] = max(worst[name], value)
    if not worst["detections"]:
        raise UserError(
            "the detector finds nothing in the images, so nothing was compared; give images=FOLDER of what it knows."
        )
    for name, unit in (("boxes", " px"), ("scores", "")):
        most = getattr(config, f"{name[:-1] if name == 'scores' else 'box'}_tolerance")
        if not worst[name] <= most:
            raise UserError(
                f"{config.output} was not written: its {name} differ by up to {worst[name]:.3g}{unit}, more than {most}{unit}; "
                "report it, or raise the tolerance if that is good enough."
            )
    return worst


def _differences(one: Detections, other: Detections, least: float) -> dict[str, float]:
    """The largest, of each detection of `one` scored above `least` to the nearest of its label in `other`."""
    worst = {"boxes": 0.0, "scores": 0.0}
    for box, score, label in zip(one["boxes"], one["scores"], one["labels"], strict=True):
        if score <= least:
            continue
        same = other["labels"] == label
        if not same.any():
            return {"boxes": float("inf"), "scores": float("inf")}
        apart = (other["boxes"][same] - box).abs().amax(dim=1).nan_to_num(nan=float("inf"))
        scores = (other["scores"][same] - score).abs().nan_to_num(nan=float("inf"))
        nearest = int((apart + scores).argmin())
        worst["boxes"] = max(worst["boxes"], float(apart[nearest]))
        worst["scores"] = max(worst["scores"], float(scores[nearest]))
    return worst


def _images(config: ExportConfig, detector: Detector) -> list[Tensor]:
    if config.images:
        return [read_image(file) for file in find_images(config.images)[: config.num_images]]
    rng = np.random.default_rng(0)
    scenes = [draw_scene(rng, max(32, detector.min_size))[0] for _ in range(config.num_images)]
    return [torch.from_numpy(np.array(scene)).permute(2, 0, 1) for scene in scenes]


def _prepared(detector: Detector, pixels: Tensor, size: list[int] | None) -> Batch:
    """As the detector prepares it, or resized to `size`; boxes will be in pixels of the resized image."""
    if size is not None:
        pixels = F.resize_image(pixels, list(size), antialias=True)
        fixed = Detector(
            detector.model, detector.categories, min_size=min(size), max_size=max(size), device=detector.device
        )
        detector = fixed
    batch = detector.prepare(pixels)
    return replace(batch, original_sizes=batch.image_sizes)


def metadata(detector: Detector, config: ExportConfig) -> dict[str, str]:
    """What the file says of itself, each value as JSON."""
    categories, model = detector.categories, detector.model
    names = {str(label): {"id": i, "name": categories.names[label]} for label, i in enumerate(categories.ids) if i >= 0}
    values = {
        "categories": names,  # by label
        "input": "uint8 RGB [1, 3, height, width], resized as min_size and max_size say"
        + (f", {config.size}" if config.size else ""),
        "min_size": detector.min_size,  # px, the shorter side, or less where the longer would pass max_size
        "max_size": detector.max_size,
        "score_threshold": model.score_thresh,
        "nms_threshold": model.nms_thresh,
        "detections_per_image": model.detections_per_img,
        "checkpoint": redacted(config.checkpoint),
        "versions": exporters.versions(),
    }
    return {name: json.dumps(value) for name, value in values.items()}


def _write_onnx(detector: Detector, path: Path, config: ExportConfig) -> None:
    exporters.require_onnx()
    graph = export_graph(detector.model, config.size)
    exporters.save_onnx(graph, path, input_name=INPUT, output_names=OUTPUTS, metadata=metadata(detector, config))


def _load_onnx(detector: Detector, path: Path) -> Runner:
    run = exporters.load_onnx(path, INPUT, OUTPUTS)
    return lambda image: _detections(run(image))


def _write_pt2(detector: Detector, path: Path, config: ExportConfig) -> None:
    exporters.save_pt2(export_graph(detector.model, config.size), path, metadata(detector, config))


def _load_pt2(detector: Detector, path: Path) -> Runner:
    run = exporters.load_pt2(path)
    return lambda image: _detections(run(image))


def _write_state_dict(detector: Detector, path: Path, config: ExportConfig) -> None:
    torch.save(detector.model.state_dict(), path)


def _load_state_dict(detector: Detector, path: Path) -> Runner:
    state, _ = load_torch(path)

    @torch.inference_mode()
    def run(image: Tensor) -> Detections:
        theirs = as_torchvision(detector.model, image.shape[-2:])
        theirs.load_state_dict(state)
        (found,) = theirs([image[0].to(torch.float32) / 255])
        return _detections(found[name] for name in OUTPUTS)

    return run


WRITERS: dict[str, tuple[Callable[[Detector, Path, ExportConfig], None], Callable[[Detector, Path], Runner]]] = {
    ".onnx": (_write_onnx, _load_onnx),
    ".pt2": (_write_pt2, _load_pt2),
    ".pt": (_write_state_dict, _load_state_dict),
}


def _detections(values: Any) -> Detections:
    boxes, scores, labels = values
    return Detections(boxes=boxes, scores=scores, labels=labels)
