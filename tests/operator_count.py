"""Counts what a piece of code asks of the device: operators, and those that make the host wait for it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import Self

# Views move no data: what is left is about the number of kernels.
VIEWS = frozenset(
    {
        "alias",
        "as_strided",
        "broadcast_to",
        "detach",
        "diagonal",
        "expand",
        "expand_as",
        "lift_fresh",
        "narrow",
        "permute",
    }
    | {
        "reshape",
        "select",
        "slice",
        "split",
        "split_with_sizes",
        "squeeze",
        "t",
        "transpose",
        "unbind",
        "unfold",
        "unsqueeze",
    }
    | {"view", "view_as", "_reshape_alias", "_unsafe_view"}
)
READS = frozenset({"_local_scalar_dense", "item", "is_nonzero", "equal"})
SHAPES = frozenset({"nonzero", "nonzero_numpy", "masked_select", "_unique2", "unique_dim"})


class OperatorCount(TorchDispatchMode):
    """While entered, `operators` counts ATen and torchvision operators by name, views apart, and `waits` what blocks the host.

    On CUDA these wait: reading a value, shapes that depend on values (`nonzero`, masks as indices), and tensors made of Python
    numbers, whose copy comes from unpinned memory. Counted where the operators are dispatched, so it works on a CPU.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operators: Counter[str] = Counter()
        self.views: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.split(".")[0]
        if func.namespace in ("aten", "torchvision"):
            (self.views if name in VIEWS else self.operators)[name] += 1
            if name in READS:
                self.waits["a value read"] += 1
            elif name in SHAPES:
                self.waits["nonzero"] += 1
            elif name == "lift_fresh":
                self.waits["a tensor of Python numbers"] += 1
            elif name.startswith(("index", "_index")) and _has_mask(args):
                self.waits["a mask as index"] += 1
        return func(*args, **(kwargs or {}))


def _has_mask(args: Any) -> bool:
    """Whether an index is a mask; one written with a single number is filled in without waiting."""
    indices = args[1] if len(args) > 1 and isinstance(args[1], (list, tuple)) else []
    masks = [x for x in indices if x is not None and x.dtype in (torch.bool, torch.uint8)]
    filled = len(args) > 2 and isinstance(args[2], torch.Tensor) and args[2].numel() == 1 and len(indices) == 1
    return bool(masks) and not filled
