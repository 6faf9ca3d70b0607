"""Loading weights: torchvision's old and new names, other class counts, backbones, wrong files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision.models import resnet18, resnet50
from torchvision.models._api import WeightsEnum
from torchvision.models.detection import retinanet_resnet50_fpn, retinanet_resnet50_fpn_v2

from retina_dist.base.errors import CheckpointError, UserError
from retina_dist.config.compose import load_config
from retina_dist.detection.detector import Detector
from retina_dist.detection.model.build import build_model
from retina_dist.detection.model.retinanet import build_retinanet
from retina_dist.detection.model.weights import batch_norm_eps, load_backbone_weights, load_weights
from retina_dist.detection.settings import ModelConfig
from retina_dist.detection.splits import read_split
from retina_dist.detection.task import DetectionTask
from retina_dist.engine.checkpoint.store import sealed
from retina_dist.run.assemble import train
from tests.unit.strategies.test_strategy_base import ThreadRank, on_ranks


def small(num_classes: int = 3, **changes: object) -> torch.nn.Module:
    return build_retinanet(num_classes=num_classes, backbone="resnet18", fpn_channels=32, **changes)  # type: ignore[arg-type]


def test_state_dicts_go_both_ways(tmp_path: Path) -> None:
    ours = build_retinanet(num_classes=91)
    theirs = retinanet_resnet50_fpn(weights=None, weights_backbone=None)
    theirs.load_state_dict(ours.state_dict())
    torch.save(theirs.state_dict(), tmp_path / "weights.pth")
    other = build_retinanet(num_classes=91)
    report = load_weights(other, str(tmp_path / "weights.pth"))
    assert (report.missing, report.left_over, report.misfits) == ((), (), ())
    assert all(
        torch.equal(a, b)
        for a, b in zip(other.state_dict().values(), ours.state_dict().values(), strict=True)
    )


def test_old_head_names_are_understood(tmp_path: Path) -> None:
    """torchvision's published v1 file has head.*.conv.{0,2,4,6}.weight, from before its heads were
    renamed.
    """
    model = small()
    state = {}
    for name, value in model.state_dict().items():
        parts = name.split(".")
        if parts[0] == "head" and parts[2] == "conv":
            name = ".".join([*parts[:3], str(int(parts[3]) * 2), parts[5]])
        state[name] = value
    torch.save(state, tmp_path / "old.pth")
    report = load_weights(small(), str(tmp_path / "old.pth"))
    assert (report.missing, report.left_over, report.misfits) == ((), (), ())


def test_the_class_layer_follows_the_names_of_the_categories(tmp_path: Path) -> None:
    """Labels are numbered by each data set.

    With as many classes, the shape alone does not tell which row is whose.
    """
    source = small(num_classes=3)
    names = ["dog", "", "cat"]
    torch.save(
        {"model": source.state_dict(), "categories": {"ids": [1, -1, 3], "names": names}},
        tmp_path / "a.pt",
    )
    weights = source.state_dict()["head.classification_head.cls_logits.weight"]
    found = small(num_classes=3)
    key = "head.classification_head.cls_logits.weight"
    orders: tuple[tuple[list[str] | None, list[int]], ...] = (
        (["dog", "", "cat"], [0, 1, 2]),
        (["cat", "dog", ""], [2, 0, 1]),
        (
            ["", "dog", ""],
            [1, 0, 2],
        ),  # fewer categories, as a part of COCO whose labels are the ids
        (None, [0, 1, 2]),
    )
    for ours, order in orders:
        report = load_weights(found, str(tmp_path / "a.pt"), ours)
        assert report.misfits == ()
        expected = weights.unflatten(0, (-1, 3))[:, order].flatten(0, 1)
        assert torch.equal(found.state_dict()[key], expected)
        bias = source.state_dict()["head.classification_head.cls_logits.bias"].unflatten(
            0, (-1, 3)
        )[:, order]
        assert torch.equal(
            found.state_dict()["head.classification_head.cls_logits.bias"], bias.flatten()
        )
    before = (found := small(num_classes=3)).state_dict()[key].clone()
    report = load_weights(found, str(tmp_path / "a.pt"), ["dog", "", "tree"])
    why = "of other categories than the model's (tree)"
    assert report.misfits == tuple(
        f"head.classification_head.cls_logits.{part}: {why}" for part in ("weight", "bias")
    )
    assert torch.equal(found.state_dict()[key], before)


def saved(tmp_path: Path, state: dict[str, torch.Tensor], **beside: object) -> str:
    """A file with that state, as training scripts nest it."""
    torch.save({"model": state, **beside}, tmp_path / "saved.pth")
    return str(tmp_path / "saved.pth")


@pytest.mark.parametrize(
    ("norm", "prefix"), [("frozen_bn", ""), ("bn", "module."), ("sync_bn", "backbone.body.")]
)
def test_backbone_from_a_classifier_with_any_prefix(tmp_path: Path, norm: str, prefix: str) -> None:
    classifier = resnet18(weights=None)
    source = saved(
        tmp_path, {f"{prefix}{name}": value for name, value in classifier.state_dict().items()}
    )
    model = small(norm=norm)
    head = model.head.classification_head.cls_logits.weight.clone()
    report = load_backbone_weights(model, source, "resnet18")
    fc = [f"{'' if prefix == 'module.' else prefix}fc.{part}" for part in ("weight", "bias")]
    assert (len(report.loaded), report.missing, list(report.left_over), report.misfits) == (
        100,
        (),
        fc,
        (),
    )
    assert (
        str(report).splitlines()[0]
        == f"{source}: 100 tensors loaded, 0 missing, 2 left over, 0 misfits"
    )
    for name, value in model.backbone.body.state_dict().items():
        assert torch.equal(value, classifier.state_dict()[name]), name
    assert torch.equal(model.head.classification_head.cls_logits.weight, head)


def test_a_backbone_says_what_it_lacks_and_is_refused_for_another_network(tmp_path: Path) -> None:
    state = resnet18(weights=None).state_dict()
    other = {**state, "layer4.1.conv2.weight": torch.zeros(3), "extra": torch.zeros(1)}
    del other["bn1.bias"]
    report = load_backbone_weights(small(), saved(tmp_path, other), "resnet18")
    assert report.missing == ("backbone.body.bn1.bias",)
    assert report.left_over == ("fc.weight", "fc.bias", "extra")
    assert report.misfits == (
        "layer4.1.conv2.weight: [3] in the file, [512, 512, 3, 3] in the model",
    )
    assert "\n  missing    backbone.body.bn1.bias\n" in str(report)
    large = build_retinanet(num_classes=2, backbone="resnet50", fpn_channels=32)
    with pytest.raises(
        CheckpointError,
        match="holds only 77 of the 265 tensors of a resnet50 .*; set model.backbone to",
    ):
        load_backbone_weights(large, saved(tmp_path, state), "resnet50")


def test_a_detector_on_another_network_is_refused(tmp_path: Path) -> None:
    """Although most tensors of the smaller one fit: they are of other layers."""
    torch.save(build_retinanet(num_classes=3, fpn_channels=32).state_dict(), tmp_path / "r50.pth")
    with pytest.raises(
        CheckpointError, match=r"r50\.pth is of another detector, with \d+ tensors of another shape"
    ):
        load_weights(small(), str(tmp_path / "r50.pth"))


def test_torchvisions_backbones_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []
    state = resnet50(weights=None).state_dict()
    monkeypatch.setattr(
        WeightsEnum,
        "get_state_dict",
        lambda self, *args, **kwargs: found.append(str(self)) or state,
    )
    settings = ModelConfig(
        backbone="resnet50", fpn_channels=32, norm="frozen_bn", backbone_weights="DEFAULT"
    )
    model = build_model(settings, 3)
    assert found == ["ResNet50_Weights.IMAGENET1K_V2"]
    assert torch.equal(model.backbone.body.layer4[2].conv2.weight, state["layer4.2.conv2.weight"])


def settings_with(weights: str, **changes: object) -> ModelConfig:
    return ModelConfig(
        fpn_channels=32,
        weights=weights,
        **{"backbone": "resnet18", "norm": "frozen_bn", **changes},  # type: ignore[arg-type]
    )


COCO_V1 = "RetinaNet_ResNet50_FPN_Weights.COCO_V1"


def test_every_rank_has_the_epsilon_of_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not a tensor, and only the main rank has weights: torchvision's, a checkpoint of ours,
    or that of a resumed run.
    """
    published = build_retinanet(
        num_classes=3, backbone="resnet50", fpn_channels=32, norm="frozen_bn"
    ).state_dict()
    monkeypatch.setattr(WeightsEnum, "get_state_dict", lambda self, *args, **kwargs: published)
    shapes = ["data.shapes.num_train=4", "data.shapes.num_val=2", "data.shapes.image_size=64"]
    config = load_config("train", [*shapes, f"data.root={tmp_path / 'data'}"])

    def ranks(settings: ModelConfig, resumed: dict | None = None) -> list[Any]:
        """The epsilon of each rank's model, or the error there.

        The checkpoint of a run resumed is the main rank's.
        """

        def build(strategy: ThreadRank) -> float | None:
            task = DetectionTask(replace(config, model=settings), strategy)
            model = task.build_model(resumed is not None, resumed if strategy.is_main else None)
            contents.append(
                {"step": 1, "model": model.state_dict(), "ema": None, **task.metadata(model)}
            )
            return batch_norm_eps(model)

        read_split(config.data, "train")  # drawn once
        return on_ranks(2, build)

    contents: list[dict] = []
    assert ranks(settings_with(COCO_V1, backbone="resnet50")) == [0.0, 0.0]
    assert [content["model_arguments"]["norm_eps"] for content in contents] == [0.0, 0.0]
    checkpoint, path = contents[0], tmp_path / "ours.pt"
    path.write_bytes(sealed(checkpoint))
    assert batch_norm_eps(Detector.from_checkpoint(path).model) == 0.0
    assert ranks(settings_with(str(path), backbone="resnet50")) == [0.0, 0.0]
    monkeypatch.setattr(
        WeightsEnum,
        "get_state_dict",
        lambda *args, **kwargs: pytest.fail("a resumed run has its weights"),
    )
    assert ranks(settings_with(COCO_V1, backbone="resnet50"), checkpoint) == [0.0, 0.0]


def test_a_detector_of_torchvisions_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    published = retinanet_resnet50_fpn_v2(weights=None, weights_backbone=None).state_dict()
    monkeypatch.setattr(WeightsEnum, "get_state_dict", lambda self, *args, **kwargs: published)
    detector = Detector.from_checkpoint("RetinaNet_ResNet50_FPN_V2_Weights.COCO_V1")
    assert detector.categories.num_classes == 91
    assert detector.categories.label_of[90] == 90
    assert detector.categories.names[18] == "dog"
    assert 0 not in detector.categories.ids  # torchvision's __background__
    assert 12 not in detector.categories.ids  # a gap in COCO's ids
    assert torch.equal(
        detector.model.state_dict()["head.classification_head.cls_logits.bias"],
        published["head.classification_head.cls_logits.bias"],
    )


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ("weights=nowhere.pt", "nowhere.pt is neither a file nor"),
        (
            "weights=COCO_V9",
            "RetinaNet_ResNet50_FPN_V2_Weights.COCO_V9 is not known to torchvision",
        ),
        ("backbone_weights=IMAGENET1K_V9", "is not for resnet18; use one of IMAGE"),
        ("weights=nowhere.pt task=classification data=folders", "nowhere.pt is neither a file nor"),
    ],
)
def test_a_dry_run_looks_for_the_weights_before_the_data(overrides: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        train(
            load_config(
                "train",
                ["data=coco", "data.root=absent", "dry_run=true", *f"model.{overrides}".split()],
            )
        )


def test_wrong_sources_are_named(tmp_path: Path) -> None:
    (tmp_path / "text.pt").write_text("hello")
    with pytest.raises(CheckpointError, match="cannot be read as a file of tensors"):
        load_weights(small(), str(tmp_path / "text.pt"))
    torch.save({"a": torch.zeros(1)}, tmp_path / "other.pt")
    with pytest.raises(
        CheckpointError,
        match="holds only 0 of the .* a detector .first: a.; .*model.backbone_weights=.*if it is of a classifier",
    ):
        load_weights(small(), str(tmp_path / "other.pt"))
