"""Being asked to end: by a signal, by the cloud, by another rank."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from retina_dist.engine import preemption
from retina_dist.engine.preemption import PreemptionWatch, event_for

ROOT = Path(__file__).resolve().parents[3]


def document(*events: dict[str, Any]) -> dict[str, Any]:
    return {"DocumentIncarnation": 1, "Events": list(events)}


def an_event(kind: str = "Preempt", machine: str = "gpu-1") -> dict[str, Any]:
    return {
        "EventId": "A123BC45",
        "EventType": kind,
        "ResourceType": "VirtualMachine",
        "Resources": [machine],
        "EventStatus": "Scheduled",
        "NotBefore": "Mon, 19 Sep 2026 18:29:47 GMT",
        "EventSource": "Platform",
    }


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_is_noted_and_the_handlers_are_put_back(number: signal.Signals, capfd: pytest.CaptureFixture) -> None:
    before = signal.getsignal(number)
    with PreemptionWatch() as watch:
        assert watch.reason is None
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)  # the launcher passing on what the terminal has sent already
        assert watch.reason == number.name
    assert signal.getsignal(number) is before
    assert capfd.readouterr().err.count("stopping with a checkpoint") == 1


def test_a_second_signal_ends_at_once() -> None:
    code = (
        "import os, signal, time\n"
        "from retina_dist.engine import preemption\n"
        "preemption.ECHO_S = 0.0\n"
        "with preemption.PreemptionWatch():\n"
        "    os.kill(os.getpid(), signal.SIGTERM); time.sleep(.01); os.kill(os.getpid(), signal.SIGTERM); time.sleep(30)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=60)
    assert done.returncode == -signal.SIGTERM


def test_sigusr1_asks_and_never_ends(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture) -> None:
    """Slurm sends it two minutes before SIGTERM, which may find the checkpoint still being written."""
    monkeypatch.setattr(preemption, "ECHO_S", 0.0)
    with PreemptionWatch() as watch:
        for number in (signal.SIGUSR1, signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR1):
            os.kill(os.getpid(), number)
            time.sleep(0.01)
        assert watch.reason == "SIGUSR1"
    said = capfd.readouterr().err
    assert said.count("SIGUSR1: stopping with a checkpoint") == 1
    assert said.count("SIGTERM: stopping with a checkpoint") == 1


@pytest.fixture
def metadata() -> Iterator[tuple[str, dict[str, Any], list[str]]]:
    """A local stand-in for Azure's metadata service: its address, what it says, and who asked without the header."""
    said: dict[str, Any] = {"document": document(), "name": "gpu-1"}
    unmarked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.headers.get("Metadata") != "true":
                unmarked.append(self.path)
            said["asked"] = (self.path, self.headers.get("Authorization"))
            found = {
                preemption.EVENTS_PATH: json.dumps(said["document"]),
                preemption.NAME_PATH: said["name"],
            }.get(self.path)
            self.send_response(200 if found is not None else 404)
            self.end_headers()
            self.wfile.write((found or "").encode())

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/", said, unmarked
    server.shutdown()


def wait_for(condition: Callable[[], Any]) -> None:
    until = time.monotonic() + 10
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    assert condition()


def test_an_event_of_this_machine_is_a_reason_to_end(
    metadata: tuple[str, dict[str, Any], list[str]], said: list[str]
) -> None:
    address, said, unmarked = metadata
    said["document"] = document(an_event("Freeze"), an_event("Preempt", "gpu-2"))
    with PreemptionWatch(address, every_s=0.02) as watch:
        time.sleep(0.3)
        assert watch.reason is None  # a pause, and another machine
        said["document"] = document(an_event("Preempt"))
        wait_for(lambda: watch.reason)
        assert watch.reason == "Preempt of gpu-1 scheduled for Mon, 19 Sep 2026 18:29:47 GMT"
    assert not unmarked


def test_user_and_token_of_the_address_go_with_the_request(metadata: tuple[str, dict[str, Any], list[str]]) -> None:
    address, said, _ = metadata
    address = address.replace("://", "://me:p%40ss@") + "?token=abc"
    with PreemptionWatch(address, every_s=0.02):
        wait_for(lambda: "asked" in said)
    assert said["asked"] == (f"{preemption.NAME_PATH}&token=abc", f"Basic {b64encode(b'me:p@ss').decode()}")


@pytest.mark.parametrize("address", ["http://me:pass@127.0.0.1:port", "http://[::1", "nonsense", "ftp://127.0.0.1:9"])
def test_an_address_that_cannot_be_asked_is_told_once(address: str, said: list[str]) -> None:
    with PreemptionWatch(address, every_s=0.01):
        wait_for(lambda: said)
        time.sleep(0.1)
    assert len(said) == 1
    assert "scheduled events cannot be read from" in said[0]
    assert "pass" not in said[0].replace(address, "")


def test_the_first_signal_after_an_event_does_not_end_at_once(capfd: pytest.CaptureFixture) -> None:
    with PreemptionWatch() as watch:
        watch.reason = "Preempt of gpu-1 scheduled for now"
        os.kill(os.getpid(), signal.SIGTERM)
        assert watch.reason == "Preempt of gpu-1 scheduled for now"
    assert "SIGTERM: stopping with a checkpoint" in capfd.readouterr().err


def test_an_address_that_does_not_answer_is_said_once_and_asked_again(
    metadata: tuple[str, dict[str, Any], list[str]], said: list[str]
) -> None:
    address, served, _ = metadata
    served["document"] = "no document"
    with PreemptionWatch(address, every_s=0.02) as watch:
        wait_for(lambda: said)
        time.sleep(0.2)
        served["document"] = document(an_event("Terminate"))
        wait_for(lambda: watch.reason)
    assert len(said) == 1
    assert "scheduled events cannot be read from http://127.0.0.1" in said[0]


@pytest.mark.parametrize("wrong", [[], {}, {"Events": [{}]}, {"Events": None}])
def test_another_document_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="no document of scheduled events"):
        event_for("gpu-1", wrong)
