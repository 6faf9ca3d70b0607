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
from retina_dist.data.tree import NEUTRAL, NO_IMAGES, SAMPLE, Head, Tree, split_of, split_of_folder

DATUM = "datum convert -if {} -i FOLDER -f coco -o OUTPUT (pip install datumaro)"
# What is not read: its name, endings of its files, keys that they have, and the remedy: a clause,
# or the name of datumaro's format.
UNREAD = """
WIDER FACE | _bbx_gt.txt |  | wider_face
MOT | /gt.txt |  | mot_seq_gt
PennFudanPed or INRIA | .txt | Compatible,PASCAL,Annotation | write its boxes as COCO json, or \
give your own Dataset to rd.TorchDatasetConfig, as docs/python.md shows
DOTA | .txt | imagesource:GoogleEarth | write its boxes as COCO json, or as lines of YOLO
TFRecord | .tfrecord .record |  | tf_detection_api
Mapillary | .json | ispano | mapillary_vistas
Supervisely | .json | objects,size | convert it with its own Export to COCO
FiftyOne's own json | .json | classes,labels | convert it with its export as COCODetectionDataset
BDD100K | .json | name,labels | convert it with python -m scalabel.label.to_coco -m det -i FILE \
-o OUTPUT (pip install scalabel)
datumaro's json | .json | items,categories | datumaro
Detectron2's dicts | .json | file_name,annotations | convert it with \
detectron2.data.datasets.convert_to_coco_json
LabelMe without imagePath | .json | shapes | give each file its imagePath, the name of its image
COCO without categories | .json | images,annotations | convert it with its list categories added
COCO without images | .json | annotations,categories | give its list images
COCO without annotations | .json | images,categories | give its list annotations, or the file with \
the boxes
a COCO file of results | .json | image_id,category_id,score | to train on them, write \
them as annotations with ids, below images and categories; else give the annotations that they \
are compared with
VoTT | .json | assets,tags | vott_json
V7 Darwin | .json | item,annotations | give its export as COCO
Vertex AI | .jsonl | imageGcsUri | write its boxes as COCO json, or as lines of YOLO
Vertex AI | .csv | TRAIN | write rows of filename,class,xmin,ymin,xmax,ymax in pixels, below that \
header
QuPath | .geojson |  | write its boxes as COCO json, or as lines of YOLO
Roboflow's YOLO Keras TXT | _annotations.txt |  | give its export as COCO
Labelbox | .json .ndjson | data_row | convert it with labelformat convert --input-format labelbox \
(pip install labelformat)
Labelbox | .json | Labeled Data | convert it with labelformat convert --input-format labelbox (pip \
install labelformat)
Hugging Face's without objects | metadata.jsonl | file_name | give each image its boxes, as \
"objects": {"bbox": [[x, y, w, h]], "categories": ["cat"]}
CrowdHuman | .odgt |  | write its boxes as COCO json, or as lines of YOLO
Roboflow's table of classes | _classes.csv |  | give an export with boxes, as COCO
a spreadsheet | .xlsx .xls .ods |  | convert it with its Save As CSV
a pointer of Git LFS | .csv | version https://git-lfs.github.com/spec/v1 | convert it with git lfs \
pull
a table or a pickle | .pkl .pickle .parquet .arrow .mat .npy .npz .h5 .hdf5 .mdb |  | write its \
boxes as COCO json, or as lines of YOLO
"""


def is_kitti(head: Head) -> bool:
    """A class, and 14 or 15 numbers."""
    is_none = [math.isnan(parse_number(word)) for word in head.keys]
    return len(is_none) in (15, 16) and is_none[0] and not any(is_none[1:])


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
    if tree.select((".txt",), is_kitti):
        return f"it looks like KITTI, which is not read; convert it with {DATUM.format('kitti')}"
    for line in UNREAD.strip().splitlines():
        name, endings, keys, how = line.split(" | ")
        files = tree.ending(*endings.split())[:SAMPLE]
        if any(tree.head(file).has(*filter(None, keys.split(","))) for file in files):
            if " " not in how:
                how = f"convert it with {DATUM.format(how)}"
            return f"it looks like {name}, which is not read; {how}"
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
    if not tree.is_whole or isinstance(tree.root, Url):
        return f"{_seen(tree)}; {_named(tree)}"
    for above in tree.root.absolute().parents[:2]:
        if _is_top(above):
            return f"give the folder above, {above}"
    if all(map(is_image, tree.files)):
        return (
            f"{_seen(tree)}, and no annotations; draw the boxes, as with CVAT or Label Studio, and "
            "put its export there, or name its file with data.train_annotations=FILE; of masks, "
            "torchvision.ops.masks_to_boxes makes boxes, and docs/data.md shows what is read"
        )
    return (
        f"{_seen(tree)}; {_named(tree)}; docs/data.md shows what is read, as a .csv with a header"
    )


def _named(tree: Tree) -> str:
    """The settings that name what is there."""
    keys = "name a file with data.train_annotations=FILE, its images with data.train_images=FOLDER"
    if not tree.is_whole:
        keys = "give a file that docs/data.md shows, or the folder of all with data.root=FOLDER"
    if tree.ending(".csv", ".tsv"):
        keys += ", or the columns of a CSV with data.columns=[file:NAME,class:NAME,x1:NAME,"
        keys += "y1:NAME,x2:NAME,y2:NAME]"
    return keys


def is_of_classes(head: Head) -> bool:
    """Whether a table has images and their classes, and hardly more."""
    return len(head.keys) <= 3 and columns_of(head.keys).keys() >= {"file", "class"}


def is_class_image(file: str) -> bool:
    """Whether a file is an image in a folder within that of a split."""
    folder = posixpath.dirname(file)
    own = posixpath.basename(folder)
    is_of_split = split_of(folder) is not None
    is_class = split_of_folder(own) is None and own.lower() not in NEUTRAL | NO_IMAGES
    return is_image(file) and is_of_split and is_class


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
