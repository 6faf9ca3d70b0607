"""The fused focal loss against torchvision's, in each of its forms."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torchvision.ops import sigmoid_focal_loss

from retina_dist.detection.model.losses import focal_loss, focal_loss_by_element

CLASSES = torch.tensor([[0, -1, 4, -2, 2], [-1, -1, -2, 3, 3]])
WEIGHT = torch.tensor([0.25, 0.5])


def some_logits(dtype: torch.dtype = torch.float64) -> Tensor:
    """Ordinary ones and extreme ones."""
    logits = (
        torch.randn(2, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3
    )
    logits[0, 0] = torch.tensor([100.0, -100.0, 30.0, -30.0, 0.0])
    logits[0, 2] = torch.tensor([50.0, -50.0, 5.0, 90.0, -90.0])
    return logits.to(dtype)


COLUMNS = torch.tensor([0.5, 2.0, 1.0, 7.25, 0.125], dtype=torch.float64)


def by_torchvision(
    logits: Tensor, alpha: float, gamma: float, columns: Tensor | None = None
) -> Tensor:
    targets = (
        torch.nn.functional.one_hot(CLASSES.clamp(min=0), 5).to(logits.dtype)
        * (CLASSES >= 0)[..., None]
    )
    each = sigmoid_focal_loss(logits, targets, alpha, gamma)
    if columns is not None:
        each = each * columns
    each = each.sum(dim=-1)
    return (torch.where(CLASSES != -2, each, 0.0).sum(dim=1) * WEIGHT).sum()


@pytest.mark.parametrize("columns", [None, COLUMNS])
@pytest.mark.parametrize(("alpha", "gamma"), [(0.25, 2.0), (0.4, 1.5), (0.5, 0.0)])
def test_loss_and_gradient_equal_torchvision(
    alpha: float, gamma: float, columns: Tensor | None
) -> None:
    """Class weights multiply a class's column, at anchors with the class and without it."""
    ours, theirs = some_logits().requires_grad_(), some_logits().requires_grad_()
    loss, expected = (
        focal_loss(ours, CLASSES, WEIGHT, alpha, gamma, columns),
        by_torchvision(theirs, alpha, gamma, columns),
    )
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    (loss * 3).backward()
    (expected * 3).backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-10, atol=1e-14)
    assert not ours.grad[CLASSES == -2].any()


@pytest.mark.parametrize("columns", [None, COLUMNS])
def test_the_textbook_formula_is_what_the_compiler_gets(columns: Tensor | None) -> None:
    logits = some_logits()
    each = focal_loss_by_element(logits, CLASSES)
    if columns is not None:
        each = each * columns
    each = each.sum(dim=-1)
    torch.testing.assert_close(
        torch.compile(focal_loss, fullgraph=True, backend="eager")(
            logits, CLASSES, WEIGHT, class_weights=columns
        ),
        (torch.where(CLASSES != -2, each, 0.0).sum(dim=1) * WEIGHT).sum(),
    )


@pytest.mark.parametrize("scale", [2.0**15, 2.0**16])
def test_small_gradients_of_float16_logits_survive_until_the_loss_scale(scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(16, 500, 20, generator=generator) - 6.5).half()
    classes, weight = torch.full((16, 500), -1), torch.full((16,), 1 / (16 * 60))
    x, exact = logits.clone().requires_grad_(), logits.double().requires_grad_()
    (focal_loss(x, classes, weight) * scale).backward()
    (focal_loss(exact, classes, weight) * scale).backward()
    assert x.grad.dtype == torch.float16
    assert (x.grad.double() - exact.grad).norm() < 1e-2 * exact.grad.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_loss_weight_is_not_rounded_to_the_type_of_the_logits(dtype: torch.dtype) -> None:
    """1/3 is 1.00195 / 3 in bfloat16: the focal loss would weigh more than the box loss
    beside it.
    """
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 500, 20, generator=generator).to(dtype)
    classes, weight = torch.randint(-1, 20, (4, 500), generator=generator), torch.full((4,), 1 / 4)
    x, exact = logits.clone().requires_grad_(), logits.double().requires_grad_()
    (focal_loss(x, classes, weight) * (1 / 3)).backward()
    (focal_loss(exact, classes, weight) / 3).backward()
    share = (x.grad.double() * exact.grad).sum() / exact.grad.square().sum()
    assert share.item() == pytest.approx(1, abs=5e-4)
    assert x.grad.dtype == dtype
