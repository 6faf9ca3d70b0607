"""The size of an image after the resize."""

from __future__ import annotations

import math


def resize_scale(height: int, width: int, min_size: int, max_size: int) -> float:
    """The factor that makes the short side `min_size`, or less if the long side would exceed `max_size`."""
    return min(min_size / min(height, width), max_size / max(height, width))


def resized_size(height: int, width: int, min_size: int, max_size: int) -> tuple[int, int]:
    """(height, width) after the resize of torchvision's `GeneralizedRCNNTransform`: rounded down, at least 1.

    >>> resized_size(480, 640, 800, 1333)
    (800, 1066)
    """
    return scaled_size(height, width, resize_scale(height, width, min_size, max_size))


def scaled_size(height: int, width: int, scale: float) -> tuple[int, int]:
    """(height, width) times `scale`, rounded down, at least 1."""
    return max(1, math.floor(height * scale)), max(1, math.floor(width * scale))
