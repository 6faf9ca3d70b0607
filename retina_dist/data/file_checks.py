"""Checks of a data set's image files: missing, damaged, of another size, the same as others."""

import hashlib
import os
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Literal

from PIL import UnidentifiedImageError

from retina_dist.base.errors import ImageError, set_status
from retina_dist.base.text import pluralize
from retina_dist.data.images import image_sizes, read_image
from retina_dist.data.sources import AT_ONCE, Source, is_remote, read, read_all
from retina_dist.reporting.findings import Finding, Level, listed

DARK = 16  # of 255: the largest value of an image that shows nothing

Size = tuple[int, int] | None  # (width, height) in px
File = tuple[str, Source, Size]  # name, source and annotated size


@dataclass(frozen=True)
class ImageCheck:
    """The check of one file."""

    name: str
    problem: Literal["missing", "unreadable", "of another size"] | None = None
    detail: str = ""
    size: Size = None  # as displayed
    digest: str | None = None  # SHA-256 of the file
    is_dark: bool = False


def check_images(
    files: Sequence[File], split: str, images: str, max_pixels: int
) -> list[ImageCheck]:
    """`check_image` of each in threads, since decoders release the interpreter's lock.

    `images="none"` opens none of them.
    """
    if images == "none":
        return [ImageCheck(name) for name, *_ in files]
    checks = []
    check_one = partial(check_image, decode=images == "decode", max_pixels=max_pixels)
    remote = any(is_remote(source) for _, source, _ in files)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for start in range(0, len(files), AT_ONCE):
            part = files[start : start + AT_ONCE]
            contents: Sequence[bytes | ImageError | None] = [None] * len(part)
            if remote:
                contents = read_all([source for _, source, _ in part])
            for check in pool.map(check_one, part, contents):
                checks.append(check)
                set_status(f"reading {split}, {len(checks)} of {pluralize(len(files), 'image')}")
    return checks


def check_image(
    file: File, content: bytes | ImageError | None = None, *, decode: bool, max_pixels: int
) -> ImageCheck:
    """Whether a file is there, opens (with `decode`, to its end) and has its annotated size.

    `content` is of `read_all`.
    """
    name, source, annotated = file
    is_dark = False
    try:
        if isinstance(content, ImageError):
            raise content
        content = read(source) if content is None else content
        size, stored = image_sizes(source, max_pixels, content)
        if decode:
            pixels = read_image(source, max_pixels=max_pixels, content=content)
            is_dark = bool(pixels.max() <= DARK)
    except ImageError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return ImageCheck(name, "missing", str(source))
        # the decoder's own words; our sentence has a remedy for trainings
        cause = error.__cause__ or error
        reason = "not an image" if isinstance(cause, UnidentifiedImageError) else str(cause)
        return ImageCheck(name, "unreadable", f"{name}: {reason}")
    digest = hashlib.sha256(content).hexdigest()
    if annotated and annotated not in (size, stored):
        detail = f"{name} is {size[0]} x {size[1]}, annotated {annotated[0]} x {annotated[1]}"
        return ImageCheck(name, "of another size", detail, size, digest)
    return ImageCheck(name, size=size, digest=digest, is_dark=is_dark)


REMEDIES = {
    "missing": "restore them, name their folder with data.train_images or data.val_images, "
    "or continue without: data.missing_images=skip",
    "unreadable": "restore them, or continue without: data.bad_images=skip",
    "of another size": "their boxes belong to another version: find it, annotate again, "
    "or data.bad_images=skip",
}


def file_findings(
    checked: Mapping[str, Sequence[ImageCheck]], tolerated: Collection[str]
) -> Iterator[Finding]:
    """What is wrong with the files of each split, and files that occur twice or in both.

    Missing, broken and mismatching files are warnings if `tolerated`.
    """
    for split, checks in checked.items():
        yield from _problems(split, checks, tolerated)
    same = _names_by_content(checked)
    for split in checked:
        twins = []
        for names in same:
            if len(names.get(split, ())) > 1:
                twins.append(" = ".join(names[split]))
        remedy = "they count more than the others: keep one of each"
        yield from listed("warning", split, "images that occur more than once", twins, remedy)
    leaks = []
    for names in same:
        if "train" in names:
            leaks += [f"{name} = {names['train'][0]} of train" for name in names.get("val", ())]
    remedy = "take them out of one split: the metric would reward memorizing them"
    yield from listed("error", "val", "images that are in train too", leaks, remedy)


def _problems(
    split: str, checks: Sequence[ImageCheck], tolerated: Collection[str]
) -> Iterator[Finding]:
    for problem, remedy in REMEDIES.items():
        details = [check.detail for check in checks if check.problem == problem]
        level: Level = "error"
        if problem in tolerated:
            level = "warning"
            remedy = "left out of training"
        yield from listed(level, split, f"images {problem}", details, remedy)
    dark = [check.name for check in checks if check.is_dark]
    if len(dark) > len(checks) / 2:
        remedy = "store them with 8 bits, scaled to 255"
        yield from listed("warning", split, "images nearly black", dark, remedy)
    if checks and all(check.problem in tolerated for check in checks):
        yield Finding("error", split, "images, and none can be used", "restore some", len(checks))


def _names_by_content(checked: Mapping[str, Sequence[ImageCheck]]) -> list[dict[str, list[str]]]:
    """For each content of a file its names in each split."""
    same: dict[str, dict[str, list[str]]] = defaultdict(dict)  # by digest
    for split, checks in checked.items():
        for check in checks:
            if check.digest:
                same[check.digest].setdefault(split, []).append(check.name)
    return list(same.values())
