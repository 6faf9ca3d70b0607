"""COCO json: one file a split, under any name. https://cocodataset.org/#format-data"""

import json
import posixpath
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path

from retina_dist.base.errors import DataError
from retina_dist.base.files import PathOrUrl, Url, read_bytes
from retina_dist.data.parsing import reading
from retina_dist.data.settings import SPLITS
from retina_dist.data.sources import ImageSource, RemoteFile
from retina_dist.data.tree import Head, Tree, split_of, words_of
from retina_dist.detection.readers.content import Content
from retina_dist.detection.readers.formats import UNLABELLED, FileReader, Place, by_split
from retina_dist.detection.readers.ground_truth import CocoContent, decode_coco, parse_dictionary
from retina_dist.detection.readers.items import LeftOut
from retina_dist.detection.settings import ANNOTATION_SETTINGS, IMAGE_SETTINGS

PREFERRED = re.compile(r"(^|/)instances_[a-z]+\d*\.json$", re.IGNORECASE)  # COCO's own names
OTHER_TASKS = frozenset(("keypoints", "captions", "panoptic", "stuff"))
DATASTORES = ("amldatastore://", "azureml://")


class CocoReader(FileReader):
    """COCO's ground truth, local or behind a URL."""

    title = "COCO json"
    file_settings = ("box_format", *ANNOTATION_SETTINGS, *IMAGE_SETTINGS)

    @classmethod
    def matches(cls, head: Head) -> bool:
        """Whether a json is COCO's ground truth."""
        return head.kind == "object" and head.has("images", "annotations", "categories")

    @classmethod
    def claims(cls, tree: Tree) -> bool:
        return bool(tree.select((".json",), cls.matches))

    def has_in(self, place: Place) -> bool:
        return bool(self._files_of(place))

    def _files_of(self, place: Place) -> Sequence[str]:
        """The json of a split, or several."""
        tree = place.tree
        if place.named and not tree.is_whole:
            return tree.files[:1]
        return self._found(place, self.matches) or self._found(place, _lacks_categories)

    def _found(self, place: Place, matches: Callable[[Head], bool]) -> Sequence[str]:
        tree = place.tree
        found = tree.select((".json",), matches)
        found = [f for f in found if (split_of(f, by_word=True) or "train") == place.split]
        if len(found) > 1 or matches is _lacks_categories:
            likely = filter(partial(_is_likely, tree), found)
            found = list(filter(PREFERRED.search, found)) or list(likely)
        return found

    def read_place(self, place: Place) -> Content | None:
        found = self._files_of(place)
        if not found:
            return None
        root = place.tree.root
        if len(found) > 1:
            files = " and ".join(found[:3])
            remedy = "keep one"
            if place.split != "test":
                remedy = (
                    f"name one with data.{place.split}_annotations=FILE, or its data set with "
                    "data.root=FOLDER, take one away, merge them, or rename one for another "
                    "split, as val.json"
                )
            raise DataError(f"{root} has two COCO json of {place.split}: {files}; {remedy}.")
        file = found[0]
        source = root / file
        coco, warnings = read_coco(source)
        box_format = self.settings.box_format or _box_format(coco, source)
        content = Content(coco, place.folder, source, warnings, box_format=box_format)
        if place.images is None:
            return content
        return self._with_images(content, coco, place, file)

    def _with_images(self, content: Content, coco: CocoContent, place: Place, file: str) -> Content:
        """The content with the places of its images, and those that it leaves out."""
        assert place.images is not None, "there are images to look for"
        near = file if place.images is place.tree else ""
        split = None if place.named else split_of(file, by_word=True)
        base = place.images.folder_of(self._names_of(place, file, coco), near, split)
        found_of: dict[int, str] = {}
        is_moved = False
        for image in coco.images:
            found: str | None = f"{base}{image.file_name}"
            if found not in place.images.listed:
                found = place.images.find(image.file_name, near, split)
                is_moved |= found is not None
            if found is not None:
                found_of[image.id] = found
        folder = place.folder
        sources = None
        if is_moved:
            sources = {i: _source_of(folder, found) for i, found in found_of.items()}
        if base and not (is_moved and isinstance(folder, Url)):
            folder /= base.rstrip("/")
        left_out = list(self._left_out(place, place.images.without(found_of.values())))
        return content._replace(images=folder, sources=sources, left_out=left_out)

    @cached_property
    def _known_names(self) -> dict[tuple[Tree, str], list[str]]:
        return {}

    def _names_of(self, place: Place, file: str, coco: CocoContent | None = None) -> list[str]:
        """The names of the images of a json, which is decoded for them at most once."""
        key = (place.tree, file)
        if key not in self._known_names:
            content = coco or read_coco(place.tree.root / file)[0]
            self._known_names[key] = [image.file_name for image in content.images]
        return self._known_names[key]

    def _left_out(self, place: Place, others: Sequence[str]) -> Iterator[LeftOut]:
        """Of the other images in the folder, those of this split that no json names."""
        if place.named or not others:
            return
        splits = [place.split]
        named: set[str] = set()
        for split in SPLITS.keys() - splits:
            for file in self._found(place._replace(split=split), self.matches):
                splits.append(split)
                named.update(map(posixpath.basename, self._names_of(place, file)))
        rest = [file for file in others if posixpath.basename(file) not in named]
        unlabelled = by_split(rest, splits)[place.split]
        if unlabelled:
            yield LeftOut("image", "without annotations", unlabelled, UNLABELLED)


def _lacks_categories(head: Head) -> bool:
    """Whether a json is COCO's but for its categories, which reading it then says."""
    return head.has("images", "annotations")


def _is_likely(tree: Tree, file: str) -> bool:
    """Whether one json of several has boxes: not of another task, nor damaged and of no split."""
    is_sound = tree.head(file).error is None or split_of(file, by_word=True) is not None
    return is_sound and OTHER_TASKS.isdisjoint(words_of(file))


def _source_of(folder: PathOrUrl, file: str) -> ImageSource:
    path = folder / file
    return path if isinstance(path, Path) else RemoteFile(str(folder), file)


def _box_format(coco: CocoContent, path: PathOrUrl) -> str | None:
    """ "xywh_shares" of Azure ML's labelling, whose images are in datastores; else None."""
    boxes = coco.objects["bbox"]
    if not len(boxes) or not (boxes <= 1).all():
        return None
    images = json.loads(read_bytes(path))["images"]  # with their URLs
    for image in images:
        if not str(image.get("coco_url")).lower().startswith(DATASTORES):
            return None
    return "xywh_shares"


def read_coco(path: PathOrUrl) -> tuple[CocoContent, list[str]]:
    """The content of a COCO json, and warnings. Raises DataError."""
    remedy = "restore it, remove a comma before ] or }, or write it with json.dump"
    if path.name.endswith(".gz"):
        remedy = "unpack it with gunzip"
    elif not path.name.endswith(".json"):
        remedy = "give data=auto data.format=auto, which read other formats, too"
    with reading(path, "JSON", remedy, missing="check its path"):
        content = decode_coco(read_bytes(path))
    if isinstance(content, CocoContent):
        return content, []
    if not isinstance(content, dict):
        raise DataError(
            f"{path} holds a {type(content).__name__}; "
            "give ground truth (instances_*.json), not results."
        )
    return parse_dictionary(content, path)
