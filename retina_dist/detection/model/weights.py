"""Weights into a model: from a file of ours or of torchvision's form, or by torchvision's name."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn
from torchvision.models import get_model_weights
from torchvision.ops import FrozenBatchNorm2d

from retina_dist.base.errors import ConfigError
from retina_dist.detection.model.added_classes import GroupedClassLayer, merged_state
from retina_dist.detection.model.detectron2 import from_detectron2, is_detectron2
from retina_dist.detection.settings import ModelConfig
from retina_dist.engine.checkpoint.store import located
from retina_dist.model.networks import network_builder
from retina_dist.model.weights import (
    WeightsReport,
    find_weights,
    is_torchvision_name,
    load_fitting,
    published,
    read_state,
)

# torchvision's builder sets 0 for these alone
TRAINED_WITHOUT_EPS = "RetinaNet_ResNet50_FPN_Weights.COCO_V1"
CLASS_LAYER = ("cls_logits.weight", "cls_logits.bias")
BACKBONE = "backbone.body."  # where the detector has its classifier
_OLD_HEAD = re.compile(r"^(head\.\w+_head\.conv)\.(\d+)\.(weight|bias)$")


def load_weights(
    model: nn.Module, source: str, categories: Sequence[str] | None = None
) -> WeightsReport:
    """Load what fits of a whole detector: a file (also Detectron2's), a URL or torchvision's full
    name.

    Batch norms also take the epsilon that these weights were trained with, where the source tells
    it. Norms that are not frozen never take 0, because a batch can have no variance.

    Args:
        model: the detector, changed in place.
        source: where its weights are.
        categories: the names of the model's labels, "" for one without. Where the source names its
            own, the class layer is put into their order, or left out if it is of other categories.

    Raises CheckpointError when the source cannot be had or holds no more than half of the detector.
    """
    found = _read(source)
    state = found.state
    if is_detectron2(state):
        generator: Any = model.anchor_generator
        sizes = len(generator.sizes[0])
        state = from_detectron2(
            state, sizes, len(generator.aspect_ratios[0]), model.get_buffer("std")
        )
    if found.categories and GroupedClassLayer not in map(type, model.modules()):
        state = merged_state(state, len(found.categories))
    why_not = None
    if categories is not None and found.categories is not None:
        state, why_not = _with_class_order(state, found.categories, categories)
    report = load_fitting(
        model,
        source,
        state,
        network="detector",
        remedy=f"give the model=… of that run, or model.backbone_weights={source} "
        "if it is of a classifier",
        # the heads' convolutions as they are numbered since torchvision 0.14
        rename=lambda name: _OLD_HEAD.sub(lambda m: f"{m[1]}.{int(m[2]) // 2}.0.{m[3]}", name),
        misfit=lambda name: why_not if name.endswith(CLASS_LAYER) else None,
    )
    _take_eps(model, found.eps)
    return report


def load_backbone_weights(model: nn.Module, source: str, backbone: str) -> WeightsReport:
    """Load a classifier's or a detector's `backbone` into the detector, and the epsilon of its
    batch norms if known.

    A state_dict may have any prefix before torchvision's names. Raises CheckpointError as
    `load_weights`.
    """
    found = _read(source)
    # the first name is in every file of this network
    name = next(iter(model.get_submodule("backbone.body").state_dict()))
    prefixes = [key.removesuffix(name) for key in found.state if f".{key}".endswith(f".{name}")]
    prefix = min(prefixes, key=len, default="")
    report = load_fitting(
        model,
        source,
        found.state,
        network=backbone,
        remedy="set model.backbone to its network",
        rename=lambda name: BACKBONE + name.removeprefix(prefix),
        within=BACKBONE,
    )
    _take_eps(model, found.eps)
    return report


def source_of(settings: ModelConfig) -> str | None:
    """What `weights_of` names, not checked."""
    source = settings.weights or settings.backbone_weights
    if not source or not re.fullmatch("[A-Z0-9_]+", source):  # such as COCO_V1 or DEFAULT
        return source
    family = get_model_weights(network_builder(settings.backbone)).__name__
    if settings.weights:
        variant = {"v1": "", "v2": "_V2"}[settings.variant]
        family = f"RetinaNet_ResNet50_FPN{variant}_Weights"
    return f"{family}.{source}"


def weights_of(settings: ModelConfig) -> str | None:
    """The file, URL or torchvision's full name that `weights`, else `backbone_weights`, means.
    Nothing is read.

    Raises ConfigError for a name that torchvision lacks or of another network, CheckpointError for
    a file that does not exist.
    """
    backbone = settings.backbone
    source = source_of(settings)
    if source is None:
        return None
    known = get_model_weights(network_builder(backbone))
    family = known.__name__
    is_published = is_torchvision_name(source)
    of_backbone = source.removeprefix(f"{family}.") in known.__members__
    if is_published and not settings.weights and not of_backbone:
        remedy = f"use one of {', '.join(known.__members__)}"
        if not known.__members__:
            remedy = "it has no published weights, so give a file or leave it out"
        raise ConfigError(f"model.backbone_weights={source} is not for {backbone}; {remedy}.")
    if "://" not in source:
        find_weights(str(located(source)))
    is_detector = source.startswith("RetinaNet_") and backbone == "resnet50"
    if is_published and settings.weights and not is_detector:
        raise ConfigError(
            f"model.weights={source} is no RetinaNet of model.backbone={backbone}; give "
            "model.weights=null, and model.backbone_weights=DEFAULT for a pretrained backbone."
        )
    return source


def batch_norm_eps(model: nn.Module) -> float | None:
    """The epsilon of a detector's batch norms, which have one in common.

    None without such norms.
    """
    return next((module.eps for module in _batch_norms(model)), None)


def set_batch_norm_eps(model: nn.Module, eps: float) -> None:
    """Set the epsilon of every batch norm."""
    for module in _batch_norms(model):
        module.eps = eps


def eps_of(arguments: object) -> float | None:
    """The epsilon of the batch norms in a checkpoint's "model_arguments"; None where they do not
    say.
    """
    eps = arguments.get("norm_eps") if isinstance(arguments, Mapping) else None
    return float(eps) if isinstance(eps, float | int) else None


def _batch_norms(model: nn.Module) -> Iterator[Any]:
    return (module for module in model.modules() if hasattr(module, "running_var"))


def _with_class_order(
    state: Mapping[str, Tensor], theirs: Sequence[str], ours: Sequence[str]
) -> tuple[Mapping[str, Tensor], str | None]:
    """`state` with the rows of the class layer, K for each anchor, in the order of `ours`.

    Or why they cannot be.
    """
    if len(theirs) != len(ours):  # shapes tell
        return state, None
    expected = Counter(theirs)
    missing = []
    for name, times in Counter(ours).items():
        if name and times != expected[name]:
            missing.append(name)
    if missing:
        return state, f"of other categories than the model's ({', '.join(missing[:3])})"

    order = _row_order(theirs, ours)
    reordered = dict(state)
    for name, value in state.items():
        if name.endswith(CLASS_LAYER) and value.dim() and len(value) % len(order) == 0:
            by_anchor = value.unflatten(0, (-1, len(order)))  # [anchors, K, ...]
            reordered[name] = by_anchor[:, order].flatten(0, 1)
    return reordered, None


def _row_order(theirs: Sequence[str], ours: Sequence[str]) -> list[int]:
    """For each of our labels the row of its name among theirs.

    Any unused row for a label without a name.
    """
    rows: dict[str, list[int]] = {}
    for label, name in enumerate(theirs):
        rows.setdefault(name, []).append(label)
    named = [rows[name].pop(0) if name else None for name in ours]
    unused = sorted(set(range(len(ours))) - set(named))
    return [unused.pop(0) if row is None else row for row in named]


def _take_eps(model: nn.Module, eps: float | None) -> None:
    """Give the epsilon that weights were trained with to the batch norms.

    Norms that are not frozen never take 0.
    """
    for module in _batch_norms(model):
        if eps or (eps == 0 and isinstance(module, FrozenBatchNorm2d)):
            module.eps = eps


class _Source(NamedTuple):
    """Tensors by name, and what their source says of the network that they were trained in."""

    state: Mapping[str, Tensor]
    eps: float | None  # of the batch norms
    categories: list[str] | None  # names of the labels, "" for one without


def _read(source: str) -> _Source:
    read = read_state(source)
    if read.content is None:  # torchvision's
        eps = 0.0 if source == TRAINED_WITHOUT_EPS else None
        names = published(source).meta["categories"] if "RetinaNet" in source else None
        unused = ("__background__", "N/A")
        return _Source(read.state, eps, names and ["" if n in unused else n for n in names])
    # torchvision's file names end with the first digits of their SHA-256.
    first_digits = Path(published(TRAINED_WITHOUT_EPS).url).stem.rpartition("-")[2]
    eps = eps_of(read.content.get("model_arguments"))
    if read.sha256.startswith(first_digits):
        eps = 0.0
    named = read.content.get("categories")
    names = named.get("names") if isinstance(named, Mapping) else None
    return _Source(read.state, eps, list(map(str, names)) if isinstance(names, Sequence) else None)
