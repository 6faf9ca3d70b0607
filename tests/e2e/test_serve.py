"""The REST endpoint as a process: it says where it is, answers, and ends in order."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT

RUN = Path("runs") / "shapes"


def test_it_answers_and_ends_in_order(trained: Path) -> None:
    pytest.importorskip("fastapi", reason="the extra [serve] is not installed")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "RETINA_DIST_API_KEY": "a key"}
    command = [sys.executable, "-m", "retina_dist.serve", f"checkpoint={RUN}/checkpoints/best.pt", "port=0"]
    server = subprocess.Popen(
        command, cwd=trained, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout
        first = server.stdout.readline()
        address = re.search(r"http://127\.0\.0\.1:\d+/score", first)
        assert address, first
        body = next((trained / "datasets/shapes/val").glob("*.jpg")).read_bytes()
        headers = {"Content-Type": "image/jpeg", "Authorization": "Bearer a key"}
        with urllib.request.urlopen(urllib.request.Request(address[0], body, headers), timeout=120) as answer:
            assert len(json.load(answer)["images"]) == 1
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(
                urllib.request.Request(address[0], body, {"Content-Type": "image/jpeg"}), timeout=120
            )
        server.send_signal(signal.SIGTERM)
        errors = server.communicate(timeout=120)[1]
        assert server.returncode == 0, errors
        assert "Application shutdown complete" in errors
    finally:
        server.kill()
        server.communicate()
