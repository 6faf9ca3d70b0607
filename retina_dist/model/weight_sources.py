"""Tensors by name: from a file of ours or of torchvision's form, or by the name of torchvision's weights.

Nothing but tensors and plain values is unpickled.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import URLError

import torch
from torch import Tensor
from torchvision.models import WeightsEnum, get_weight

from retina_dist.errors import CheckpointError, ConfigError
from retina_dist.files import PathOrUrl, Url, parse_path
from retina_dist.torch_files import load_torch


class State(NamedTuple):
    """Tensors by name, and all that their file holds; torchvision's names have no file."""

    state: Mapping[str, Tensor]
    content: Mapping[str, Any] | None = None
    sha256: str = ""


def read_state(source: str) -> State:
    """The tensors of a file, of a URL, or of a name such as `ResNet50_Weights.IMAGENET1K_V1`. Raises CheckpointError.

    Of a checkpoint of ours, the averaged weights if it has any.
    """
    where = parse_path(source)
    if isinstance(where, Path):
        where = where.expanduser()
    if isinstance(where, Url) or where.is_file():
        return _from_file(where)
    if is_torchvision_name(source):
        return State(_from_torchvision(source))
    raise CheckpointError(
        f"{source} is neither a file nor one of torchvision's weights; give a path, a URL, or a name such as "
        "RetinaNet_ResNet50_FPN_Weights.COCO_V1 or ResNet50_Weights.IMAGENET1K_V1."
    )


def is_torchvision_name(source: str) -> bool:
    """Whether `source` has the form of torchvision's names for weights, such as ResNet50_Weights.IMAGENET1K_V1."""
    return re.fullmatch(r"\w+_Weights\.\w+", source) is not None


def published(name: str) -> WeightsEnum:
    """torchvision's weights of that name. Raises ConfigError for an unknown one."""
    try:
        return get_weight(name)
    except (ValueError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"{name} is not known to torchvision; detectors: RetinaNet_ResNet50_FPN_Weights.COCO_V1, "
            "RetinaNet_ResNet50_FPN_V2_Weights.COCO_V1, backbones: ResNet50_Weights.IMAGENET1K_V1 and the like."
        ) from error


def _from_file(path: PathOrUrl) -> State:
    whole, sha256 = load_torch(path)
    content = whole
    # Our own checkpoints, torchvision's references ("model") and Lightning's ("state_dict") nest the tensors.
    for key in ("ema", "model", "state_dict"):  # in our own, the averaged weights are "ema" and then "model"
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not content or not all(isinstance(v, Tensor) for v in content.values()):
        raise CheckpointError(f"{path} does not hold a state_dict (a mapping of names to tensors).")
    names = [str(k) for k in content]
    cut = len("module.") if all(n.startswith("module.") for n in names) else 0  # saved from a wrapped model
    return State({n[cut:]: value for n, value in zip(names, content.values(), strict=True)}, whole, sha256)


def _from_torchvision(name: str) -> Mapping[str, Tensor]:
    weights = published(name)
    try:
        return weights.get_state_dict(progress=True, check_hash=True)
    except (URLError, OSError, RuntimeError) as error:
        folder = Path(torch.hub.get_dir()) / "checkpoints"
        raise CheckpointError(
            f"{name} could not be downloaded from {weights.url} ({error}); fetch that file on a machine with internet and "
            f"put it into {folder}, or give its path instead of the name."
        ) from error
