"""Weights into a model: from a file of ours or of torchvision's form, or by torchvision's name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torchvision.ops import FrozenBatchNorm2d

from retina_dist.detection.model.detectron2 import from_detectron2, is_detectron2
from retina_dist.model.weights import WeightsReport, load_fitting, published, read_state

TRAINED_WITHOUT_EPS = (
    "RetinaNet_ResNet50_FPN_Weights.COCO_V1"  # torchvision's builder sets 0 for these alone
)
CLASS_LAYER = ("cls_logits.weight", "cls_logits.bias")
BODY = "backbone.body."  # where the detector has its classifier
_OLD_HEAD = re.compile(r"^(head\.\w+_head\.conv)\.(\d+)\.(weight|bias)$")


def load_weights(
    model: nn.Module, source: str, categories: Sequence[str] | None = None
) -> WeightsReport:
    """Load what fits of a whole detector: a file (also Detectron2's), a URL or torchvision's full name.

    Batch norms also take the epsilon that these weights were trained with, where the source tells it. Norms that are not frozen
    never take 0, because a batch can have no variance. `categories` are the names of the model's labels, "" for one without: where
    the source names its own, the class layer is put into their order, or left out if it is of other categories. Raises
    CheckpointError when the source cannot be had or holds no more than half of the detector.
    """
    state, eps, theirs = _weights_of(source)
    if is_detectron2(state):
        generator: Any = model.anchor_generator
        anchors = len(generator.sizes[0]), len(generator.aspect_ratios[0])
        state = from_detectron2(state, *anchors, model.get_buffer("deviation"))
    others = None
    if categories is not None and theirs is not None and tuple(categories) != theirs:
        state, others = _with_class_order(state, theirs, tuple(categories))
    report = load_fitting(
        model,
        source,
        state,
        network="detector",
        remedy=f"give the model=… of that run, or model.backbone_weights={source} if it is of a classifier",
        rename=_new_head_name,
        misfit=lambda name: others if name.endswith(CLASS_LAYER) else None,
    )
    _take_eps(model, eps)
    return report


def load_backbone_weights(model: nn.Module, source: str, backbone: str) -> WeightsReport:
    """Load a classifier's or a detector's `backbone` into the detector's body, and the epsilon of its batch norms if known.

    A state_dict may have any prefix before torchvision's names. Raises CheckpointError as `load_weights`.
    """
    state, eps, _ = _weights_of(source)
    own = [name.removeprefix(BODY) for name in model.state_dict() if name.startswith(BODY)]
    prefixes = {
        theirs.removesuffix(name)
        for theirs in state
        for name in own[:1]
        if f".{theirs}".endswith(f".{name}")
    }
    prefix = min(prefixes, key=len, default="")
    report = load_fitting(
        model,
        source,
        state,
        network=backbone,
        remedy="set model.backbone to its network",
        rename=lambda name: BODY + name.removeprefix(prefix),
        within=BODY,
    )
    _take_eps(model, eps)
    return report


def batch_norm_eps(model: nn.Module) -> float | None:
    """The epsilon of a detector's batch norms, which have one in common; None without such norms."""
    return next((module.eps for module in _batch_norms(model)), None)


def set_batch_norm_eps(model: nn.Module, eps: float) -> None:
    """Set the epsilon of every batch norm."""
    for module in _batch_norms(model):
        module.eps = eps


def eps_of_checkpoint(content: Mapping[str, Any]) -> float | None:
    """The epsilon of the batch norms that a checkpoint of ours was trained with; None where it does not say."""
    arguments = content.get("model_arguments")
    eps = arguments.get("norm_eps") if isinstance(arguments, Mapping) else None
    return float(eps) if isinstance(eps, float | int) else None


def _batch_norms(model: nn.Module) -> Iterator[Any]:
    return (module for module in model.modules() if hasattr(module, "running_var"))


def _with_class_order(
    state: Mapping[str, Tensor], theirs: tuple[str, ...], ours: tuple[str, ...]
) -> tuple[Mapping[str, Tensor], str | None]:
    """`state` with the rows of the class layer, K for each anchor, in the order of `ours`; or why they cannot be."""
    missing = [
        name for name, count in Counter(ours).items() if name and count != theirs.count(name)
    ]
    if len(theirs) != len(ours):  # shapes tell
        return state, None
    if missing:
        return state, f"of other categories than the model's ({', '.join(missing[:3])})"
    rows: dict[str, list[int]] = {}
    for label, name in enumerate(theirs):
        rows.setdefault(name, []).append(label)
    named = [rows[name].pop(0) if name else None for name in ours]
    unused = iter(
        sorted(set(range(len(ours))) - set(named))
    )  # for labels without a category, any will do
    order = [next(unused) if row is None else row for row in named]
    reordered = dict(state)
    for name, value in state.items():
        if name.endswith(CLASS_LAYER) and value.dim() and len(value) % len(order) == 0:
            reordered[name] = value.unflatten(0, (-1, len(order)))[:, order].flatten(
                0, 1
            )  # [anchors, K, ...]
    return reordered, None


def _new_head_name(name: str) -> str:
    """The heads' convolutions as they are numbered since torchvision 0.14."""
    return _OLD_HEAD.sub(lambda m: f"{m[1]}.{int(m[2]) // 2}.0.{m[3]}", name)


def _take_eps(model: nn.Module, eps: float | None) -> None:
    """Give the epsilon that weights were trained with to the batch norms; norms that are not frozen never take 0."""
    for module in _batch_norms(model):
        if eps or (eps == 0 and isinstance(module, FrozenBatchNorm2d)):
            module.eps = eps


def _weights_of(source: str) -> tuple[Mapping[str, Tensor], float | None, tuple[str, ...] | None]:
    """Tensors by name, the epsilon of the batch norms that they were trained with, and names of the labels, "" for none."""
    read = read_state(source)
    if read.content is None:  # torchvision's
        names = published(source).meta["categories"] if "RetinaNet" in source else None
        known = names and tuple("" if name in ("__background__", "N/A") else name for name in names)
        return read.state, 0.0 if source == TRAINED_WITHOUT_EPS else None, known
    # torchvision's file names end with the first digits of their SHA-256.
    first_digits = Path(published(TRAINED_WITHOUT_EPS).url).stem.rpartition("-")[2]
    eps = 0.0 if read.sha256.startswith(first_digits) else eps_of_checkpoint(read.content)
    named = read.content.get("categories")
    categories = named.get("names") if isinstance(named, Mapping) else None
    return (
        read.state,
        eps,
        tuple(map(str, categories)) if isinstance(categories, Sequence) else None,
    )
