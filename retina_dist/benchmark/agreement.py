"""Does every form of a detector detect the same? PyTorch, each exported file, the server and tiles.

    python -m retina_dist.benchmark agreement checkpoint=runs/shapes root=datasets/shapes

Each line is compared with `Detector.predict`, as an export is: the largest difference of a box in
px and of a score between a detection and the nearest of its label, how many detections have no
counterpart, and COCO's AP on the validation set.
"""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchvision.ops import box_convert

from retina_dist.base.files import check_folder, read_bytes, write_json
from retina_dist.base.settings import MISSING, setting
from retina_dist.config.entry_point import entry_point
from retina_dist.config.run_config import OfCheckpoint
from retina_dist.data.images import MAX_PIXELS, pixels_of
from retina_dist.detection.batch import Detections
from retina_dist.detection.coco_metrics import detections_to_rows, evaluate_rows
from retina_dist.detection.detector import Detector
from retina_dist.detection.export import MIN_SIDE, differences, exporter_of, run_exported
from retina_dist.detection.settings import DetectionData
from retina_dist.serving.server import server_of
from retina_dist.serving.settings import ServeConfig
from retina_dist.task.export_formats import Runner

# Detections of one label that are nearer are the same one.
NEAR_PX = 1.0
NEAR_SCORE = 0.01

Predict = Callable[[Any], Detections]  # of an image file


@dataclass
class AgreementConfig(OfCheckpoint):
    """`python -m retina_dist.benchmark agreement`."""

    checkpoint: str = setting(
        MISSING, "a run folder, whose best.pt is taken, or a .pt file, of a detector"
    )
    root: str = setting(
        MISSING, "a data set, as data.root of a training; its validation set is taken"
    )
    num_images: int | None = setting(None, "the first of the validation set; null: all", at_least=1)
    output: str | None = setting(None, "a JSON file", writes="file")
    debug: bool = False


def compare(
    detector: Detector, expected: list[Detections], others: list[Detections]
) -> dict[str, float]:
    """`box` in px and `score`, the largest differences of counterparts, and `unmatched`.

    `unmatched` counts detections without a counterpart, on either side. As `differences`, it leaves
    out scores within NEAR_SCORE of the other side's cut-off.
    """
    each = [differences(detector, *pair, NEAR_SCORE) for pair in zip(expected, others, strict=True)]
    apart = torch.cat(each)
    near = (apart <= torch.tensor([NEAR_PX, NEAR_SCORE])).all(dim=1)
    box, score = torch.cat([torch.zeros(1, 2), apart[near]]).amax(dim=0).tolist()
    return {"box": box, "score": score, "unmatched": int((~near).sum())}


def forms(detector: Detector, checkpoint: str) -> Iterator[tuple[str, Predict]]:
    """Each form by its name, ready to detect; the first is `Detector.predict`."""
    yield "PyTorch", lambda path: detector.predict(path)[0]
    for form in (".pt", ".pt2", ".onnx"):
        if form == ".pt2" and detector.min_size < MIN_SIDE:
            sizes = (
                f"it takes {MIN_SIDE} px a side or more, this detector has {detector.min_size} px"
            )
            print(f".pt2 is left out: {sizes}")
            continue
        yield form, partial(_exported, detector, exporter_of(detector, checkpoint).read_back(form))
    with _server(detector, checkpoint) as address:
        yield "server", lambda path: _asked(detector, address, path)
    yield "one tile", lambda path: detector.tiled(max(pixels_of(path).shape[1:])).predict(path)[0]


def _of_categories(detector: Detector, every: Detections) -> Detections:
    """Drop labels without a category, as the server does."""
    kept = torch.tensor(detector.categories.ids)[every["labels"]] >= 0
    return Detections(
        boxes=every["boxes"][kept], scores=every["scores"][kept], labels=every["labels"][kept]
    )


def _exported(detector: Detector, run: Runner, path: Any) -> Detections:
    return run_exported(run, detector.prepare(path))


@contextmanager
def _server(detector: Detector, checkpoint: str) -> Iterator[str]:
    """A server of this process on a free port; its address."""
    server = server_of(
        lambda: detector, ServeConfig(checkpoint=checkpoint, max_pixels=MAX_PIXELS), "error"
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            while thread.is_alive() and not server.started:
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/score"
        finally:
            server.should_exit = True
            thread.join()


def _asked(detector: Detector, address: str, path: Any) -> Detections:
    request = urllib.request.Request(
        address, read_bytes(path), {"Content-Type": "application/octet-stream"}
    )
    with urllib.request.urlopen(request, timeout=600) as answer:
        detected = json.load(answer)["images"][0]["detections"]
    labels = {i: label for label, i in enumerate(detector.categories.ids)}
    boxes: Tensor = torch.tensor([d["bbox"] for d in detected], dtype=torch.float64).reshape(-1, 4)
    return Detections(
        boxes=box_convert(boxes, "xywh", "xyxy").float(),
        scores=torch.tensor([d["score"] for d in detected]),
        labels=torch.tensor([labels[d["category_id"]] for d in detected], dtype=torch.int64),
    )


def agreement(config: AgreementConfig) -> dict[str, dict[str, float]]:
    """Print and return a line for each form."""
    detector = Detector.from_checkpoint(config.checkpoint, model=config.outside_model)
    check_folder(config.root)
    annotations = detector.val_of(DetectionData(name="agreement", format="auto", root=config.root))
    records = annotations.records[: config.num_images]
    ids = [record.image_id for record in records]
    table: dict[str, dict[str, float]] = {}
    expected: list[Detections] = []
    titles = f"{'':<10}{'box, px':>12}{'score':>12}{'unmatched':>12}{'AP':>10}"
    print(f"{titles}   of {len(records)} images")
    for name, predict in forms(detector, config.checkpoint):
        detections = [_of_categories(detector, predict(record.path)) for record in records]
        expected = expected or detections
        rows = detections_to_rows(detections, ids, detector.categories)
        ap = evaluate_rows(annotations.coco, rows, image_ids=ids).stats["AP"]
        line = compare(detector, expected, detections)
        apart = f"{line['box']:>12.2g}{line['score']:>12.2g}{line['unmatched']:>12.0f}"
        print(f"{name:<10}{apart}{ap:>10.4f}", flush=True)
        table[name] = line | {"AP": ap}
    print(f"{sum(len(one['scores']) for one in expected)} detections by PyTorch")
    if config.output:
        write_json(Path(config.output), table)
    return table


main = entry_point("benchmark_agreement", AgreementConfig)(agreement)
