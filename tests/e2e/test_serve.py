"""The REST endpoint as a process; under load (make long), bad input gets 4xx, memory stays flat,
SIGTERM drains.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import numpy as np
import pytest

from retina_dist.data.images import decode_image
from retina_dist.detection.detector import Detector
from retina_dist.engine.checkpoint.store import sealed
from tests.e2e.conftest import ROOT
from tests.unit.serving.server import REFUSALS, as_json, content, make_image

pytest.importorskip("fastapi", reason="the extra [serve] is not installed")

REQUESTS, BAD, AT_ONCE, IMAGES = 10_000, 1_000, 16, 50
MOST_GROWTH = 64e6  # bytes of memory from the first tenth of the requests to the last


class Server:
    """`retina_dist.serve` of a checkpoint as a process."""

    def __init__(self, process: subprocess.Popen[bytes], address: str) -> None:
        self.process, self.address = process, address

    def ask(self, kind: str, body: bytes, key: str = "a key") -> tuple[int, Any]:
        headers = {"Content-Type": kind, "Authorization": f"Bearer {key}"}
        request = urllib.request.Request(self.address, body, headers)
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def memory(self) -> int:
        """Resident bytes."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf(
            "SC_PAGE_SIZE"
        )


@contextmanager
def serving(checkpoint: Path, *settings: str) -> Iterator[Server]:
    command = [
        sys.executable,
        "-m",
        "retina_dist.serve",
        f"checkpoint={checkpoint}",
        "port=0",
        "device=cpu",
        *settings,
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "RETINA_DIST_API_KEY": "a key",
    }
    written = checkpoint.parent / "log"
    with written.open("w") as log:  # a pipe that nobody reads would stop the server
        process = subprocess.Popen(
            command, cwd=checkpoint.parent, env=environment, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            while not (address := re.search(r"http://127\.0\.0\.1:\d+/score", written.read_text())):
                assert process.poll() is None, written.read_text()
                time.sleep(0.1)
            yield Server(process, address[0])
        finally:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("load") / "best.pt"
    path.write_bytes(sealed({"step": 1, **content()}))
    return path


def test_it_answers_and_ends_in_order(checkpoint: Path) -> None:
    """After SIGTERM what was accepted is answered; no request, however wrong, leaves a traceback in
    the log.
    """
    image = make_image(form="JPEG")
    with serving(checkpoint) as server, ThreadPoolExecutor(1) as pool:
        status, answer = server.ask("image/jpeg", image)
        assert (status, len(answer["images"])) == (200, 1)
        assert server.ask("image/jpeg", image, key="none")[0] == 401
        with socket.create_connection(
            ("127.0.0.1", urlsplit(server.address).port or 0), timeout=60
        ) as connection:
            connection.sendall(
                b"HEAD /score HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
                b"xx\r\nabc\r\n"
            )
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 4")
        accepted = pool.submit(server.ask, "application/json", as_json(*[image] * 16))
        metrics = urljoin(server.address, "/metrics")
        while b"retina_dist_queue_images 16.0" not in urllib.request.urlopen(metrics).read():
            assert not accepted.done(), accepted.result()
            time.sleep(0.01)
        server.process.send_signal(signal.SIGTERM)
        assert len(accepted.result(120)[1]["images"]) == 16
        assert server.process.wait(120) == 0
    log = (checkpoint.parent / "log").read_text()
    assert "Application shutdown complete" in log
    assert "Traceback" not in log


# under load


@pytest.mark.long
def test_10_000_answers_are_each_of_their_own_image(checkpoint: Path) -> None:
    images = [make_image(seed, (60 + seed, 60)) for seed in range(IMAGES)]
    detector = Detector.from_checkpoint(checkpoint)
    kept = np.array(detector.categories.ids) >= 0
    outputs = detector.predict([decode_image(data) for data in images])
    expected = [output["scores"][kept[output["labels"].numpy()]].tolist() for output in outputs]
    assert len({tuple(scores) for scores in expected}) == IMAGES
    bad = [(kind, body) for kind, body, _, words in REFUSALS if "max_pixels" not in words]

    with serving(checkpoint) as server, ThreadPoolExecutor(AT_ONCE) as pool:
        sizes: dict[int, int] = {}

        def good(i: int) -> None:
            status, answer = server.ask("image/png", images[i % IMAGES])
            scores = [found["score"] for found in answer["images"][0]["detections"]]
            assert (status, scores) == (200, expected[i % IMAGES])
            if i in (REQUESTS // 10, REQUESTS - 1):
                sizes[i] = server.memory()

        def malformed(i: int) -> int:
            return server.ask(*bad[i % len(bad)])[0]

        list(pool.map(good, range(REQUESTS)))
        codes = Counter(pool.map(malformed, range(BAD)))
        assert all(400 <= code < 500 for code in codes), codes
        print(
            f"memory {sizes[REQUESTS // 10] / 1e6:.0f} -> {sizes[REQUESTS - 1] / 1e6:.0f} MB; "
            f"malformed {dict(codes)}"
        )
        assert sizes[REQUESTS - 1] - sizes[REQUESTS // 10] < MOST_GROWTH


@pytest.mark.long
def test_sigterm_under_load_answers_what_was_accepted(checkpoint: Path) -> None:
    image = make_image()
    with serving(checkpoint) as server, ThreadPoolExecutor(AT_ONCE) as pool:
        codes: Counter[Any] = Counter()
        stopped = threading.Event()

        def ask_on() -> None:
            while True:
                try:
                    codes[server.ask("image/png", image)[0]] += 1
                except (urllib.error.URLError, ConnectionError):  # no longer listening
                    assert stopped.is_set()
                    return

        asking = [pool.submit(ask_on) for _ in range(AT_ONCE)]
        time.sleep(2)
        stopped.set()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
        for one in asking:
            one.result(60)
    assert codes[200] > AT_ONCE
    assert set(codes) <= {200, 503}
    assert "Traceback" not in (checkpoint.parent / "log").read_text()


@pytest.mark.long
def test_throughput_with_and_without_batches(checkpoint: Path) -> None:
    """A ratio in one run, in turns; a figure, and no bound: batches pay on a GPU."""
    image = make_image()
    rates: dict[int, list[float]] = {1: [], 8: []}
    with (
        serving(checkpoint, "max_batch=1") as single,
        serving(checkpoint, "max_batch=8") as batched,
    ):
        for _ in range(3):
            for size, server in ((1, single), (8, batched)):
                with ThreadPoolExecutor(AT_ONCE) as pool:
                    start = time.perf_counter()
                    codes = list(
                        pool.map(lambda _, to=server: to.ask("image/png", image)[0], range(200))
                    )
                    rates[size].append(200 / (time.perf_counter() - start))
                assert set(codes) == {200}
    print(
        f"requests/s {max(rates[1]):.0f} alone, {max(rates[8]):.0f} in batches of 8: "
        f"{max(rates[8]) / max(rates[1]):.2f}"
    )
