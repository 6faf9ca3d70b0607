"""Any classifier of torchvision, taking batches and giving losses. Letters in shapes: see `batch`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision import models

from retina_dist.classification.batch import ImageBatch
from retina_dist.errors import CheckpointError, ConfigError
from retina_dist.files import Url, place
from retina_dist.model.replace_norms import Norm, replace_batch_norms
from retina_dist.model.sync_batch_norm import count_only
from retina_dist.torch_files import load_torch

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, of channels from 0 to 1
RESNETS = ("resnet", "resnext", "wide_resnet")  # torchvision's names of them begin so
PREFIX = "model."  # of torchvision's names in a state_dict of `Classifier`


class Classifier(nn.Module):
    """torchvision's classifier as `model`; build it with `build_classifier`."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, model: nn.Module, *, label_smoothing: float = 0.0, class_weights: Tensor | None = None) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing
        self.register_buffer("class_weights", class_weights, persistent=False)
        for name, values in (("mean", MEAN), ("deviation", DEVIATION)):
            self.register_buffer(name, torch.tensor(values)[:, None, None], persistent=False)

    def forward(self, batch: ImageBatch) -> dict[str, Tensor] | Tensor:
        """In training mode the loss (name -> scalar, mean over real images), else the logits [B, K]."""
        logits = self.logits(batch.images, batch.real)
        return {"classification": self._mean(self.losses(logits, batch), batch.real)} if self.training else logits

    def logits(self, images: Tensor, real: Tensor | None = None) -> Tensor:
        """[B, 3, S, S] uint8 RGB -> [B, K]."""
        with count_only(self.model, real):
            found = self.model(self.normalized(images))
        return getattr(found, "logits", found)  # of models with a second head in training

    def normalized(self, images: Tensor) -> Tensor:
        """uint8 RGB -> the network's input: ImageNet's mean and deviation removed."""
        layout = torch.channels_last if _is_channels_last(self) else torch.contiguous_format
        values = (images.to(self.mean.dtype) / 255 - self.mean) / self.deviation
        return values.contiguous(memory_format=layout)

    def losses(self, logits: Tensor, batch: ImageBatch) -> Tensor:
        """[B] cross entropy of each image with its smoothed, mixed and weighted target.

        The weights multiply an image's terms; the mean is over images, not over weights, so that splitting a batch changes nothing.
        """
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        share = batch.share.to(wide.dtype)
        options: dict[str, Any] = {
            "weight": self.class_weights,
            "reduction": "none",
            "label_smoothing": self.label_smoothing,
        }
        own, other = (F.cross_entropy(wide, labels, **options) for labels in (batch.labels, batch.other_labels))
        return share * own + (1 - share) * other

    @staticmethod
    def _mean(losses: Tensor, real: Tensor | None) -> Tensor:
        if real is None:
            return losses.mean()
        return losses.masked_fill(~real, 0.0).sum() / real.sum().clamp(min=1)


def _is_channels_last(model: nn.Module) -> bool:
    """Whether the weights of its first convolution lie so; gradients lie as activations and weights do."""
    weight = next((p for p in model.parameters() if p.dim() == 4 and p.shape[1] > 1), None)
    return weight is not None and weight.is_contiguous(memory_format=torch.channels_last)


@dataclass(frozen=True)
class WeightsReport:
    """How many tensors a load took, and which it did not."""

    source: str
    loaded: int
    left_out: tuple[str, ...]
    kept: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{self.source}: {self.loaded} tensors loaded, {len(self.left_out)} left out, {len(self.kept)} kept"]
        return "\n".join(
            [*lines, *(f"  left out  {x}" for x in self.left_out), *(f"  kept      {x}" for x in self.kept)]
        )


def build_classifier(
    architecture: str,
    num_classes: int,
    *,
    norm: Norm = "bn",
    zero_gamma: bool = False,
    label_smoothing: float = 0.0,
    class_weights: Sequence[float] = (),
    image_size: int = 224,
) -> Classifier:
    """torchvision's model of that name for `num_classes`, from scratch. Raises ConfigError for a name that it does not know.

    `class_weights` are scaled by the caller; none are equal ones. `image_size` is for models that take one size only.
    """
    if architecture not in classifiers():
        raise ConfigError(
            f"model.architecture={architecture} is no classifier of torchvision; there are {', '.join(classifiers())}."
        )
    extra: dict[str, Any] = {"zero_init_residual": True} if zero_gamma else {}
    if architecture.startswith("vit_"):  # whose embedding of positions has one size
        extra["image_size"] = image_size
    if zero_gamma and not architecture.startswith(RESNETS):
        raise ConfigError(f"model.zero_gamma=true is for ResNets, not {architecture}; leave it out.")
    model = models.get_model(architecture, weights=None, num_classes=num_classes, **extra)
    replace_batch_norms(model, norm)
    weights = torch.tensor(class_weights, dtype=torch.float32) if len(class_weights) else None
    return Classifier(model, label_smoothing=label_smoothing, class_weights=weights)


def classifiers() -> list[str]:
    """torchvision's names of classifiers."""
    return models.list_models(module=models)


def load_weights(model: Classifier, source: str, classes: Sequence[str]) -> WeightsReport:
    """Load what fits by name and shape: a checkpoint, a state_dict, a URL or torchvision's name of weights.

    The last layer is left out where it is for other `classes`, as far as the source names its own. Raises CheckpointError when
    nothing fits.
    """
    state, theirs = _weights_of(source)
    own = model.model.state_dict()
    same = theirs is None or tuple(theirs) == tuple(classes)
    head = {name for name in own if name.rpartition(".")[0] == _head(model.model)}
    fitting: dict[str, Tensor] = {}
    left_out = []
    for name, value in state.items():
        if name not in own:
            if not name.endswith("num_batches_tracked"):  # a frozen batch norm has no such counter
                left_out.append(f"{name}: the model has no such tensor")
        elif own[name].shape != value.shape:
            left_out.append(f"{name}: {list(value.shape)} in the file, {list(own[name].shape)} in the model")
        elif name in head and not same:
            left_out.append(f"{name}: of other classes")
        else:
            fitting[name] = value
    if not any(not name.endswith("num_batches_tracked") for name in fitting):
        raise CheckpointError(
            f"{source} holds no tensor that fits this model by name and shape (it begins with "
            f"{', '.join(list(state)[:3]) or 'nothing'}); check model.architecture."
        )
    model.model.load_state_dict({**own, **fitting})
    kept = [k for k in own if k not in fitting and not k.endswith("num_batches_tracked")]
    return WeightsReport(source, len(fitting), tuple(left_out), tuple(kept))


def _head(model: nn.Module) -> str:
    """The name of the layer that gives the logits: the last linear one."""
    return [name for name, module in model.named_modules() if isinstance(module, nn.Linear)][-1]


def _weights_of(source: str) -> tuple[Mapping[str, Tensor], Sequence[str] | None]:
    """Tensors by torchvision's names, and the classes that they tell apart where the source says them."""
    where = place(source)
    if isinstance(where, Path):
        where = where.expanduser()
    if isinstance(where, Url) or where.is_file():
        content, _ = load_torch(where)
        classes = content.get("classes") if isinstance(content, Mapping) else None
        for key in ("ema", "model", "state_dict"):  # in our own, the averaged weights are "ema" and then "model"
            if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
                content = content[key]
        if not isinstance(content, Mapping) or not all(isinstance(v, Tensor) for v in content.values()):
            raise CheckpointError(f"{source} does not hold a state_dict (a mapping of names to tensors).")
        state = {str(name).removeprefix("module.").removeprefix(PREFIX): value for name, value in content.items()}
        return state, list(map(str, classes)) if isinstance(classes, Sequence) else None
    try:
        weights: Any = models.get_weight(source)
    except (ValueError, KeyError, AttributeError) as error:
        raise CheckpointError(
            f"model.weights={source} is neither a file nor one of torchvision's weights; give a path, a URL, or a name such as "
            "ResNet50_Weights.IMAGENET1K_V2."
        ) from error
    try:
        return weights.get_state_dict(progress=True, check_hash=True), weights.meta["categories"]
    except (URLError, OSError, RuntimeError) as error:
        folder = Path(torch.hub.get_dir()) / "checkpoints"
        raise CheckpointError(
            f"{source} could not be downloaded from {weights.url} ({error}); fetch that file on a machine with internet and "
            f"put it into {folder}, or give its path instead of the name."
        ) from error
