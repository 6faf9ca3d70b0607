"""How the model's anchors fit the boxes of a data set, and which change would fit better."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from retina_dist.data.buckets import resized_size
from retina_dist.detection.data.dataset import buckets_of
from retina_dist.detection.model.retinanet import anchor_generator
from retina_dist.detection.readers.annotations import Annotations
from retina_dist.detection.settings import DetectionData, ModelConfig

WORTH_DOING = 0.8  # a change is proposed if it leaves at most this share of the unreached boxes
MAX_UNREACHED = 0.1  # share of boxes without an anchor, above which the plan warns
MAX_ENLARGED = 2.5  # times, of the usual image; VOC's are enlarged 2.1 times at 800 px
MAX_IMAGES = 2000  # that a plan looks at
MAX_BOXES = 10_000


@dataclass(frozen=True)
class Coverage:
    """Best overlap of each training box with any anchor, at the scale that training sees.

    Args:
        best_iou: [n] of each box.
        size: [n] square root of the box's area in px, after the resize.
        threshold: the IoU from which on an anchor answers for a box.
    """

    best_iou: np.ndarray
    size: np.ndarray
    threshold: float

    @property
    def num_unreached(self) -> int:
        """Boxes without such an anchor."""
        return int((self.best_iou < self.threshold).sum())

    @property
    def unreached(self) -> float:
        """Share of boxes without such an anchor; 0 where there are no boxes."""
        return self.num_unreached / max(1, len(self.best_iou))


def coverage_of(train: Annotations, data: DetectionData, model: ModelConfig) -> Coverage:
    """The coverage of the training boxes by the anchors of a model."""
    anchors = anchor_generator(model.anchor_sizes, model.aspect_ratios).cell_anchors
    cells = [each.numpy() for each in anchors]
    return anchor_coverage(train, cells, data, model.foreground_iou)


def anchor_coverage(
    data: Annotations,
    cell_anchors: Sequence[np.ndarray],
    settings: DetectionData,
    threshold: float = 0.5,
) -> Coverage:
    """Which boxes an anchor reaches at the largest of the settings' `min_sizes`.

    Each image is padded to the shape of its bucket; one of unknown size is left out. Exact without
    trying every anchor: of one shape, the anchor with the nearest centre overlaps most, because the
    overlap only falls with the distance along either axis.

    Args:
        data: the images and boxes.
        cell_anchors: the anchors [a, 4] xyxy of each pyramid level, P3 to P7, centred on the
            origin.
        settings: of the resize and the buckets.
        threshold: the IoU from which on an anchor answers for a box.
    """
    known = [row for row, record in enumerate(data.records) if record.size]
    counts = [len(data.boxes[row]) for row in known]
    if not sum(counts):
        return Coverage(np.zeros(0), np.zeros(0), threshold)
    sizes = np.array([(data.records[row].height, data.records[row].width) for row in known])
    min_size = max(settings.min_sizes)
    buckets = buckets_of(settings, sizes)
    shapes = buckets.padded_shapes[buckets.min_sizes.index(min_size), buckets.of_image]
    resized = [resized_size(h, w, min_size, settings.max_size) for h, w in sizes.tolist()]

    # From here on one column for each box, with rows y and x.
    image = np.repeat(np.arange(len(known)), counts)
    boxes = np.concatenate([data.boxes[row] for row in known]).astype(np.float64).T
    scale = (np.array(resized) / sizes)[image].T
    low = boxes[[1, 0]] * scale
    high = boxes[[3, 2]] * scale
    area = (high - low).prod(axis=0)
    best = np.zeros(len(image))
    padded = shapes[image].T
    grid = padded // 4
    for anchors in cell_anchors:
        # P3 is an eighth of the padded shape, each further level half of the one before, rounded up
        grid = -(-grid // 2)
        stride = padded // grid  # as torchvision places anchors
        nearest = np.clip(np.round((low + high) / 2 / stride), 0, grid - 1) * stride
        for left, top, right, bottom in anchors.astype(np.float64):
            start = np.maximum(low, nearest + [[top], [left]])
            both = (np.minimum(high, nearest + [[bottom], [right]]) - start).clip(0).prod(axis=0)
            best = np.maximum(best, both / (area + (right - left) * (bottom - top) - both))
    return Coverage(best, np.sqrt(area), threshold)


def better_anchors(
    train: Annotations, data: DetectionData, model: ModelConfig, now: Coverage
) -> str:
    """Of the usual changes of anchors, each tried on the boxes, the one that leaves the fewest."""
    tried = []
    for changes in _usual_changes(model):
        share = coverage_of(train, data, replace(model, **changes)).unreached
        words = [f"model.{key}={value}".replace(", ", ",") for key, value in changes.items()]
        tried.append((share, len(words), " ".join(words)))
    unreached, _, text = min(tried)
    if unreached > WORTH_DOING * now.unreached:
        others = "neither other sizes nor more aspect ratios help"
        return f"{others}: look at the boxes, and at data.min_sizes"
    return f"{unreached:.1%} are left, tried on these boxes, with {text}"


def describe_fit(
    train: Annotations, data: DetectionData, model: object
) -> Iterator[tuple[str, str]]:
    """Lines of the plan: how the anchors and the scale fit the data, and what would fit better.

    A large set is judged by a sample, the same at every start. Nothing is said of a resize that
    `scale_jitter` always changes.
    """
    low, high = data.scale_jitter or (1, 1)
    if not low <= 1 <= high:
        return
    part = _sample(train)
    if isinstance(model, ModelConfig):  # a model from outside may have no anchors
        coverage = coverage_of(part, data, model)
        boxes = "the boxes"
        if len(part.records) < len(train.records):
            boxes = f"a sample of {len(coverage.best_iou)} boxes"
        if len(coverage.best_iou):
            yield "anchors", f"fit {1 - coverage.unreached:.1%} of {boxes}"
        if coverage.unreached > MAX_UNREACHED:
            remedy = better_anchors(part, data, model, coverage)
            yield "warning:", f"no anchor fits {coverage.unreached:.1%} of {boxes}; {remedy}"

    default = DetectionData()
    shorter = [min(record.size) for record in part.records if record.size]
    if not shorter or (data.min_sizes, data.max_size) != (default.min_sizes, default.max_size):
        return
    side = int(np.median(shorter))
    now = max(data.min_sizes)
    if side * MAX_ENLARGED < now:
        fitting = -(-side // 32) * 32
        remedy = f"data.min_sizes=[{fitting}] data.max_size={fitting * data.max_size // now}"
        what = f"the usual image has a short side of {side} px and is enlarged to {now} px"
        yield "warning:", f"{what}; {remedy} trains faster"


def _sample(train: Annotations) -> Annotations:
    count = len(train.records)
    generator = np.random.default_rng(0)
    rows = generator.choice(count, min(count, MAX_IMAGES), replace=False).tolist()
    num_boxes = np.cumsum([len(train.boxes[row]) for row in rows])
    rows = rows[: int(np.searchsorted(num_boxes, MAX_BOXES)) + 1]
    return replace(
        train,
        records=tuple(train.records[row] for row in rows),
        boxes=[train.boxes[row] for row in rows],
    )


def _usual_changes(model: ModelConfig) -> Iterator[dict[str, Any]]:
    sizes = model.anchor_sizes
    smaller = _scaled(sizes, 0.5)
    larger = _scaled(sizes, 2)
    wider = [smaller[0], *sizes[1:-1], larger[-1]]
    ratios = model.aspect_ratios
    more = sorted({*ratios, min(ratios) / 2, max(ratios) * 2})
    ends = ([smaller[0], *sizes[1:]], [*sizes[:-1], larger[-1]])
    yield {"aspect_ratios": more}
    for changed in (smaller, larger, wider, *ends):
        yield {"anchor_sizes": changed}
        yield {"anchor_sizes": changed, "aspect_ratios": more}


def _scaled(sizes: Sequence[Sequence[int]], factor: float) -> list[list[int]]:
    return [[max(1, int(size * factor)) for size in level] for level in sizes]
