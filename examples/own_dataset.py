"""Train on a `torch.utils.data.Dataset` of your own; here it draws one bright square in each image.

python examples/own_dataset.py 20epochs
torchrun --nproc-per-node 2 examples/own_dataset.py 20epochs
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

import retina_dist as rd

SIZE = 64  # px


class Squares(Dataset[Any]):
    """Images [64, 64, 3] with one square; item i is the same each time."""

    def __init__(self, first: int, count: int) -> None:
        self.first, self.count = first, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[np.ndarray, torch.Tensor, torch.Tensor]:
        draw = np.random.default_rng(self.first + index)
        image = draw.integers(0, 80, (SIZE, SIZE, 3), dtype=np.uint8)
        side = int(draw.integers(12, 32))
        left, top = draw.integers(0, SIZE - side, 2).tolist()
        image[top : top + side, left : left + side] = 255
        boxes = torch.tensor([[left, top, left + side, top + side]])  # x1, y1, x2, y2
        return image, boxes, torch.tensor([0])  # 0 is the first of `categories`


def main(max_duration: str = "20epochs") -> None:
    """Train a small network from scratch and print its metrics."""
    data = rd.TorchDatasetConfig(
        name="squares",
        train=Squares(0, 64),
        val=Squares(10_000, 16),
        categories=["square"],
        batch_size=8,
        min_sizes=[SIZE],
        max_size=SIZE,
        num_workers=0,
    )
    model = rd.ModelConfig(backbone="resnet10_half", fpn_channels=64)
    optimizer = rd.OptimizerConfig(name="adamw", lr=1e-3)
    trainer = rd.Trainer(data=data, model=model, optimizer=optimizer, max_duration=max_duration)
    print(trainer.fit())


if __name__ == "__main__":
    main(*sys.argv[1:])
