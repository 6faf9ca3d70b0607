"""Tar shards: what `retina_dist.shards` wrote, a COCO json and the images of a split in large
files.
"""

from __future__ import annotations

from retina_dist.base.files import PathOrUrl
from retina_dist.data.shards import annotations_of, has_shards, read_index
from retina_dist.detection.readers.coco import read_coco
from retina_dist.detection.readers.formats import Content, FileReader, Place


class ShardReader(FileReader):
    """A folder of shards, local or behind a URL."""

    title = "tar shards"
    file_settings = ("box_format", "train_annotations", "val_annotations")

    @classmethod
    def claims(cls, root: PathOrUrl) -> bool:
        return has_shards(root, "train")

    def find_in(self, root: PathOrUrl, split: str) -> Place | None:
        if split == "val" and not has_shards(root, split):
            return None
        return Place(root / annotations_of(split), root, split)

    def read_place(self, place: Place) -> Content:
        # a shard that is too short is an error now, not in the middle of an epoch
        complete = self.settings.bad_images != "skip"
        members = read_index(place.images, place.split, complete=complete)
        coco = read_coco(place.annotations)
        return Content(coco, place.images, place.annotations, sources=members)
