"""The files of a run folder, each read once; every later line may trust the types.

A folder may come from elsewhere: a link that leaves it is not followed, and a file of another shape
is one sentence that names it.
"""

from __future__ import annotations

import base64
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from retina_dist.base.errors import DataError, first_line
from retina_dist.base.files import open_regular, read_bytes, run_in
from retina_dist.base.settings import flattened
from retina_dist.base.text import name_of_run
from retina_dist.base.yaml_files import load_yaml
from retina_dist.reporting.intervals import Resampled
from retina_dist.tracking.loggers import read_metrics

RESULT = "result.json"  # for sweeps, benchmarks and scripts that compare runs
FILES = ("config.yaml", "metrics.csv", RESULT, "metrics.json", "analysis.json")
LISTS = ("worst", "confident", "best")  # of images in analysis.json
MAX_LISTED = 6  # images of a list that are shown
MAX_POINTS = 1500  # of a curve
MAX_PICTURE = 8 << 20  # bytes of an image in a report

T = TypeVar("T")
Number = Annotated[float, Meta(ge=-1e300, le=1e300)]  # finite, as JSON and charts need it
Optional = Number | None
Count = Annotated[int, Meta(ge=0, le=2**53)]
Side = Annotated[int, Meta(ge=1, le=10**6)]


class Result(Struct):
    """result.json: how a training ended. `status` is "" where it has not ended."""

    status: str = ""
    error: str | None = None
    step: Count | None = None
    planned_steps: Count | None = None
    monitor: str | None = None
    monitor_mode: str | None = None
    best: Optional = None
    seconds: Optional = None
    metrics: dict[str, Optional] = {}
    loss: Optional = msgspec.field(name="train/loss", default=None)
    images_per_s: Optional = None
    images_per_cpu_s: Optional = None
    overrides: list[str] = []
    digest: str | None = None

    @property
    def progress(self) -> str:
        """ "60 of 200", or "60" where the plan is not known."""
        if self.planned_steps is None or self.planned_steps == self.step:
            return str(self.step)
        return f"{self.step} of {self.planned_steps}"

    @property
    def unfinished(self) -> str:
        """Why the numbers are not those of a whole training; "" where they are."""
        if self.status == "":
            return "has not ended"
        if self.status != "ok":
            return f"{self.status}, at step {self.progress}"
        if self.progress != str(self.step):
            return f"ended early, at step {self.progress}"
        return ""


class Start(Struct):
    """One entry of command.json; `resumed_at` is the step that it continued from.

    `threads` are those of each process.
    """

    time: str = ""
    command: str = ""
    overrides: list[str] = []
    recipe: list[str] | None = []
    changed: list[tuple[str, str, str]] = []
    plan: str = ""
    job: str | None = None
    launcher: str = ""
    processes: Count = 1
    threads: Count = 1
    versions: dict[str, str] = {}
    commit: str | None = None
    resumed_at: Count | None = None


class Percentiles(Struct):
    """Milliseconds of a part of a step, of 50, 90 and 99 % of the steps at most."""

    p50: Number
    p90: Number
    p99: Number


class Memory(Struct):
    """The most memory in GiB."""

    process: Optional = None
    device: Optional = None


class RankTimes(Struct):
    """Seconds of each phase of one rank, milliseconds of a step's parts, and memory."""

    seconds: dict[str, Number]
    wall_s: Number
    steps: Count
    step_ms: dict[str, Percentiles]
    peak_gib: Memory

    def __post_init__(self) -> None:
        if not {"own", "step"} <= self.step_ms.keys():
            raise ValueError("step_ms lacks own or step")


class Timings(Struct):
    """timings.json: the times of every rank."""

    slowest: Count = 0
    ranks: list[RankTimes] = []

    def __post_init__(self) -> None:
        if self.slowest >= max(1, len(self.ranks)):
            raise ValueError(f"slowest is {self.slowest} of {len(self.ranks)} ranks")
        if any(rank.seconds.keys() != self.ranks[0].seconds.keys() for rank in self.ranks):
            raise ValueError("the ranks have other phases")


class Metric(Struct):
    """A value and the interval around it, or the reason why there is none."""

    value: Optional = None
    low: Optional = None
    high: Optional = None
    reason: str = ""

    def __post_init__(self) -> None:
        if (self.low is None) != (self.high is None):
            raise ValueError("an interval has one end")
        if self.low is not None and self.value is None:
            raise ValueError("an interval has no value")


class ClassMetric(Metric):
    """The same of a class, at its threshold of the best F1."""

    threshold: Optional = None
    f1: Optional = None
    precision: Optional = None
    recall: Optional = None
    iou: Optional = None
    objects: Count | None = None


class Confusion(Struct):
    """How often each true label (row) is predicted as each label (column)."""

    labels: list[str]
    counts: list[list[Count]]

    def __post_init__(self) -> None:
        size = len(self.labels)
        if size == 0 or len(self.counts) != size or any(len(row) != size for row in self.counts):
            raise ValueError("counts is not a square of the labels")


class ErrorType(Struct):
    """How often a type of error occurs, and the AP50 that correcting it would add."""

    count: Count | None = None
    gain: Optional = None


class ErrorTypes(Struct):
    """AP50 and its types of errors."""

    types: dict[str, ErrorType]
    AP50: Optional = None


class Bin(Struct):
    """Predictions of about one confidence, and the share that is right."""

    count: Count
    confidence: Optional = None
    accuracy: Optional = None


class Calibration(Struct):
    """The bins, and the mean and the largest difference between confidence and accuracy.

    `after` is the same at the temperature that fits best.
    """

    bins: list[Bin]
    ece: Optional = None
    mce: Optional = None
    temperature: Optional = None
    after: Calibration | None = None


class Hits(Struct, frozen=True):
    """Mean IoU of the hits at IoU .50, and Pearson's correlation of their scores with it."""

    iou: Optional = None
    correlation: Optional = None


class Speed(Struct, frozen=True):
    """Images that an evaluation read and judged."""

    images_per_s: Optional = None
    images_per_cpu_s: Optional = None


class ListedImage(Struct):
    """An image of a list of analysis.json."""

    file_name: str
    image_id: int | str
    hits: Count = 0
    false_alarms: Count = 0
    misses: Count = 0
    score: Optional = None
    label: str | None = msgspec.field(name="class", default=None)
    predicted: str | None = None


class Analysis(Struct):
    """analysis.json, which has metrics; `metrics` is empty without the file."""

    task: str = ""
    images: Count = 0
    metrics: dict[str, Metric] = {}
    classes: dict[str, ClassMetric] = {}
    limit: str = ""  # what the metric leaves out
    threshold: ClassMetric | None = None
    confusion: Confusion | None = None
    errors: ErrorTypes | None = None
    hits: Hits = Hits()
    calibration: Calibration | None = None
    speed: Speed = Speed()
    worst: list[ListedImage] = []
    confident: list[ListedImage] = []
    best: list[ListedImage] = []


class Mark(Struct):
    """A rectangle on an image; `place` is x, y, width and height in pixels."""

    kind: Literal["object", "prediction"]
    text: str
    place: tuple[Number, Number, Number, Number]


class Picture(Struct):
    """An image below images/, with what is drawn on it."""

    file: str
    width: Side
    height: Side
    marks: list[Mark] = []
    source: str | None = None


Line = Annotated[list[Optional], Meta(min_length=101, max_length=101)]


class Details(Struct):
    """details.json: curves by title and class, images by id."""

    precision_recall: dict[str, dict[str, Line]] = {}
    images: dict[str, Picture] = {}


@dataclass
class Series:
    """The logged values of a metric, at most MAX_POINTS of them, the last one included."""

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)


class RunFiles:
    """The files of a run folder, each empty where it is missing; `settings` are by dotted key.

    `source` is what is shown in place of `folder`, where its files were made of another one.

    Raises DataError for a folder without any of the files, and for a file that cannot be read.
    """

    def __init__(self, folder: Path, source: Path | None = None) -> None:
        if not any((folder / name).is_file() for name in FILES):
            remedy = run_in(folder, "give a run folder, or to compare, a json of results")
            raise DataError(f"{folder} has none of {', '.join(FILES)}; {remedy}.")

        self.folder = folder
        self.source = source or folder
        self.name = name_of_run(self.source.resolve())
        self.settings: dict[str, str] = {}
        file = folder / "config.yaml"
        if file.is_file():
            with reading(file):
                content = load_yaml(inside(file))
                self.settings = flattened(msgspec.convert(content, dict[str, object]))
        self.starts = read_typed(folder / "command.json", list[Start])
        self.result = read_result(folder)
        self.timings = read_typed(folder / "timings.json", Timings)
        self.details = read_typed(folder / "details.json", Details)
        self.analysis = read_typed(folder / "analysis.json", Analysis)
        self.series: dict[str, Series] = {}
        file = folder / "metrics.csv"
        if file.is_file():
            with reading(file):
                self.series = read_series(inside(file))

    @property
    def metrics(self) -> dict[str, Metric]:
        """Those of analysis.json by name; without it, values of the last validation."""
        of_result = {short(name): Metric(value) for name, value in self.result.metrics.items()}
        return self.analysis.metrics or of_result

    @property
    def step_of_metrics(self) -> int | None:
        """The step of the validation that `metrics` are of; None if unknown."""
        for name, metric in self.metrics.items():
            for logged, series in self.series.items():
                if short(logged) == name and metric.value in series.values:
                    # of equal values the last
                    return dict(zip(series.values, series.steps, strict=True))[metric.value]
        return None

    @property
    def life(self) -> list[Start]:
        """The start of this run, and those that continued it; the folder may have held another."""
        begins = [i for i, start in enumerate(self.starts) if start.resumed_at is None]
        return self.starts[max(begins, default=0) :]

    @property
    def recipe(self) -> list[str]:
        """The entries of groups that the run was started with."""
        return next((start.recipe for start in reversed(self.life) if start.recipe), [])

    @property
    def differs(self) -> list[str]:
        """What all starts of the run gave beside the recipe, the last value of each key."""
        given: dict[str, str] = {}
        for start in self.life:
            for override in start.overrides:
                if override not in (start.recipe or ()):
                    given[override.partition("=")[0].lstrip("+")] = override
        if len(self.life) > 1:
            given.pop("resume", None)
        return list(given.values())

    @property
    def environment(self) -> dict[str, str | None]:
        """Commit, job and versions of the last start."""
        if not self.starts:
            return {}
        last = self.starts[-1]
        return {"commit": last.commit, "job": last.job, **last.versions}

    @property
    def pictures(self) -> dict[str, list[tuple[ListedImage, Picture]]]:
        """The images of each list of analysis.json in the folder, with their JPEG as `source`."""
        lists: dict[str, list[tuple[ListedImage, Picture]]] = defaultdict(list)
        for kind in LISTS:
            for image in getattr(self.analysis, kind)[:MAX_LISTED]:
                picture = self.details.images.get(str(image.image_id))
                if picture:
                    picture.source = jpeg_source(self.folder / "images" / Path(picture.file).name)
                    if picture.source:
                        lists[kind].append((image, picture))
        return lists


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Within it, what a damaged file causes is a DataError that names the file."""
    try:
        yield
    except DataError:
        raise
    except (OSError, ValueError, RecursionError, OverflowError) as error:
        raise DataError(
            f"{file} cannot be read ({first_line(error)}); remove or repair it."
        ) from error


def read_typed(file: Path, kind: type[T]) -> T:
    """The content of a JSON file as `kind`; an empty one where there is no file.

    NaN and infinity are read as null. Raises DataError for what is not JSON, and for another shape.
    """
    if not file.is_file():
        return kind()
    with reading(file):
        # json, unlike msgspec, reads halves of characters, of which names of files can consist
        content = json.loads(read_bytes(inside(file)), parse_constant=lambda _: None)
        return msgspec.convert(content, kind)


def read_result(folder: Path) -> Result:
    """The content of result.json; empty without the file. Raises DataError for another shape."""
    return read_typed(folder / RESULT, Result)


def are_paired(first: Resampled | None, second: Resampled | None, metric: str) -> bool:
    """Whether both results have the metric in the same resamples of the same images."""
    if first is None or second is None or first.images != second.images:
        return False
    one = first.samples.get(metric, ())
    return len(one) > 0 and len(one) == len(second.samples.get(metric, ()))


def short(name: str) -> str:
    """A metric's name without its group, such as "loss" of "val/loss"."""
    return name.split("/", 1)[-1]


def inside(file: Path) -> Path:
    """`file`, which is not a link out of its folder. Raises DataError."""
    if file.resolve().parent != file.parent.resolve():
        raise DataError(
            f"{file} is a link out of its folder, which is not followed; copy the file."
        )
    return file


def jpeg_source(file: Path) -> str | None:
    """A JPEG file as a data URL; None for a link, for another kind of file, and for a large one."""
    if file.is_symlink() or file.parent.is_symlink() or not file.is_file():
        return None
    with open_regular(file) as opened:
        content = opened.read(MAX_PICTURE + 1)
    if len(content) > MAX_PICTURE or content[:3] != b"\xff\xd8\xff":
        return None
    return "data:image/jpeg;base64," + base64.b64encode(content).decode()


def read_series(file: Path) -> dict[str, Series]:
    """Each metric of a metrics.csv, thinned while it is read.

    Rows that fill the same columns are thinned together, to an even choice with the first and the
    last: the few of the validations stay beside the many of the steps. Raises DataError unless a
    CsvLogger wrote the file.
    """
    totals = Counter(tuple(values) for _, values in read_metrics(file))
    seen: Counter[tuple[str, ...]] = Counter()
    series: dict[str, Series] = defaultdict(Series)
    for step, values in read_metrics(file):
        key = tuple(values)
        place = seen[key] * MAX_POINTS
        span = max(1, totals[key] - 1)
        seen[key] += 1
        if place // span == (place - MAX_POINTS) // span:
            continue

        if step > 2**53:
            raise ValueError(f"a step has {len(str(step))} digits")
        for name, value in values.items():
            series[name].steps.append(step)
            series[name].values.append(value)
    return dict(series)
