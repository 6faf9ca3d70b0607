"""Fine-tune torchvision's COCO detector on a folder of images and boxes, then show what it finds.

    python examples/finetune_folder.py /data/mine
    python examples/finetune_folder.py /data/mine trainer.max_duration=20epochs data.batch_size=4

The format (COCO json, YOLO, Pascal VOC and others, docs/data.md) is recognised.
"""

from __future__ import annotations

import sys
from pathlib import Path

import retina_dist as rd

IMAGES = (".jpg", ".jpeg", ".png")


def main(folder: str, *overrides: str) -> None:
    """Train, evaluate the best checkpoint, and predict on three images of the folder."""
    config = rd.load_config("train", ["experiment=finetune", f"data.root={folder}", *overrides])
    trainer = rd.Trainer.from_config(config)
    trainer.fit()

    result = trainer.evaluate()
    print(f"AP {result.stats['AP']:.3f}, AP50 {result.stats['AP50']:.3f}")

    detector = trainer.detector()
    images = [path for path in sorted(Path(folder).rglob("*")) if path.suffix.lower() in IMAGES][:3]
    for image, found in zip(images, detector.predict(images), strict=True):
        print(f"{image.name}: {len(found['boxes'])} objects")
        for label, score in zip(
            found["labels"].tolist()[:3], found["scores"].tolist()[:3], strict=True
        ):
            print(f"  {detector.categories.names[label]} {score:.2f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
