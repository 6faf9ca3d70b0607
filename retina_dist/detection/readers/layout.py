"""Where annotations and images of a split lie under one root."""

from __future__ import annotations

from retina_dist.errors import DataError
from retina_dist.files import Place

ANNOTATIONS = (
    "annotations/instances_{split}*.json",  # COCO: instances_train2017.json
    "annotations/{split}*.json",
    "{split}/_annotations.coco.json",  # Roboflow's export
    "{split}.json",
)
ALIASES = {"val": ("val", "valid", "validation"), "train": ("train",)}


def find_split(root: Place, split: str) -> tuple[Place, Place]:
    """(annotation file, image folder) of "train" or "val" in COCO's layout or a near one.

    Of several annotation files the shortest name wins, so instances_val2017.json before instances_val2017_small.json.
    Raises DataError with everything that was looked for.
    """
    if not root.is_dir():
        raise DataError(f"data.root={root} is no folder; give the one that holds annotations/.")
    names = ALIASES.get(split, (split,))
    patterns = [pattern.format(split=name) for name in names for pattern in ANNOTATIONS]
    found: list[Place] = []
    for pattern in patterns:
        found += sorted(root.glob(pattern), key=lambda p: (len(p.name), p.name))
    if not found:
        raise DataError(
            f"data.root={root} has no {split} annotations: looked for {', '.join(patterns)}; name the file with "
            f"data.{split}_annotations=FILE."
        )
    annotations = found[0]
    stem = annotations.stem.removeprefix("instances_")
    folders = [annotations.parent] if annotations.parent.name in names else []  # Roboflow's images lie beside them
    folders += [root / stem, root / "images" / stem, *(root / name for name in names)]
    folders += [*(root / "images" / name for name in names), root / "images"]
    return annotations, next((folder for folder in folders if folder.is_dir()), root)
