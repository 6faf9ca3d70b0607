"""What the REST endpoint answers, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from retina_dist.detection.detector import Detector
from retina_dist.engine.checkpoint.store import CheckpointStore
from retina_dist.serving.scoring import Scorer
from retina_dist.serving.settings import ServeConfig
from tests.unit.serving.server import (
    MAX_PIXELS,
    REFUSALS,
    as_json,
    as_multipart,
    content,
    expected,
    found_in,
    make_image,
)

MAX_BODY = 150_000
Post = Callable[[str, bytes], tuple[int, Any]]  # content type, body -> status, JSON


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    store = CheckpointStore(folder)
    saved = store.save(content(), 1)
    store.wait()
    (folder / "best.pt").unlink(missing_ok=True)
    return Path(saved).rename(folder / "best.pt")


def rest(checkpoint: Path) -> Iterator[Post]:
    pytest.importorskip("fastapi", reason="the extra [serve] is not installed")
    pytest.importorskip("httpx2", reason="FastAPI's test client needs httpx2")
    from fastapi.testclient import TestClient

    from retina_dist.serving.app import create_app

    detector = Detector.from_checkpoint(checkpoint)
    scorer = Scorer(detector, max_pixels=MAX_PIXELS)
    with TestClient(create_app(scorer, ServeConfig(checkpoint="none", max_body_mb=MAX_BODY / 1e6))) as client:

        def post(content_type: str, body: bytes) -> tuple[int, Any]:
            response = client.post("/score", content=body, headers={"Content-Type": content_type})
            return response.status_code, response.json()

        yield post


@pytest.fixture(scope="module")
def post(checkpoint: Path) -> Iterator[Post]:
    yield from rest(checkpoint)


def test_answers_are_those_of_predict(post: Post, checkpoint: Path) -> None:
    detector = Detector.from_checkpoint(checkpoint)
    wide, turned = make_image(1, (120, 50)), make_image(2, (80, 60), "JPEG", orientation=6)
    status, answer = post("application/json", as_json(wide, turned))
    assert status == 200
    first, second = answer["images"]
    assert [(p["width"], p["height"]) for p in (first, second)] == [(120, 50), (60, 80)]  # as it is displayed
    assert len(found_in(first)) > 5
    assert found_in(first) == expected(detector, wide)
    assert found_in(second) == expected(detector, turned)
    assert {(d["category_id"], d["category_name"]) for d in first["detections"]} <= {(3, "cat"), (8, "dog")}
    assert post("image/png", wide) == (200, {"images": [first]})
    assert post(*as_multipart(wide, turned)) == (200, answer)


@pytest.mark.parametrize(("content_type", "body", "status", "words"), REFUSALS)
def test_refusals_have_a_status_and_a_reason(
    post: Post, content_type: str, body: bytes, status: int, words: str
) -> None:
    answer = post(content_type, body)
    assert answer[0] == status
    assert words in answer[1]["detail"]


def test_the_body_has_a_limit(post: Post) -> None:
    assert post("image/png", bytes(MAX_BODY))[0] == 400
    status, answer = post("image/png", bytes(MAX_BODY + 1))
    assert (status, "larger than 150000 bytes" in answer["detail"]) == (413, True)
