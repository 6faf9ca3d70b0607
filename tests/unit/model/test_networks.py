"""Networks by name: torchvision's, and the two smaller ones that it lacks."""

from __future__ import annotations

import pytest
import torch
from torchvision import models

from retina_dist.base.errors import ConfigError
from retina_dist.classification.model import build_classifier
from retina_dist.detection.model.retinanet import build_retinanet
from retina_dist.detection.model.weights import weights_of
from retina_dist.detection.settings import ModelConfig
from retina_dist.model.networks import network_builder, network_names


def test_resnet10_is_resnet18_with_the_first_block_of_each_stage() -> None:
    small = network_builder("resnet10")(num_classes=7)
    large = models.resnet18(num_classes=7)
    for stage in (large.layer1, large.layer2, large.layer3, large.layer4):
        del stage[1]
    assert [*small.state_dict()] == [*large.state_dict()]
    small.load_state_dict(large.state_dict())
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(small.eval()(images), large.eval()(images), rtol=0, atol=0)


def test_names_are_torchvisions_and_ours() -> None:
    assert {*network_names()} - {*models.list_models(models)} == {
        "resnet10",
        "resnet10_half",
    }
    assert network_builder("resnet18") is models.resnet18


def test_resnet10_half_has_half_of_the_channels() -> None:
    half = network_builder("resnet10_half")(num_classes=7).state_dict()
    full = network_builder("resnet10")(num_classes=7).state_dict()
    assert [*half] == [*full]
    for name, value in full.items():
        shape = list(value.shape)
        for axis in range(min(2, len(shape))):
            if shape[axis] not in (3, 7):  # the image's channels, the classes
                shape[axis] //= 2
        assert list(half[name].shape) == shape, name


def test_resnet10_half_starts_as_torchvision_starts_a_resnet() -> None:
    torch.manual_seed(0)
    network = network_builder("resnet10_half")(zero_init_residual=True)
    # He et al. 2015 by fan-out: 2 / (32 * 49) is the variance of the first convolution's weights
    assert network.conv1.weight.std().item() == pytest.approx((2 / (32 * 49)) ** 0.5, rel=0.05)
    assert network.layer4[0].conv2.weight.std().item() == pytest.approx(
        (2 / (256 * 9)) ** 0.5, rel=0.05
    )
    assert not network.layer2[0].bn2.weight.any()


@pytest.mark.parametrize("name", ["resnet10", "resnet10_half"])
def test_a_detector_and_a_classifier_of_it(name: str) -> None:
    detector = build_retinanet(num_classes=3, backbone=name, fpn_channels=64, variant="v2")
    classifier = build_classifier(name, 3)
    body = dict(classifier.model.named_parameters())
    for name, parameter in detector.backbone.body.named_parameters():
        assert parameter.shape == body[name].shape


def test_weights_that_nobody_published_are_refused() -> None:
    with pytest.raises(ConfigError, match="DEFAULT is not for resnet10; it has no published"):
        weights_of(ModelConfig(backbone="resnet10", backbone_weights="DEFAULT"))
