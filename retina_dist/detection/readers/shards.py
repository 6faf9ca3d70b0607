"""Tar shards: what `retina_dist.shards` wrote, a COCO json and the images of a split in large
files.
"""

from retina_dist.data.shards import annotations_of, has_shards, read_index
from retina_dist.data.tree import Tree
from retina_dist.detection.readers.coco import read_coco
from retina_dist.detection.readers.content import Content
from retina_dist.detection.readers.formats import FileReader, Place


class ShardReader(FileReader):
    """A folder of shards, local or behind a URL."""

    title = "tar shards"
    file_settings = ("box_format", "train_annotations", "val_annotations")

    @classmethod
    def claims(cls, tree: Tree) -> bool:
        return tree.is_whole and has_shards(tree.root, "train")

    def has_in(self, place: Place) -> bool:
        return place.named or has_shards(place.folder, place.split)

    def read_place(self, place: Place) -> Content | None:
        if not self.has_in(place) and place.split != "train":
            return None
        # a shard that is too short is an error now, not in the middle of an epoch
        complete = self.settings.bad_images != "skip"
        members = read_index(place.folder, place.split, complete=complete)
        file = annotations_of(place.split)
        if place.named:
            file = place.tree.files[0]
        source = place.tree.root / file
        coco, warnings = read_coco(source)
        return Content(coco, place.folder, source, warnings, sources=members)
