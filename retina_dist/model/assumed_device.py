"""The device that a pass is estimated for, while its tensors, which hold no values, are of the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

_assumed: ContextVar[bool] = ContextVar("assumed", default=False)

# What autocast computes in float32 on CUDA but not on a CPU, of what models here call:
# https://docs.pytorch.org/docs/stable/amp.html#cuda-ops-that-can-autocast-to-float32
_NAMES = ("group_norm", "layer_norm", "softmax", "log_softmax")
FLOAT32 = {getattr(place, name) for name in _NAMES for place in (torch, torch.nn.functional)}


def cuda_is_assumed() -> bool:
    """Whether memory is to be allocated as on CUDA, whatever the tensors' device."""
    return _assumed.get()


@contextmanager
def assume_cuda() -> Iterator[None]:
    """Within it passes on tensors without values allocate what they would on CUDA, as far as it differs from a CPU."""
    token = _assumed.set(True)
    try:
        with _CudaAutocast():
            yield
    finally:
        _assumed.reset(token)


class _CudaAutocast(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in FLOAT32 and torch.is_autocast_enabled("cpu"):
            args, kwargs = tree_map_only(Tensor, lambda x: x.float() if x.is_floating_point() else x, (args, kwargs))
        return func(*args, **kwargs)
