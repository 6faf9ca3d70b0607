"""Which formats the files of a folder are in, and what to say of a folder in none."""

import math
import posixpath
from collections import Counter

from retina_dist.base.errors import DataError
from retina_dist.base.files import PACKED, PathOrUrl, Url, names_in
from retina_dist.base.registry import lookup, names
from retina_dist.base.text import escape, pluralize, truncate
from retina_dist.data.images import is_image
from retina_dist.data.parsing import columns_of, parse_number
from retina_dist.data.tree import SAMPLE, Head, Tree, split_of, split_of_folder

DATUM = "datum convert -if {} -i FOLDER -f coco -o OUTPUT (pip install datumaro)"
LABELFORMAT = "labelformat convert --input-format labelbox (pip install labelformat)"


def is_kitti(head: Head) -> bool:
    """A class, and 14 or 15 numbers."""
    is_none = [math.isnan(parse_number(word)) for word in head.keys]
    return len(is_none) in (15, 16) and is_none[0] and not any(is_none[1:])


# name, ending of its files, keys that they have, and what converts it
UNREAD: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    ("WIDER FACE", "_bbx_gt.txt", (), DATUM.format("wider_face")),
    ("TFRecord", ".tfrecord", (), DATUM.format("tf_detection_api")),
    ("TFRecord", ".record", (), DATUM.format("tf_detection_api")),
    ("Mapillary", ".json", ("ispano",), DATUM.format("mapillary_vistas")),
    ("Supervisely", ".json", ("objects", "size"), "its own Export to COCO"),
    ("FiftyOne's own json", ".json", ("classes", "labels"), "its export as COCODetectionDataset"),
    ("datumaro's json", ".json", ("items", "categories"), DATUM.format("datumaro")),
    ("COCO without categories", ".json", ("images", "annotations"), "its list categories added"),
    (
        "a COCO file of results",
        ".json",
        ("image_id", "category_id", "score"),
        "give the annotations that they are compared with",
    ),
    ("Labelbox", ".json", ("data_row",), LABELFORMAT),
    ("a spreadsheet", ".xlsx", (), "its Save As CSV"),
    (
        "a pointer of Git LFS",
        ".csv",
        ("version https://git-lfs.github.com/spec/v1",),
        "git lfs pull",
    ),
    ("Labelbox", ".json", ("Labeled Data",), LABELFORMAT),
    ("Labelbox", ".ndjson", ("data_row",), LABELFORMAT),
)


def recognise(tree: Tree) -> list[str]:
    """The formats of the annotations in a tree, the first of which is read. Raises DataError with
    what was found for none.
    """
    found = [name for name in names("reader") if lookup("reader", name).claims(tree)]
    if "shards" in found:
        return ["shards"]  # which have a COCO json beside them
    if found:
        return found
    tree.raise_damage()
    place = tree.root
    if not tree.is_whole:
        place = tree.root / tree.files[0]
    if {"config.yaml", "checkpoints/manifest.json"} <= set(map(str, tree.files)):
        raise DataError(f"{place} is the folder of a run; give that of its data.")
    raise DataError(f"{place} has no annotations of boxes: {_reason(tree)}.")


def _unread(tree: Tree) -> str:
    """The sentence about a known format that is not read; "" for none."""
    said = "it looks like {}, which is not read; {}"
    if tree.select((".txt",), is_kitti):
        return said.format("KITTI", f"convert it with {DATUM.format('kitti')}")
    for name, ending, keys, converter in UNREAD:
        if any(tree.head(file).has(*keys) for file in tree.ending(ending)[:SAMPLE]):
            if not converter.startswith("give "):
                converter = f"convert it with {converter}"
            return said.format(name, converter)
    return ""


def _reason(tree: Tree) -> str:
    """What a folder without annotations holds, and the remedy."""
    unread = _unread(tree)
    if unread:
        return unread
    archives = tree.ending(*PACKED)
    if archives:
        return f"it holds packed files ({truncate(archives, 3)}); unpack them"
    entries = "experiment=finetune_classifier, or task=classification data=folders"
    if any(map(is_class_image, tree.files)):
        return f"it holds class folders, for a classifier; give {entries}"
    if tree.select((".csv", ".tsv"), is_of_classes):
        return f"its table has a class for each image, for a classifier; give {entries}"
    if not tree.files:
        return "it is empty; mount or copy the data there, or give another folder"
    keys = "name a file with data.train_annotations=FILE, its images with data.train_images=FOLDER"
    if tree.ending(".csv", ".tsv"):
        keys += ", or the columns of a CSV with data.columns=[file:NAME,class:NAME,x1:NAME,"
        keys += "y1:NAME,x2:NAME,y2:NAME]"
    if not tree.is_whole or isinstance(tree.root, Url):
        return f"{_seen(tree)}; {keys}"
    for above in tree.root.absolute().parents[:2]:
        if _is_top(above):
            return f"give the folder above, {above}"
    if len(tree.images) == len(tree.files):
        return (
            f"{_seen(tree)}, and no annotations; draw the boxes, as with CVAT or Label Studio, and "
            "put its export there, or name its file with data.train_annotations=FILE; "
            "docs/data.md shows what is read"
        )
    return f"{_seen(tree)}; {keys}; docs/data.md shows what is read"


def is_of_classes(head: Head) -> bool:
    """Whether a table has images and their classes, and hardly more."""
    return len(head.keys) <= 3 and columns_of(head.keys).keys() >= {"file", "class"}


def is_class_image(file: str) -> bool:
    """Whether a file is an image in a folder within that of a split."""
    folder = posixpath.dirname(file)
    own = posixpath.basename(folder)
    is_of_split = split_of(folder) is not None
    return is_image(file) and is_of_split and split_of_folder(own) is None


def _is_top(above: PathOrUrl) -> bool:
    """Whether a folder is surely the data set's own: by what lies directly in it."""
    files = names_in(above)
    for folder in ("annotations", "Annotations"):
        files += [f"{folder}/{name}" for name in names_in(above / folder)]
    tree = Tree(above, files)
    tree.is_whole = True
    return any(lookup("reader", name).claims(tree) for name in ("coco", "yolo", "voc"))


def _seen(tree: Tree) -> str:
    """What the files of a tree are, by their endings, with what one of each shows."""
    endings = Counter(posixpath.splitext(file)[1].lower() for file in tree.files)
    seen = []
    for ending, count in endings.most_common(4):
        example = next(file for file in tree.files if file.lower().endswith(ending))
        noun = f"{ending} file".strip()
        text = f"{pluralize(count, noun)}, such as {escape(example, 80)}"
        shown = "" if is_image(example) else truncate(tree.head(example).keys, 6)
        seen.append(f"{text} ({shown})" if shown else text)
    return f"it holds {'; '.join(seen)}"
