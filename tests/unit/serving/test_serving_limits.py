"""What strangers can do to the server: slow clients, too much at once, settings without sense, an end that must come."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from retina_dist.config.compose import load_config
from retina_dist.errors import ConfigError
from retina_dist.serving.batcher import Batcher
from retina_dist.serving.scoring import read_images
from retina_dist.serving.server import listen
from retina_dist.serving.settings import ServeConfig
from tests.unit.serving.server import as_json

pytest.importorskip("fastapi", reason="the extra [serve] is not installed")
pytest.importorskip("httpx2", reason="FastAPI's test client needs httpx2")

import uvicorn
from fastapi.testclient import TestClient

from retina_dist.serving.app import Limits, create_app
from retina_dist.serving.connections import Connection

ROOT = Path(__file__).resolve().parents[3]


class Fake:
    """A scorer whose images are decoded and found when they are said to be."""

    result = dict[str, Any]

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self.prepared: list[bytes] = []

    def read(self, content_type: str, body: bytes) -> list[bytes]:
        return read_images(content_type, body)

    def prepare(self, data: bytes, i: int) -> bytes:
        self.prepared.append(data)
        self.begun.set()
        assert self.go.wait(30)
        time.sleep(0.05)
        return data

    def predict(self, images: Sequence[bytes]) -> list[dict[str, Any]]:
        return [{"width": len(data), "height": 1, "detections": []} for data in images]


# Requests


def test_owners_take_turns() -> None:
    begun, go = threading.Event(), threading.Event()
    order: list[str] = []

    def run(items: Sequence[str]) -> Sequence[str]:
        begun.set()
        assert go.wait(10)
        order.extend(items)
        return items

    batcher: Batcher[str, str] = Batcher(run, max_batch=2, wait_s=0)
    many = [batcher.submit("a0", "a")]
    assert begun.wait(10)
    many += [batcher.submit(f"a{i}", "a") for i in range(1, 5)]
    one = batcher.submit("b0", "b")
    go.set()
    assert one.result(10) == "b0"
    assert batcher.close(10)
    assert [future.result(0) for future in many] == [f"a{i}" for i in range(5)]
    assert order == ["a0", "a1", "b0", "a2", "a3", "a4"]


def test_a_batch_that_does_not_end_does_not_hold_the_end_up() -> None:
    go = threading.Event()
    batcher: Batcher[int, int] = Batcher(lambda items: go.wait(30) and list(items), max_batch=1, wait_s=0, threads=2)
    futures = [batcher.submit(i) for i in range(2)]
    assert not batcher.close(0.1)
    go.set()
    assert [future.result(10) for future in futures] == [0, 1]
    assert batcher.close(10)


def test_a_request_of_many_images_delays_another_by_one() -> None:
    fake = Fake()
    limits = Limits(prepare_threads=1)
    with TestClient(create_app(fake, limits)) as client, ThreadPoolExecutor(2) as pool:  # type: ignore[arg-type]
        headers = {"Content-Type": "application/json"}
        many = pool.submit(client.post, "/score", content=as_json(*[b"many"] * 8), headers=headers)
        assert fake.begun.wait(30)
        one = pool.submit(client.post, "/score", content=as_json(b"one"), headers=headers)
        while "queue_images 9.0" not in client.get("/metrics").text:
            time.sleep(0.01)
        fake.go.set()
        assert one.result(30).json()["images"][0]["width"] == 3
        assert len(many.result(30).json()["images"]) == 8
    assert fake.prepared.index(b"one") <= 4  # its body is read in between too


def test_brackets_are_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """They held all threads up, and so all endpoints."""
    monkeypatch.setattr("json.loads", lambda text: pytest.fail("it was parsed"))
    with TestClient(create_app(Fake())) as client:  # type: ignore[arg-type]
        body = b"[" + b"[]," * 300_000 + b"[]]"
        assert client.post("/score", content=body, headers={"Content-Type": "application/json"}).status_code == 413


def test_the_docs_load_nothing_from_elsewhere_and_nothing_redirects() -> None:
    with TestClient(create_app(Fake()), follow_redirects=False) as client:  # type: ignore[arg-type]
        page = client.get("/docs").text
        links = re.findall(r"""(?:src|href|url)\s*[=:]\s*["']([^"']+)""", page)
        assert any(link.endswith(".js") for link in links)
        assert [link for link in links if urlsplit(link).netloc] == []
        assert {link: client.get(link).status_code for link in links} == dict.fromkeys(links, 200)
        assert '"validatorUrl": null' in page  # else it sends our address to a host of Swagger's
        assert "http" not in page
        assert client.post("/score/", headers={"Host": "evil.example"}).status_code == 404
        assert client.get("/redoc").status_code == 404


# Connections


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"20000000")]})
    await send({"type": "http.response.body", "body": bytes(20_000_000 if scope["path"] == "/large" else 0)})


@contextmanager
def served(application: Any, **limits: Any) -> Iterator[int]:
    """The port of a server in a thread."""
    config = uvicorn.Config(application, http=partial(Connection, **limits), ws="none", log_level="error")  # type: ignore[arg-type]
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = server.force_exit = True
            thread.join(30)


def opened(port: int, said: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=20)
    connection.sendall(said)
    return connection


def received(connection: socket.socket) -> bytes:
    """What comes until the other side closes."""
    chunks = []
    with suppress(ConnectionError):
        while chunk := connection.recv(1 << 20):
            chunks.append(chunk)
    return b"".join(chunks)


def is_closed(connection: socket.socket, within_s: float) -> bool:
    """By the other side."""
    connection.settimeout(within_s)
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


HALF_OPEN = {
    "idle": b"",
    "header": b"POST /score HTTP/1.1\r\nHost: a\r\n",
    "body": b"POST /score HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc",
    "second header": b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\nG",
    "body of a refused request": b"POST /nothing HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n\r\na",
}


def test_half_open_connections_are_closed() -> None:
    with served(create_app(Fake()), receive_s=0.3, max_connections=100) as port, ExitStack() as stack:  # type: ignore[arg-type]
        slow = {name: stack.enter_context(opened(port, said)) for name, said in HALF_OPEN.items()}
        assert [name for name, connection in slow.items() if not is_closed(connection, 4)] == []


def test_a_client_that_trickles_is_closed() -> None:
    with served(app, receive_s=0.4, max_connections=100) as port, opened(port, b"GET / HTTP/1.1\r\nX: ") as trickling:
        until = time.monotonic() + 10
        while not is_closed(trickling, 0.1):
            assert time.monotonic() < until
            with suppress(ConnectionError):
                trickling.sendall(b"a")


def test_a_client_that_takes_no_answer_is_closed() -> None:
    with served(app, receive_s=1, max_connections=100) as port:
        with opened(port, b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n") as taking:
            time.sleep(4)
            assert len(received(taking)) < 20_000_000
        with opened(port, b"GET /large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n") as taking:
            assert len(received(taking)) > 20_000_000


def test_more_idle_connections_than_allowed_leave_room_for_requests() -> None:
    fake = Fake()
    with served(create_app(fake), receive_s=60, max_connections=8) as port, ExitStack() as stack:  # type: ignore[arg-type]
        working = stack.enter_context(opened(port, b"POST /score HTTP/1.1\r\nHost: a\r\nContent-Type: image/png\r\n"))
        working.sendall(b"Content-Length: 3\r\n\r\nabc")
        assert fake.begun.wait(20)
        held = [stack.enter_context(opened(port, said)) for _ in range(6) for said in HALF_OPEN.values()]
        health = stack.enter_context(opened(port, b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"))
        assert health.recv(1000).startswith(b"HTTP/1.1 200")
        fake.go.set()
        assert working.recv(1000).startswith(b"HTTP/1.1 200")
        assert is_closed(held[0], 10)
        assert 0 < sum(not is_closed(connection, 0.1) for connection in held) <= 8  # each new one closes one, no more


# Settings


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"wait_ms": 1e13}, r"wait_ms=10000000000000\.0 is out of range; give 0 to 10000"),
        ({"max_body_mb": 0.0}, r"max_body_mb=0\.0 is out of range"),
        ({"max_body_mb": float("nan")}, "max_body_mb=nan is out of range"),
        ({"max_connections": 1}, "max_connections=1 is out of range"),
        ({"max_connections": 64}, "leaves none for health checks beside max_queue=64"),
        ({"max_queue": 0}, "max_queue=0 is out of range"),
        ({"max_images": 0}, "max_images=0 is out of range"),
        ({"max_batch": 0}, "max_batch=0 is out of range"),
        ({"max_pixels": -1}, "max_pixels=-1 is out of range"),
        ({"max_request_pixels": 1000}, "refuses images that max_pixels=50000000 allows"),
        ({"prepare_threads": 0}, "prepare_threads=0 is out of range"),
        ({"receive_s": 0.0}, r"receive_s=0\.0 is out of range"),
        ({"shutdown_s": -1}, "shutdown_s=-1 is out of range"),
        ({"score_threshold": 2.0}, r"score_threshold=2\.0 is out of range"),
        ({"port": 65536}, "port=65536 is out of range"),
        ({"api_key": ""}, "api_key is empty"),
    ],
)
def test_settings_that_cannot_be_meant(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ServeConfig(**given)


def test_the_command_line_is_checked() -> None:
    with pytest.raises(ConfigError, match=r"wait_ms=10000000000000\.0 is out of range"):
        load_config("serve", ["checkpoint=x", "wait_ms=1e13"])


@pytest.mark.parametrize("host", ["a" * 300, "a\0b", "192.0.2.1"])
def test_a_host_that_cannot_be_listened_on(host: str) -> None:
    with pytest.raises(ConfigError, match="cannot be listened on"):
        listen(host, 0)


# The end

STUCK = """
import sys, time
from retina_dist.serving import server
from retina_dist.serving.app import create_app
from retina_dist.serving.settings import ServeConfig

class Stuck:
    result = dict
    def read(self, content_type, body):
        return [body]
    def prepare(self, data, i):
        print("decoding", flush=True)
        time.sleep(100)

server.make_app = lambda config, load_scorer: create_app(Stuck())
server.serve(ServeConfig(checkpoint="none", port=0, shutdown_s=1), None)
"""


def test_the_server_ends_in_time_whatever_a_decode_does() -> None:
    server = subprocess.Popen(
        [sys.executable, "-c", STUCK], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout
        address = re.search(r"http://127\.0\.0\.1:(\d+)/", server.stdout.readline())
        assert address
        request = b"POST /score HTTP/1.1\r\nHost: a\r\nContent-Type: image/png\r\nContent-Length: 1\r\n\r\na"
        with opened(int(address[1]), request) as connection:
            assert server.stdout.readline() == "decoding\n"
            server.send_signal(signal.SIGTERM)
            answer = received(connection).decode()
            errors = server.communicate(timeout=60)[1]  # the decode takes longer
        assert answer.startswith("HTTP/1.1 503")
        assert "the server is shutting down" in answer
        assert server.returncode == 0, errors
        assert "Traceback" not in errors
    finally:
        server.kill()
        server.communicate()
