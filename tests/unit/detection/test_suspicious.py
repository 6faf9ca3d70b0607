"""Labels that a detector doubts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from retina_dist.detection.readers.categories import Categories
from retina_dist.detection.readers.load import load_annotations
from retina_dist.detection.suspicious import (
    examine_labels,
    suspects_of,
    write_page,
    write_proposals,
)
from retina_dist.task.settings import DoctorConfig
from tests.unit.serving import server

BOX, BESIDE, AWAY = [20.0, 20.0, 40.0, 40.0], [40.0, 20.0, 40.0, 40.0], [120.0, 120.0, 40.0, 40.0]
CAT, DOG = 1, 2


def truth_of(*labels: tuple[list[float], int], crowd: bool = False) -> dict[str, Any]:
    entries = [
        {
            "id": 10 + i,
            "image_id": 1,
            "category_id": k,
            "bbox": box,
            "area": 1600.0,
            "iscrowd": int(crowd),
        }
        for i, (box, k) in enumerate(labels)
    ]
    categories = [{"id": CAT, "name": "cat"}, {"id": DOG, "name": "<dog>"}]
    images = [{"id": 1, "file_name": "1.jpg", "width": 200, "height": 200}]
    return {"images": images, "annotations": entries, "categories": categories}


def found(
    coco: dict[str, Any], *rows: tuple[list[float], float, int]
) -> list[tuple[str, int | None, int, float]]:
    array = np.array([[1, *box, score, category] for box, score, category in rows]).reshape(-1, 7)
    suspects = suspects_of(coco, array, [1])
    assert [each.suspicion for each in suspects] == sorted(
        (each.suspicion for each in suspects), reverse=True
    )
    return [
        (each.kind, each.replaces, each.category_id, pytest.approx(each.suspicion))
        for each in suspects
    ]


def test_each_kind_of_doubt() -> None:
    one = truth_of((BOX, CAT))
    assert found(one, (BOX, 0.9, CAT)) == [("extra", 10, CAT, 0.05)], "as good as none"
    assert found(one, (BOX, 0.8, DOG)) == [("wrong", 10, DOG, 0.9)]
    assert found(one, (BOX, 0.8, DOG), (BOX, 0.6, CAT))[0] == ("wrong", 10, DOG, 0.4 * 0.9)
    assert found(one, (AWAY, 0.7, DOG), (AWAY, 0.6, CAT), (BOX, 1.0, CAT))[0] == (
        "missing",
        None,
        DOG,
        0.7,
    )
    moved, missing = found(one, (BESIDE, 0.8, CAT))
    agreement = 0.8 * (1 / 3 - 0.3) / 0.4
    assert moved == ("moved", 10, CAT, (1 - agreement) * 0.9)
    assert missing == ("missing", None, CAT, 0.8 * agreement)
    assert found(one, (AWAY, 0.1, CAT))[0] == ("extra", 10, CAT, 0.5), "nothing detected there"
    # The detector sees a second object next to a correctly labelled one: its label is missing.
    assert found(one, (BOX, 1.0, CAT), (BESIDE, 0.8, CAT))[0] == ("missing", None, CAT, 0.8)


def test_crowds_are_not_doubted() -> None:
    crowd = truth_of(([0.0, 0.0, 200.0, 200.0], CAT), crowd=True)
    assert found(crowd, (BOX, 0.9, CAT), (AWAY, 0.9, DOG)) == []
    assert found(crowd) == []


def test_images_without_a_detection_are_visited() -> None:
    """In any order of the rows; an image that was not read has no suspicious labels."""
    coco = truth_of((BOX, CAT), (AWAY, DOG), (BOX, CAT), (BOX, DOG))
    for entry, image_id in zip(coco["annotations"], (1, 2, 3, 4), strict=True):
        entry["image_id"] = image_id
    rows = np.array([[3, *BOX, 0.8, DOG], [1, *BOX, 0.9, CAT], [3, *BOX, 0.6, CAT]])
    suspects = suspects_of(coco, rows, [1, 2, 3])
    assert [(each.image_id, each.kind, each.suspicion) for each in suspects] == [
        (2, "extra", 0.5),
        (3, "wrong", pytest.approx(0.4 * 0.9)),
        (1, "extra", pytest.approx(0.05)),
    ]
    assert found(truth_of((BOX, CAT))) == [("extra", 10, CAT, 0.5)]


def test_both_splits_are_ranked_without_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ground truth beside the pages is not overwritten. Nothing is detected, so that each label
    may be too much.
    """
    monkeypatch.setattr("retina_dist.detection.coco_metrics.evaluate_rows", None)
    coco = truth_of((BOX, CAT), (AWAY, DOG))
    (tmp_path / "annotations").mkdir()
    for split in ("train", "val"):
        (tmp_path / split).mkdir()
        Image.new("RGB", (200, 200), "gray").save(tmp_path / split / "1.jpg")
        (tmp_path / "annotations" / f"instances_{split}.json").write_text(json.dumps(coco))
        (tmp_path / f"{split}.json").write_text("{}")
    data = {"name": "cells", "root": str(tmp_path), "num_workers": 0}
    categories = Categories((CAT, DOG), ("cat", "<dog>")).state()
    trained = server.content(num_classes=2, score_threshold=0.9999)
    trained |= {"categories": categories, "config": {"data": data}}
    monkeypatch.setattr("retina_dist.task.predictor.load_checkpoint", lambda path: trained)
    monkeypatch.setattr("retina_dist.detection.suspicious.SHOWN", 1)
    report = examine_labels(DoctorConfig(checkpoint="best.pt", output_dir=str(tmp_path)))
    assert [(each.level, each.where, each.count) for each in report.findings] == [
        ("warning", "train", 2),
        ("warning", "val", 2),
    ]
    for split, fact in zip(("train", "val"), report.facts, strict=True):
        page = tmp_path / f"suspicious_{split}.html"
        assert fact == f"2 labels of {split} to look at, the most suspicious first: {page}"
        assert "<h1>1 of 2 suspicious labels</h1>" in page.read_text()
        assert len(json.loads(page.with_suffix(".json").read_text())["annotations"]) == 2
        assert (tmp_path / f"{split}.json").read_text() == "{}"


def test_page_and_proposals(tmp_path: Path) -> None:
    coco = truth_of((BOX, CAT), (AWAY, DOG))
    Image.new("RGB", (200, 200), "gray").save(tmp_path / "1.jpg")
    (tmp_path / "truth.json").write_text(json.dumps(coco))
    annotations = load_annotations(tmp_path / "truth.json", tmp_path)
    suspects = suspects_of(coco, np.array([[1, *BOX, 0.9, DOG], [1, *AWAY, 1.0, DOG]]), [1])
    write_proposals(coco, suspects[:1], tmp_path / "proposals.json")
    proposals = json.loads((tmp_path / "proposals.json").read_text())
    (proposal,) = proposals["annotations"]
    assert (
        proposal.items()
        >= {"category_id": DOG, "bbox": BOX, "replaces": 10, "kind": "wrong"}.items()
    )
    assert len(load_annotations(tmp_path / "proposals.json", tmp_path).boxes[0]) == 1
    write_page(annotations, suspects[:1], tmp_path / "page.html", 10**6)
    page = (tmp_path / "page.html").read_text()
    assert page.count("<figure>") == page.count("data:image/jpeg;base64,") == 1
    assert "0.95 wrong: 1.jpg" in page
    assert "http" not in page
