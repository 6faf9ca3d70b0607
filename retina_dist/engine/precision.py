"""Number formats of forward and backward passes, in training and in every other use of a model.

`fp32` rounds nothing, on any device. `tf32` is fp32 in which a GPU rounds the inputs of matrix
products and convolutions to TF32 (10 bits of mantissa; Ampere and newer). `bf16` and `fp16` are
autocast. `auto` is the 16-bit format that the device computes in, or fp32 where it has none.
PyTorch by itself would take TF32 in convolutions only:
https://docs.pytorch.org/docs/stable/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices
"""

import platform
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Literal

import torch

from retina_dist.strategies.base import DistributedStrategy

Precision = Literal["auto", "fp32", "tf32", "bf16", "fp16"]
Autocast = Callable[[], AbstractContextManager[object]]
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
AMPERE = (8, 0)  # the first GPUs with TF32 and with bf16 at the speed of fp16
# What `auto` may choose. A device that computes in one format also computes in those before it.
CHOICES = ("fp32", "fp16", "bf16")
# CPU time of a convolution against fp32's: bf16 with AVX2 only, fp16 in the backward pass.
EMULATED = {"bf16": 25, "fp16": 100}


def has_fast_bf16(device: torch.device) -> bool:
    """Whether the device has instructions for bf16; a CPU without them emulates it."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= AMPERE
    if platform.machine() in ("x86_64", "AMD64"):
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # of Arm CPUs


def resolve_precision(device: torch.device, precision: str) -> str:
    """`precision`, with `auto` replaced by the device's own choice.

    That is bf16 with instructions for it, fp16 on an older GPU, fp32 on any other device.
    """
    if precision != "auto":
        return precision
    if has_fast_bf16(device):
        return "bf16"
    return "fp16" if device.type == "cuda" else "fp32"


def agreed_precision(precision: str, strategy: DistributedStrategy) -> str:
    """`precision`, for auto the best that the devices of all ranks have. Collective."""
    if precision == "auto":
        own = CHOICES.index(resolve_precision(strategy.device, precision))
        lowest = strategy.all_reduce(torch.tensor([own], device=strategy.device), "min")
        precision = CHOICES[int(lowest)]
    if precision == "fp16":
        strategy.fp16_scale = 1.0  # the loss is scaled already
    return precision


def autocast(device: torch.device, precision: str) -> Autocast:
    """A factory of contexts in which matrix work runs in `precision`.

    Entering one allows or forbids TF32 in the whole process, and leaving it changes nothing,
    since the backward pass comes after.
    """
    precision = resolve_precision(device, precision)
    allows_tf32 = precision == "tf32"

    @contextmanager
    def context() -> Iterator[None]:
        torch.backends.cuda.matmul.allow_tf32 = allows_tf32
        torch.backends.cudnn.allow_tf32 = allows_tf32
        dtype = AUTOCAST.get(precision)
        with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
            yield

    return context


def describe_precision(device: torch.device, precision: str, requested: str) -> str:
    """The start-up line about the precision that `requested` (a setting's value) became.

    For example "precision: fp32, TF32 off; trainer.precision=tf32 or bf16 is faster on this GPU".
    """
    has_tf32 = device.type == "cuda" and torch.cuda.get_device_capability(device) >= AMPERE
    if requested == "auto":
        kind = "GPU" if device.type == "cuda" else "CPU"
        reason = f"this {kind} has {'' if has_fast_bf16(device) else 'no '}bf16 instructions"
        return f"precision: {precision}, chosen by trainer.precision=auto: {reason}"
    if precision == "tf32" and not has_tf32:
        return "precision: fp32, because this device has no TF32"
    if precision == "fp32" and has_tf32:
        return "precision: fp32, TF32 off; trainer.precision=tf32 or bf16 is faster on this GPU"
    return f"precision: {precision}"


def warn_of_emulation(device: torch.device, precision: str) -> str:
    """A warning for 16 bits on a CPU that emulates them; "" where there is nothing to warn of."""
    is_fast = precision == "bf16" and has_fast_bf16(device)
    if precision not in EMULATED or device.type != "cpu" or is_fast:
        return ""
    return (
        f"precision={precision}: this CPU has no instructions for it (bf16: avx512_bf16 or AMX), "
        f"and a convolution takes about {EMULATED[precision]} times the time of fp32; "
        "use trainer.precision=auto or fp32."
    )
