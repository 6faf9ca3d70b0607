"""Your own `torch.utils.data.Dataset` as the images and boxes of a training: boxes are read once,
images in every epoch.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.ops import box_convert
from torchvision.tv_tensors import BoundingBoxes

from retina_dist.base.errors import ConfigError, DataError, ImageError
from retina_dist.base.text import pluralize
from retina_dist.data.images import pixels_of
from retina_dist.data.sources import ByValue, DatasetItem
from retina_dist.detection.readers.categories import Entry, check_names
from retina_dist.detection.readers.content import Content
from retina_dist.detection.readers.formats import AnnotationReader
from retina_dist.detection.settings import DetectionData

logger = logging.getLogger(__name__)

COLUMNS = ("boxes", "labels", "iscrowd", "area")
NUM_READ_AGAIN = 8  # items; one in 256 data sets of random flips passes
ITEM = "(image, boxes, labels) or (image, {'boxes': …, 'labels': …})"
FILES = ", or its files to rd.DetectionData"


@dataclass(kw_only=True)
class TorchDatasetConfig(DetectionData):
    """Data of your own datasets. `DetectionData`'s settings hold too, except those that name files.

    An item is `(image, boxes, labels)`, or as in torchvision
    `(image, {"boxes": boxes, "labels": labels})`:

    * image: a file, a PIL image, an array [H, W, 3] or a tensor [3, H, W] in RGB, uint8 or floats
      from 0 to 1,
    * boxes: [n, 4] xyxy in pixels of that image (`box_format="xywh"`: x, y, width, height;
      BoundingBoxes say it themselves),
    * labels: [n] whole numbers, 0 for the first of `categories`,
    * the dictionary may also hold "image_id" (default: number of the item + 1), "iscrowd" [n] and
      "area" [n], as COCO has them.

    Item i must be the same each time: augmentation is set here, by `hflip` and others. All items
    are read once at the start for their boxes and sizes; a dataset avoids that with a method
    `annotation(i)`, which returns the dictionary without the image and with "size": (height,
    width). Data workers get a copy of the dataset, its classes included, so it may be defined in a
    script or in a notebook; files are best opened in `__getitem__`.
    """

    train: InitVar[Dataset[object]]
    val: InitVar[Dataset[object] | None] = None
    categories: InitVar[Sequence[str]]
    datasets: ClassVar[dict[str, "ItemReader"]] = {}

    def __post_init__(
        self, train: Dataset[object], val: Dataset[Any] | None, categories: Sequence[str]
    ) -> None:
        check_names(categories)
        if categories[0].strip("_").lower() == "background":
            raise ConfigError(
                f"categories[0]={categories[0]!r} is a background, which has no label; "
                "leave it out."
            )
        names = tuple(categories)
        self.datasets = {"train": ItemReader(train, "train", names)}  # type: ignore[misc]
        if val is not None:
            self.datasets["val"] = ItemReader(val, "val", names)

    def reader(self) -> AnnotationReader:
        return TorchDatasetReader(self)


class TorchDatasetReader(AnnotationReader):
    """Reads the datasets of a `TorchDatasetConfig`."""

    settings: TorchDatasetConfig

    def has(self, split: str) -> bool:
        return split in self.settings.datasets

    def read(self, split: str) -> Content | None:
        items = self.settings.datasets.get(split)
        if items is None:
            return None
        box_format = self.settings.box_format or "xyxy"
        coco = items.coco(box_format)
        sources = {
            entry["id"]: DatasetItem(items, number) for number, entry in enumerate(coco["images"])
        }
        return Content(
            coco,
            Path(),
            items,
            sources=sources,
            box_format="xywh",
            has_corners=box_format == "xyxy",
        )


class ItemReader:
    """Images and boxes of a map-style dataset; `names` has one for each label. Raises DataError,
    naming the item.
    """

    def __init__(self, dataset: Any, split: str, names: Sequence[str] = ()) -> None:
        has_items = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
        if isinstance(dataset, type | str | Path) or not has_items:
            remedy = f"an instance with __getitem__ and __len__, which makes no batches{FILES}"
            if hasattr(dataset, "dataset"):
                remedy = f"{split}=loader.dataset, of which batches are made here"
            raise ConfigError(f"{split}={dataset} is not a dataset; give {remedy}.")
        self.dataset = dataset
        self.split = split
        self.names = names
        self._coco: dict[str, Entry] = {}  # by the form of the boxes

    def __str__(self) -> str:
        return f"{self.split} dataset"

    def __reduce__(self) -> tuple[object, ...]:
        return ItemReader, (ByValue(self.dataset, str(self)), self.split)

    def pixels(self, number: int) -> Tensor:
        """Image `number`, uint8 [3, h, w] RGB."""
        return self._as_pixels(number, self._item(number)[0])

    def coco(self, box_format: str) -> Entry:
        """All boxes, which items give as `box_format`, as COCO ground truth, read once.

        Category ids are the labels; images are named by this reader and their number.
        """
        if box_format not in self._coco:
            self._coco[box_format] = self._read(box_format)
        return self._coco[box_format]

    def _read(self, box_format: str) -> Entry:
        images: list[Entry] = []
        boxes: list[Entry] = []
        if not callable(getattr(self.dataset, "annotation", None)):
            items = pluralize(len(self.dataset), "item")
            logger.info(f"reading the {items} of the {self} once, for boxes and sizes")
            for number in range(min(NUM_READ_AGAIN, len(self.dataset))):
                self._check_is_same(number, box_format)
        for number in range(len(self.dataset)):
            target, (height, width) = self._target(number)
            image_id = self._whole(number, "image_id", target.get("image_id", number + 1))
            name = f"{self}[{number}]"
            images.append({"id": image_id, "file_name": name, "width": width, "height": height})
            for entry in self._boxes(number, target, box_format):
                boxes.append({"image_id": image_id, **entry})
        categories = [{"id": label, "name": name} for label, name in enumerate(self.names)]
        return {"images": images, "annotations": boxes, "categories": categories}

    def _target(self, number: int) -> tuple[Mapping[str, object], tuple[int, int]]:
        """An item's dictionary of boxes, and (height, width) of its image."""
        annotation = getattr(self.dataset, "annotation", None)
        if not callable(annotation):
            image, target = self._item(number)
            _, height, width = self._as_pixels(number, image).shape
            return target, (height, width)
        target = annotation(number)
        try:
            height, width = map(int, target["size"])
        except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
            raise DataError(
                f"{self}: annotation({number}) has no size; return size=(height, width) too."
            ) from error
        return target, (height, width)

    def _check_is_same(self, number: int, box_format: str) -> None:
        """Raise DataError for an item that differs from one reading to the next."""
        first, second = (self._content(number, box_format) for _ in range(2))
        if str(first[0]) != str(second[0]) or not torch.equal(first[1], second[1]):
            raise DataError(
                f"{self}[{number}] differs each time that it is read; leave random changes out of "
                "it, and give them to rd.Trainer as its augmentation."
            )

    def _content(self, number: int, box_format: str) -> tuple[list[Entry], Tensor]:
        image, target = self._item(number)
        return self._boxes(number, target, box_format), self._as_pixels(number, image)

    def _item(self, number: int) -> tuple[object, Mapping[str, object]]:
        try:
            item = self.dataset[number]
        except Exception as error:
            note = f"{self}[{number}] raised this; correct its __getitem__."
            vars(error).setdefault("__notes__", []).append(note)  # add_note of Python 3.11
            raise
        parts = item if isinstance(item, (tuple, list)) else ()
        if len(parts) == 3:
            return parts[0], {"boxes": parts[1], "labels": parts[2]}
        if len(parts) == 2 and isinstance(parts[1], Mapping):
            return parts[0], parts[1]
        kind = type(item).__name__
        raise DataError(f"{self}[{number}] is a {kind} of another form; return {ITEM}{FILES}.")

    def _boxes(self, number: int, target: Mapping[str, object], box_format: str) -> list[Entry]:
        """The boxes of an item in COCO's form, without ids."""
        columns = self._columns(number, target)
        boxes = columns.pop("boxes")
        if isinstance(target["boxes"], BoundingBoxes):
            box_format = target["boxes"].format.value
        boxes = box_convert(boxes, box_format.lower(), "xywh")
        labels = self._labels(number, columns.pop("labels"))
        keys = ("category_id", "bbox", *columns)
        values = [labels, boxes.tolist(), *(column.tolist() for column in columns.values())]
        return [dict(zip(keys, entry, strict=True)) for entry in zip(*values, strict=True)]

    def _columns(self, number: int, target: Mapping[str, object]) -> dict[str, Tensor]:
        """Boxes [n, 4] as they were given, and what else an item has [n] of."""
        where = f"{self}[{number}]"
        for key in ("boxes", "labels"):
            if key not in target:
                raise DataError(f"{where} has no {key}; return {ITEM}.")
        columns = {key: self._array(number, key, target[key]) for key in COLUMNS if key in target}
        boxes = columns["boxes"]
        if boxes.numel() and (boxes.ndim != 2 or boxes.shape[1] != 4):
            raise DataError(
                f"{where} has boxes {list(boxes.shape)}; give [n, 4] in pixels, and labels apart."
            )
        columns["boxes"] = boxes = boxes.reshape(-1, 4)
        for key, column in columns.items():
            is_one_each = key == "boxes" or column.shape == (len(boxes),)
            if not is_one_each and column.numel() + len(boxes):
                raise DataError(
                    f"{where} has {key} {list(column.shape)} for {len(boxes)} boxes; "
                    "give one for each."
                )
        return columns

    def _labels(self, number: int, column: Tensor) -> list[int]:
        labels = [self._whole(number, "label", label) for label in column.tolist()]
        for label in labels:
            if not 0 <= label < len(self.names):
                last = len(self.names) - 1
                raise DataError(
                    f"{self}[{number}] has label {label}, but the last is {last}; "
                    "add its name, or count from 0."
                )
        return labels

    def _array(self, number: int, key: str, values: object) -> Tensor:
        try:
            return torch.as_tensor(values).as_subclass(Tensor).detach().cpu().double()
        except (TypeError, ValueError, RuntimeError) as error:
            raise DataError(
                f"{self}[{number}] has {key} that are not numbers ({error}); give a tensor, in "
                "which 0 is the first category."
            ) from error

    def _whole(self, number: int, key: str, value: Any) -> int:
        try:
            whole = int(value)
            if whole == float(value):
                return whole
        except (TypeError, ValueError, OverflowError, RuntimeError):
            pass
        raise DataError(f"{self}[{number}] has {key} {value}; give a whole number.")

    def _as_pixels(self, number: int, image: Any) -> Tensor:
        """An image as `read_image` returns it: in channels-last memory that nothing else uses."""
        try:
            pixels = pixels_of(image)
        except DataError as error:
            raise ImageError(f"{self}[{number}]: {error}") from error
        upright = pixels.permute(1, 2, 0).clone(memory_format=torch.contiguous_format)
        return upright.permute(2, 0, 1)
