"""Networks by name: torchvision's, and the smaller one that it lacks."""

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
    assert {*network_names()} - {*models.list_models(models)} == {"resnet10"}
    assert network_builder("resnet18") is models.resnet18


def test_a_detector_and_a_classifier_of_it() -> None:
    detector = build_retinanet(num_classes=3, backbone="resnet10", fpn_channels=64, variant="v2")
    classifier = build_classifier("resnet10", 3)
    body = dict(classifier.model.named_parameters())
    for name, parameter in detector.backbone.body.named_parameters():
        assert parameter.shape == body[name].shape


def test_weights_that_nobody_published_are_refused() -> None:
    with pytest.raises(ConfigError, match="DEFAULT is not for resnet10; it has no published"):
        weights_of(ModelConfig(backbone="resnet10", backbone_weights="DEFAULT"))
