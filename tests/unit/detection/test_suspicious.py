"""Labels that a detector doubts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from retina_dist.detection.readers.coco import load_annotations
from retina_dist.detection.suspicious import suspects_of, write_page, write_proposals

BOX, BESIDE, AWAY = [20.0, 20.0, 40.0, 40.0], [40.0, 20.0, 40.0, 40.0], [120.0, 120.0, 40.0, 40.0]
CAT, DOG = 1, 2


def truth_of(*labels: tuple[list[float], int], crowd: bool = False) -> dict[str, Any]:
    entries = [
        {"id": 10 + i, "image_id": 1, "category_id": k, "bbox": box, "area": 1600.0, "iscrowd": int(crowd)}
        for i, (box, k) in enumerate(labels)
    ]
    categories = [{"id": CAT, "name": "cat"}, {"id": DOG, "name": "<dog>"}]
    images = [{"id": 1, "file_name": "1.jpg", "width": 200, "height": 200}]
    return {"images": images, "annotations": entries, "categories": categories}


def found(coco: dict[str, Any], *rows: tuple[list[float], float, int]) -> list[tuple[str, int | None, int, float]]:
    array = np.array([[1, *box, score, category] for box, score, category in rows]).reshape(-1, 7)
    suspects = suspects_of(coco, array)
    assert [each.suspicion for each in suspects] == sorted((each.suspicion for each in suspects), reverse=True)
    return [(each.kind, each.replaces, each.category_id, pytest.approx(each.suspicion)) for each in suspects]


def test_each_kind_of_doubt() -> None:
    one = truth_of((BOX, CAT))
    assert found(one, (BOX, 0.9, CAT)) == [("extra", 10, CAT, 0.05)], "as good as none"
    assert found(one, (BOX, 0.8, DOG)) == [("wrong", 10, DOG, 0.9)]
    assert found(one, (BOX, 0.8, DOG), (BOX, 0.6, CAT))[0] == ("wrong", 10, DOG, 0.4 * 0.9)
    assert found(one, (AWAY, 0.7, DOG), (AWAY, 0.6, CAT), (BOX, 1.0, CAT))[0] == ("missing", None, DOG, 0.7)
    moved, missing = found(one, (BESIDE, 0.8, CAT))
    agreement = 0.8 * (1 / 3 - 0.3) / 0.4
    assert moved == ("moved", 10, CAT, (1 - agreement) * 0.9)
    assert missing == ("missing", None, CAT, 0.8 * agreement)
    assert found(one, (AWAY, 0.1, CAT))[0] == ("extra", 10, CAT, 0.5), "nothing detected there"
    # An object beside one that is well labelled has no label itself.
    assert found(one, (BOX, 1.0, CAT), (BESIDE, 0.8, CAT))[0] == ("missing", None, CAT, 0.8)


def test_crowds_are_not_doubted() -> None:
    crowd = truth_of(([0.0, 0.0, 200.0, 200.0], CAT), crowd=True)
    assert found(crowd, (BOX, 0.9, CAT), (AWAY, 0.9, DOG)) == []


def test_page_and_proposals(tmp_path: Path) -> None:
    coco = truth_of((BOX, CAT), (AWAY, DOG))
    Image.new("RGB", (200, 200), "gray").save(tmp_path / "1.jpg")
    (tmp_path / "truth.json").write_text(json.dumps(coco))
    annotations = load_annotations(tmp_path / "truth.json", tmp_path)
    suspects = suspects_of(coco, np.array([[1, *BOX, 0.9, DOG], [1, *AWAY, 1.0, DOG]]))
    write_proposals(coco, suspects[:1], tmp_path / "proposals.json")
    proposals = json.loads((tmp_path / "proposals.json").read_text())
    (proposal,) = proposals["annotations"]
    assert (proposal["category_id"], proposal["bbox"], proposal["replaces"], proposal["kind"]) == (
        DOG,
        BOX,
        10,
        "wrong",
    )
    assert len(load_annotations(tmp_path / "proposals.json", tmp_path).boxes[0]) == 1
    write_page(annotations, suspects[:1], tmp_path / "page.html", 10**6)
    page = (tmp_path / "page.html").read_text()
    assert page.count("<figure>") == page.count("data:image/jpeg;base64,") == 1
    assert "0.95 wrong: 1.jpg" in page
    assert "http" not in page
