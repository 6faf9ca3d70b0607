"""Any classifier of torchvision, from a batch to its losses. Letters in shapes: see `dataset`."""

import difflib
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from retina_dist.base.errors import ConfigError, describe_error
from retina_dist.base.text import truncate
from retina_dist.classification.dataset import ImageBatch
from retina_dist.model.layers import Norm, replace_batch_norms, replace_strided_convs
from retina_dist.model.networks import network_builder, network_names
from retina_dist.model.sync_batch_norm import count_only
from retina_dist.model.weights import WeightsReport, load_fitting, published, read_state

# ImageNet's, of channels from 0 to 1.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
RESNETS = ("resnet", "resnext", "wide_resnet")  # torchvision's names of them begin so
PREFIX = "model."  # of torchvision's names in a state_dict of `Classifier`


class Classifier(nn.Module):
    """torchvision's classifier as `model`; build it with `build_classifier`."""

    mean: Tensor
    std: Tensor
    class_weights: Tensor | None  # [K] in the loss of a training

    def __init__(self, model: nn.Module, *, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing
        self.register_buffer("class_weights", None, persistent=False)
        self.register_buffer("mean", torch.tensor(MEAN)[:, None, None], persistent=False)
        self.register_buffer("std", torch.tensor(STD)[:, None, None], persistent=False)

    def forward(self, batch: ImageBatch) -> dict[str, Tensor] | Tensor:
        """The loss (name -> scalar), a mean over real images; in evaluation mode logits [B, K]."""
        logits = self.logits(batch.images, batch.real)
        if not self.training:
            return logits
        losses = self.losses(logits, batch)
        if batch.real is None:
            return {"classification": losses.mean()}
        total = losses.masked_fill(~batch.real, 0.0).sum()
        return {"classification": total / batch.real.sum().clamp(min=1)}

    def backbone_parameters(self) -> Iterator[nn.Parameter]:
        """All but the last layer's: `optimizer.backbone_lr_scale` scales their learning rate."""
        head = _head(self.model) + "."
        for name, parameter in self.model.named_parameters():
            if not name.startswith(head):
                yield parameter

    def logits(self, images: Tensor, real: Tensor | None = None) -> Tensor:
        """[B, 3, S, S] uint8 RGB -> [B, K]."""
        with count_only(self.model, real):
            output = self.model(self.normalized(images))
        if not isinstance(output, Tensor):  # of models with a second head in training
            output = output.logits
        return output

    def normalized(self, images: Tensor) -> Tensor:
        """uint8 RGB -> the network's input: normalized by ImageNet's mean and std."""
        values = (images.to(self.mean.dtype) / 255 - self.mean) / self.std
        layout = torch.contiguous_format
        if _is_channels_last(self):
            layout = torch.channels_last
        return values.contiguous(memory_format=layout)

    def losses(self, logits: Tensor, batch: ImageBatch) -> Tensor:
        """[B] cross entropy of each image with its smoothed, mixed target.

        In a training `class_weights` are torch's `weight`; the mean over images is not divided by
        theirs, so that it does not depend on who shares the images.
        """
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        share = batch.share.to(wide.dtype)
        weight = None
        if self.training and self.class_weights is not None:
            weight = self.class_weights.to(wide.dtype)
        cross_entropy = partial(
            F.cross_entropy,
            weight=weight,
            reduction="none",
            label_smoothing=self.label_smoothing,
        )
        own = cross_entropy(wide, batch.labels)
        other = cross_entropy(wide, batch.other_labels)
        return share * own + (1 - share) * other


def _is_channels_last(model: nn.Module) -> bool:
    """Whether the weights of its first convolution are channels last, as gradients then are."""
    for weight in model.parameters():
        if weight.dim() == 4 and weight.shape[1] > 1:
            return weight.is_contiguous(memory_format=torch.channels_last)
    return False


def build_classifier(
    architecture: str,
    num_classes: int,
    *,
    norm: Norm = "bn",
    zero_gamma: bool = False,
    label_smoothing: float = 0.0,
    image_size: int = 224,
) -> Classifier:
    """torchvision's model, `resnet10` or `resnet10_half`, from scratch.

    Args:
        architecture: its name, such as "resnet50"; raises ConfigError for an unknown one.
        num_classes: the number of logits.
        norm: what takes the place of its batch norms.
        zero_gamma: a ResNet's residual branches begin at zero.
        label_smoothing: the share of a target that all classes have alike.
        image_size: in px, for models that take one size.
    """
    known = network_names()
    if architecture not in known:
        near = " or ".join(difflib.get_close_matches(architecture, known, 5, 0))
        raise ConfigError(
            f"model.architecture={truncate([architecture])} is not torchvision's; "
            f"did you mean {near}?"
        )
    if zero_gamma and not architecture.startswith(RESNETS):
        raise ConfigError(
            f"model.zero_gamma=true is for ResNets, not {architecture}; leave it out."
        )
    extra = model_options(architecture, image_size)
    if zero_gamma:
        extra["zero_init_residual"] = True
    model = network_builder(architecture)(weights=None, num_classes=num_classes, **extra)
    replace_batch_norms(model, norm)
    replace_strided_convs(model)
    return Classifier(model, label_smoothing=label_smoothing)


def model_options(architecture: str, image_size: int) -> dict[str, object]:
    """Arguments of torchvision's builder beside the number of classes."""
    if architecture.startswith("vit_"):  # whose embedding of positions has one size
        return {"image_size": image_size}
    if architecture in ("googlenet", "inception_v3"):
        # one head; their weights scale the normalization themselves
        return {"aux_logits": False, "transform_input": True}
    return {}


def check_sizes(architecture: str, zero_gamma: bool, image_size: int, val_size: int) -> None:
    """Raise ConfigError where the model cannot be built or take crops of these sizes in px.

    It is tried on the meta device.
    """
    try:
        with torch.device("meta"):  # and with the fastest norm
            model = build_classifier(
                architecture, 2, norm="frozen_bn", zero_gamma=zero_gamma, image_size=val_size
            )
            for side in {image_size, val_size}:
                model.logits(torch.empty(2, 3, side, side, dtype=torch.uint8))
    except NotImplementedError:
        return  # RegNets compute their widths with tensors' values; they take any size
    except ConfigError:  # of the settings themselves
        raise
    except (RuntimeError, ValueError, AssertionError) as error:
        raise ConfigError(
            f"model.architecture={architecture} does not take images of "
            f"data.image_size={image_size} and data.val_image_size={val_size} "
            f"({describe_error(error)}); try 224."
        ) from error


def load_weights(model: Classifier, source: str, classes: Sequence[str]) -> WeightsReport:
    """Load what fits of `source`, see `read_state`, but no last layer of other classes.

    Raises CheckpointError if nothing fits.
    """
    read = read_state(source)
    if read.content is None:
        weights = published(source)
        mean = tuple(getattr(weights.transforms(), "mean", MEAN))
        if mean != MEAN:
            raise ConfigError(
                f"model.weights={source} needs images normalized by the mean {mean}; "
                "use other weights."
            )
        theirs = weights.meta["categories"]
    else:
        theirs = read.content.get("classes")
    others = isinstance(theirs, Sequence) and list(map(str, theirs)) != list(classes)
    head = _head(model.model)

    def misfit(name: str) -> str | None:
        if others and name.rpartition(".")[0] == head:
            return "of other classes"
        return None

    return load_fitting(
        model.model,
        source,
        {name.removeprefix(PREFIX): value for name, value in read.state.items()},
        network="classifier",
        remedy="set model.architecture to its network",
        misfit=misfit,
    )


def _head(model: nn.Module) -> str:
    """The name of the layer that gives the logits.

    It is the last linear one, or SqueezeNet's last convolution.
    """
    last = ""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            last = name
    return last
