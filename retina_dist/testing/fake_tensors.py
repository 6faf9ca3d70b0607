"""torch's fake tensors, made fit to train on a CUDA device that is not there; `fake_cuda` puts these parts in their places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

CUDA, META = torch.device("cuda", 0), torch.device("meta")
DEVICE = torch.ops.prim.device.default  # the operator by which C++ asks a fake tensor for its device


class FakeCudaMode(FakeTensorMode):
    """torch's, for a backward pass without a GPU.

    Autograd notes the device of what it differentiates and looks for that device's stream, which there is none of. It is therefore
    told "meta" for "cuda" (`device_for_c`), and operators that C++ then asks for on "meta" are made on "cuda".
    """

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.fresh: set[int] = set()  # ids of what the last operator made or wrote, before autograd has noted it
        self.in_autograd = 0

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "meta":
            kwargs["device"] = CUDA
        if func is torch.ops.aten._fused_sgd_.default:  # writes its arguments only; torch has no fake implementation
            return None
        found = super().dispatch(func, types, args, kwargs)
        if func is DEVICE:
            return found
        self.fresh = set()
        if torch.is_grad_enabled() and "_like." not in str(func):  # zeros_like has no gradient
            written = args if isinstance(func, torch._ops.OpOverload) and func._schema.is_mutable else ()
            tensors = [x for x in tree_leaves((found, written)) if isinstance(x, Tensor)]
            self.fresh = {id(y) for x in tensors for y in (x, x._base) if y is not None}
        return found

    def within(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`original`, one of autograd's functions, to which every fake device is "meta"."""

        def function(*args: Any, **kwargs: Any) -> Any:
            self.in_autograd += 1
            try:
                return original(*args, **kwargs)
            finally:
                self.in_autograd -= 1

        return function


def device_for_c(args: Sequence[Any]) -> torch.device:
    """What C++ takes for a fake tensor's device: to autograd "meta" for "cuda"; to autocast, which asks too, the truth."""
    (tensor,) = args
    mode = tensor.fake_mode
    if mode.in_kernel_invocation:
        return META
    if tensor.fake_device.type != "cuda":
        return tensor.fake_device  # type: ignore[no-any-return]
    unknown = tensor.requires_grad and isinstance(tensor, nn.Parameter) and not hasattr(tensor, "_node")
    return META if mode.in_autograd or unknown or id(tensor) in mode.fresh else tensor.fake_device


def parameter_of(tensor: Tensor, requires_grad: bool) -> nn.Parameter:
    """A parameter that autograd has noted."""
    parameter = nn.Parameter(tensor, requires_grad)
    if requires_grad:
        with torch.enable_grad():
            parameter._node = torch.autograd.graph.get_gradient_edge(parameter).node  # type: ignore[attr-defined]
    return parameter


def with_device(original: Callable[..., Any]) -> Callable[..., Any]:
    """FakeTensor's `__torch_dispatch__`, `original`, that answers C++ by `device_for_c`."""

    def dispatch(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return device_for_c(args) if func is DEVICE else original(cls, func, types, args, kwargs or {})

    return dispatch


def deepcopy(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
    """A tensor's or a parameter's, without asking for its memory, which is not there."""
    if id(tensor) not in memo:
        twin = tensor.detach().clone()
        memo[id(tensor)] = parameter_of(twin, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else twin
    return memo[id(tensor)]  # type: ignore[no-any-return]


def apply(module: nn.Module, function: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    """nn.Module's for `to` and `cuda`, without swapping a fake tensor's memory, which torch refuses."""
    for child in module.children() if recurse else ():
        child._apply(function)
    with torch.no_grad():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = parameter_of(function(parameter.detach()), parameter.requires_grad)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = function(buffer)
    return module
