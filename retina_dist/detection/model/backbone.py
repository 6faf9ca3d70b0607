"""The layers of a torchvision classifier up to its last feature map, as a pyramid's backbone."""

import difflib
from collections import OrderedDict
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torchvision import models
from torchvision.ops import StochasticDepth

from retina_dist.base.errors import ConfigError
from retina_dist.detection.model.weights import set_batch_norm_eps
from retina_dist.model.layers import fold_frozen_norms, replace_batch_norms
from retina_dist.model.networks import network_builder, network_names
from retina_dist.model.sync_batch_norm import recomputation

# The classes whose feature maps have strides 4, 8, 16 and 32, and their children up to the last
# one.
FAMILIES: dict[type[nn.Module], tuple[str, ...]] = {
    models.ResNet: ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3", "layer4"),
    models.ConvNeXt: ("features",),
    models.EfficientNet: ("features",),
    models.MobileNetV2: ("features",),
    models.MobileNetV3: ("features",),
    models.RegNet: ("stem", "trunk_output"),
    models.SwinTransformer: ("features", "norm"),
}
STRIDES = (4, 8, 16, 32)
PROBE = 64  # px, the sides of the image that shows the strides


def children_of(name: str) -> tuple[str, ...]:
    """The children of torchvision's classifier `name` up to its last feature map.

    Raises ConfigError for another network.
    """
    known = {}
    for listed in network_names():
        family = network_builder(listed).__annotations__["return"]
        if family in FAMILIES:
            known[listed] = FAMILIES[family]
    if name not in known:
        near = [*difflib.get_close_matches(name.lower(), known, 1), "resnet50 or convnext_tiny"]
        families = ", ".join(kind.__name__ for kind in FAMILIES)
        raise ConfigError(
            f"model.backbone={name} is not known; use resnet10 or a {families} of torchvision, "
            f"such as {near[0]}."
        )
    return known[name]


class Backbone(nn.Module):
    """A classifier's feature maps of strides 8, 16 and 32, each the last of its stride, with
    `channels`.

    Parameters have the classifier's names. Stochastic depth is off.

    Args:
        name: torchvision's name of the classifier.
        norm: the kind of norm that takes the place of its batch norms.
        eps: the epsilon of these norms; None keeps the classifier's.
        checkpointing: compute the activations of a stage again in the backward pass.

    Raises ConfigError for a classifier without such maps.
    """

    def __init__(
        self, name: str, norm: str, *, eps: float | None = None, checkpointing: bool = False
    ) -> None:
        super().__init__()
        children = children_of(name)
        classifier = network_builder(name)(weights=None)
        # [B, H, W, C] between its layers
        self.is_channels_last = isinstance(classifier, models.SwinTransformer)
        self.checkpointing = checkpointing
        for child in children:
            self.add_module(child, classifier.get_submodule(child))
        for module in self.modules():
            if isinstance(module, StochasticDepth):
                module.p = 0.0
        self.strides, self.channels = self._probe()
        # one past the last layer of each stride; a stem is in the first stage
        self.ends = [len(self.strides) - self.strides[::-1].index(stride) for stride in STRIDES]
        replace_batch_norms(self, norm)
        if eps is not None:
            set_batch_norm_eps(self, eps)
        if norm == "frozen_bn":
            fold_frozen_norms(self)

    def layers(self) -> list[nn.Module]:
        """The layers in the order of the pass, as fine as the strides need."""
        layers: list[nn.Module] = []
        for name, child in self.named_children():
            layers += child.children() if name in ("features", "trunk_output") else [child]
        return layers

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        layers = self.layers()
        recomputes = self.checkpointing and self.training and torch.is_grad_enabled()
        start = 0
        maps = []
        for end in self.ends:
            run = partial(_run, layers[start:end])
            if recomputes:
                x = checkpoint(run, x, use_reentrant=False, context_fn=partial(recomputation, self))
            else:
                x = run(x)
            maps.append(x.permute(0, 3, 1, 2) if self.is_channels_last else x)
            start = end
        return {str(i): x for i, x in enumerate(maps[1:])}

    def freeze(self, trainable: int) -> None:
        """Stop the gradients of all but the last `trainable` stages: strides 32, 16, 8, 4, and 2 or
        less with 5.
        """
        for stride, layer in zip(self.strides, self.layers(), strict=True):
            layer.requires_grad_(
                (STRIDES[::-1].index(stride) + 1 if stride in STRIDES else 5) <= trainable
            )

    @torch.no_grad()
    def _probe(self) -> tuple[list[int], list[int]]:
        """The stride of each layer's output, and the channels of the three maps."""
        side, depth = (1, 3) if self.is_channels_last else (2, 1)  # dimensions of the output
        self.eval()
        x = torch.zeros(1, 3, PROBE, PROBE)
        strides = []
        channels = {}
        for layer in self.layers():
            x = layer(x)
            strides.append(PROBE // x.shape[side])
            channels[strides[-1]] = x.shape[depth]
        self.train()
        return strides, [channels[stride] for stride in STRIDES[1:]]


class Pyramid(nn.Sequential):
    """A backbone, under torchvision's name "body", and its feature pyramid."""

    def __init__(self, body: Backbone, fpn: nn.Module, out_channels: int) -> None:
        super().__init__(OrderedDict(body=body, fpn=fpn))
        self.out_channels = out_channels


def _run(layers: list[nn.Module], x: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x)
    return x
