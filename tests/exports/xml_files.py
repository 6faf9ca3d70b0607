"""XML: Pascal VOC and CVAT."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tests.exports.base import (
    ALL,
    BOXES,
    ONE,
    SIZES,
    SUBSETS,
    THREE,
    VAL,
    VALID,
    Splits,
    export,
    pairs,
    photo,
    text,
)


def voc(path: Path, name: str, database: str = "Unknown", offset: int = 0) -> None:
    width, height = SIZES[name]
    things = ""
    for label, x1, y1, x2, y2 in BOXES[name]:
        corners = {"xmin": x1 + offset, "ymin": y1 + offset, "xmax": x2, "ymax": y2}
        tags = "".join(f"<{tag}>{value}</{tag}>" for tag, value in corners.items())
        things += (
            f"<object><name>{label}</name><pose>Unspecified</pose><truncated>0</truncated>"
            f"<difficult>0</difficult><bndbox>{tags}</bndbox></object>"
        )
    text(
        path,
        f"<annotation><folder>f</folder><filename>{path.stem}.jpg</filename>"
        f"<source><database>{database}</database></source><size><width>{width}</width>"
        f"<height>{height}</height><depth>3</depth></size>{things}</annotation>",
    )


@export("LabelImg Pascal VOC")
def labelimg(root: Path) -> Splits:
    pairs(root, "{folder}/{name}.jpg", "{folder}/{name}.xml", voc, VAL)
    return THREE


@export("Pascal VOC challenge")
def voc_challenge(root: Path) -> Splits:
    pairs(
        root,
        "JPEGImages/{name}.jpg",
        "Annotations/{name}.xml",
        partial(voc, database="The VOC2007 Database", offset=1),
        VAL,
    )
    for split, (name,) in THREE.items():
        text(root / f"ImageSets/Main/{split}.txt", f"{name}\n")
    text(root / "ImageSets/Main/cat_train.txt", "a  1\n")
    return THREE


@export("CVAT Pascal VOC 1.1")
def cvat_voc(root: Path) -> Splits:
    pairs(root, "JPEGImages/{name}.jpg", "Annotations/{name}.xml", voc)
    text(root / "ImageSets/Main/default.txt", "".join(f"{name}\n" for name in ALL))
    text(root / "labelmap.txt", "# label:color_rgb:parts:actions\ncat:1,2,3::\ndog:4,5,6::\n")
    return ONE


@export("Roboflow Pascal VOC")
def roboflow_voc(root: Path) -> Splits:
    pairs(
        root,
        "{folder}/{name}_jpg.rf.0.jpg",
        "{folder}/{name}_jpg.rf.0.xml",
        partial(voc, database="roboflow.com"),
        VALID,
    )
    return THREE


@export("Label Studio Pascal VOC")
def label_studio_voc(root: Path) -> Splits:
    pairs(root, "images/{name}.jpg", "Annotations/{name}.xml", partial(voc, database="MyDatabase"))
    return ONE


@export("FiftyOne Pascal VOC")
def fiftyone_voc(root: Path) -> Splits:
    pairs(root, "data/{name}.jpg", "labels/{name}.xml", partial(voc, database=""))
    return ONE


@export("CVAT for images 1.1")
def cvat_xml(root: Path) -> Splits:
    images = ""
    for number, (subset, name) in enumerate(zip(SUBSETS, ALL, strict=True)):
        photo(root / f"images/{subset}/{name}.jpg", name)
        width, height = SIZES[name]
        boxes = "".join(
            f'<box label="{label}" occluded="0" xtl="{x1}" ytl="{y1}" xbr="{x2}" ybr="{y2}"/>'
            for label, x1, y1, x2, y2 in BOXES[name]
        )
        facts = f'id="{number}" name="{name}.jpg" subset="{subset}"'
        images += f'<image {facts} width="{width}" height="{height}">{boxes}</image>'
    text(root / "annotations.xml", f"<annotations><version>1.1</version>{images}</annotations>")
    return THREE
