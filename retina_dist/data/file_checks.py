"""Checks of a data set's image files: missing, damaged, of another size, the same as others."""

from __future__ import annotations

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

Size = tuple[int, int] | None  # (width, height) in px
File = tuple[str, Source, Size]  # name, source and annotated size
# level, split, what, remedy, how many, and their names: the fields of a doctor's `Finding`
FileFinding = tuple[Literal["error", "warning", "info"], str, str, str, int, tuple[str, ...]]


@dataclass(frozen=True)
class ImageCheck:
    """The check of one file."""

    name: str
    problem: Literal["missing", "unreadable", "of another size"] | None = None
    detail: str = ""
    size: Size = None  # as displayed
    digest: str | None = None  # SHA-256 of the file


def check_images(
    files: Sequence[File], split: str, images: str, max_pixels: int
) -> list[ImageCheck]:
    """`check_image` of each in threads, since decoders release the interpreter's lock; `images="none"` opens none of them."""
    if images == "none":
        return [ImageCheck(name) for name, *_ in files]
    checks: list[ImageCheck] = []
    check_one = partial(check_image, decode=images == "decode", max_pixels=max_pixels)
    remote = any(is_remote(source) for _, source, _ in files)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for start in range(0, len(files), AT_ONCE):
            part = files[start : start + AT_ONCE]
            contents = read_all([source for _, source, _ in part]) if remote else [None] * len(part)
            for check in pool.map(check_one, part, contents):
                checks.append(check)
                set_status(f"reading {split}, {len(checks)} of {pluralize(len(files), 'image')}")
    return checks


def check_image(
    file: File, content: bytes | ImageError | None = None, *, decode: bool, max_pixels: int
) -> ImageCheck:
    """Whether a file is there, opens (with `decode`, to its end) and has its annotated size; `content` is of `read_all`."""
    name, source, annotated = file
    try:
        if isinstance(content, ImageError):
            raise content
        content = read(source) if content is None else content
        size, stored = image_sizes(source, max_pixels, content)
        if decode:
            read_image(source, max_pixels=max_pixels, content=content)
    except ImageError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return ImageCheck(name, "missing", str(source))
        cause = (
            error.__cause__ or error
        )  # the decoder's own words; our sentence has a remedy for trainings
        reason = "not an image" if isinstance(cause, UnidentifiedImageError) else str(cause)
        return ImageCheck(name, "unreadable", f"{name}: {reason}")
    digest = hashlib.sha256(content).hexdigest()
    if annotated and annotated not in (size, stored):
        detail = f"{name} is {size[0]} x {size[1]}, annotated {annotated[0]} x {annotated[1]}"
        return ImageCheck(name, "of another size", detail, size, digest)
    return ImageCheck(name, size=size, digest=digest)


def file_findings(
    checked: Mapping[str, Sequence[ImageCheck]], tolerated: Collection[str]
) -> Iterator[FileFinding]:
    """Missing, broken and mismatching files of each split, warnings if `tolerated`, and files that occur twice or in both."""
    same: dict[str, dict[str, list[str]]] = defaultdict(dict)  # digest -> split -> names
    for split, checks in checked.items():
        remedies = {
            "missing": f"restore them, give data.{split}_images=FOLDER, or continue without: data.missing_images=skip",
            "unreadable": "restore them, or continue without: data.bad_images=skip",
            "of another size": "their boxes belong to another version: find it, annotate again, or data.bad_images=skip",
        }
        for problem, remedy in remedies.items():
            if details := tuple(check.detail for check in checks if check.problem == problem):
                if problem in tolerated:
                    yield (
                        "warning",
                        split,
                        f"images {problem}",
                        "left out of training",
                        len(details),
                        details,
                    )
                else:
                    yield "error", split, f"images {problem}", remedy, len(details), details
        if checks and all(check.problem in tolerated for check in checks):
            yield "error", split, "images, and none can be used", "restore some", len(checks), ()
        for check in checks:
            if check.digest:
                same[check.digest].setdefault(split, []).append(check.name)
    for split in checked:
        if twins := tuple(
            " = ".join(names[split]) for names in same.values() if len(names.get(split, ())) > 1
        ):
            remedy = "they count more than the others: keep one of each"
            yield "warning", split, "images that occur more than once", remedy, len(twins), twins
    both = [names for names in same.values() if "train" in names]
    if leaks := tuple(
        f"{name} = {names['train'][0]} of train" for names in both for name in names.get("val", ())
    ):
        remedy = "take them out of one split: the metric would reward memorizing them"
        yield "error", "val", "images that are in train too", remedy, len(leaks), leaks
