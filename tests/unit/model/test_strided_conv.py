"""bfloat16 on a CPU never makes a strided convolution's output of one column, which oneDNN gets
wrong.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from retina_dist.classification.model import build_classifier
from retina_dist.detection.model.retinanet import build_retinanet
from retina_dist.model.layers import StridedConv2d, replace_strided_convs


def widths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The width of the output of each convolution from now on."""
    columns: list[int] = []
    conv2d = torch.nn.functional.conv2d

    def spy(*arguments: object) -> torch.Tensor:
        columns.append(conv2d(*arguments).shape[-1])
        return conv2d(*arguments)

    monkeypatch.setattr("torch.nn.functional.conv2d", spy)
    return columns


@pytest.mark.parametrize(("height", "width"), [(12, 2), (1, 1), (5, 3)])
@pytest.mark.parametrize(("kernel", "padding"), [(3, 1), (7, 3), (1, 0)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_outputs_and_gradients_are_those_of_float32_to_the_rounding_of_bfloat16(
    height: int,
    width: int,
    kernel: int,
    padding: int,
    layout: torch.memory_format,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(16, 32, kernel, stride=2, padding=padding))
    replace_strided_convs(model)
    model.to(memory_format=layout)
    x = torch.rand(2, 16, height, width).contiguous(memory_format=layout).requires_grad_()
    columns = widths(monkeypatch)
    found = []
    for enabled in (False, True):
        garbage = [
            torch.full((2**k,), float("nan")) for k in range(4, 18)
        ]  # into the memory that is used next
        del garbage
        model.zero_grad()
        x.grad = None
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            output = model(x)
        output.float().square().mean().backward()
        assert x.grad is not None
        found.append(
            [output.float(), x.grad.clone(), *(p.grad.clone() for p in model.parameters())]
        )
    for exact, rounded in zip(*found, strict=True):
        assert exact.shape == rounded.shape
        assert (rounded - exact).norm() <= 0.02 * exact.norm()
    assert columns[1] > 1


def test_every_strided_convolution_of_both_tasks_is_replaced() -> None:
    detector = build_retinanet(
        num_classes=3, backbone="resnet18", fpn_channels=64, norm="frozen_bn"
    )
    for model in (
        detector,
        build_classifier("resnet18", 3),
        build_classifier("mobilenet_v3_small", 3),
    ):
        strided = [m for m in model.modules() if isinstance(m, nn.Conv2d) and m.stride[1] > 1]
        assert strided
        assert all(isinstance(m, StridedConv2d) for m in strided)
