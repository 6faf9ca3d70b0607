"""The arithmetic of forward and backward passes, in training and in every other use of a model.

`fp32` rounds nothing, on any device. `tf32` is fp32 in which a GPU rounds the inputs of matrix products and convolutions to TF32
(10 bits of mantissa; Ampere and newer). `bf16` and `fp16` are autocast. PyTorch by itself would take TF32 in convolutions only:
https://docs.pytorch.org/docs/stable/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal

import torch

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
Autocast = Callable[[], AbstractContextManager[Any]]
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(device: torch.device, precision: str) -> Autocast:
    """A factory of contexts in which matrix work runs in `precision`.

    Entering one allows or forbids TF32 in the whole process, and leaving it changes nothing, since the backward pass comes after.
    """

    @contextmanager
    def context() -> Iterator[None]:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = (
            precision == "tf32"
        )
        with torch.autocast(
            device.type, dtype=AUTOCAST.get(precision), enabled=precision in AUTOCAST
        ):
            yield

    return context


def make_scaler(device: torch.device, precision: str) -> torch.amp.GradScaler:
    """The loss scale of fp16; with any other precision it does nothing."""
    return torch.amp.GradScaler(device.type, enabled=precision == "fp16")


def describe_precision(device: torch.device, precision: str) -> str:
    """For the start-up lines: "precision: fp32, TF32 off; trainer.precision=tf32 or bf16 is faster on this GPU"."""
    has_tf32 = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    if precision == "tf32" and not has_tf32:
        return "precision: fp32, because this device has no TF32"
    if precision == "fp32" and has_tf32:
        return "precision: fp32, TF32 off; trainer.precision=tf32 or bf16 is faster on this GPU"
    return f"precision: {precision}"
