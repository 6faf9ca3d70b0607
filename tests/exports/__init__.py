"""Three photos with known boxes, as annotation tools and labelling services write them.

A module for each family of formats. Each function writes one tool's layout after its documentation
or its writer, and returns which photos are of each split.
"""

from tests.exports import coco_json, json_files, tables, xml_files, yolo_text
from tests.exports.base import BOXES, EXPORTS, SIZES, photo, text
from tests.exports.coco_json import coco
from tests.exports.yolo_text import yolo

__all__ = [
    "BOXES",
    "EXPORTS",
    "SIZES",
    "coco",
    "coco_json",
    "json_files",
    "photo",
    "tables",
    "text",
    "xml_files",
    "yolo",
    "yolo_text",
]
