"""Connections of which the client closes half or all, with real sockets on this machine."""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from retina_dist.serving.settings import ServeConfig
from tests.commands import run_command, wait_for
from tests.unit.serving.test_serving import Fake

pytest.importorskip("fastapi", reason="the extra [serve] is not installed")

import uvicorn

from retina_dist.serving.connections import HalfOpenProtocol, without_query
from retina_dist.serving.endpoints import create_app

ABORTED = 150
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close by a reset


def request(body: bytes = b"abc", version: str = "1.1", path: str = "/score") -> bytes:
    head = f"POST {path} HTTP/{version}\r\nHost: a\r\nContent-Type: image/png\r\n"
    head += "Connection: close\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


@contextlib.contextmanager
def serving(fake: Fake, **settings: object) -> Iterator[tuple[str, int]]:
    app = create_app(fake, ServeConfig(checkpoint="none", **settings))  # type: ignore[arg-type]
    config = uvicorn.Config(
        app, http=HalfOpenProtocol, loop="asyncio", ws="none", log_level="error"
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        wait_for(lambda: server.started)
        try:
            yield listener.getsockname()
        finally:
            fake.go.set()
            server.should_exit = True
            thread.join(30)


def connect(address: tuple[str, int], data: bytes) -> socket.socket:
    connection = socket.create_connection(address, timeout=30)
    connection.sendall(data)
    return connection


def everything(connection: socket.socket) -> bytes:
    """What the server sends until it closes the connection."""
    parts = []
    while part := connection.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def queued(address: tuple[str, int]) -> float:
    with connect(address, b"GET /metrics HTTP/1.0\r\n\r\n") as connection:
        lines = everything(connection).decode().splitlines()
    return next(float(x.split()[1]) for x in lines if x.startswith("retina_dist_queue_images "))


@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_a_client_that_closes_its_sending_half_is_answered(version: str) -> None:
    fake = Fake(goes=False)
    with serving(fake) as address, connect(address, request(version=version)) as connection:
        connection.shutdown(socket.SHUT_WR)
        assert fake.begun.wait(30)
        time.sleep(0.3)  # in which the server looks at the connection
        fake.go.set()
        answer = everything(connection)
    interim = b"HTTP/1.1 100 Continue\r\n\r\n" if version == "1.1" else b""
    assert answer.startswith(interim + b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b'{"images":[{"width":3}]}')


def test_a_client_that_closes_its_half_before_the_end_of_a_body_gets_no_answer() -> None:
    with serving(Fake()) as address, connect(address, request()[:-1]) as connection:
        connection.shutdown(socket.SHUT_WR)
        assert everything(connection) == b""


@pytest.mark.parametrize("end", ["close", "reset"])
def test_work_of_closed_connections_is_dropped(end: str) -> None:
    """While the model is busy, so that nothing leaves the queue by being answered."""
    fake = Fake(goes=False)
    with serving(fake, max_queue=ABORTED + 1, max_images=1) as address:
        first = connect(address, request())
        assert fake.begun.wait(30)
        aborted = [connect(address, request()) for _ in range(ABORTED)]
        wait_for(lambda: queued(address) == ABORTED + 1)
        for connection in aborted:
            if end == "reset":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            connection.close()
        wait_for(lambda: queued(address) == 1, seconds=5)

        last = connect(address, request(b"last"))
        wait_for(lambda: queued(address) == 2, seconds=5)
        fake.go.set()
        for connection, width in ((first, 3), (last, 4)):
            with connection:
                assert f'"width":{width}' in everything(connection).decode()
    assert fake.seen == [b"abc", b"last"]


def test_the_access_log_shows_no_query() -> None:
    access = logging.getLogger("uvicorn.access")
    record = access.makeRecord(
        access.name,
        logging.INFO,
        __file__,
        1,
        '%s - "%s %s HTTP/%s" %d',
        ("127.0.0.1:1", "POST", "/score?api_key=hunter2", "1.1", 200),
        None,
    )
    assert without_query(record)
    assert record.getMessage() == '127.0.0.1:1 - "POST /score HTTP/1.1" 200'


def test_the_settings_are_shown_without_the_key(tmp_path: Path) -> None:
    command = ["checkpoint=a.pt", "api_key=hunter2", "--cfg", "job"]
    shown = run_command("retina_dist.serve", *command, cwd=tmp_path).stdout
    assert "checkpoint: a.pt" in shown
    assert "api_key: '***'" in shown or "api_key: ***" in shown
    assert "hunter2" not in shown
