"""Who is in a Horovod job: notes by which the ranks that remain find who is missing, and the state of the elastic loop."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

RENDEZVOUS = "HOROVOD_GLOO_RENDEZVOUS_ADDR"  # horovodrun's own server, where the processes found each other


def put_note(key: str) -> None:
    """Leave a note that every process can find."""
    urllib.request.urlopen(urllib.request.Request(_note_url(key), data=b"1", method="PUT"), timeout=5).close()


def has_note(key: str) -> bool:
    """Whether some process left that note."""
    try:
        urllib.request.urlopen(_note_url(key), timeout=5).close()
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return False
        raise
    return True


def _note_url(key: str) -> str:
    return f"http://{os.environ[RENDEZVOUS]}:{os.environ['HOROVOD_GLOO_RENDEZVOUS_PORT']}/retina_dist/{key.replace('/', '_')}"


class Membership:
    """What Horovod's elastic loop asks of a state; ours is shared by `run`, as at any start."""

    def __init__(self, forget: Callable[[], None]) -> None:
        self.forget = forget  # the model that was prepared
        self.kept: dict[str, Any] | None = None
        self.changed, self.steps = False, 0
        self.asked: Callable[[], int] | None = None

    def answer(self) -> bool:
        """Whether any rank had seen a change one commit ago; asked then, so that no rank waits for it, and known to all now."""
        asked, self.asked = self.asked, None
        return bool(asked()) if asked else False

    def on_hosts_updated(self, timestamp: float, result: Any) -> None:
        self.changed = True  # by a thread of Horovod's

    def on_reset(self) -> None:
        self.changed, self.steps, self.asked = False, 0, None
        self.forget()

    def sync(self) -> None: ...

    def restore(self) -> None: ...
