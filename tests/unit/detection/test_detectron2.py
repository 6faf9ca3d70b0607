"""Detectron2's tensors in our model give what Detectron2's definition gives, written down here once
more.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from retina_dist.detection.batch import Sample, collate
from retina_dist.detection.model.detectron2 import BGR
from retina_dist.detection.model.retinanet import build_retinanet
from retina_dist.detection.model.weights import load_weights

SIDE, CHANNELS, CLASSES = 64, 32, 5
SIZES, RATIOS = 3, 3


def made_up_state() -> dict[str, Tensor]:
    """A ResNet-18 with names and shapes of Detectron2, P6 made of P5."""
    generator = torch.Generator().manual_seed(0)
    state: dict[str, Tensor] = {}

    def conv(name: str, out: int, into: int, kernel: int, bias: bool = True) -> None:
        deviation = (2 / (into * kernel * kernel)) ** 0.5
        state[f"{name}.weight"] = deviation * torch.randn(
            out, into, kernel, kernel, generator=generator
        )
        if bias:
            state[f"{name}.bias"] = 0.1 * torch.randn(out, generator=generator)

    def normed(name: str, out: int, into: int, kernel: int) -> None:
        conv(name, out, into, kernel, bias=False)
        for key, value in (
            ("weight", 0.5),
            ("bias", -0.5),
            ("running_mean", -0.5),
            ("running_var", 0.5),
        ):
            state[f"{name}.norm.{key}"] = value + torch.rand(out, generator=generator)

    normed("backbone.bottom_up.stem.conv1", 64, 3, 7)
    state["backbone.bottom_up.stem.conv1.weight"] /= 58  # of pixels from 0 to 255
    into = 64
    for stage, out in ((2, 64), (3, 128), (4, 256), (5, 512)):
        for block in (0, 1):
            name = f"backbone.bottom_up.res{stage}.{block}"
            normed(f"{name}.conv1", out, into, 3)
            normed(f"{name}.conv2", out, out, 3)
            if into != out:
                normed(f"{name}.shortcut", out, into, 1)
            into = out
    for level, width in ((3, 128), (4, 256), (5, 512)):
        conv(f"backbone.fpn_lateral{level}", CHANNELS, width, 1)
        conv(f"backbone.fpn_output{level}", CHANNELS, CHANNELS, 3)
    for name in ("backbone.top_block.p6", "backbone.top_block.p7"):
        conv(name, CHANNELS, CHANNELS, 3)
    for subnet, last, outputs in (
        ("cls_subnet", "cls_score", CLASSES),
        ("bbox_subnet", "bbox_pred", 4),
    ):
        for i in (0, 2, 4, 6):
            conv(f"head.{subnet}.{i}", CHANNELS, CHANNELS, 3)
        conv(f"head.{last}", SIZES * RATIOS * outputs, CHANNELS, 3)
    state["anchor_generator.cell_anchors.0"] = torch.zeros(9, 4)
    return {name: value.double() for name, value in state.items()}


def theirs(state: dict[str, Tensor], image: Tensor) -> dict[str, Tensor]:
    """Scores and deltas [locations, size, ratio, outputs] of an RGB image [3, H, W] of 0..255."""

    def conv(x: Tensor, name: str, **how: int) -> Tensor:
        return F.conv2d(x, state[f"{name}.weight"], state.get(f"{name}.bias"), **how)

    def normed(x: Tensor, name: str, **how: int) -> Tensor:
        mean, var, weight, bias = (
            state[f"{name}.norm.{k}"] for k in ("running_mean", "running_var", "weight", "bias")
        )
        return F.batch_norm(conv(x, name, **how), mean, var, weight, bias, eps=1e-5)

    x = (image[[2, 1, 0]] - torch.tensor(BGR, dtype=torch.float64)[:, None, None])[None]
    x = F.max_pool2d(
        F.relu(normed(x, "backbone.bottom_up.stem.conv1", stride=2, padding=3)), 3, 2, 1
    )
    maps = {}
    for stage in (2, 3, 4, 5):
        for block in (0, 1):
            name, stride = (
                f"backbone.bottom_up.res{stage}.{block}",
                2 if stage > 2 and block == 0 else 1,
            )
            y = normed(
                F.relu(normed(x, f"{name}.conv1", stride=stride, padding=1)),
                f"{name}.conv2",
                padding=1,
            )
            x = F.relu(
                y
                + (
                    normed(x, f"{name}.shortcut", stride=stride)
                    if f"{name}.shortcut.weight" in state
                    else x
                )
            )
        maps[stage] = x
    features, top = {}, None
    for level in (5, 4, 3):
        lateral = conv(maps[level], f"backbone.fpn_lateral{level}")
        top = (
            lateral
            if top is None
            else lateral + F.interpolate(top, scale_factor=2.0, mode="nearest")
        )
        features[level] = conv(top, f"backbone.fpn_output{level}", padding=1)
    features[6] = conv(features[5], "backbone.top_block.p6", stride=2, padding=1)
    features[7] = conv(F.relu(features[6]), "backbone.top_block.p7", stride=2, padding=1)
    outputs: dict[str, list[Tensor]] = {"cls_score": [], "bbox_pred": []}
    for level in (3, 4, 5, 6, 7):
        for subnet, last in (("cls_subnet", "cls_score"), ("bbox_subnet", "bbox_pred")):
            y = features[level]
            for i in (0, 2, 4, 6):
                y = F.relu(conv(y, f"head.{subnet}.{i}", padding=1))
            y = conv(y, f"head.{last}", padding=1)[0]  # size, ratio and output in the channels
            outputs[last].append(
                y.permute(1, 2, 0).reshape(y.shape[1] * y.shape[2], SIZES, RATIOS, -1)
            )
    return {name: torch.cat(values) for name, values in outputs.items()}


@pytest.mark.parametrize("is_bgr", [True, False])
def test_outputs_are_those_of_detectron2s_definition(is_bgr: bool, tmp_path: Path) -> None:
    state = made_up_state()
    image = torch.randint(
        0, 256, (3, SIDE, SIDE), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
    )
    expected = theirs(state, image.double())
    if not is_bgr:  # the same network of a configuration with RGB and torchvision's deviations
        std = torch.tensor([58.395, 57.120, 57.375], dtype=torch.float64)
        stem = "backbone.bottom_up.stem.conv1.weight"
        state[stem] = state[stem][:, [2, 1, 0]] * std[:, None, None]
        state |= {
            "pixel_mean": torch.tensor(BGR[::-1])[:, None, None],
            "pixel_std": std[:, None, None],
        }
    torch.save({"model": state, "iteration": 90000}, tmp_path / "model_final.pth")
    model = (
        build_retinanet(
            num_classes=CLASSES, backbone="resnet18", fpn_channels=CHANNELS, norm="frozen_bn"
        )
        .double()
        .eval()
    )
    report = load_weights(model, str(tmp_path / "model_final.pth"))
    assert (report.missing, report.left_over, report.misfits) == ((), (), ())
    batch = collate(
        [Sample(image, torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), 0, (SIDE, SIDE))],
        (SIDE, SIDE),
    )
    with torch.no_grad():
        ours, _ = model.predict(batch)
    for name, key in (("cls_logits", "cls_score"), ("bbox_regression", "bbox_pred")):
        by_ratio = expected[key].transpose(1, 2).flatten(0, 2)  # ours: location, ratio, size
        torch.testing.assert_close(ours[name][0], by_ratio, rtol=1e-5, atol=1e-5)
        assert by_ratio.std() > 0.01


def test_p6_of_c5_is_reported(tmp_path: Path) -> None:
    state = made_up_state() | {"backbone.top_block.p6.weight": torch.zeros(CHANNELS, 512, 3, 3)}
    torch.save(state, tmp_path / "model_final.pth")
    model = build_retinanet(num_classes=CLASSES, backbone="resnet18", fpn_channels=CHANNELS)
    report = load_weights(model, str(tmp_path / "model_final.pth"))
    assert [name.split(":")[0] for name in report.misfits] == [
        "backbone.fpn.extra_blocks.p6.weight"
    ]
