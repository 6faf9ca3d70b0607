"""The settings that the image data of every task shares; the names of splits."""

from dataclasses import dataclass

from typing_extensions import Self

from retina_dist.base.settings import setting
from retina_dist.config.run_config import DataSettings

MAX_PIXELS = 178_956_970  # Pillow's default limit; half a gigabyte of RGB
# split -> names of its folders and files
SPLITS = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev", "eval", "evaluation"),
    "test": ("test", "testing"),
}


@dataclass
class ImageDataSettings(DataSettings):
    """How images are read, held out for validation and batched."""

    val_fraction: float | None = setting(
        None, "share of train to validate on without a val split", above=0, below=1
    )
    val_split: str = setting("val", "the split to validate on", choices=("val", "test"))
    bad_images: str = setting("error", "files that cannot be decoded", choices=("error", "skip"))
    max_pixels: int = setting(
        MAX_PIXELS, "a file whose header claims more is bad and never decoded", at_least=1
    )
    val_batch_size: int = setting(8, "images of one process", at_least=1, at_most=10**5)
    num_workers: int = setting(2, at_least=0, at_most=10**3)
    shuffle: bool = True
    class_weights: dict[str, float] | str | None = setting(
        None,
        "of each class in the loss: auto (by inverse frequency) or {NAME: WEIGHT}; null: all 1",
        above=0,
        at_most=10**6,
        words=("auto",),
        remedy="write auto, or {cat: 2, dog: 0.5}",
    )
    license: str | None = setting(None, "of the data, for the model card; null: as its files say")
    source: str | None = setting(None, "where the data is from, as license")
    hflip: float = setting(0.5, "probability", fraction=True)
    vflip: float = setting(0.0, "probability", fraction=True)

    def of_split(self, split: str | None) -> Self:
        """A copy that validates on `split`; None leaves the split as it is.

        Images held out of train never stand in for "test".
        """
        if split == "test":
            return self.with_values(val_split=split, val_fraction=None)
        return self.with_values(val_split=split or self.val_split)
