"""The REST endpoint in process: limits, batches, metrics and the end."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest

from retina_dist.base.errors import ConfigError
from retina_dist.detection.detector import Detector, ImageResult
from retina_dist.serving.scoring import RequestError, Scorer
from retina_dist.serving.server import listen
from retina_dist.serving.settings import ServeConfig
from tests.commands import wait_for
from tests.unit.serving.server import (
    MAX_PIXELS,
    REFUSALS,
    as_json,
    as_multipart,
    expected,
    found_in,
    make_image,
    small_detector,
)

pytest.importorskip("fastapi", reason="the extra [serve] is not installed")
pytest.importorskip("httpx2", reason="FastAPI's test client needs httpx2")

import httpx2
import uvicorn
from fastapi.testclient import TestClient
from pydantic import TypeAdapter

from retina_dist.serving.endpoints import create_app

PNG = {"Content-Type": "image/png"}
JSON = {"Content-Type": "application/json"}


def app_of(scorer: Any, **settings: Any) -> Any:
    return create_app(scorer, ServeConfig(checkpoint="none", **settings))


@pytest.fixture(scope="module")
def detector() -> Detector:
    return small_detector()


@pytest.fixture(scope="module")
def client(detector: Detector) -> Iterator[TestClient]:
    with TestClient(app_of(Scorer(detector, max_pixels=MAX_PIXELS))) as client:
        yield client


class Fake:
    """A scorer that answers with the length of an image, once `go` is set."""

    Answer = dict[str, Any]

    def __init__(self, goes: bool = True) -> None:
        self.begun = threading.Event()
        self.go = threading.Event()
        self.seen: list[bytes] = []
        if goes:
            self.go.set()

    def prepare(self, data: bytes, i: int) -> bytes:
        if data.startswith(b"bad"):
            raise RequestError(400, f"image {i}: it is bad")
        return data

    def predict(self, images: Sequence[bytes]) -> list[dict[str, Any]]:
        self.seen += images
        self.begun.set()
        assert self.go.wait(30)
        if b"crash" in images:
            raise ZeroDivisionError
        return [{"width": len(data)} for data in images]


def metric(client: TestClient, name: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name} "))


# Requests


def test_answers_are_those_of_predict(client: TestClient, detector: Detector) -> None:
    wide, turned = make_image(1, (120, 50)), make_image(2, (80, 60), "JPEG", orientation=6)
    answer = client.post("/score", content=as_json(wide, turned), headers=JSON).json()
    first, second = answer["images"]
    assert [(p["width"], p["height"]) for p in (first, second)] == [
        (120, 50),
        (60, 80),
    ]  # as it is displayed
    assert len(found_in(first)) > 5
    assert found_in(first) == expected(detector, wide)
    assert found_in(second) == expected(detector, turned)
    assert {(d["category_id"], d["category_name"]) for d in first["detections"]} <= {
        (3, "cat"),
        (8, "dog"),
    }
    assert client.post("/score", content=wide, headers=PNG).json() == {"images": [first]}
    kind, body = as_multipart(wide, turned)
    assert client.post("/score", content=body, headers={"Content-Type": kind}).json() == answer
    TypeAdapter(list[ImageResult]).validate_python(answer["images"])
    assert "ImageResult" in client.get("/openapi.json").json()["components"]["schemas"]


@pytest.mark.parametrize(("content_type", "body", "status", "words"), REFUSALS)
def test_refusals_have_a_status_and_a_reason(
    client: TestClient, content_type: str, body: bytes, status: int, words: str
) -> None:
    response = client.post("/score", content=body, headers={"Content-Type": content_type})
    assert (response.status_code, words in response.json()["detail"]) == (status, True), (
        response.json()
    )


@pytest.mark.parametrize("settings", [{}, {"max_batch": 8, "wait_ms": 20.0}])
def test_each_answer_is_of_its_own_image_beside_bad_requests(settings: dict[str, Any]) -> None:
    with TestClient(app_of(Fake(), **settings)) as client, ThreadPoolExecutor(16) as pool:

        def ask(i: int) -> tuple[int, Any]:
            bodies = [b"x" * (i + 1), b"y" * (1000 + i)] + [b"bad"] * (i % 5 == 0)
            response = client.post("/score", content=as_json(*bodies), headers=JSON)
            return response.status_code, response.json()

        for i, (status, answer) in enumerate(pool.map(ask, range(60))):
            if i % 5 == 0:
                assert (status, answer["detail"]) == (400, "image 2: it is bad")
            else:
                assert (status, answer) == (
                    200,
                    {"images": [{"width": i + 1}, {"width": 1000 + i}]},
                )
        assert metric(client, "retina_dist_queue_images") == 0


def test_a_bomb_is_not_decoded(detector: Detector, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import PngImagePlugin

    monkeypatch.setattr(
        PngImagePlugin.PngImageFile, "load", lambda self: pytest.fail("it was decoded")
    )
    with pytest.raises(RequestError, match="more than max_pixels"):
        Scorer(detector, max_pixels=MAX_PIXELS).prepare(make_image(size=(150, 134)), 0)


def test_the_body_has_a_limit() -> None:
    sent: list[int] = []

    def chunks() -> Iterator[bytes]:
        for i in range(9):
            sent.append(i)
            yield bytes(1000)

    with TestClient(app_of(Fake(), max_body_mb=0.003)) as client:
        for size, status in ((3000, 200), (3001, 413)):
            assert client.post("/score", content=bytes(size), headers=PNG).status_code == status
        response = client.post("/score", content=chunks(), headers=PNG)  # no Content-Length
        assert "content-length" not in response.request.headers
        assert (response.status_code, "larger than 3000 bytes" in response.json()["detail"]) == (
            413,
            True,
        )


def test_the_key() -> None:
    with TestClient(app_of(Fake(), api_key="schlüssel")) as client:
        for given in (
            None,
            "Bearer",
            "Bearer wrong",
            "Basic schlüssel",
            "Bearer schlüsse",
            "Bearer \xff",
        ):
            headers = {"Authorization": given.encode()} if given else {}
            response = client.post("/score", content=b"", headers=headers)
            assert response.status_code == 401, given
            assert response.headers["WWW-Authenticate"] == "Bearer"
        right = {"Authorization": "Bearer schlüssel".encode(), **PNG}
        assert client.post("/score", content=b"abc", headers=right).status_code == 200
        for path in ("/healthz", "/readyz", "/metrics"):
            assert client.get(path).status_code == 200


def test_a_full_queue_refuses_and_what_waits_becomes_one_batch() -> None:
    fake = Fake(goes=False)
    with (
        TestClient(app_of(fake, max_queue=4, max_images=4, max_batch=8)) as client,
        ThreadPoolExecutor(4) as pool,
    ):
        first = pool.submit(client.post, "/score", content=b"1", headers=PNG)
        assert fake.begun.wait(30)
        others = [
            pool.submit(client.post, "/score", content=b"x" * i, headers=PNG) for i in (2, 3, 4)
        ]
        wait_for(lambda: metric(client, "retina_dist_queue_images") == 4)
        refused = client.post("/score", content=b"x", headers=PNG)
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
        assert client.get("/readyz").text == "ready"
        fake.go.set()
        assert [answer.result(30).json()["images"][0]["width"] for answer in (first, *others)] == [
            1,
            2,
            3,
            4,
        ]
        assert metric(client, 'retina_dist_requests_total{code="200"}') == 4
        assert metric(client, 'retina_dist_requests_total{code="429"}') == 1
        assert metric(client, "retina_dist_batch_images_sum") == 4
        assert metric(client, "retina_dist_batch_images_count") == 2
        assert metric(client, "retina_dist_request_seconds_count") == 5


def test_an_error_of_ours_is_500_and_the_server_goes_on() -> None:
    with TestClient(app_of(Fake()), raise_server_exceptions=False) as client:
        response = client.post("/score", content=b"crash", headers=PNG)
        assert response.status_code == 500
        assert "ivision" not in response.text
        assert client.post("/score", content=b"1", headers=PNG).status_code == 200
        assert metric(client, 'retina_dist_requests_total{code="500"}') == 1
        assert metric(client, "retina_dist_queue_images") == 0


def test_the_docs_load_nothing_from_elsewhere_and_nothing_redirects(client: TestClient) -> None:
    page = client.get("/docs").text
    links = re.findall(r"""(?:src|href|url)\s*[=:]\s*["']([^"']+)""", page)
    assert any(link.endswith(".js") for link in links)
    assert [link for link in links if urlsplit(link).netloc] == []
    assert {link: client.get(link).status_code for link in links} == dict.fromkeys(links, 200)
    assert '"validatorUrl": null' in page  # else it sends our address to a host of Swagger's
    assert "http" not in page
    assert (
        client.post("/score/", headers={"Host": "evil.example"}, follow_redirects=False).status_code
        == 404
    )


def test_another_route_or_a_limit_in_a_request_names_the_remedy(client: TestClient) -> None:
    for answer, status in {
        client.post("/predict"): 404,
        client.get("/score"): 405,
    }.items():
        assert answer.status_code == status
        assert "POST images to /score" in answer.json()["detail"]
    for name, limit in {"conf": "score_threshold", "nms_threshold": "nms_threshold"}.items():
        answer = client.post(f"/score?{name}=0.5")
        assert (answer.status_code, answer.json()["detail"]) == (
            400,
            f"{name} is not of a request; start serve with {limit}=….",
        )
    assert client.post("/score?trace=1").status_code == 415


# Settings


@pytest.mark.parametrize("host", ["a" * 300, "a\0b", "192.0.2.1"])
def test_an_address_that_cannot_be_listened_on(host: str) -> None:
    with pytest.raises(ConfigError, match="cannot be listened on"):
        listen(host, 0)
    with listen("127.0.0.1", 0) as busy, pytest.raises(ConfigError, match="cannot be listened on"):
        listen("127.0.0.1", busy.getsockname()[1])


# The end of the process


def test_a_request_that_takes_longer_than_the_shutdown_gets_503() -> None:
    fake = Fake(goes=False)
    config = uvicorn.Config(
        app_of(fake), http="httptools", ws="none", log_level="error", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(2) as pool:
        serving = pool.submit(server.run, [listener])
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/score"
        answer = pool.submit(httpx2.post, address, content=b"1", headers=PNG, timeout=60)
        assert fake.begun.wait(30)
        server.should_exit = True
        assert answer.result().status_code == 503
        assert "the server is shutting down" in answer.result().text
        fake.go.set()
        serving.result(30)
