"""Being asked to end by a signal, and ranks that agree on it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from retina_dist.engine import preemption
from retina_dist.engine.preemption import PreemptionWatch, StopAction, StopConsensus
from retina_dist.strategies.single_device import SingleDeviceStrategy

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_is_noted_and_the_handlers_are_put_back(
    number: signal.Signals, capfd: pytest.CaptureFixture
) -> None:
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


def test_sigusr1_asks_and_never_ends(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    """Slurm sends it two minutes before SIGTERM, which may find the checkpoint still
    being written.
    """
    monkeypatch.setattr(preemption, "ECHO_S", 0.0)
    with PreemptionWatch() as watch:
        for number in (signal.SIGUSR1, signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR1):
            os.kill(os.getpid(), number)
            time.sleep(0.01)
        assert watch.reason == "SIGUSR1"
    said = capfd.readouterr().err
    assert said.count("SIGUSR1: stopping with a checkpoint") == 1
    assert said.count("SIGTERM: stopping with a checkpoint") == 1


def test_the_documented_watcher_of_azures_events_ends_the_job(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    script = next(
        block
        for block in re.findall(r"```python\n(.*?)```", text, re.S)
        if "on_eviction.py" in block
    )
    (tmp_path / "on_eviction.py").write_text(script.replace("time.sleep(2)", "time.sleep(.05)"))
    (tmp_path / "instance" / "compute").mkdir(parents=True)
    (tmp_path / "instance" / "compute" / "name").write_text("gpu-1")
    other = (
        {"EventType": "Preempt", "Resources": ["gpu-2"]},
        {"EventType": "Freeze", "Resources": ["gpu-1"]},
    )
    (tmp_path / "scheduledevents").write_text(json.dumps({"Events": other}))
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        line = [sys.executable, tmp_path / "on_eviction.py", "sleep", "60"]
        watcher = subprocess.Popen(
            line, env={**os.environ, "EVENTS": f"http://127.0.0.1:{server.server_port}"}
        )
        time.sleep(1)
        assert watcher.poll() is None
        ours = {"EventType": "Preempt", "Resources": ["gpu-2", "gpu-1"]}
        (tmp_path / "new").write_text(json.dumps({"Events": [*other, ours]}))
        (tmp_path / "new").rename(tmp_path / "scheduledevents")
        assert watcher.wait(20) != 0
        server.shutdown()


# the consensus


class TwoRanks(SingleDeviceStrategy):
    """This rank never requests a stop; the other does from its third step on."""

    world_size = 2  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__("cpu")
        self.asked = 0
        self.open = 0

    def all_reduce_max_async(self, level: int, question: str = "stop") -> Callable[[], int]:
        self.asked += 1
        self.open += 1
        found = max(level, StopAction.STOP if self.asked >= 3 else StopAction.NONE)

        def answer() -> int:
            self.open -= 1
            return found

        return answer


def test_the_action_is_known_one_step_later_and_no_collective_is_left_in_flight() -> None:
    strategy = TwoRanks()
    consensus = StopConsensus(strategy)
    requests = (StopAction.NONE, StopAction.SAVE, StopAction.SAVE, StopAction.NONE)
    assert [consensus.poll(r) for r in requests] == [
        StopAction.NONE,
        StopAction.NONE,
        StopAction.SAVE,
        StopAction.STOP,
    ]
    assert strategy.open == 1
    consensus.close()
    assert strategy.open == 0
