"""Pictures of a run: the first batch, as the loss will see it."""

from collections.abc import Sequence
from pathlib import Path

from retina_dist.classification.dataset import ClassificationDataModule
from retina_dist.classification.transforms import resized
from retina_dist.reporting.pictures import sheet, titled

NUM_DRAWN = 24
DRAWN_COLUMNS = 6
DRAWN_SIDE = 192  # px


def draw_first_batch(data: ClassificationDataModule, classes: Sequence[str], path: Path) -> None:
    """The images of the first step after augmentation, with their targets above.

    Without images no file is written.
    """
    path.unlink(missing_ok=True)  # of an earlier part of the run
    batch = next(iter(data.train_steps(0, 1)))[0]
    tiles = []
    for i in batch.real_rows()[:NUM_DRAWN]:
        share = float(batch.share[i])
        text = classes[int(batch.labels[i])]
        if share != 1:
            text = f"{share:.2f} {text} + {classes[int(batch.other_labels[i])]}"
        tiles.append(titled(resized(batch.images[i].cpu(), DRAWN_SIDE, DRAWN_SIDE), text))
    if tiles:
        sheet(tiles, DRAWN_COLUMNS).save(path, quality=92)
