"""Layers in the place of torch's: frozen norms folded into convolutions, strided convolutions right
in bfloat16, kinds of norms.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.ops import FrozenBatchNorm2d

from retina_dist.model.sync_batch_norm import BatchNorm2d, SyncBatchNorm2d

Norm = Literal["frozen_bn", "bn", "sync_bn"]
AnyModule = TypeVar("AnyModule", bound=nn.Module)


def as_kind(kind: type[AnyModule], module: nn.Module) -> AnyModule:
    """A module of the class `kind` that shares everything else with `module`."""
    twin = kind.__new__(kind)
    twin.__dict__.update(module.__dict__)
    return twin


def replace_modules(model: nn.Module, replacement: Callable[[nn.Module], nn.Module]) -> None:
    """Put `replacement(module)` in the place of every module below `model`.

    Names stay as they are.
    """
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            setattr(parent, name, replacement(child))


def prefers_channels_last(device: torch.device) -> bool:
    """Whether convolutions are faster in NHWC; on CPUs with AVX2 alone they are slower."""
    return device.type != "cpu" or torch.backends.cpu.get_cpu_capability() != "AVX2"


class StridedConv2d(nn.Conv2d):
    """Computes and drops a second output column where bfloat16 on a CPU would give one: there
    oneDNN reads unwritten memory.
    """

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rounds = torch.is_autocast_enabled("cpu") and input.device.type == "cpu"
        stride = self.stride[1]
        kernel = self.dilation[1] * (self.kernel_size[1] - 1) + 1
        # of the output
        columns = (input.shape[-1] + 2 * int(self.padding[1]) - kernel) // stride + 1
        if rounds and stride > 1 and columns == 1:
            wider = F.pad(input, (0, stride))
            return super()._conv_forward(wider, weight, bias)[..., :1]
        return super()._conv_forward(input, weight, bias)


def replace_strided_convs(model: nn.Module) -> None:
    """Let every strided convolution below `model` that pads zeros be a StridedConv2d, in place."""

    replace_modules(model, _as_strided)


def _as_strided(module: nn.Module) -> nn.Module:
    if type(module) is not nn.Conv2d or module.stride[1] == 1:
        return module
    if isinstance(module.padding, str) or module.padding_mode != "zeros":
        return module
    return as_kind(StridedConv2d, module)


def replace_batch_norms(model: nn.Module, norm: str) -> None:
    """Put the kind `norm` in the place of every `nn.BatchNorm2d` below `model`, with its values.

    Names stay as they are.
    """
    replace_modules(model, partial(_norm_of_kind, norm=norm))


def _norm_of_kind(old: nn.Module, norm: str) -> nn.Module:
    if not isinstance(old, nn.BatchNorm2d):
        return old
    if norm == "frozen_bn":
        # it drops num_batches_tracked
        new = FrozenBatchNorm2d(old.num_features, eps=old.eps)
    else:
        kind = SyncBatchNorm2d if norm == "sync_bn" else BatchNorm2d
        new = kind(old.num_features, eps=old.eps, momentum=old.momentum)
    new.load_state_dict(old.state_dict())
    return new


class FoldedBatchNorm2d(FrozenBatchNorm2d):
    """Holds the statistics, which the `FoldedConv2d` before it applies.

    Its own forward is the identity.

    conv(x, w) * s + t = conv(x, w * s) + t for each output channel, which saves two passes over
    every activation.
    """

    _cached: tuple[tuple[object, ...], tuple[Tensor, Tensor]] | None = None

    def forward(self, x: Tensor) -> Tensor:
        return x

    def scale_and_shift(self) -> tuple[Tensor, Tensor]:
        """[C] each.

        Computed again only after a statistic was written or moved, or the epsilon changed.
        """
        if torch.compiler.is_compiling():
            return self._scale_and_shift()
        key: tuple[object, ...] = (self.eps,)
        for held in (self.weight, self.bias, self.running_mean, self.running_var):
            version = 0 if held.is_inference() else held._version
            key = (*key, held.data_ptr(), version)
        if self._cached is None or self._cached[0] != key:
            with torch.inference_mode(False), torch.no_grad():
                self._cached = key, self._scale_and_shift()
        return self._cached[1]

    def _scale_and_shift(self) -> tuple[Tensor, Tensor]:
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        return scale, self.bias - self.running_mean * scale


class FoldedConv2d(StridedConv2d):
    """A convolution without bias and the frozen norm after it, as one convolution."""

    _norm: tuple[FoldedBatchNorm2d]  # in a tuple, so it is not registered as a child

    def forward(self, x: Tensor) -> Tensor:
        scale, shift = self._norm[0].scale_and_shift()
        return self._conv_forward(x, self.weight * scale[:, None, None, None], shift)


def fold_frozen_norms(body: nn.Module) -> None:
    """Fold every `FrozenBatchNorm2d` into the convolution that is the child before it, in place.

    Parameters and buffers stay.
    """
    for module in list(body.modules()):
        children = list(module.named_children())
        for (conv_name, conv), (norm_name, norm) in zip(children, children[1:], strict=False):
            is_plain = isinstance(conv, nn.Conv2d) and conv.bias is None
            if is_plain and type(norm) is FrozenBatchNorm2d:
                held = as_kind(FoldedBatchNorm2d, norm)
                folded = as_kind(FoldedConv2d, conv)
                folded.__dict__["_norm"] = (held,)
                setattr(module, conv_name, folded)
                setattr(module, norm_name, held)
