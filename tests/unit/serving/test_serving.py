"""The scoring that every server shares, the batches, and the REST endpoint in process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from retina_dist.data.images import decode_image
from retina_dist.detection.detector import Detector
from retina_dist.detection.serving import DetectionScorer, ImageResult
from retina_dist.serving.batcher import Batcher
from retina_dist.serving.scoring import RequestError, read_images
from tests.unit.serving.server import MAX_PIXELS, as_json, as_multipart, expected, found_in, make_image, small_detector

pytest.importorskip("fastapi", reason="the extra [serve] is not installed")
pytest.importorskip("httpx2", reason="FastAPI's test client needs httpx2")

from fastapi.testclient import TestClient
from pydantic import TypeAdapter

from retina_dist.serving.app import Limits, create_app


@pytest.fixture(scope="module")
def detector() -> Detector:
    return small_detector()


@pytest.fixture(scope="module")
def scorer(detector: Detector) -> DetectionScorer:
    return DetectionScorer(detector, max_pixels=MAX_PIXELS)


@pytest.fixture(scope="module")
def client(scorer: DetectionScorer) -> Iterator[TestClient]:
    with TestClient(create_app(scorer)) as client:
        yield client


# Scoring


def test_the_content_types() -> None:
    one, two = make_image(), make_image(1)
    assert read_images("image/png", one) == [one]
    assert read_images("Image/JPEG; q=1", one) == [one]
    assert read_images("application/octet-stream", one) == [one]
    assert read_images("application/json; charset=utf-8", as_json(one, two)) == [one, two]
    assert read_images(*as_multipart(two, one)) == [two, one]


def test_a_bomb_is_not_decoded(scorer: DetectionScorer, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import PngImagePlugin

    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", lambda self: pytest.fail("it was decoded"))
    with pytest.raises(RequestError, match="more than max_pixels"):
        scorer.read("image/png", make_image(size=(150, 134)))
    with pytest.raises(RequestError, match="more than max_pixels"):
        scorer.prepare(make_image(size=(150, 134)), 0)


def test_detections_below_the_threshold_are_left_out(detector: Detector) -> None:
    everything = DetectionScorer(detector).score("image/png", make_image())["images"][0]["detections"]
    middle = everything[len(everything) // 2]["score"]
    (entry,) = DetectionScorer(detector, score_threshold=middle).score("image/png", make_image())["images"]
    assert entry["detections"] == [found for found in everything if found["score"] >= middle]
    assert 0 < len(entry["detections"]) < len(everything)


def test_images_of_one_canvas_share_a_pass(detector: Detector, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = ((90, 60), (60, 90), (96, 64), (60, 90), (90, 60))
    images = [decode_image(make_image(i, size)) for i, size in enumerate(sizes)]
    alone = detector.predict(images)
    passes = []
    detect = detector._detect
    monkeypatch.setattr(detector, "_detect", lambda batch: passes.append(len(batch)) or detect(batch))
    together = detector.run([detector.prepare(image) for image in images])
    assert passes == [3, 2]
    for one, other in zip(alone, together, strict=True):
        torch.testing.assert_close(dict(one), dict(other), rtol=1e-4, atol=1e-3)
    assert detector.run([]) == []


# Batches


def test_items_that_wait_are_taken_together() -> None:
    batches: list[list[int]] = []
    begin, hold = threading.Event(), threading.Event()

    def run(items: Sequence[int]) -> list[int]:
        batches.append(list(items))
        begin.set()
        hold.wait(10)
        return [2 * item for item in items]

    batcher: Batcher[int, int] = Batcher(run, max_batch=3, wait_s=0.0)
    futures = [batcher.submit(0)]
    begin.wait(10)  # the worker is busy with the first
    futures += [batcher.submit(i) for i in range(1, 8)]
    assert futures[7].cancel()
    hold.set()
    assert [future.result(10) for future in futures[:7]] == [0, 2, 4, 6, 8, 10, 12]
    batcher.close()
    assert batches == [[0], [1, 2, 3], [4, 5, 6]]
    assert not batcher.alive
    with pytest.raises(RuntimeError, match="closed"):
        batcher.submit(1)


def test_a_full_batch_does_not_wait_and_a_lone_item_not_for_long() -> None:
    batcher: Batcher[int, int] = Batcher(list, max_batch=2, wait_s=30.0)
    assert [f.result(10) for f in [batcher.submit(1), batcher.submit(2)]] == [1, 2]  # else half a minute
    last = batcher.submit(3)
    batcher.close()  # what was taken is finished, and nothing is waited for
    assert last.result(0) == 3
    brief: Batcher[int, int] = Batcher(list, max_batch=2, wait_s=0.01)
    assert brief.submit(1).result(10) == 1
    brief.close()


def test_an_error_is_that_of_its_batch_only() -> None:
    def run(items: Sequence[int]) -> list[float]:
        return [1 / item for item in items]

    batcher: Batcher[int, float] = Batcher(run, max_batch=1, wait_s=0.0)
    bad, good = batcher.submit(0), batcher.submit(2)
    with pytest.raises(ZeroDivisionError):
        bad.result(10)
    assert good.result(10) == 0.5
    batcher.close()


# The endpoint


def test_without_a_content_type(client: TestClient) -> None:
    response = client.post("/score", content=make_image())
    assert (response.status_code, "no content type" in response.json()["detail"]) == (415, True)


def test_the_body_has_a_limit(scorer: DetectionScorer) -> None:
    image = make_image()
    headers = {"Content-Type": "image/png"}

    def chunks() -> Iterator[bytes]:
        for i in range(0, len(image), 1000):
            sent.append(i)
            yield image[i : i + 1000]

    for limit, status in ((len(image), 200), (len(image) - 1, 413)):
        with TestClient(create_app(scorer, Limits(max_body=limit))) as client:
            sent: list[int] = []
            assert client.post("/score", content=image, headers=headers).status_code == status
            response = client.post("/score", content=chunks(), headers=headers)  # no Content-Length
            assert "content-length" not in response.request.headers
            assert response.status_code == status
    assert "larger than" in response.json()["detail"]


def test_the_key(scorer: DetectionScorer) -> None:
    image = {"content": make_image(), "headers": {"Content-Type": "image/png"}}
    with TestClient(create_app(scorer, Limits(max_body=1), api_key="schlüssel")) as client:
        for given in (None, "Bearer", "Bearer wrong", "Basic schlüssel", "Bearer schlüsse", "Bearer \xff"):
            headers = {"Authorization": given.encode()} if given else {}
            response = client.post("/score", content=b"", headers=headers)
            assert response.status_code == 401, given
            assert response.headers["WWW-Authenticate"] == "Bearer"
        right = client.post("/score", content=b"", headers={"Authorization": "Bearer schlüssel".encode()})
        assert right.status_code != 401
    with TestClient(create_app(scorer, api_key="abc")) as client:
        headers = {"Authorization": "Bearer abc", "Content-Type": "image/png"}
        assert client.post("/score", content=image["content"], headers=headers).status_code == 200
        for path in ("/healthz", "/readyz", "/metrics"):
            assert client.get(path).status_code == 200


class Slow:
    """A scorer that waits for `go` before it predicts."""

    result = ImageResult

    def __init__(self, scorer: DetectionScorer) -> None:
        self.scorer, self.begun, self.go = scorer, threading.Event(), threading.Event()
        self.read, self.prepare = scorer.read, scorer.prepare

    def predict(self, images: Sequence[Any]) -> list[dict[str, Any]]:
        self.begun.set()
        assert self.go.wait(30)
        return self.scorer.predict(images)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def gauge(client: TestClient, name: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name} "))


def test_a_full_queue_refuses_and_what_waits_becomes_one_batch(scorer: DetectionScorer, detector: Detector) -> None:
    slow = Slow(scorer)
    limits = Limits(max_queue=4, max_batch=8)
    headers = {"Content-Type": "image/png"}
    with TestClient(create_app(slow, limits)) as client, ThreadPoolExecutor(4) as pool:  # type: ignore[arg-type]
        many = client.post("/score", content=as_json(*[make_image()] * 5), headers={"Content-Type": "application/json"})
        assert many.status_code == 413
        first = pool.submit(client.post, "/score", content=make_image(0), headers=headers)
        assert slow.begun.wait(30)
        others = [pool.submit(client.post, "/score", content=make_image(i), headers=headers) for i in (1, 2, 3)]
        wait_for(lambda: gauge(client, "retina_dist_queue_images") == 4)
        refused = client.post("/score", content=make_image(), headers=headers)
        assert refused.status_code == 429
        assert refused.headers["Retry-After"] == "1"
        assert client.get("/readyz").status_code == 200
        slow.go.set()
        for i, answer in enumerate([first, *others]):
            (entry,) = answer.result(30).json()["images"]
            wanted = expected(detector, make_image(i))
            assert [c for c, _, _ in found_in(entry)] == [c for c, _, _ in wanted]
            boxes, exact = ([box for _, box, _ in rows] for rows in (found_in(entry), wanted))
            torch.testing.assert_close(torch.tensor(boxes), torch.tensor(exact), rtol=1e-4, atol=1e-3)
        assert gauge(client, "retina_dist_queue_images") == 0
        assert gauge(client, 'retina_dist_requests_total{code="200"}') == 4
        assert gauge(client, 'retina_dist_requests_total{code="429"}') == 1
        assert gauge(client, 'retina_dist_requests_total{code="413"}') == 1
        assert gauge(client, "retina_dist_batch_images_sum") == 4
        assert gauge(client, "retina_dist_batch_images_count") <= 3  # the first alone, the others together
        assert gauge(client, "retina_dist_request_seconds_count") == 6


def test_the_end_answers_what_was_taken(scorer: DetectionScorer) -> None:
    slow = Slow(scorer)
    app = create_app(slow)  # type: ignore[arg-type]
    with TestClient(app) as client, ThreadPoolExecutor(4) as pool:
        assert client.get("/readyz").text == "ready"
        headers = {"Content-Type": "image/png"}
        taken: list[Any] = []
        submit = app.state.batcher.submit
        app.state.batcher.submit = lambda *arguments: taken.append(submit(*arguments)) or taken[-1]
        answers = [pool.submit(client.post, "/score", content=make_image(i), headers=headers) for i in (0, 1)]
        assert slow.begun.wait(30)
        wait_for(lambda: len(taken) == 2)  # decoded, and so promised
        end = pool.submit(app.state.batcher.close)
        wait_for(lambda: client.get("/readyz").status_code == 503)
        assert client.get("/healthz").status_code == 200
        slow.go.set()
        end.result(30)
        assert [answer.result(30).status_code for answer in answers] == [200, 200]


def test_an_error_of_ours_is_500_and_the_server_goes_on(
    scorer: DetectionScorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = {"Content-Type": "image/png"}
    with TestClient(create_app(scorer), raise_server_exceptions=False) as client:
        with monkeypatch.context() as patch:
            patch.setattr(scorer, "predict", lambda images: 1 / 0)
            response = client.post("/score", content=make_image(), headers=headers)
        assert response.status_code == 500
        assert "division" not in response.text
        assert client.post("/score", content=make_image(), headers=headers).status_code == 200
        assert gauge(client, 'retina_dist_requests_total{code="500"}') == 1
        assert gauge(client, "retina_dist_queue_images") == 0


def test_openapi_describes_it(client: TestClient) -> None:
    answer = client.post("/score", content=make_image(), headers={"Content-Type": "image/png"}).json()
    assert TypeAdapter(list[ImageResult]).dump_python(answer["images"], mode="json") == answer["images"]
    described = client.get("/openapi.json").json()
    assert set(described["components"]["schemas"]) >= {"ScoreResponse", "ImageResult", "Detection", "ErrorResponse"}
    score = described["paths"]["/score"]["post"]
    assert set(score["requestBody"]["content"]) >= {"image/*", "multipart/form-data", "application/json"}
    assert set(score["responses"]) >= {"200", "400", "401", "413", "415", "429"}
    assert client.get("/score").status_code == 405
