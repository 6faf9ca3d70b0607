"""Pascal VOC's XML, in its own folders or beside the images as LabelImg writes it."""

import posixpath
import re
from collections.abc import Iterable, Iterator
from xml.etree.ElementTree import Element

from retina_dist.base.errors import DataError
from retina_dist.base.files import PathOrUrl
from retina_dist.base.text import as_override, is_text, truncate
from retina_dist.data.images import is_image
from retina_dist.data.parsing import number_in, parse_xml, read_text
from retina_dist.data.settings import SPLITS
from retina_dist.data.tree import Head, Tree
from retina_dist.detection.readers.formats import FolderReader, Place, Scan
from retina_dist.detection.readers.items import Box, Item, LeftOut

# In alphabetical order, as in the challenge's development kit.
VOC_CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train",
    "tvmonitor",
)  # fmt: skip
CORNERS = ("xmin", "ymin", "xmax", "ymax")
LISTS = "ImageSets/Main/"
CHALLENGE = re.compile(r"\bVOC|pascal", re.IGNORECASE)


class VocReader(FolderReader):
    """Folders of XML files, by lists in ImageSets or by the folders' names.

    Difficult objects become crowd regions: not trained on, and without cost in the metric. Classes
    are VOC's twenty where no file has another.
    """

    title = "Pascal VOC"
    file_settings = (*FolderReader.file_settings, "voc_offset")
    endings = (".xml",)
    has_many = False

    @classmethod
    def matches(cls, head: Head) -> bool:
        return head.keys == ("annotation",)

    def scan(self, place: Place) -> Scan:
        lists = [file for file in place.tree.ending(".txt") if LISTS in f"/{file}"]
        above = sorted(set(map(_above, lists)))
        if len(above) > 1:
            root = place.tree.root
            one = as_override("data.root", root / above[0].rstrip("/"))
            raise DataError(f"{root} holds several folders with ImageSets; give one: {one}.")
        scan = super().scan(place)
        if lists:
            scan = self._by_lists(scan, place, {_stem(file): file for file in lists})
        if scan.names <= set(VOC_CLASSES):
            scan.names.update(VOC_CLASSES)
        return scan

    def items_of(self, tree: Tree, file: str, scan: Scan) -> Iterable[Item]:
        item = read_item(tree.root / file, self.settings.voc_offset)
        # <filename> can be of a file that was renamed, or without an ending
        ending = posixpath.splitext(item.file)[1]
        beside = posixpath.splitext(file)[0] + (ending if is_image(item.file) else ".jpg")
        if not item.file or tree.find(beside, file) is not None:
            item = item._replace(file=beside)
        yield item._replace(listed=_stem(file))

    def _by_lists(self, scan: Scan, place: Place, lists: dict[str, str]) -> Scan:
        """The images that ImageSets/Main/SPLIT.txt lists."""
        every = {item.listed: item for items in scan.items.values() for item in items}
        listed = Scan.empty()
        listed.names.update(scan.names)
        lists.setdefault("train", lists.get("default", ""))
        for split, words in SPLITS.items():
            own = [lists[word] for word in words if lists.get(word)]
            without = []
            for name in _listed(place.tree, own[0]) if own else ():
                item = every.get(posixpath.basename(name))
                if item is None:
                    item = self._background(place, name)
                    without.append(name)
                listed.items[split].append(item._replace(split=split))
            if without:
                why = "without an XML file, taken as background"
                remedy = "annotate them, or take them out of the list"
                listed.left_out[split].append(LeftOut("image", why, without, remedy))
        if not listed.items["train"]:
            folder = place.tree.root / posixpath.dirname(next(filter(None, lists.values())))
            has = truncate(sorted(filter(lists.get, lists)))
            raise DataError(f"{folder} has {has}, but none lists images of train; write train.txt.")
        self.count_left_out(listed, place)
        return listed

    @staticmethod
    def _background(place: Place, name: str) -> Item:
        found = place.find(f"{name}.jpg", "", None)
        if found is None:
            xml = f"Annotations/{name}.xml"
            why = "is no annotation" if xml in place.tree.listed else "does not exist"
            raise DataError(
                f"{place.tree.root / xml} {why}; "
                f"restore the file, or correct or remove {name} in the lists of ImageSets/Main."
            )
        return Item(found, ())

    def with_folder(self, root: PathOrUrl, items: list[Item]) -> tuple[PathOrUrl, list[Item]]:
        above, found, _ = items[0].file.partition("JPEGImages/")
        folder = f"{above}{found}"
        if not found or not all(item.file.startswith(folder) for item in items):
            return root, items
        within = [item._replace(file=item.file.removeprefix(folder)) for item in items]
        return root / folder.rstrip("/"), within


def _above(file: str) -> str:
    return file.partition(LISTS)[0]


def _stem(file: str) -> str:
    return posixpath.splitext(posixpath.basename(file.replace("\\", "/")))[0]


def _listed(tree: Tree, file: str) -> Iterator[str]:
    """The images of a list, each once: of each line the whole, or its first word, as lists of one
    class have a number too, without the ending of an image.
    """
    path = tree.root / file
    seen = set()
    for line in read_text(path).splitlines():
        name = line.strip()
        if not name:
            continue
        above = f"{file.partition('ImageSets/')[0]}Annotations/"
        if is_image(name) and f"{above}{name}.xml" not in tree.listed:
            name = posixpath.splitext(name)[0]
        if f"{above}{name}.xml" not in tree.listed:
            name = name.split()[0]
        if ".." in name.replace("\\", "/").split("/") or not is_text(name):
            raise DataError(f"{path} lists {name!r}, which leaves the Annotations folder; refused.")
        if name not in seen:
            seen.add(name)
            yield name


def read_item(path: PathOrUrl, offset: int | None = None) -> Item:
    """A file of VOC; its image is named as there, perhaps not at all.

    The challenge's corners are numbers of pixels counted from 1, both included, so a box goes from
    xmin - 1 to xmax; other tools write coordinates from 0. `offset` overrules what <database> says.
    """
    tree = parse_xml(path, "annotation")
    if offset is None:
        offset = int(CHALLENGE.search(tree.findtext("source/database") or "") is not None)
    boxes = []
    for number, thing in enumerate(tree.iter("object"), start=1):
        where = f"{path}: object {number}"
        name = (thing.findtext("name") or "").strip()
        if not name:
            raise DataError(f"{where} has no name; add one.")
        corners = [number_in(thing.findtext(f"bndbox/{tag}"), where, tag) for tag in CORNERS]
        left, top, right, bottom = corners
        is_difficult = (thing.findtext("difficult") or "").strip() == "1"
        boxes.append(Box(name, (left - offset, top - offset, right, bottom), is_difficult))
    return Item(tree.findtext("filename") or "", boxes, _size_of(tree))


def _size_of(tree: Element) -> tuple[int, int] | None:
    """(width, height) in px; None for one that is not sound, which the image file then decides."""
    width = tree.findtext("size/width") or ""
    height = tree.findtext("size/height") or ""
    for text in (width, height):
        if not text.isdecimal() or len(text) >= 10 or int(text) == 0:
            return None
    return int(width), int(height)
