"""The model against torchvision's own: same names, same losses and gradients, same detections."""

from __future__ import annotations

import copy
import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision.models import get_model
from torchvision.models.detection import retinanet_resnet50_fpn, retinanet_resnet50_fpn_v2
from torchvision.ops import FrozenBatchNorm2d, box_iou

from retina_dist.base.errors import ConfigError
from retina_dist.detection.batch import Batch, Sample, collate
from retina_dist.detection.model import targets
from retina_dist.detection.model.retinanet import RetinaNet, as_torchvision, build_retinanet
from retina_dist.detection.model.targets import match
from retina_dist.detection.model.weights import load_backbone_weights
from retina_dist.model.sync_batch_norm import connect

CANVAS, SMALL = (128, 160), (64, 96)


def make_batch(
    num_boxes: list[int], num_classes: int = 91, canvas: tuple[int, int] = CANVAS
) -> Batch:
    """Random full-canvas images with `num_boxes[i]` boxes each."""
    generator = torch.Generator().manual_seed(0)
    height, width = canvas
    samples = []
    for i, count in enumerate(num_boxes):
        size = (
            torch.rand(count, 2, generator=generator) * torch.tensor([width * 0.8, height * 0.8])
            + 1
        )
        corner = torch.rand(count, 2, generator=generator) * (torch.tensor([width, height]) - size)
        labels = torch.randint(0, num_classes, (count,), generator=generator)
        image = torch.randint(0, 256, (3, *canvas), generator=generator, dtype=torch.uint8)
        samples.append(Sample(image, torch.cat((corner, corner + size), dim=-1), labels, i, canvas))
    return collate(samples, canvas)


def torchvision_inputs(batch: Batch) -> tuple[list[torch.Tensor], list[dict[str, torch.Tensor]]]:
    images = [image.double() / 255 for image in batch.images]
    counts = batch.num_boxes.tolist()
    targets = [
        {"boxes": b[:n].double(), "labels": k[:n]}
        for b, k, n in zip(batch.boxes, batch.labels, counts, strict=True)
    ]
    return images, targets


def twins(variant: str, norm: str = "bn") -> tuple[RetinaNet, torch.nn.Module]:
    """Our model and torchvision's with the same random weights, in float64, resizing nothing."""
    torch.manual_seed(3)
    ours = build_retinanet(num_classes=91, variant=variant, norm=norm).double()
    make = retinanet_resnet50_fpn if variant == "v1" else retinanet_resnet50_fpn_v2
    theirs = make(weights=None, weights_backbone=None, min_size=SMALL[0], max_size=SMALL[1])
    if norm == "frozen_bn":
        freeze_norms(theirs.backbone.body)
        for name, buffer in ours.backbone.body.named_buffers():
            buffer.uniform_(0.5, 1.5) if name.endswith(("weight", "var")) else buffer.normal_(
                std=0.1
            )
    theirs = theirs.double()
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def freeze_norms(module: torch.nn.Module) -> None:
    """torchvision's FrozenBatchNorm2d, as its pretrained models have, in place of each
    batch norm.
    """
    for name, child in module.named_children():
        if isinstance(child, torch.nn.BatchNorm2d):
            setattr(module, name, FrozenBatchNorm2d(child.num_features))
        else:
            freeze_norms(child)


@pytest.mark.parametrize(
    ("variant", "norm", "num_boxes"),
    [("v1", "bn", [3, 7]), ("v2", "bn", [0, 5]), ("v1", "frozen_bn", [0, 5])],
)
def test_losses_and_gradients_equal_torchvision(
    variant: str, norm: str, num_boxes: list[int]
) -> None:
    ours, theirs = twins(variant, norm)
    batch = make_batch(num_boxes, canvas=SMALL)
    images, targets = torchvision_inputs(batch)
    expected = theirs(images, targets)
    losses = ours(batch)
    assert set(losses) == set(expected) == {"classification", "bbox_regression"}
    for name, value in losses.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-12, atol=1e-14)
    sum(losses.values()).backward()
    sum(expected.values()).backward()
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        error = (a.grad - b.grad).norm() / (b.grad.norm() + 1e-12)
        assert error < (1e-12 if variant == "v1" else 1e-10), name


@pytest.mark.parametrize("variant", ["v1", "v2"])
def test_shorter_heads_are_the_first_convolutions_of_torchvisions(variant: str) -> None:
    """A short head computes what a long one does without its last convolutions, also in
    torchvision's own model of it.
    """
    torch.manual_seed(0)
    settings: dict[str, Any] = {"num_classes": 91, "backbone": "resnet18", "variant": variant}
    long = build_retinanet(**settings, norm="bn")
    short = build_retinanet(**settings, norm="bn", head_convs=1)
    gone = {name for name in long.state_dict() if re.search(r"_head\.conv\.[123]\.", name)}
    assert set(short.state_dict()) == set(long.state_dict()) - gone
    assert len(gone) == {"v1": 2 * 3 * 2, "v2": 2 * 3 * 3}[variant]

    short.load_state_dict(long.state_dict(), strict=False)
    features = [torch.randn(2, 256, 4, 6)]
    for branch, layer, values in (
        (long.head.classification_head, "cls_logits", 91),
        (long.head.regression_head, "bbox_reg", 4),
    ):
        found = branch.get_submodule(layer)(branch.conv[0](features[0]))
        expected = found.view(2, 9, values, 4, 6).permute(0, 3, 4, 1, 2).reshape(2, -1, values)
        name = {91: "cls_logits", 4: "bbox_regression"}[values]
        assert torch.equal(short.head(features)[name], expected)

    short = short.double()
    batch = make_batch([3, 0], canvas=SMALL)
    theirs = as_torchvision(short, SMALL)(*torchvision_inputs(batch))
    for name, value in short(batch).items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-12, atol=1e-14)


def test_fillers_count_nowhere() -> None:
    """Losses, gradients and statistics are those of the real images alone.

    Without any of these, nothing moves.
    """
    torch.manual_seed(0)
    model = build_retinanet(num_classes=5, backbone="resnet18", fpn_channels=32).double()
    filled = make_batch([4, 2, 0], num_classes=5)
    filled = dataclasses.replace(filled, boxes=filled.boxes.double())
    pair = dataclasses.replace(
        filled, **{n: x[:2] for n, x in vars(filled).items() if isinstance(x, torch.Tensor)}
    )
    models, losses = [copy.deepcopy(model) for _ in range(3)], []
    reals = None, torch.tensor([True, True, False]), torch.tensor([False] * 3)
    for one, batch, real in zip(models, (pair, filled, filled), reals, strict=True):
        losses.append(one(dataclasses.replace(batch, real=real)))
        sum(losses[-1].values()).backward()
    for name, value in losses[0].items():
        torch.testing.assert_close(losses[1][name], value, rtol=1e-12, atol=1e-14)
        assert losses[2][name] == 0
    for (name, expected), found, nothing in zip(
        models[0].named_parameters(), *(m.parameters() for m in models[1:]), strict=True
    ):
        assert (found.grad - expected.grad).norm() < 1e-12 * (1e-3 + expected.grad.norm()), name
        assert not nothing.grad.any(), name
    for name, expected in models[0].named_buffers():
        torch.testing.assert_close(
            dict(models[1].named_buffers())[name], expected, rtol=1e-12, atol=1e-14
        )
        if "running" in name:
            assert torch.equal(
                dict(models[2].named_buffers())[name], dict(model.named_buffers())[name]
            )


def test_pixels_outside_the_image_do_not_count() -> None:
    model = build_retinanet(num_classes=2, backbone="resnet18", fpn_channels=32)
    batch = make_batch([1], num_classes=2)
    noisy = dataclasses.replace(batch, image_sizes=torch.tensor([[100, 120]]))
    values = model.normalized(noisy)
    assert values[:, :, 100:].abs().sum() == 0
    assert values[:, :, :, 120:].abs().sum() == 0
    expected = (batch.images[0, 1, 99, 119] / 255 - 0.456) / 0.224
    torch.testing.assert_close(values[0, 1, 99, 119], expected)


@pytest.mark.parametrize(
    "boxes",
    [
        [[10, 10, 60, 60], [10, 10, 60, 60], [11, 10, 60, 60]],  # duplicates
        [[0, 0, 160, 128]],
        [
            [3.2, 3.1, 3.9, 4.4],
            [100, 100, 101, 101],
        ],  # far below every anchor: low-quality matches only
        [[5000, 5000, 5100, 5100], [10, 10, 60, 60]],  # outside: overlaps nothing
    ],
)
def test_match_equals_torchvision(boxes: list[list[float]]) -> None:
    model = build_retinanet(num_classes=2, backbone="resnet18", fpn_channels=32)
    anchors = torch.cat(model.predict(make_batch([1], num_classes=2))[1])
    gt = torch.tensor(boxes, dtype=torch.float32)
    padded = torch.cat((gt, torch.tensor([[0.0, 0.0, 1.0, 1.0]] * 3)))
    expected = model.proposal_matcher(box_iou(gt, anchors))
    assert torch.equal(match(padded[None], torch.tensor([len(gt)]), anchors)[0], expected)


@pytest.mark.parametrize("boxes_at_once", [1, 3])
def test_matching_in_parts_gives_the_same_bits(
    boxes_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Boxes and anchors on a coarse grid, so that overlaps tie within a part and across parts, and
    boxes repeat.
    """
    generator = torch.Generator().manual_seed(boxes_at_once)
    for case in range(40):
        dtype = (torch.float32, torch.float64)[case % 2]
        size, most, num_anchors = 1 + case % 3, case % 11, 30 + case

        def grid(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
            corner = torch.randint(0, 5, (*shape, 2), generator=generator)
            sides = torch.randint(1, 4, (*shape, 2), generator=generator)
            return torch.cat((corner, corner + sides), dim=-1).to(dtype)

        boxes, anchors = grid(size, most), grid(num_anchors)
        num_boxes = torch.randint(0, most + 1, (size,), generator=generator)
        with monkeypatch.context() as patch:
            expected = match(boxes, num_boxes, anchors)
            patch.setattr(
                targets, "MAX_BYTES", 9 * dtype.itemsize * size * num_anchors * boxes_at_once
            )
            assert torch.equal(match(boxes, num_boxes, anchors), expected)
            patch.setattr(targets, "MAX_BYTES", 0)
            assert torch.equal(match(boxes, num_boxes, anchors), expected)
        assert (expected[num_boxes == 0] == targets.BACKGROUND).all()


def long(*values: str) -> list[Any]:
    return [pytest.param(value, marks=pytest.mark.long) for value in values]


@pytest.mark.parametrize(
    "backbone",
    ["mobilenet_v3_small", *long("convnext_tiny", "efficientnet_v2_s", "regnet_y_400mf", "swin_t")],
)
def test_a_classifiers_body_is_its_feature_maps(backbone: str, tmp_path: Path) -> None:
    """With its pretrained weights, by their names; the last map is what the classifier pools."""
    torch.manual_seed(0)
    classifier = get_model(backbone, weights=None).eval()
    torch.save(classifier.state_dict(), tmp_path / "classifier.pth")
    model = build_retinanet(
        num_classes=3, backbone=backbone, fpn_channels=32, norm="frozen_bn", trainable_layers=2
    )
    report = load_backbone_weights(model, str(tmp_path / "classifier.pth"), backbone)
    assert (report.missing, report.misfits) == ((), ())
    assert all(name.startswith(("classifier", "fc", "head")) for name in report.left_over)
    pooled: list[torch.Tensor] = []
    classifier.avgpool.register_forward_pre_hook(lambda module, inputs: pooled.append(inputs[0]))
    x = torch.rand(1, 3, 64, 96)
    with torch.no_grad():
        classifier(x)
        maps = list(model.eval().backbone.body(x).values())
    assert [tuple(x.shape[2:]) for x in maps] == [(8, 12), (4, 6), (2, 3)]
    torch.testing.assert_close(maps[-1], pooled[0], rtol=1e-4, atol=1e-4)
    for stride, layer in zip(
        model.backbone.body.strides, model.backbone.body.layers(), strict=True
    ):
        assert all(parameter.requires_grad == (stride >= 16) for parameter in layer.parameters())
    losses, detections = model.evaluate(make_batch([1], num_classes=3))
    assert all(value.isfinite() for value in losses.values())
    assert len(detections) == 1


@pytest.mark.parametrize(
    ("backbone", "norm"),
    [("resnet18", "bn"), ("resnet18", "sync_bn"), ("mobilenet_v3_small", "bn")],
)
def test_checkpointed_activations_give_the_same_gradients_and_statistics(
    backbone: str, norm: str
) -> None:
    """To the last bit, in float64, with a filler in the batch."""
    torch.manual_seed(0)
    settings: dict = {"num_classes": 3, "backbone": backbone, "fpn_channels": 32, "norm": norm}
    model = build_retinanet(**settings).double()
    checkpointed = build_retinanet(**settings, activation_checkpointing=True).double()
    checkpointed.load_state_dict(model.state_dict())
    batch = dataclasses.replace(
        make_batch([2, 1, 0], num_classes=3), real=torch.tensor([True, True, False])
    )
    for each in (model, checkpointed):
        connect(each, torch.clone)
        sum(each(batch).values()).backward()
    for a, b in zip(model.parameters(), checkpointed.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)
    for a, b in zip(model.buffers(), checkpointed.buffers(), strict=True):
        assert torch.equal(a, b)


def test_impossible_settings_name_the_key() -> None:
    with pytest.raises(
        ConfigError,
        match=r"model\.backbone=resnet5O is not known; use resnet10 or a ResNet, .*such as resnet50\.$",
    ):
        build_retinanet(num_classes=2, backbone="resnet5O")
    with pytest.raises(ConfigError, match="fpn_channels=48"):
        build_retinanet(num_classes=2, variant="v2", fpn_channels=48)


def test_folded_norms_follow_their_statistics() -> None:
    body = build_retinanet(
        num_classes=2, backbone="resnet18", fpn_channels=32, norm="frozen_bn"
    ).backbone.body
    x = torch.rand(1, 3, 32, 32)
    plain = FrozenBatchNorm2d(64)

    def expected() -> torch.Tensor:
        return plain(
            torch.nn.functional.conv2d(x.to(body.conv1.weight.dtype), body.conv1.weight, None, 2, 3)
        )

    def check() -> None:
        torch.testing.assert_close(body.bn1(body.conv1(x.to(body.conv1.weight.dtype))), expected())

    check()
    body.bn1.running_var.fill_(4.0)  # in place, as an average's buffers are written
    plain.running_var.fill_(4.0)
    check()
    state = {
        name: torch.rand(64) + 0.5 for name in ("weight", "bias", "running_mean", "running_var")
    }
    body.bn1.load_state_dict(state)
    plain.load_state_dict(state)
    check()
    body.double(), plain.double()
    check()
    body.bn1.eps = plain.eps = 0.1
    check()
    assert all(not isinstance(child, torch.Tensor) for child in body.conv1.children())
    assert list(body.conv1.state_dict()) == ["weight"]


@pytest.mark.compiles
@pytest.mark.parametrize(
    ("variant", "norm"),
    [("v1", "frozen_bn"), pytest.param("v2", "sync_bn", marks=pytest.mark.long)],
)
def test_the_training_step_is_one_graph(variant: str, norm: str) -> None:
    torch.manual_seed(0)
    settings = {"num_classes": 5, "variant": variant, "backbone": "resnet18", "fpn_channels": 64}
    model = build_retinanet(**settings, norm=norm).double()
    connect(model, torch.clone)  # the sum over one rank
    batch = make_batch([4, 0, 2], num_classes=5)
    plain, graphs = copy.deepcopy(model), CompileCounterWithBackend("aot_eager")
    model.compile(fullgraph=True, backend=graphs)
    for _ in range(
        2
    ):  # what the first pass leaves behind, such as anchors, must not ask for another graph
        for name, value in model(batch).items():
            torch.testing.assert_close(value, plain(batch)[name], rtol=1e-12, atol=1e-14)
    assert graphs.frame_count == 1


class Operators(TorchDispatchMode):
    """Counts the operators that are dispatched while it is entered."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_the_number_of_operators_does_not_depend_on_the_batch() -> None:
    torch.manual_seed(0)
    model = build_retinanet(num_classes=5, backbone="resnet18", fpn_channels=64, norm="frozen_bn")
    model(make_batch([1], num_classes=5))  # anchors and norms are cached
    counts = []
    for boxes in ([3], [3, 0, 7, 1]):
        model.zero_grad()
        batch = make_batch(boxes, num_classes=5)
        with Operators() as counted:
            sum(model(batch).values()).backward()
        counts.append(counted.count)
    assert counts[0] == counts[1] > 100
