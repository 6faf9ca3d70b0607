"""The batch norms of any model, replaced by those that leave out fillers, by synchronised or by frozen ones."""

from __future__ import annotations

from typing import Literal

from torch import nn
from torchvision.ops import FrozenBatchNorm2d

from retina_dist.model.sync_batch_norm import BatchNorm2d, SyncBatchNorm2d

Norm = Literal["frozen_bn", "bn", "sync_bn"]


def replace_batch_norms(model: nn.Module, norm: Norm) -> None:
    """Put the kind `norm` in the place of every `nn.BatchNorm2d` below `model`, with its values; names stay as they are."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.BatchNorm2d):
                setattr(module, name, _replacement(child, norm))


def _replacement(old: nn.BatchNorm2d, norm: Norm) -> nn.Module:
    if norm == "frozen_bn":
        new: nn.Module = FrozenBatchNorm2d(old.num_features, eps=old.eps)
        state = {k: v for k, v in old.state_dict().items() if k != "num_batches_tracked"}
    else:
        kind = SyncBatchNorm2d if norm == "sync_bn" else BatchNorm2d
        new = kind(old.num_features, eps=old.eps, momentum=old.momentum)
        state = old.state_dict()
    new.load_state_dict(state)
    return new
