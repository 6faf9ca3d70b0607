"""What this process does now: for signs of life during long work, and for the error when another process is lost."""

from __future__ import annotations

import time

_text, _since = "starting", time.monotonic()


def doing(text: str) -> None:
    """Say what this process does from now on, such as "reading the data" or "validation, 40 images"."""
    global _text, _since
    if text.split(",")[0] != _text.split(",")[0]:  # what follows a comma is the progress
        _since = time.monotonic()
    _text = text


def activity() -> tuple[str, float]:
    """The last `doing`, and its seconds so far."""
    return _text, time.monotonic() - _since
