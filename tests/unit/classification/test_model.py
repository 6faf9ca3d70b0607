"""torchvision's classifiers with other norms, their loss, and weights."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn import functional as F
from torchvision.models import resnet18
from torchvision.ops import FrozenBatchNorm2d

from retina_dist.base.errors import CheckpointError, ConfigError
from retina_dist.classification.dataset import ImageBatch
from retina_dist.classification.model import Classifier, _head, build_classifier, load_weights
from retina_dist.model.sync_batch_norm import SyncBatchNorm2d, connect


def batch(count: int = 4, fillers: int = 0, side: int = 32) -> ImageBatch:
    torch.manual_seed(1)
    images = torch.randint(0, 256, (count + fillers, 3, side, side), dtype=torch.uint8)
    labels, others = torch.randint(0, 3, (2, count + fillers))
    real = torch.arange(count + fillers) < count if fillers else None
    return ImageBatch(
        images,
        labels,
        others,
        torch.rand(count + fillers),
        torch.arange(count + fillers),
        real=real,
    )


@pytest.mark.parametrize("norm", ["bn", "frozen_bn", "sync_bn"])
def test_the_model_is_torchvisions(norm: str) -> None:
    torch.manual_seed(0)
    expected = resnet18(num_classes=3).eval()
    torch.manual_seed(0)
    model = build_classifier("resnet18", 3, norm=norm).eval()  # type: ignore[arg-type]
    state = {
        f"model.{k}": v
        for k, v in expected.state_dict().items()
        if norm != "frozen_bn" or "tracked" not in k
    }
    assert list(model.state_dict()) == list(state), "a detector's body takes these names"
    images = batch().images
    with torch.no_grad():
        torch.testing.assert_close(model.logits(images), expected(model.normalized(images)))
    kinds = {"bn": nn.BatchNorm2d, "frozen_bn": FrozenBatchNorm2d, "sync_bn": SyncBatchNorm2d}
    assert isinstance(model.model.bn1, kinds[norm])


def test_fillers_are_in_no_loss_gradient_or_statistic() -> None:
    full = batch(fillers=3)
    real = ImageBatch(
        *(getattr(full, n)[:4] for n in ("images", "labels", "other_labels", "share", "image_ids"))
    )
    found = []
    for given in (full, real):
        torch.manual_seed(0)
        model = build_classifier("resnet18", 3, norm="bn").double()
        model(given)["classification"].backward()
        found.append({n: p.grad for n, p in model.named_parameters()} | dict(model.named_buffers()))
    for name, value in found[1].items():
        torch.testing.assert_close(found[0][name], value, rtol=1e-9, atol=1e-12)


def test_the_loss_is_torchs() -> None:
    """Smoothed and mixed targets against torch's cross entropy with probabilities; the mean is over
    images.
    """
    model = Classifier(nn.Identity(), label_smoothing=0.1)
    given = batch()
    logits = torch.randn(4, 3)
    one_hot = [F.one_hot(labels, 3).float() for labels in (given.labels, given.other_labels)]
    target = given.share[:, None] * one_hot[0] + (1 - given.share[:, None]) * one_hot[1]
    expected = F.cross_entropy(logits, target, label_smoothing=0.1, reduction="none")
    torch.testing.assert_close(model.losses(logits, given), expected)


def test_class_weights_are_torchs_and_of_a_training_only() -> None:
    """By hand without smoothing, by torch with it; their sum over a batch divides nothing."""
    model = Classifier(nn.Identity())
    given = replace(batch(), share=torch.ones(4))
    logits = torch.randn(4, 3)
    plain = model.losses(logits, given)
    weights = torch.tensor([0.5, 2.0, 4.0], dtype=torch.float64)
    model.class_weights = weights
    of_image = weights[given.labels].float()
    torch.testing.assert_close(model.losses(logits, given), plain * of_image)
    assert "class_weights" not in model.state_dict()

    model.label_smoothing = 0.1
    wanted = -(0.9 * F.one_hot(given.labels, 3) + 0.1 / 3) * weights * logits.log_softmax(1)
    torch.testing.assert_close(model.losses(logits, given), wanted.sum(1).float())
    model.eval()
    torch.testing.assert_close(
        model.losses(logits, given),
        F.cross_entropy(logits, given.labels, label_smoothing=0.1, reduction="none"),
    )


def test_zero_gamma_makes_every_residual_branch_begin_at_zero() -> None:
    model = build_classifier("resnext50_32x4d", 2, zero_gamma=True).model
    assert all(not block.bn3.weight.any() for block in model.modules() if hasattr(block, "bn3"))
    assert bool(model.bn1.weight.all())
    with pytest.raises(ConfigError, match="model.zero_gamma=true is for ResNets"):
        build_classifier("mobilenet_v3_small", 2, zero_gamma=True)


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("efficientnet_b0", "classifier.1"),
        ("squeezenet1_1", "classifier.1"),
        ("mobilenet_v3_small", "classifier.3"),
    ],
)
def test_other_families(name: str, head: str) -> None:
    """Shapes, and the layer whose weights would name other classes; SqueezeNet's is
    a convolution.
    """
    with torch.device("meta"):
        model = build_classifier(name, 5, image_size=32).eval()
    assert model.model(torch.zeros(2, 3, 32, 32, device="meta")).shape == (2, 5)
    assert _head(model.model) == head


def test_weights_load_from_torchvisions_form_and_from_a_checkpoint(tmp_path: Path) -> None:
    source = build_classifier("resnet18", 2)
    torch.save(source.model.state_dict(), tmp_path / "theirs.pth")
    torch.save(
        {"model": source.state_dict(), "ema": None, "classes": ["a", "b"]}, tmp_path / "ours.pt"
    )
    for name in ("theirs.pth", "ours.pt"):
        model = build_classifier("resnet18", 2)
        report = load_weights(model, str(tmp_path / name), ("a", "b"))
        assert report.missing == report.left_over == report.misfits == ()
        assert all(
            torch.equal(a, b) for a, b in zip(model.parameters(), source.parameters(), strict=True)
        )
    for classes, what in ((("a", "b", "c"), "in the file"), (("b", "c"), "of other classes")):
        model = build_classifier("resnet18", len(classes))
        report = load_weights(model, str(tmp_path / "ours.pt"), classes)
        assert sorted(text.split(":")[0] for text in report.misfits) == ["fc.bias", "fc.weight"]
        assert what in str(report)
    with pytest.raises(
        CheckpointError,
        match="holds only 0 of the .* tensors of a classifier .*; set model.architecture to its",
    ):
        load_weights(
            build_classifier("vit_b_32", 2, image_size=32), str(tmp_path / "ours.pt"), ("a", "b")
        )


@pytest.mark.compiles
@pytest.mark.long
def test_the_training_step_is_one_graph() -> None:
    torch.manual_seed(0)
    model = build_classifier("resnet18", 3, norm="sync_bn", label_smoothing=0.1).double()
    connect(model, torch.clone)  # the sum over one rank
    given = batch(fillers=1)
    plain, graphs = copy.deepcopy(model), CompileCounterWithBackend("aot_eager")
    model.compile(fullgraph=True, backend=graphs)
    for _ in range(2):
        found, expected = model(given)["classification"], plain(given)["classification"]
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    assert graphs.frame_count == 1
