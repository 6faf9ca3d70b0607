"""Any classifier of torchvision, taking batches and giving losses. Letters in shapes: see `dataset`."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision import models

from retina_dist.base.errors import ConfigError, describe_error
from retina_dist.base.text import truncate
from retina_dist.classification.dataset import ImageBatch
from retina_dist.model.layers import Norm, replace_batch_norms, replace_strided_convs
from retina_dist.model.sync_batch_norm import count_only
from retina_dist.model.weights import WeightsReport, load_fitting, published, read_state

MEAN, DEVIATION = (
    (0.485, 0.456, 0.406),
    (0.229, 0.224, 0.225),
)  # ImageNet's, of channels from 0 to 1
RESNETS = ("resnet", "resnext", "wide_resnet")  # torchvision's names of them begin so
PREFIX = "model."  # of torchvision's names in a state_dict of `Classifier`


class Classifier(nn.Module):
    """torchvision's classifier as `model`; build it with `build_classifier`."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, model: nn.Module, *, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing
        for name, values in (("mean", MEAN), ("deviation", DEVIATION)):
            self.register_buffer(name, torch.tensor(values)[:, None, None], persistent=False)

    def forward(self, batch: ImageBatch) -> dict[str, Tensor] | Tensor:
        """In training mode the loss (name -> scalar, mean over real images), else the logits [B, K]."""
        logits = self.logits(batch.images, batch.real)
        if not self.training:
            return logits
        losses = self.losses(logits, batch)
        if batch.real is None:
            return {"classification": losses.mean()}
        return {
            "classification": losses.masked_fill(~batch.real, 0.0).sum()
            / batch.real.sum().clamp(min=1)
        }

    def backbone_parameters(self) -> Iterator[nn.Parameter]:
        """All but the last layer's, whose learning rate `optimizer.backbone_lr_scale` multiplies."""
        head = _head(self.model) + "."
        return (
            parameter
            for name, parameter in self.model.named_parameters()
            if not name.startswith(head)
        )

    def logits(self, images: Tensor, real: Tensor | None = None) -> Tensor:
        """[B, 3, S, S] uint8 RGB -> [B, K]."""
        with count_only(self.model, real):
            output = self.model(self.normalized(images))
        return getattr(output, "logits", output)  # of models with a second head in training

    def normalized(self, images: Tensor) -> Tensor:
        """uint8 RGB -> the network's input: ImageNet's mean and deviation removed."""
        layout = torch.channels_last if _is_channels_last(self) else torch.contiguous_format
        values = (images.to(self.mean.dtype) / 255 - self.mean) / self.deviation
        return values.contiguous(memory_format=layout)

    def losses(self, logits: Tensor, batch: ImageBatch) -> Tensor:
        """[B] cross entropy of each image with its smoothed, mixed target."""
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        share = batch.share.to(wide.dtype)
        cross_entropy = partial(
            F.cross_entropy, reduction="none", label_smoothing=self.label_smoothing
        )
        own, other = cross_entropy(wide, batch.labels), cross_entropy(wide, batch.other_labels)
        return share * own + (1 - share) * other


def _is_channels_last(model: nn.Module) -> bool:
    """Whether the weights of its first convolution are channels last, as gradients then are."""
    weight = next((p for p in model.parameters() if p.dim() == 4 and p.shape[1] > 1), None)
    return weight is not None and weight.is_contiguous(memory_format=torch.channels_last)


def build_classifier(
    architecture: str,
    num_classes: int,
    *,
    norm: Norm = "bn",
    zero_gamma: bool = False,
    label_smoothing: float = 0.0,
    image_size: int = 224,
) -> Classifier:
    """torchvision's model, from scratch; `image_size` is for those that take one size. Raises ConfigError for an unknown name."""
    known = models.list_models(module=models)
    if architecture not in known:
        near = " or ".join(difflib.get_close_matches(architecture, known, 5, 0))
        raise ConfigError(
            f"model.architecture={truncate([architecture])} is not torchvision's; did you mean {near}?"
        )
    if zero_gamma and not architecture.startswith(RESNETS):
        raise ConfigError(
            f"model.zero_gamma=true is for ResNets, not {architecture}; leave it out."
        )
    extra = model_options(architecture, image_size) | (
        {"zero_init_residual": True} if zero_gamma else {}
    )
    model = models.get_model(architecture, weights=None, num_classes=num_classes, **extra)
    replace_batch_norms(model, norm)
    replace_strided_convs(model)
    return Classifier(model, label_smoothing=label_smoothing)


def model_options(architecture: str, image_size: int) -> dict[str, Any]:
    """Arguments of torchvision's builder beside the number of classes."""
    if architecture.startswith("vit_"):  # whose embedding of positions has one size
        return {"image_size": image_size}
    if architecture in (
        "googlenet",
        "inception_v3",
    ):  # one head; their weights scale the normalization themselves
        return {"aux_logits": False, "transform_input": True}
    return {}


def check_sizes(architecture: str, zero_gamma: bool, image_size: int, val_size: int) -> None:
    """Raise ConfigError where the model cannot be built or take crops of these sizes in px, tried on the meta device."""
    try:
        with torch.device("meta"):  # and with the fastest norm
            model = build_classifier(
                architecture, 2, norm="frozen_bn", zero_gamma=zero_gamma, image_size=val_size
            )
            for side in {image_size, val_size}:
                model.logits(torch.empty(2, 3, side, side, dtype=torch.uint8))
    except (
        NotImplementedError
    ):  # RegNets compute their widths with tensors' values; they take any size
        return
    except ConfigError:  # of the settings themselves
        raise
    except (RuntimeError, ValueError, AssertionError) as error:
        sizes = f"data.image_size={image_size} and data.val_image_size={val_size} ({describe_error(error)})"
        raise ConfigError(
            f"model.architecture={architecture} does not take images of {sizes}; try 224."
        ) from error


def load_weights(model: Classifier, source: str, classes: Sequence[str]) -> WeightsReport:
    """Load what fits of `source`, see `read_state`, but no last layer of other classes. Raises CheckpointError if nothing fits."""
    read = read_state(source)
    if (
        read.content is None
        and (mean := tuple(getattr(published(source).transforms(), "mean", MEAN))) != MEAN
    ):
        raise ConfigError(
            f"model.weights={source} needs images normalized by the mean {mean}; use other weights."
        )
    theirs = (
        published(source).meta["categories"]
        if read.content is None
        else read.content.get("classes")
    )
    others = isinstance(theirs, Sequence) and list(map(str, theirs)) != list(classes)
    head = _head(model.model)
    return load_fitting(
        model.model,
        source,
        {name.removeprefix(PREFIX): value for name, value in read.state.items()},
        network="classifier",
        remedy="set model.architecture to its network",
        misfit=lambda name: (
            "of other classes" if others and name.rpartition(".")[0] == head else None
        ),
    )


def _head(model: nn.Module) -> str:
    """The name of the layer that gives the logits: the last linear one, or SqueezeNet's last convolution."""
    return [
        name for name, module in model.named_modules() if isinstance(module, nn.Linear | nn.Conv2d)
    ][-1]
