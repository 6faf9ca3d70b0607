"""Weights of a model, by name, from a file or torchvision, loaded where they fit.

Only tensors and plain values are unpickled.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.error import URLError

import torch
from torch import Tensor, nn
from torchvision import models
from torchvision.models import WeightsEnum, get_model_weights, get_weight

from retina_dist.base.errors import CheckpointError, ConfigError
from retina_dist.base.files import PathOrUrl, Url, parse_path, run_in
from retina_dist.base.other_names import value_meant
from retina_dist.base.torch_files import load_torch

EXAMPLES = "RetinaNet_ResNet50_FPN_V2_Weights.COCO_V1 or ResNet50_Weights.IMAGENET1K_V1"
COUNTER = "num_batches_tracked"  # of live batch norms; no weight
MAX_MISFITS = 8  # class layers and anchors of another number are four tensors


class State(NamedTuple):
    """Tensors by name, and all that their file holds; torchvision's names have no file."""

    state: Mapping[str, Tensor]
    content: Mapping[str, object] | None = None
    sha256: str = ""


def find_weights(source: str) -> PathOrUrl | WeightsEnum:
    """The existing file, the URL or torchvision's weights that `source` names; nothing is read.

    Raises CheckpointError.
    """
    where = parse_path(source)
    if isinstance(where, Path):
        where = where.expanduser()
    if isinstance(where, Url) or where.is_file():
        return where
    if not is_torchvision_name(source):
        meant = value_meant("weights", source, ()) or f"give one, or a name such as {EXAMPLES}"
        remedy = run_in(where, str(meant))
        raise CheckpointError(f"{source} is neither a file nor a URL; {remedy}.")
    return published(source)


def read_state(source: str) -> State:
    """The tensors of a file (of a checkpoint, averaged ones first), a URL, or torchvision's name.

    Raises CheckpointError.
    """
    weights = find_weights(source)
    if not isinstance(weights, WeightsEnum):
        return _from_file(weights)
    try:
        return State(weights.get_state_dict(progress=True, check_hash=True))
    except (URLError, OSError, RuntimeError) as error:
        raise CheckpointError(
            f"{source} could not be downloaded from {weights.url} ({error}); "
            "fetch that file where there is internet and put it "
            f"into {torch.hub.get_dir()}/checkpoints, or give its path in place of the name."
        ) from error


def is_torchvision_name(source: str) -> bool:
    """Whether `source` has the form of torchvision's names for weights, such as
    ResNet50_Weights.IMAGENET1K_V1.
    """
    return re.fullmatch(r"\w+_Weights\.\w+", source) is not None


def published(name: str) -> WeightsEnum:
    """torchvision's weights of that name. Raises ConfigError for an unknown one."""
    try:
        return get_weight(name)
    except (ValueError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"{name} is not known to torchvision; give a name such as {EXAMPLES}."
        ) from error


def publication_of(source: str) -> WeightsEnum | None:
    """torchvision's weights of that full name, or whose file has the name of this one."""
    name = source.rpartition("/")[2]
    for network in models.list_models():
        for key, weights in get_model_weights(network).__members__.items():
            if name in (f"{type(weights).__name__}.{key}", Path(weights.url).name):
                return weights
    return None


# Our own checkpoints (averaged weights are "ema" and then "model"), torchvision's references
# ("model") and Lightning's ("state_dict") nest the tensors.
NESTING = ("ema", "model", "state_dict")
WRAPPED = "module."  # before the names of a model that was saved in its DistributedDataParallel


def _from_file(path: PathOrUrl) -> State:
    whole, sha256 = load_torch(path)
    content = whole
    for key in NESTING:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    is_state = isinstance(content, Mapping) and bool(content)
    if not is_state or not all(isinstance(value, Tensor) for value in content.values()):
        raise CheckpointError(f"{path} does not hold a state_dict (a mapping of names to tensors).")
    state = {str(name): value for name, value in content.items()}
    if all(name.startswith(WRAPPED) for name in state):
        state = {name.removeprefix(WRAPPED): value for name, value in state.items()}
    return State(state, whole, sha256)


@dataclass(frozen=True)
class WeightsReport:
    """Which tensors a load took: each tensor of the file is `loaded`, `left_over` or one of
    `misfits`.
    """

    source: str
    loaded: tuple[str, ...]  # the model's names, as in `missing`
    missing: tuple[str, ...]  # tensors of the model that the file does not hold: as they were
    left_over: tuple[str, ...]  # tensors of the file that the model does not have
    # "name: why" for tensors that both have, of another shape or for other classes
    misfits: tuple[str, ...]

    def __str__(self) -> str:
        listed = {"missing": self.missing, "left over": self.left_over, "misfits": self.misfits}
        counts = ", ".join(f"{len(items)} {kind}" for kind, items in listed.items())
        lines = [f"{self.source}: {len(self.loaded)} tensors loaded, {counts}"]
        for kind, items in listed.items():
            lines += [f"  {kind:<11}{item}" for item in items]
        return "\n".join(lines)


def fits(name: str) -> str | None:
    """No reason against the tensor of that name."""
    return None


def load_fitting(
    model: nn.Module,
    source: str,
    state: Mapping[str, Tensor],
    *,
    network: str,
    remedy: str,
    rename: Callable[[str], str] = str,
    misfit: Callable[[str], str | None] = fits,
    within: str = "",
) -> WeightsReport:
    """Load the tensors of `state`, read from `source`, that the model has under their new name in
    their shape.

    `misfit` says why a tensor of that name is not for this model; only names that begin with
    `within` can be missing. Raises CheckpointError, with the `remedy`, where no more than half of
    the `network` fits, or far more than class layers do not.
    """
    own = model.state_dict()
    fitting = {}
    left_over = []
    misfits = {}
    for name, value in state.items():
        target = rename(name)
        if target not in own:
            left_over.append(name)
            continue
        reason = misfit(target)
        if own[target].shape != value.shape:
            theirs, ours = list(value.shape), list(own[target].shape)
            reason = f"{theirs} in the file, {ours} in the model"
        if reason:
            misfits[target] = f"{name}: {reason}"
        else:
            fitting[target] = value
    loaded = _without_counters(fitting)
    expected = [name for name in _without_counters(own) if name.startswith(within)]
    if 2 * len(loaded) <= len(expected):
        first = ", ".join(list(state)[:3])
        raise CheckpointError(
            f"{source} holds only {len(loaded)} of the {len(expected)} tensors of a {network} "
            f"(first: {first}); {remedy}."
        )
    if len(misfits) > MAX_MISFITS:
        example = next(iter(misfits.values()))
        raise CheckpointError(
            f"{source} is of another {network}, with {len(misfits)} tensors of another shape, "
            f"such as {example}; {remedy}."
        )
    model.load_state_dict({**own, **fitting})
    missing = [name for name in expected if name not in fitting and name not in misfits]
    return WeightsReport(
        source,
        tuple(loaded),
        tuple(missing),
        tuple(_without_counters(left_over)),
        tuple(misfits.values()),
    )


def _without_counters(names: Iterable[str]) -> list[str]:
    """Names of weights; frozen batch norms have no counters."""
    return [name for name in names if not name.endswith(COUNTER)]
