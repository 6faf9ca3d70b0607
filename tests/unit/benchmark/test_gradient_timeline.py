"""The real model's gradients: their bytes, and when each is ready."""

from __future__ import annotations

import pytest
import torch
from torchvision.models import ResNet50_Weights, ResNeXt50_32X4D_Weights, WeightsEnum

from retina_dist.benchmark.gradient_timeline import _products, timeline
from retina_dist.detection.model.retinanet import build_retinanet


def on_meta(**settings: object) -> object:
    with torch.device("meta"):
        return build_retinanet(num_classes=91, **settings)  # type: ignore[arg-type]


def test_gradients_are_those_of_the_trainable_parameters() -> None:
    found = timeline(on_meta(norm="frozen_bn", trainable_layers=3), 800, 1088)  # type: ignore[arg-type]
    assert found.num_bytes == 4 * 33_792_599  # torchvision's retinanet_resnet50_fpn with its pretrained body
    whole = timeline(on_meta(norm="frozen_bn"), 800, 1088)  # type: ignore[arg-type]
    # counted with FlopCounterMode: forward and backward are 2.85 times the forward pass, 2.99 with all layers trained
    assert 1 / (1 - found.backward_share) == pytest.approx(2.85, abs=0.01)
    assert 1 / (1 - whole.backward_share) == pytest.approx(2.99, abs=0.01)


@pytest.mark.parametrize(
    ("backbone", "weights"),
    [("resnet50", ResNet50_Weights.IMAGENET1K_V1), ("resnext50_32x4d", ResNeXt50_32X4D_Weights.IMAGENET1K_V1)],
)
def test_the_work_of_a_body_is_the_published_one(backbone: str, weights: WeightsEnum) -> None:
    """In billions of multiplications at 224 px; ResNeXt's convolutions in groups take a 32nd of full ones."""
    body = on_meta(backbone=backbone, norm="frozen_bn").backbone.body  # type: ignore[attr-defined]
    found: list[int] = []
    for module in body.modules():
        module.register_forward_hook(lambda module, inputs, output: found.append(_products(module, output)))
    body(torch.empty(1, 3, 224, 224, device="meta"))
    assert sum(found) / 1e9 == pytest.approx(weights.meta["_ops"], abs=0.003)  # which has the class layer's 0.002 too


def test_gradients_become_ready_in_the_order_of_autograd() -> None:
    settings: dict = {"num_classes": 3, "backbone": "resnet18", "fpn_channels": 64, "norm": "frozen_bn"}
    model = build_retinanet(**settings, trainable_layers=3)
    done: list[int] = []
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.dim() == 4:
            parameter.register_post_accumulate_grad_hook(lambda parameter: done.append(parameter.numel() * 4))
    outputs = model.head(list(model.backbone(torch.randn(1, 3, 64, 96)).values()))
    sum(output.sum() for output in outputs.values()).backward()
    with torch.device("meta"):
        found = timeline(build_retinanet(**settings, trainable_layers=3), 64, 96)
    assert [g.num_bytes for g in found.gradients if g.num_bytes > 4 * 64] == done  # without biases


def test_gradients_are_ready_when_their_share_of_the_work_is_done() -> None:
    gradients = timeline(on_meta(norm="frozen_bn", trainable_layers=3), 800, 1088).gradients  # type: ignore[arg-type]
    ready = {g.num_bytes / 4: g.ready for g in gradients}
    cls_logits, bbox_reg = 256 * 819 * 9, 256 * 36 * 9  # no other parameter is of these sizes
    # the heads are 58.9 % of the forward pass, boxes 21.5 %; shared by five levels, of which P3 is 3/4, so that the last box layer
    # is done after the boxes of P4 to P7 and its own of P3, the last class layer after all boxes and a bit more
    backward = 1.85
    assert ready[bbox_reg] == pytest.approx((2 * 0.215 / 4 + 2 * 0.75 * 0.007) / backward, abs=0.01)
    assert ready[cls_logits] == pytest.approx((2 * 0.215 + 2 * 0.374 / 4 + 2 * 0.75 * 0.166) / backward, abs=0.01)
    assert gradients[-1].ready == 1.0
