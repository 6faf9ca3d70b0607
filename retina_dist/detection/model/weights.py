"""Weights into a model: from a file of ours or of torchvision's form, or by torchvision's name.

Layer 1. What fits by name and shape is loaded; the rest is left out and listed, so a detector for other classes starts
from everything but the class layer. Nothing but tensors and plain values is unpickled.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import URLError

import torch
from torch import Tensor, nn
from torchvision.models import WeightsEnum, get_weight
from torchvision.ops import FrozenBatchNorm2d

from retina_dist.errors import CheckpointError, ConfigError
from retina_dist.files import Place, Url, place
from retina_dist.torch_files import load_torch

TRAINED_WITHOUT_EPS = "RetinaNet_ResNet50_FPN_Weights.COCO_V1"  # torchvision's builder sets 0 for these alone
CLASS_LAYER = ("cls_logits.weight", "cls_logits.bias")
_OLD_HEAD = re.compile(r"^(head\.\w+_head\.conv)\.(\d+)\.(weight|bias)$")


@dataclass(frozen=True)
class WeightsReport:
    """Which tensors a load took, and which it did not."""

    source: str
    loaded: tuple[str, ...]
    left_out: tuple[str, ...]  # "name: why" for tensors of the file that found no place
    kept: tuple[str, ...]  # tensors of the model that the file does not hold: as they were

    def __str__(self) -> str:
        lines = [
            f"{self.source}: {len(self.loaded)} tensors loaded, {len(self.left_out)} left out, {len(self.kept)} kept"
        ]
        lines += [f"  left out  {item}" for item in self.left_out]
        lines += [f"  kept      {item}" for item in self.kept]
        return "\n".join(lines)


class Weights(NamedTuple):
    """Tensors by name, and what their source tells of them."""

    state: Mapping[str, Tensor]
    eps: float | None = None  # of the batch norms they were trained with
    categories: tuple[str, ...] | None = None  # names of the labels, "" for one without a category


def load_weights(model: nn.Module, source: str, categories: Sequence[str] | None = None) -> WeightsReport:
    """Load what fits of a whole detector: a file, a URL, or a name such as `RetinaNet_ResNet50_FPN_Weights.COCO_V1`.

    Batch norms also take the epsilon that these weights were trained with, where the source tells it: a checkpoint of ours
    does, and torchvision's COCO_V1 needs 0. Norms that are not frozen never take 0, because a batch can have no variance.
    `categories` are the names of the model's labels, "" for one without: where the source names its own, the class layer is put
    into their order, or left out if it is of other categories. Raises CheckpointError when the source cannot be had or nothing
    in it fits.
    """
    state, eps, theirs = _weights_of(source)
    others = None
    if categories is not None and theirs is not None and tuple(categories) != theirs:
        state, others = _with_class_order(state, theirs, tuple(categories))
    report = _load(model, source, state, prefix="", others=others)
    for module in _batch_norms(model):
        if eps or (eps == 0 and isinstance(module, FrozenBatchNorm2d)):
            module.eps = eps
    return report


def load_backbone_weights(model: nn.Module, source: str) -> WeightsReport:
    """Load what fits of a classifier's ResNet into the detector's body: a file or e.g. `ResNet50_Weights.IMAGENET1K_V1`."""
    return _load(model, source, _weights_of(source).state, prefix="backbone.body.")


def batch_norm_eps(model: nn.Module) -> float | None:
    """The epsilon of a detector's batch norms, which have one in common; None without such norms."""
    return next((module.eps for module in _batch_norms(model)), None)


def set_batch_norm_eps(model: nn.Module, eps: float) -> None:
    """Give it to every batch norm."""
    for module in _batch_norms(model):
        module.eps = eps


def eps_of_checkpoint(content: Mapping[str, Any]) -> float | None:
    """The epsilon of the batch norms that a checkpoint of ours was trained with; None where it does not say."""
    arguments = content.get("model_arguments")
    eps = arguments.get("norm_eps") if isinstance(arguments, Mapping) else None
    return float(eps) if isinstance(eps, float | int) else None


def _batch_norms(model: nn.Module) -> Iterator[Any]:
    return (module for module in model.modules() if hasattr(module, "running_var"))


def is_torchvision_name(source: str) -> bool:
    """Whether `source` has the form of torchvision's names for weights, such as ResNet50_Weights.IMAGENET1K_V1."""
    return re.fullmatch(r"\w+_Weights\.\w+", source) is not None


def torchvision_categories(name: str) -> list[str]:
    """The class names, by label, of published detector weights. Raises ConfigError for an unknown name."""
    return list(_published(name).meta["categories"])


def _with_class_order(
    state: Mapping[str, Tensor], theirs: tuple[str, ...], ours: tuple[str, ...]
) -> tuple[Mapping[str, Tensor], str | None]:
    """`state` with the rows of the class layer, K for each anchor, in the order of `ours`; or why they cannot be."""
    if len(theirs) != len(ours):  # shapes tell
        return state, None
    counts, known = Counter(ours), Counter(theirs)
    missing = [name for name in counts if name and counts[name] != known[name]]
    if missing:
        return state, f"of other categories than the model's ({', '.join(missing[:3])})"
    places: dict[str, list[int]] = {}
    for label, name in enumerate(theirs):
        places.setdefault(name, []).append(label)
    named = [places[name].pop(0) if name else None for name in ours]
    unused = iter(sorted(set(range(len(ours))) - set(named)))  # for labels without a category, any will do
    order = [next(unused) if row is None else row for row in named]
    reordered = dict(state)
    for name in (name for name in state if name.endswith(CLASS_LAYER)):
        if not state[name].dim() or len(state[name]) % len(order):  # no such layer: `_load` leaves it out by its shape
            continue
        by_label = state[name].unflatten(0, (-1, len(order)))  # [anchors, K, ...]
        reordered[name] = by_label[:, order].flatten(0, 1)
    return reordered, None


def _load(
    model: nn.Module, source: str, state: Mapping[str, Tensor], prefix: str, others: str | None = None
) -> WeightsReport:
    """Load what fits; `others` is why the class layer does not."""
    own = model.state_dict()
    fitting: dict[str, Tensor] = {}
    left_out = []
    for name, value in state.items():
        target = prefix + _OLD_HEAD.sub(lambda m: f"{m[1]}.{int(m[2]) // 2}.0.{m[3]}", name)
        if target not in own:
            if not target.endswith("num_batches_tracked"):  # a frozen batch norm has no such counter
                left_out.append(f"{name}: the model has no such tensor")
        elif others and target.endswith(CLASS_LAYER):
            left_out.append(f"{name}: {others}")
        elif own[target].shape != value.shape:
            left_out.append(f"{name}: {list(value.shape)} in the file, {list(own[target].shape)} in the model")
        else:
            fitting[target] = value
    if not any(not k.endswith("num_batches_tracked") for k in fitting):
        raise CheckpointError(
            f"{source} holds no tensor that fits this model by name and shape (it begins with "
            f"{', '.join(list(state)[:3]) or 'nothing'}); check model.backbone and model.variant."
        )
    model.load_state_dict({**own, **fitting})
    kept = [k for k in own if k.startswith(prefix) and k not in fitting and not k.endswith("num_batches_tracked")]
    return WeightsReport(source, tuple(fitting), tuple(left_out), tuple(kept))


def _weights_of(source: str) -> Weights:
    where = place(source)
    if isinstance(where, Path):
        where = where.expanduser()
    if isinstance(where, Url) or where.is_file():
        return _from_file(where)
    if is_torchvision_name(source):
        names = _published(source).meta["categories"] if "RetinaNet" in source else None
        known = names and tuple("" if name in ("__background__", "N/A") else name for name in names)
        return Weights(_from_torchvision(source), 0.0 if source == TRAINED_WITHOUT_EPS else None, known)
    raise CheckpointError(
        f"{source} is neither a file nor one of torchvision's weights; give a path, a URL, or a name such as "
        "RetinaNet_ResNet50_FPN_Weights.COCO_V1 or ResNet50_Weights.IMAGENET1K_V1."
    )


def _from_file(path: Place) -> Weights:
    content, sha256 = load_torch(path)
    # torchvision's file names end with the first digits of their SHA-256.
    published = Path(_published(TRAINED_WITHOUT_EPS).url).stem.rpartition("-")[2]
    eps = 0.0 if sha256.startswith(published) else None
    categories = None
    if isinstance(content, Mapping):
        eps = eps_of_checkpoint(content) if eps is None else eps
        named = content.get("categories")
        categories = named.get("names") if isinstance(named, Mapping) else None
    # Our own checkpoints, torchvision's references ("model") and Lightning's ("state_dict") nest the tensors.
    for key in ("ema", "model", "state_dict"):  # in our own, the averaged weights are "ema" and then "model"
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not content or not all(isinstance(v, Tensor) for v in content.values()):
        raise CheckpointError(f"{path} does not hold a state_dict (a mapping of names to tensors).")
    names = [str(k) for k in content]
    cut = len("module.") if all(n.startswith("module.") for n in names) else 0  # saved from a wrapped model
    state = {name[cut:]: value for name, value in zip(names, content.values(), strict=True)}
    return Weights(state, eps, tuple(map(str, categories)) if isinstance(categories, Sequence) else None)


def _published(name: str) -> WeightsEnum:
    try:
        return get_weight(name)
    except (ValueError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"{name} is not known to torchvision; detectors: RetinaNet_ResNet50_FPN_Weights.COCO_V1, "
            "RetinaNet_ResNet50_FPN_V2_Weights.COCO_V1, backbones: ResNet50_Weights.IMAGENET1K_V1 and the like."
        ) from error


def _from_torchvision(name: str) -> Mapping[str, Tensor]:
    weights = _published(name)
    try:
        return weights.get_state_dict(progress=True, check_hash=True)
    except (URLError, OSError, RuntimeError) as error:
        folder = Path(torch.hub.get_dir()) / "checkpoints"
        raise CheckpointError(
            f"{name} could not be downloaded from {weights.url} ({error}); fetch that file on a machine with internet and "
            f"put it into {folder}, or give its path instead of the name."
        ) from error
