"""What is queued on which stream, and in what order, with streams that only take notes: no GPU is
needed to see it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from retina_dist.engine.train_loop import prefetched

CUDA = torch.device("cuda", 0)


class Notes:
    """What is asked of torch.cuda's streams."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.stream = "main"
        main = FakeStream(self, "main")
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: FakeStream(self, "side"))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: main)
        monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)


class FakeStream:
    def __init__(self, notes: Notes, name: str) -> None:
        self.notes, self.name, self.events = notes, name, 0

    def __enter__(self) -> None:
        self.notes.stream = self.name

    def __exit__(self, *error: object) -> None:
        self.notes.stream = "main"

    def wait_stream(self, other: FakeStream) -> None:
        self.notes.log.append(f"{self.name} waits for {other.name}")

    def record_event(self) -> str:
        self.events += 1
        return f"event {self.events}"

    def wait_event(self, event: str) -> None:
        self.notes.log.append(f"{self.name} waits for {event}")


class FakeBatch:
    def __init__(self, notes: Notes, name: str) -> None:
        self.notes, self.name = notes, name

    def to(self, device: torch.device, non_blocking: bool) -> str:
        assert (device, non_blocking) == (CUDA, True)
        self.notes.log.append(f"{self.name} on {self.notes.stream}")
        return f"{self.name} there"


def source(notes: Notes, count: int, fails_at: int | None = None) -> Iterator[list[FakeBatch]]:
    try:
        for step in range(count):
            if step == fails_at:
                raise ValueError("a bad image")
            yield [FakeBatch(notes, f"{step}.{part}") for part in range(2)]
    finally:
        notes.log.append("closed")


def test_one_step_ahead_on_a_stream_of_its_own(monkeypatch):
    notes = Notes(monkeypatch)
    for batches in prefetched(source(notes, 3), CUDA):
        notes.log.append(f"compute {', '.join(batches)}")
    assert notes.log == [
        *(
            "side waits for main",
            "0.0 on side",
            "0.1 on side",
            "side waits for main",
            "1.0 on side",
            "1.1 on side",
        ),
        *(
            "main waits for event 1",
            "compute 0.0 there, 0.1 there",
        ),  # and not for the copy of the next step
        *("side waits for main", "2.0 on side", "2.1 on side"),
        *("main waits for event 2", "compute 1.0 there, 1.1 there", "closed"),
        *("main waits for event 3", "compute 2.0 there, 2.1 there"),
    ]


@pytest.mark.parametrize("device", [CUDA, torch.device("cpu")])
def test_an_error_comes_after_the_steps_before_it(monkeypatch, device):
    notes, seen = Notes(monkeypatch), []
    with pytest.raises(ValueError, match="a bad image"):
        seen.extend(batches for batches in prefetched(source(notes, 5, fails_at=2), device))
    assert len(seen) == 2
    assert notes.log.count("closed") == 1
