"""What a reader gives of a split, not checked yet."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from retina_dist.base.files import PathOrUrl
from retina_dist.data.sources import ImageSource
from retina_dist.detection.readers.categories import Entry
from retina_dist.detection.readers.ground_truth import CocoContent
from retina_dist.detection.readers.items import LeftOut


class Content(NamedTuple):
    """A split as its reader has read it.

    Args:
        coco: the dictionary that `AnnotationReader.read` describes.
        images: the folder that its file names are relative to.
        source: what errors name, such as the annotation file; by default data.root, or `images`.
        warnings: sentences for the log.
        sources: where the bytes of images are, by their ids, if not in a file in `images`.
        remedy: where to put images that are not there; by default a setting names their folder.
        box_format: the form of each bbox, "xywh", "xyxy" or "xywh_shares"; by default
            data.box_format says it.
        has_corners: the annotation files hold two corners, whatever form `coco` has them in.
        centred: x, y of a box in the annotation files is its centre.
        title: the format's, if it was recognised.
        left_out: what of the data set this split does not have.
    """

    coco: CocoContent | Entry
    images: PathOrUrl
    source: object = None
    warnings: Sequence[str] = ()
    sources: Mapping[int, ImageSource] | None = None
    remedy: str = ""
    box_format: str | None = None
    has_corners: bool = False
    centred: bool = False
    title: str = ""
    left_out: Sequence[LeftOut] = ()
