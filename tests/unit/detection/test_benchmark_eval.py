"""The benchmark of a validation: what it makes up looks like COCO, and it sees when results differ."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch

from retina_dist.detection import benchmark_eval as module
from retina_dist.detection.benchmark_eval import (
    benchmark_metric,
    benchmark_post_processing,
    make_outputs,
    make_rows,
    make_truth,
)
from retina_dist.detection.coco_metrics import evaluate_rows
from retina_dist.detection.model.retinanet import build_retinanet
from retina_dist.detection.settings import EvalBenchmarkConfig
from retina_dist.errors import ConfigError

SMALL = EvalBenchmarkConfig(
    num_images=40,
    num_boxes=300,
    num_detections=4000,
    batches=[2],
    canvas=[96, 128],
    num_classes=5,
    rounds=1,
    device="cpu",
)


def test_made_up_boxes_are_as_cocos() -> None:
    config = replace(SMALL, num_images=5000, num_boxes=36_000, num_classes=80)
    rng = np.random.default_rng(0)
    truth = make_truth(config, rng)
    entries = truth["annotations"]
    areas = np.array([entry["area"] for entry in entries])
    # https://cocodataset.org/#detection-eval: 41 % small, 34 % medium, 24 % large; clipping at the image takes some.
    shares = [(areas < 32**2).mean(), ((areas >= 32**2) & (areas < 96**2)).mean(), (areas >= 96**2).mean()]
    assert shares == pytest.approx([0.41, 0.34, 0.24], abs=0.03)
    assert np.mean([entry["iscrowd"] for entry in entries]) == pytest.approx(0.012, abs=0.003)
    assert len({entry["category_id"] for entry in entries}) == 80
    assert 0 < 5000 - len({entry["image_id"] for entry in entries}) < 1000  # images without a box
    x, y, width, height = np.array([entry["bbox"] for entry in entries]).T
    assert (x >= 0).all()
    assert (y >= 0).all()
    assert (x + width <= 640.01).all()
    assert (y + height <= 480.01).all()


def test_made_up_detections_find_something() -> None:
    rng = np.random.default_rng(0)
    truth = make_truth(SMALL, rng)
    rows = make_rows(SMALL, truth, rng)
    assert rows.shape == (4000, 7)
    assert set(rows[:, 0]) <= {image["id"] for image in truth["images"]}
    assert set(rows[:, 6]) <= {category["id"] for category in truth["categories"]}
    assert 0.05 < evaluate_rows(truth, rows).stats["AP"] < 0.6
    assert make_rows(SMALL, {**truth, "annotations": []}, rng).shape == (4000, 7)


def test_made_up_heads_are_as_a_trained_models() -> None:
    outputs, _, batch = make_outputs(build_retinanet(num_classes=80, backbone="resnet18"), 2, (400, 544), seed=0)
    candidates = (outputs["cls_logits"].sigmoid() > 0.05).flatten(1).sum(dim=1)
    assert ((candidates > 300) & (candidates < 3000)).all()
    assert batch.image_sizes.tolist() == [[400, 544], [375, 510]]


def test_another_result_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = benchmark_post_processing(SMALL)
    assert row["same"]
    assert (row["batch"], row["least"] <= row["ratio"] <= row["most"]) == (2, True)
    theirs = module.image_by_image
    for name, change in (("boxes", 2**-10), ("labels", 1), ("scores", 1e-4)):

        def changed(*arguments: object, name: str = name, change: float = change) -> list[dict[str, torch.Tensor]]:
            return [one | {name: one[name] + change} for one in theirs(*arguments)]  # type: ignore[arg-type]

        monkeypatch.setattr(module, "image_by_image", changed)
        assert not benchmark_post_processing(SMALL)[0]["same"], name


def test_the_metric_of_an_evaluator_against_pycocotools(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("faster_coco_eval")
    monkeypatch.setenv("RAYON_NUM_THREADS", "1")
    monkeypatch.setattr(
        module, "ProcessPoolExecutor", lambda count, mp_context: ThreadPoolExecutor(count)
    )  # sooner there
    reference, faster = benchmark_metric(replace(SMALL, backends=["faster-coco-eval"]))
    assert (reference["backend"], faster["backend"]) == ("pycocotools", "faster-coco-eval")
    assert reference["ratio"] == 1.0
    assert faster["ratio"] == pytest.approx(reference["seconds"] / faster["seconds"])
    assert max(faster["stats_differ_by"], faster["precision_differs_by"]) <= 1e-12
    assert "4000 detections" in capsys.readouterr().out


def test_nothing_asked_and_wrong_names() -> None:
    assert benchmark_metric(replace(SMALL, backends=[])) == benchmark_post_processing(replace(SMALL, batches=[])) == []
    with pytest.raises(ConfigError, match="there is no fast"):
        benchmark_metric(replace(SMALL, backends=["fast"]))
    with pytest.raises(ConfigError, match="canvas="):
        benchmark_post_processing(replace(SMALL, canvas=[800]))
