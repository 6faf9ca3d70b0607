"""Augment with torchvision's transforms and a function of your own; the boxes follow.

python examples/own_augmentation.py datasets/shapes 12epochs
torchrun --nproc-per-node 2 examples/own_augmentation.py datasets/shapes 12epochs

Look at runs/shapes/first_batch.jpg before you wait for the training.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torchvision.transforms import v2

import retina_dist as rd


def add_noise(image: torch.Tensor, target: dict[str, Any]) -> tuple[torch.Tensor, dict[str, Any]]:
    """Grain of a bad camera; the generator is seeded for each image and epoch."""
    noisy = image + 8 * torch.randn(image.shape)
    return noisy.clamp(0, 255).round().to(torch.uint8), target


def main(root: str, max_duration: str = "12epochs") -> None:
    """Train a small network from scratch and print its metrics."""
    augmentation = v2.Compose(
        [
            v2.RandomRotation(10, expand=True),
            v2.RandomApply([v2.GaussianBlur(5)], p=0.2),
            add_noise,
        ]
    )
    data = rd.DetectionData(root=root, batch_size=8, min_sizes=[128], max_size=192)
    trainer = rd.Trainer(
        data=data,
        augmentation=augmentation,
        model=rd.ModelConfig(backbone="resnet10_half", fpn_channels=64),
        optimizer=rd.OptimizerConfig(name="adamw", lr=1e-3),
        max_duration=max_duration,
    )
    print(trainer.fit())
    print(f"augmented images: {trainer.run_folder}/first_batch.jpg")


if __name__ == "__main__":
    main(*sys.argv[1:])
