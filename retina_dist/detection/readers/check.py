"""Checks of a COCO dictionary, whoever wrote it: what must be there is, and what may be left out is
filled in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from retina_dist.base.errors import DataError
from retina_dist.base.text import escape, is_text, pluralize, truncate
from retina_dist.detection.readers.categories import Entry

# Beyond it float64, in which boxes are cleaned and metrics gathered, mixes up neighbours.
MAX_INTEGER = 2**53
MAX_AREA = 1e10  # in px^2; the metric's "all areas" end there, and leave out a box beyond

Entries = list[Entry]


def check_content(
    coco: Entry, source: object, *, has_corners: bool = False
) -> tuple[Entry, list[str]]:
    """A checked dictionary with complete annotations, and warnings; the caller's is left as it is.

    Ids are whole and unique, references resolve, boxes are four numbers. With `has_corners` each
    bbox is two corners and becomes [x, y, width, height]. An area that no metric can use is
    replaced, with a warning. Raises DataError, naming `source` and entry.
    """
    _check_lists(coco, source)
    _check_ids(coco["categories"], "categories", source)
    _check_texts(coco["categories"], "category", "name", source)
    _check_ids(coco["images"], "images", source)
    _check_texts(coco["images"], "image", "file_name", source)

    entries = [dict(entry) for entry in coco["annotations"]]
    if not any("id" in entry for entry in entries):
        entries = [entry | {"id": number} for number, entry in enumerate(entries, start=1)]
    _check_ids(entries, "annotations", source)
    _check_references(entries, "image", coco["images"], source)
    _check_references(entries, "category", coco["categories"], source)

    unusable: list[str] = []
    for entry in entries:
        problem = _problem_of(entry)
        if problem:
            raise DataError(f"{source}: annotation {entry['id']} has {problem}.")
        if has_corners:
            left, top, right, bottom = entry["bbox"]
            entry["bbox"] = [left, top, right - left, bottom - top]
        given = entry.get("area", -1)
        if not 0 <= given <= MAX_AREA:  # nor is NaN
            if "area" in entry:
                unusable.append(f"annotation {entry['id']}: {given}")
            entry["area"] = _area_of(entry["bbox"])
        entry["iscrowd"] = int(entry.get("iscrowd", 0))  # to the evaluators 0.0 is not 0

    warnings = []
    if unusable:
        areas = f"{pluralize(len(unusable), 'area')} that no metric can use ({truncate(unusable)})"
        warnings.append(f"{source}: {areas}; width x height is taken instead")
    return coco | {"annotations": entries}, warnings


def _check_lists(coco: Entry, source: object) -> None:
    for key in ("images", "annotations", "categories"):
        if not isinstance(coco.get(key), list):
            remedy = "give COCO's ground truth, such as instances_*.json"
            raise DataError(f"{source} has no list '{key}'; {remedy}.")
        if not all(isinstance(entry, dict) for entry in coco[key]):
            raise DataError(f"{source}: an entry of '{key}' is not an object; restore the file.")
    if not coco["categories"]:
        raise DataError(f"{source} has no category; there is nothing to detect.")


def _check_ids(entries: Entries, key: str, source: object) -> None:
    for entry in entries:
        value = entry.get("id")
        if type(value) is not int or not 0 <= value <= MAX_INTEGER:
            problem = f"has id {escape(value, 80)!r}, not an integer up to 2^53"
            raise DataError(f"{source}: an entry of '{key}' {problem}.")
    for value, times in Counter(entry["id"] for entry in entries).most_common(1):
        if times > 1:
            problem = f"id {value} stands {times} times in '{key}'"
            raise DataError(f"{source}: {problem}; ids must be unique.")


def _check_texts(entries: Entries, thing: str, key: str, source: object) -> None:
    for entry in entries:
        if not is_text(entry.get(key)):
            problem = f"{thing} {entry['id']} has no {key} without control characters"
            raise DataError(f"{source}: {problem}; add one.")


def _check_references(entries: Entries, thing: str, listed: Entries, source: object) -> None:
    """Each annotation is of an image, or a category, that is listed."""
    key = f"{thing}_id"
    ids = {entry["id"] for entry in listed}
    strangers = [entry for entry in entries if not _is_one_of(entry.get(key), ids)]
    if strangers:
        value = escape(repr(strangers[0].get(key)), 80)
        first = f"annotation {strangers[0]['id']} is of {thing} {value}, which is not listed"
        count = f"{len(strangers)} of {pluralize(len(entries), 'annotation')}"
        raise DataError(f"{source}: {first} ({count}); correct the ids, or list them.")


def _is_one_of(value: object, ids: Collection[int]) -> bool:
    return type(value) is int and value in ids


def _problem_of(entry: Entry) -> str:
    """The first value of an annotation that is no value of its kind, and the remedy; ""
    for none.
    """
    box = entry.get("bbox")
    if not isinstance(box, list) or len(box) != 4 or not all(map(_is_number, box)):
        return f"bbox {escape(box, 80)}; give four numbers"
    if "area" in entry and not _is_number(entry["area"]):
        return f"area {escape(entry['area'], 80)}, not a number"
    crowd = entry.get("iscrowd", 0)
    if crowd not in (0, 1):
        return f"iscrowd {escape(crowd, 80)}, not 0 or 1"
    return ""


def _area_of(box: list[float]) -> float:
    *_, width, height = box
    area = width * height
    if min(width, height) < 0 or not area <= MAX_AREA:
        return 0
    return area


def _is_number(value: object) -> bool:
    return type(value) is float or (type(value) is int and -MAX_INTEGER <= value <= MAX_INTEGER)
