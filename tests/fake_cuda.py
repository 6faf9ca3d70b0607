"""A CUDA device that computes nothing: a whole training step runs on it without a GPU, and what
would make the host wait raises.

    with fake_cuda() as gpu:
        strategy = SingleDeviceStrategy("cuda")
        # model.to("cuda"), optimizers, EMA, autocast and GradScaler work
        state = build_state(config, model, strategy)
        step = TrainStep(state, plan, strategy, TrainerConfig(precision="bf16"))
        step([batch.pin_memory()])  # constants are made here, once
        with gpu.watch():
            step([batch.pin_memory()])  # raises HostStall

Tensors are PyTorch's fake tensors (shape, type, strides and device, no values). What this proves,
and where the proof ends, is in docs/planning.md, "What is proven without a GPU". Tensors made
inside are of no use outside.
"""

from __future__ import annotations

import inspect
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CUDA, META = torch.device("cuda", 0), torch.device("meta")
DEVICE = (
    torch.ops.prim.device.default
)  # the operator by which C++ asks a fake tensor for its device
aten = torch.ops.aten
INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}
INDEXING |= {aten._unsafe_index, aten._unsafe_index_put}
COPIES = {aten._to_copy, aten.copy_, aten._foreach_copy_, torch.ops.prims.device_put}
PER_TENSOR = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
QUIET = (
    str(Path(torch.__file__).parent),
    __file__,
    traceback.__file__,
)  # files that no stall is blamed on


class FakeCudaMode(FakeTensorMode):
    """torch's, for a backward pass without a GPU.

    Autograd notes the device of what it differentiates and looks for that device's stream, which
    does not exist. It is therefore told "meta" for "cuda" (`device_for_c`), and operators that C++
    then asks for on "meta" are made on "cuda".
    """

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.fresh: set[int] = (
            set()
        )  # ids of what the last operator made or wrote, before autograd has noted it
        self.in_autograd = 0

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "meta":
            kwargs["device"] = CUDA
        if (
            func is torch.ops.aten._fused_sgd_.default
        ):  # writes its arguments only; torch has no fake implementation
            return None
        found = super().dispatch(func, types, args, kwargs)
        if func is DEVICE:
            return found
        self.fresh = set()
        if torch.is_grad_enabled() and "_like." not in str(func):  # zeros_like has no gradient
            written = (
                args if isinstance(func, torch._ops.OpOverload) and func._schema.is_mutable else ()
            )
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
    """What C++ takes for a fake tensor's device: to autograd "meta" for "cuda"; to autocast, which
    asks too, the truth.
    """
    (tensor,) = args
    mode = tensor.fake_mode
    if mode.in_kernel_invocation:
        return META
    if tensor.fake_device.type != "cuda":
        return tensor.fake_device  # type: ignore[no-any-return]
    unknown = (
        tensor.requires_grad and isinstance(tensor, nn.Parameter) and not hasattr(tensor, "_node")
    )
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
        return (
            device_for_c(args) if func is DEVICE else original(cls, func, types, args, kwargs or {})
        )

    return dispatch


def deepcopy(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
    """A tensor's or a parameter's, without asking for its memory, which is not there."""
    if id(tensor) not in memo:
        twin = tensor.detach().clone()
        memo[id(tensor)] = (
            parameter_of(twin, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else twin
        )
    return memo[id(tensor)]  # type: ignore[no-any-return]


def apply(
    module: nn.Module, function: Callable[[Tensor], Tensor], recurse: bool = True
) -> nn.Module:
    """nn.Module's for `to` and `cuda`, without swapping a fake tensor's memory, which torch
    refuses.
    """
    for child in module.children() if recurse else ():
        child._apply(function)
    with torch.no_grad():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = parameter_of(
                    function(parameter.detach()), parameter.requires_grad
                )
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = function(buffer)
    return module


class HostStall(AssertionError):
    """The host waits for the device, or copies to it what is not a pinned batch."""


class AllowedWait(NamedTuple):
    """A wait that is meant: where it is, why, and the value that the host then reads."""

    module: str
    function: str
    reason: str
    answer: float = 1.0


ALLOWED_WAITS = (
    AllowedWait(
        "retina_dist.engine.nonfinite",
        "accept",
        "once a step, all work of the passes queued: every rank must know whether to apply the "
        "step before the weights change",
    ),
    AllowedWait(
        "retina_dist.engine.meter",
        "compute",
        "every trainer.log_every steps, one transfer of all means",
    ),
    AllowedWait(
        "retina_dist.engine.phase_timer",
        "settle",
        "at the end of a run, and once in thousands of steps",
    ),
)


class FakeCuda(TorchDispatchMode):
    """The device of `fake_cuda`. `waits` counts allowed waits by "module.function"."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()
        self._allowed: Sequence[AllowedWait] | None = None  # None: not watching
        self._pinned: dict[int, Tensor] = {}  # by storage

    @contextmanager
    def watch(self, allowed: Sequence[AllowedWait] = ALLOWED_WAITS) -> Iterator[None]:
        """Within it, every wait that is not `allowed`, and every copy from the host but a pinned
        batch's, raises HostStall.
        """
        before, self._allowed = self._allowed, allowed
        try:
            yield
        finally:
            self._allowed = before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._allowed is None and func is not aten._local_scalar_dense.default:
            return func(*args, **kwargs)
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        if func.overloadpacket in COPIES:
            self._check_copy(func, args, kwargs)
        elif any(x.device.type == "cuda" for x in tensors):
            answer = self._check_wait(func, args, kwargs)
            if answer is not None:
                return answer
            self._check_mixture(func, [x for x in tensors if x.device.type != "cuda"])
        return func(*args, **kwargs)

    def wait(self, what: str, remedy: str) -> float:
        """Count a wait that is allowed here and return what the host reads; raises HostStall for
        any other.
        """
        frame = sys._getframe(1)
        while self._allowed and frame.f_back:
            place = (frame.f_globals.get("__name__"), frame.f_code.co_name)
            for allowed in self._allowed:
                if place == allowed[:2]:
                    self.waits[".".join(allowed[:2])] += 1
                    return allowed.answer
            frame = frame.f_back
        if self._allowed is None:
            return 1.0
        raise self._stall(what, remedy)

    def _check_wait(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What an allowed read of one value gives; None where nothing waits."""
        if func is aten._local_scalar_dense.default:
            value = self.wait(
                "the host reads a value of the device (item, bool, float, int)", "keep it a tensor"
            )
            kind = {torch.bool: bool}.get(
                args[0].dtype, float if args[0].is_floating_point() else int
            )
            return kind(value)
        if func.overloadpacket is aten.prod:
            # seen on an H100; fake tensors take another way in the backward pass
            raise self._stall(
                f"{func} counts zeros in its gradient, for which the host waits",
                "multiply the factors",
            )
        if func.overloadpacket in INDEXING:
            if any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1]):
                raise self._stall(
                    f"{func} selects by a mask, so the host waits for its count",
                    "use torch.where, masked_fill",
                )
        elif (
            PER_TENSOR & set(func.tags) or func.overloadpacket is aten._linalg_check_errors
        ) and not kwargs.get("output_size"):
            self.wait(
                f"{func} gives what depends on values, so the host waits for them",
                "use a mask, torch.where",
            )
        return None

    def _check_copy(self, func: Any, args: Any, kwargs: Any) -> None:
        if func.overloadpacket in (
            aten.copy_,
            aten._foreach_copy_,
        ):  # (destination, source, non_blocking)
            to, source = (x if isinstance(x, list | tuple) else [x] for x in args[:2])
            non_blocking = kwargs.get("non_blocking", args[2] if len(args) > 2 else False)
            pairs = [(b, a.device) for a, b in zip(to, source, strict=True)]
        else:
            there = (
                args[1]
                if func.overloadpacket is torch.ops.prims.device_put
                else kwargs.get("device")
            )
            pairs = [(args[0], args[0].device if there is None else torch.device(there))]
            non_blocking = kwargs.get("non_blocking", False)
        for tensor, device in pairs:
            way = tensor.device.type, "cuda" if device.type == "meta" else device.type
            if way == ("cuda", "cpu") and not non_blocking:
                self.wait(
                    f"{func} copies a tensor {tuple(tensor.shape)} to the host",
                    "keep it on the device",
                )
            elif way == ("cpu", "cuda") and not (
                non_blocking and tensor.untyped_storage()._cdata in self._pinned
            ):
                raise self._stall(
                    f"{func} copies a tensor {tuple(tensor.shape)} from the host, "
                    "and waits for the copy",
                    "make it on the device (torch.full, arange), make it once, "
                    "or pin it with the batch and give non_blocking=True",
                )

    def _check_mixture(self, func: Any, hosts: Sequence[Tensor]) -> None:
        """A CPU scalar in element-wise arithmetic is a kernel's argument; `where` and all other
        operators copy it.
        """
        for tensor in hosts:
            if (
                tensor.dim()
                or torch.Tag.pointwise not in func.tags
                or func.overloadpacket is aten.where
            ):
                raise self._stall(
                    f"{func} gets a CPU tensor {tuple(tensor.shape)}, which is copied",
                    "make it on the device",
                )

    def _stall(self, what: str, remedy: str) -> HostStall:
        stack = [
            frame for frame in traceback.extract_stack() if not frame.filename.startswith(QUIET)
        ]
        place = (
            f"{stack[-1].filename}:{stack[-1].lineno} ({stack[-1].line})"
            if stack
            else "an unknown place"
        )
        return HostStall(f"{what}, at {place}; {remedy}.")

    # what stands in the place of torch.cuda and of pinned memory

    def pin(self, tensor: Tensor) -> Tensor:
        """`tensor`, whose memory now counts as page-locked."""
        if self._allowed is not None:
            raise self._stall(
                "memory is pinned within a step, for which the host waits",
                "pin it in the data loader",
            )
        self._pinned[tensor.untyped_storage()._cdata] = tensor
        return tensor

    def synchronize(self, *_: Any) -> None:
        """`synchronize` of the device, a stream or an event."""
        self.wait("synchronize waits for the device", "order work by streams and events")

    def to_list(self, tensor: Tensor) -> Any:
        """A tensor's values, in one transfer."""
        value = self.wait(
            f"tolist copies a tensor {tuple(tensor.shape)} to the host", "keep it on the device"
        )
        return np.full(
            tuple(tensor.shape), value if tensor.is_floating_point() else int(value)
        ).tolist()


class _Stream:
    """Of work, or an event in one: it orders nothing, and `synchronize` is a wait."""

    gpu: FakeCuda

    def __init__(self, *_: Any, **__: Any) -> None: ...
    def record(self, *_: Any) -> None: ...
    def wait_stream(self, _: Any) -> None: ...
    def wait_event(self, _: Any) -> None: ...

    def record_event(self, event: Any = None) -> Any:
        return event or type(self)()

    def synchronize(self) -> None:
        self.gpu.synchronize()


@contextmanager
def fake_cuda() -> Iterator[FakeCuda]:
    """A context in which `device="cuda"` is a fake device; real tensors that come in are taken for
    fake ones on the CPU.
    """
    gpu = FakeCuda()
    stream = type("FakeStream", (_Stream,), {"gpu": gpu})
    # torch.cuda.is_available() stays as it is: fake tensors ask it whether there is a device to
    # initialise.
    cuda: dict[str, Any] = {
        "Stream": stream,
        "Event": stream,
        "stream": lambda _: nullcontext(),
        "current_stream": stream,
        "synchronize": gpu.synchronize,
        "set_device": lambda _: None,
        "current_device": lambda: 0,
        "is_bf16_supported": lambda *_, **__: True,
        "get_device_capability": lambda *_: (9, 0),
        "get_device_name": lambda *_: "a fake CUDA device",
    }
    of_tensors: dict[str, Any] = {
        "__torch_dispatch__": classmethod(with_device(FakeTensor.__torch_dispatch__.__func__)),  # type: ignore[attr-defined]
        "__deepcopy__": deepcopy,
        "tolist": lambda x: gpu.to_list(x),
        "is_cuda": property(lambda x: x.device.type == "cuda"),
        "data_ptr": lambda x: x.untyped_storage()._cdata,
        "pin_memory": lambda x, *_: gpu.pin(x),
        "is_pinned": lambda x, *_: x.untyped_storage()._cdata in gpu._pinned,
    }
    with ExitStack() as stack:
        fake = FakeCudaMode()
        for name, value in cuda.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, value))
        for name, value in of_tensors.items():
            stack.enter_context(mock.patch.object(FakeTensor, name, value, create=True))
        no_gpu = (
            torch.cuda.amp.common
        )  # asked by autocast and GradScaler, which would switch themselves off
        stack.enter_context(
            mock.patch.object(no_gpu, "amp_definitely_not_available", return_value=False)
        )
        stack.enter_context(
            mock.patch.dict(fake_tensor._DISPATCH_META_HANDLERS, {DEVICE: device_for_c})
        )
        stack.enter_context(mock.patch.object(nn.Module, "_apply", apply))
        applied = inspect.getattr_static(torch.autograd.Function, "apply")
        function = classmethod(
            fake.within(lambda cls, *args, **kwargs: applied.__get__(None, cls)(*args, **kwargs))
        )
        stack.enter_context(mock.patch.object(torch.autograd.Function, "apply", function))
        backward = fake.within(torch.autograd._engine_run_backward)  # type: ignore[attr-defined]
        stack.enter_context(mock.patch.object(torch.autograd, "_engine_run_backward", backward))
        stack.enter_context(fake)
        stack.enter_context(gpu)
        yield gpu
