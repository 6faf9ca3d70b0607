"""COCO ground truth from a json or a dictionary: decode it, check it, and keep it in arrays.

A Python dictionary for each of COCO's 900,000 objects takes 3 GB.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import compress
from operator import attrgetter, getitem
from typing import Any

import msgspec
import numpy as np

from retina_dist.base.errors import DataError
from retina_dist.base.text import escape, is_text, pluralize, truncate
from retina_dist.data.tree import local_part
from retina_dist.detection.readers.categories import Entry

# Beyond it float64, in which boxes are cleaned and metrics gathered, mixes up neighbours.
MAX_INTEGER = 2**53
MAX_AREA = 1e10  # in px^2; the metric's "all areas" end there, and leave out a box beyond
NO_ID = -1  # of an object without one
CHUNK = 4096  # objects that are decoded at a time
MAX_LICENSES = 12  # that are named; COCO has eight
MAX_TABLE = 16  # table entries for each known id; above it ids are searched for
# What to do about a value of another type, or an absent one.
FORMS = {
    "images": 'write {"id": 1, "file_name": PATH} for each',
    "categories": 'write {"id": 1, "name": CLASS} for each',
    "iscrowd": "write 0 or 1 as iscrowd",
    "id": "give each its own whole number as id",
    "image_id": "give the id of one of the images as image_id",
    "category_id": (
        "give the id of one of the categories as category_id, or instances_*.json for panoptic_*"
    ),
    "file_name": "give the path below the folder of images as file_name",
    "name": "give the class as name, in quotes",
    "bbox": "give bbox as [x, y, width, height] in pixels",
}

# An object before it is checked. Ids are floats, exact up to MAX_INTEGER, so that none overflows.
OBJECT = np.dtype(
    [
        ("id", np.float64),
        ("image_id", np.float64),
        ("category_id", np.float64),
        ("iscrowd", np.float64),
        ("bbox", np.float64, 4),
        ("area", np.float64),  # NaN where there is none
        ("has_area", np.bool_),
    ]
)


class CocoImage(msgspec.Struct, gc=False, omit_defaults=True):
    """An entry of `images`; width and height in pixels."""

    id: int
    file_name: str
    width: int | None = None
    height: int | None = None


class CocoBox(msgspec.Struct, gc=False):
    """An entry of `annotations`; bbox is x, y, width, height, or two corners, in pixels."""

    image_id: int
    category_id: int
    bbox: tuple[float, float, float, float]
    id: int = NO_ID
    area: float | None = None
    iscrowd: float | bool = 0


class CocoCategory(msgspec.Struct):
    """An entry of `categories`."""

    id: int
    name: str


class CocoJson(msgspec.Struct):
    """What is read of a COCO json; its objects stay bytes until their chunk is decoded."""

    images: list[CocoImage]
    annotations: list[msgspec.Raw]
    categories: list[CocoCategory]
    info: object = None
    licenses: object = None

    def origin(self) -> dict[str, str]:
        """`license` and `source` of the data, "" where the file does not state them."""
        info = self.info if isinstance(self.info, dict) else {}
        licenses = self.licenses if isinstance(self.licenses, list) else []
        names = [each.get("name") for each in licenses if isinstance(each, dict)]
        source = info.get("url") or info.get("description") or ""
        return {
            "license": truncate([*filter(None, names)], MAX_LICENSES),
            "source": escape(source, 500),
        }


class CocoDictionary(CocoJson):
    """What is read of a dictionary in COCO's form."""

    annotations: list[CocoBox]  # type: ignore[assignment]


class CocoContent(msgspec.Struct):
    """What was read of either, not checked yet; `objects` is [A] of dtype OBJECT."""

    images: list[CocoImage]
    objects: np.ndarray
    categories: list[CocoCategory]
    origin: dict[str, str]


@dataclass(frozen=True)
class GroundTruth:
    """Checked ground truth of I images and A objects.

    Args:
        images: [I].
        categories: their ids and names, as in COCO's json.
        ids: of the objects, int64 [A].
        image_rows: the place of each object's image in `images`, int64 [A].
        category_ids: the class of each object, int64 [A].
        boxes: x, y, width, height in pixels as in the file, float64 [A, 4].
        areas: in square pixels, float64 [A].
        crowd: which objects are crowd regions, bool [A].
        origin: the `license` and the `source` of the data, "" where nothing states them.
    """

    images: Sequence[CocoImage]
    categories: list[Entry]
    ids: np.ndarray
    image_rows: np.ndarray
    category_ids: np.ndarray
    boxes: np.ndarray
    areas: np.ndarray
    crowd: np.ndarray
    origin: dict[str, str]

    def of_images(self, ids: Collection[int]) -> GroundTruth:
        """The part about these images."""
        kept = np.array([image.id in ids for image in self.images], dtype=bool)
        part = self.of_objects(kept[self.image_rows])
        rows = np.cumsum(kept) - 1
        images = list(compress(self.images, kept))
        return replace(part, images=images, image_rows=rows[part.image_rows])

    def of_objects(self, kept: np.ndarray) -> GroundTruth:
        """The objects of a mask [A]; all images stay."""
        return replace(
            self,
            ids=self.ids[kept],
            image_rows=self.image_rows[kept],
            category_ids=self.category_ids[kept],
            boxes=self.boxes[kept],
            areas=self.areas[kept],
            crowd=self.crowd[kept],
        )

    def in_pixels(self, sizes: Mapping[int, tuple[int, int]]) -> GroundTruth:
        """The same, its boxes being shares of the (width, height) of their images, by ids.

        Boxes of an image without a size are lost.
        """
        sides = np.array([sizes.get(image.id, (0, 0)) for image in self.images], dtype=np.float64)
        boxes = self.boxes * np.tile(sides.reshape(-1, 2), 2)[self.image_rows]
        return replace(self, boxes=boxes, areas=boxes[:, 2] * boxes[:, 3])

    def to_coco(self) -> Entry:
        """COCO's dictionary, for the evaluators and for files."""
        image_ids = [image.id for image in self.images]
        columns = zip(
            self.ids.tolist(),
            map(image_ids.__getitem__, self.image_rows.tolist()),
            self.category_ids.tolist(),
            self.boxes.tolist(),
            self.areas.tolist(),
            self.crowd.astype(int).tolist(),
            strict=True,
        )
        keys = ("id", "image_id", "category_id", "bbox", "area", "iscrowd")
        return {
            "images": msgspec.to_builtins(self.images),
            "annotations": [dict(zip(keys, values, strict=True)) for values in columns],
            "categories": self.categories,
        }


def places_in(known: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The index in `known` [n] of each id of `wanted` [m], int64 [m]; -1 for an unknown id."""
    if not len(known):
        return np.full(len(wanted), -1)
    last = int(known.max())
    if last < len(known) * MAX_TABLE:
        table = np.full(last + 1, -1)
        table[known] = np.arange(len(known))
        return np.where((wanted >= 0) & (wanted <= last), table[wanted.clip(0, last)], -1)
    order = np.argsort(known)
    places = order[np.searchsorted(known, wanted, sorter=order).clip(max=len(known) - 1)]
    return np.where(known[places] == wanted, places, -1)


def _as_array(objects: Sequence[CocoBox]) -> np.ndarray:
    """The objects as [A] of dtype OBJECT."""
    rows = np.empty(len(objects), dtype=OBJECT)
    for column in ("id", "image_id", "category_id", "iscrowd"):
        rows[column] = list(map(attrgetter(column), objects))
    rows["bbox"] = np.array([each.bbox for each in objects]).reshape(-1, 4)
    areas = [each.area for each in objects]
    rows["area"] = np.array(areas, dtype=np.float64)  # NaN for None
    rows["has_area"] = [area is not None for area in areas]
    return rows


def decode_coco(content: bytes) -> CocoContent | Entry:
    """The content of a COCO json; a plain dictionary where it differs from COCO's documentation.

    Objects are decoded in chunks, so that a large file needs little memory beyond its bytes.
    Raises ValueError for what is not JSON.
    """
    decode = msgspec.json.Decoder(list[CocoBox]).decode
    try:
        found = msgspec.json.decode(content, type=CocoJson)
        parts = [_as_array([])]
        for start in range(0, len(found.annotations), CHUNK):
            chunk = found.annotations[start : start + CHUNK]
            parts.append(_as_array(decode(b"[" + b",".join(map(bytes, chunk)) + b"]")))
    except msgspec.MsgspecError:
        # json knows NaN and encodings other than UTF-8; `make_ground_truth` says what is wrong
        decoded: Entry = json.loads(content)
        return decoded
    return CocoContent(found.images, np.concatenate(parts), found.categories, found.origin())


def make_ground_truth(
    content: CocoContent | Entry, source: object, *, has_corners: bool = False
) -> tuple[GroundTruth, list[str]]:
    """Check decoded content, which stays as it is, and return it as arrays, with warnings.

    Ids are whole and unique, references resolve, boxes are four numbers. An area that no metric can
    use is replaced by width x height, with a warning.

    Args:
        content: of a COCO json or a dictionary in its form.
        source: what messages name.
        has_corners: each bbox is x1, y1, x2, y2 instead of x, y, width, height.

    Raises DataError, naming `source` and entry.
    """
    warnings: list[str] = []
    if not isinstance(content, CocoContent):
        content, warnings = parse_dictionary(content, source)
    images = content.images
    categories = content.categories
    objects = content.objects
    if not categories:
        raise DataError(f"{source} has no category of a box; draw boxes or polygons.")

    category_ids = _ids([each.id for each in categories], "categories", source)
    image_ids = _ids([each.id for each in images], "images", source)
    _check_texts([(each.id, each.name) for each in categories], "category", "name", source)
    _check_texts([(each.id, each.file_name) for each in images], "image", "file_name", source)
    numbers = objects["id"]
    if (numbers == NO_ID).all():
        numbers = np.arange(1, len(objects) + 1)
    ids = _ids(numbers, "annotations", source)
    crowd = objects["iscrowd"]
    wrong = np.flatnonzero((crowd != 0) & (crowd != 1))
    if len(wrong):
        raise DataError(
            f"{source}: annotation {ids[wrong[0]]} has iscrowd {crowd[wrong[0]]:g}, not 0 or 1; "
            "correct it."
        )

    boxes = objects["bbox"].copy()
    if has_corners:
        boxes[:, 2:] -= boxes[:, :2]
    areas, said = _usable_areas(ids, boxes, objects["area"], objects["has_area"])
    image_rows = _references(ids, objects["image_id"], image_ids, "image", source)
    categories_of = _references(ids, objects["category_id"], category_ids, "category", source)
    truth = GroundTruth(
        images=images,
        categories=msgspec.to_builtins(categories),
        ids=ids,
        image_rows=image_rows,
        category_ids=category_ids[categories_of],
        boxes=boxes,
        areas=areas,
        crowd=crowd == 1,
        origin=content.origin,
    )
    return truth, [*warnings, *(f"{source}: {each}" for each in said)]


def parse_dictionary(content: Entry, source: object) -> tuple[CocoContent, list[str]]:
    """The content of a dictionary in COCO's form, and a warning where "7" or 7.0 is read as 7.

    Raises DataError, naming `source`, entry and value.
    """
    remedy = "give COCO's ground truth, such as instances_*.json"
    for key in ("images", "annotations", "categories"):
        if not isinstance(content, dict) or not isinstance(content.get(key), list):
            raise DataError(f"{source} has no list '{key}'; {remedy}, with \"{key}\": [{{...}}].")
    warnings = []
    for image in content["images"]:
        if isinstance(image, dict) and "coco_url" in image:  # of LVIS, which has no file_name
            image.setdefault("file_name", local_part(str(image["coco_url"])))
    try:
        try:
            found = msgspec.convert(content, CocoDictionary)
        except msgspec.ValidationError as error:
            taken = "such values are read as numbers"
            warnings = [f"{source}: {_place_of(error, content)}; {taken}"]
            found = msgspec.convert(content, CocoDictionary, strict=False)
    except UnicodeError as error:
        raise DataError(f"{source} holds half a character ({error}); correct it.") from error
    except msgspec.ValidationError as error:
        remedy = "correct it"
        for word in re.findall(r"\w+", str(error)):
            remedy = FORMS.get(word, remedy)
        raise DataError(f"{source}: {_place_of(error, content)}; {remedy}.") from error
    objects = _as_array(found.annotations)
    return CocoContent(found.images, objects, found.categories, found.origin()), warnings


def _place_of(error: msgspec.ValidationError, content: Entry) -> str:
    """Which value of `content` has the wrong type, and what was expected."""
    problem, _, path = str(error).partition(" - at `$")
    keys: list[Any] = []
    for key, index in re.findall(r"\.(\w+)|\[(\d+)\]", path):
        keys.append(key or int(index))
    value = reduce(getitem, keys, content)
    where = path.strip(".`")
    if len(keys) > 1 and isinstance(content[keys[0]][keys[1]], dict):
        where += f" (id {escape(content[keys[0]][keys[1]].get('id'), 40)})"
    return f"{where} is {escape(repr(value), 80)}: {problem[0].lower()}{problem[1:]}"


def _ids(values: Sequence[int] | np.ndarray, key: str, source: object) -> np.ndarray:
    """The ids of the entries of `key` as int64 [n]: whole, at least 0, and unique."""
    ids = np.array(values, dtype=np.float64)
    wrong = np.flatnonzero(~((ids >= 0) & (ids <= MAX_INTEGER)))
    if len(wrong):
        problem = f"has id {values[wrong[0]]:.0f}, not a whole number from 0 to 2^53"
        raise DataError(f"{source}: an entry of '{key}' {problem}; correct it.")
    found, counts = np.unique(ids, return_counts=True)
    if len(found) < len(ids):
        most = counts.argmax()
        problem = f"id {found[most]:.0f} stands {counts[most]} times in '{key}'"
        raise DataError(f"{source}: {problem}; give each its own, also where it is referred to.")
    return ids.astype(np.int64)


def _check_texts(texts: list[tuple[int, str]], thing: str, key: str, source: object) -> None:
    for number, text in texts:
        if not is_text(text):
            raise DataError(
                f"{source}: {thing} {number} has no {key} without control characters; add one."
            )


def _references(
    ids: np.ndarray, values: np.ndarray, known: np.ndarray, thing: str, source: object
) -> np.ndarray:
    """The place [A] in `known` of what each object is of, all of which are there."""
    places = places_in(known, values.clip(-1, MAX_INTEGER).astype(np.int64))
    strangers = np.flatnonzero(places < 0)
    if len(strangers):
        remedy = "correct the ids, list them, or remove these annotations"
        if min(values) == 0 and 0 not in known and np.isin(values + 1, known).all():
            remedy = "these count from 0 and the list from 1, so add 1 to each"
        raise DataError(
            f"{source}: annotation {ids[strangers[0]]} is of {thing} {values[strangers[0]]:.0f}, "
            f"which is not listed ({len(strangers)} of {pluralize(len(values), 'annotation')}); "
            f"{remedy}."
        )
    return places


def _usable_areas(
    ids: np.ndarray, boxes: np.ndarray, areas: np.ndarray, is_given: np.ndarray
) -> tuple[np.ndarray, list[str]]:
    """Areas [A] that the metrics can use, and sentences on those of the file that they cannot."""
    width, height = boxes[:, 2:].T
    with np.errstate(invalid="ignore", over="ignore"):
        own = width * height
        own[~((width >= 0) & (height >= 0) & (own <= MAX_AREA))] = 0
        usable = (areas >= 0) & (areas <= MAX_AREA)
    taken = "width x height is taken instead"
    if is_given.all() and not areas.any() and own.any():
        return own, [f"every area is 0; {taken}"]

    wrong = np.flatnonzero(is_given & ~usable)
    said = []
    if len(wrong):
        examples = [f"annotation {ids[i]}: {areas[i]:g}" for i in wrong[:6]]
        said.append(
            f"{pluralize(len(wrong), 'area')} that no metric can use ({truncate(examples)}); "
            f"{taken}"
        )
    return np.where(usable, areas, own), said
