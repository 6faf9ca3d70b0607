"""The REST endpoint as a process: it says where it is, answers, and ends in order."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import ROOT
from tests.unit.serving.server import as_json

RUN = Path("runs") / "shapes"


def test_it_answers_and_ends_in_order(trained: Path) -> None:
    """After SIGTERM what was accepted is answered; no request, however wrong, leaves a traceback in the log."""
    pytest.importorskip("fastapi", reason="the extra [serve] is not installed")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "RETINA_DIST_API_KEY": "a key"}
    command = [sys.executable, "-m", "retina_dist.serve", f"checkpoint={RUN}/checkpoints/best.pt", "port=0"]
    server = subprocess.Popen(
        command, cwd=trained, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout
        first = server.stdout.readline()
        address = re.search(r"http://127\.0\.0\.1:(\d+)/", first)
        assert address, first
        image = next((trained / "datasets/shapes/val").glob("*.jpg")).read_bytes()

        def ask(body: bytes, kind: str, key: str = "Bearer a key") -> Any:
            headers = {"Content-Type": kind, "Authorization": key}
            with urllib.request.urlopen(
                urllib.request.Request(f"{address[0]}score", body, headers), timeout=120
            ) as answer:
                return json.load(answer)["images"]

        assert len(ask(image, "image/jpeg")) == 1
        with pytest.raises(urllib.error.HTTPError, match="401"):
            ask(image, "image/jpeg", key="none")
        with socket.create_connection(("127.0.0.1", int(address[1])), timeout=60) as connection:
            connection.sendall(b"HEAD /score HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nxx\r\nabc\r\n")
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 4")
        with ThreadPoolExecutor(1) as pool:
            accepted = pool.submit(ask, as_json(*[image] * 16), "application/json")
            while b"retina_dist_queue_images 16.0" not in urllib.request.urlopen(f"{address[0]}metrics").read():
                assert not accepted.done(), accepted.result()
                time.sleep(0.01)
            server.send_signal(signal.SIGTERM)
            assert len(accepted.result(120)) == 16
        errors = server.communicate(timeout=120)[1]
        assert server.returncode == 0, errors
        assert "Application shutdown complete" in errors
        assert "Traceback" not in errors
    finally:
        server.kill()
        server.communicate()
