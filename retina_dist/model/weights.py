"""Weights of a model, by name, from a file or torchvision, loaded where they fit; only tensors and plain values are unpickled."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import URLError

import torch
from torch import Tensor, nn
from torchvision.models import WeightsEnum, get_weight

from retina_dist.base.errors import CheckpointError, ConfigError
from retina_dist.base.files import PathOrUrl, Url, parse_path
from retina_dist.base.torch_files import load_torch

EXAMPLES = "RetinaNet_ResNet50_FPN_V2_Weights.COCO_V1 or ResNet50_Weights.IMAGENET1K_V1"
COUNTER = "num_batches_tracked"  # of live batch norms; no weight
MAX_MISFITS = 8  # class layers and anchors of another number are four tensors


class State(NamedTuple):
    """Tensors by name, and all that their file holds; torchvision's names have no file."""

    state: Mapping[str, Tensor]
    content: Mapping[str, Any] | None = None
    sha256: str = ""


def find_weights(source: str) -> PathOrUrl | WeightsEnum:
    """The existing file, the URL or torchvision's weights that `source` names; nothing is read. Raises CheckpointError."""
    where = parse_path(source)
    if isinstance(where, Path):
        where = where.expanduser()
    if isinstance(where, Url) or where.is_file():
        return where
    if not is_torchvision_name(source):
        raise CheckpointError(
            f"{source} is neither a file nor a URL; give one, or a name such as {EXAMPLES}."
        )
    return published(source)


def read_state(source: str) -> State:
    """The tensors of a file (of a checkpoint, averaged ones first), a URL, or torchvision's name. Raises CheckpointError."""
    weights = find_weights(source)
    if not isinstance(weights, WeightsEnum):
        return _from_file(weights)
    try:
        return State(weights.get_state_dict(progress=True, check_hash=True))
    except (URLError, OSError, RuntimeError) as error:
        raise CheckpointError(
            f"{source} could not be downloaded from {weights.url} ({error}); fetch that file where there is internet and put it "
            f"into {torch.hub.get_dir()}/checkpoints, or give model.weights=PATH."
        ) from error


def is_torchvision_name(source: str) -> bool:
    """Whether `source` has the form of torchvision's names for weights, such as ResNet50_Weights.IMAGENET1K_V1."""
    return re.fullmatch(r"\w+_Weights\.\w+", source) is not None


def published(name: str) -> WeightsEnum:
    """torchvision's weights of that name. Raises ConfigError for an unknown one."""
    try:
        return get_weight(name)
    except (ValueError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"{name} is not known to torchvision; give a name such as {EXAMPLES}."
        ) from error


def _from_file(path: PathOrUrl) -> State:
    whole, sha256 = load_torch(path)
    content = whole
    # Our own checkpoints, torchvision's references ("model") and Lightning's ("state_dict") nest the tensors.
    for key in (
        "ema",
        "model",
        "state_dict",
    ):  # in our own, the averaged weights are "ema" and then "model"
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if (
        not isinstance(content, Mapping)
        or not content
        or not all(isinstance(v, Tensor) for v in content.values())
    ):
        raise CheckpointError(f"{path} does not hold a state_dict (a mapping of names to tensors).")
    names = [str(k) for k in content]
    cut = (
        len("module.") if all(n.startswith("module.") for n in names) else 0
    )  # saved from a wrapped model
    return State(
        {n[cut:]: value for n, value in zip(names, content.values(), strict=True)}, whole, sha256
    )


@dataclass(frozen=True)
class WeightsReport:
    """Which tensors a load took: each tensor of the file is `loaded`, `left_over` or one of `misfits`."""

    source: str
    loaded: tuple[str, ...]  # the model's names, as in `missing`
    missing: tuple[str, ...]  # tensors of the model that the file does not hold: as they were
    left_over: tuple[str, ...]  # tensors of the file that the model does not have
    misfits: tuple[
        str, ...
    ]  # "name: why" for tensors that both have, of another shape or for other classes

    def __str__(self) -> str:
        listed = {"missing": self.missing, "left over": self.left_over, "misfits": self.misfits}
        counts = ", ".join(f"{len(items)} {kind}" for kind, items in listed.items())
        lines = [f"{self.source}: {len(self.loaded)} tensors loaded, {counts}"]
        return "\n".join(
            lines + [f"  {kind:<11}{item}" for kind, items in listed.items() for item in items]
        )


def load_fitting(
    model: nn.Module,
    source: str,
    state: Mapping[str, Tensor],
    *,
    network: str,
    remedy: str,
    rename: Callable[[str], str] = str,
    misfit: Callable[[str], str | None] = lambda name: None,
    within: str = "",
) -> WeightsReport:
    """Load the tensors of `state`, read from `source`, that the model has under their new name in their shape.

    `misfit` says why a tensor of that name is not for this model; only names that begin with `within` can be missing. Raises
    CheckpointError, with the `remedy`, where no more than half of the `network` fits, or far more than class layers do not.
    """
    own = model.state_dict()
    fitting: dict[str, Tensor] = {}
    left_over, misfits = [], {}
    for name, value in state.items():
        target = rename(name)
        if target not in own:
            left_over += [] if name.endswith(COUNTER) else [name]  # frozen batch norms have none
        elif own[target].shape != value.shape:
            misfits[target] = (
                f"{name}: {list(value.shape)} in the file, {list(own[target].shape)} in the model"
            )
        elif why := misfit(target):
            misfits[target] = f"{name}: {why}"
        else:
            fitting[target] = value
    loaded = tuple(name for name in fitting if not name.endswith(COUNTER))
    expected = [name for name in own if name.startswith(within) and not name.endswith(COUNTER)]
    if 2 * len(loaded) <= len(expected):
        first = ", ".join(list(state)[:3])
        part = f"only {len(loaded)} of the {len(expected)} tensors of a {network} (first: {first})"
        raise CheckpointError(f"{source} holds {part}; {remedy}.")
    if len(misfits) > MAX_MISFITS:
        shapes = f"{len(misfits)} tensors of another shape, such as {next(iter(misfits.values()))}"
        raise CheckpointError(f"{source} is of another {network}, with {shapes}; {remedy}.")
    model.load_state_dict({**own, **fitting})
    missing = tuple(name for name in expected if name not in fitting and name not in misfits)
    return WeightsReport(source, loaded, missing, tuple(left_over), tuple(misfits.values()))
