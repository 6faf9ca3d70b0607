"""Preemption notices: signals, and events that the cloud has scheduled.

The watch only notes the reason; the trainer stops all ranks at the same step.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from base64 import b64encode
from http.client import HTTPException
from types import FrameType, TracebackType
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit, urlunsplit

from typing_extensions import Self

logger = logging.getLogger(__name__)

# SIGUSR1 is what Slurm sends ahead of a time limit (sbatch --signal); SIGTERM follows when that has come.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
ECHO_S = 2.0  # launchers pass on a signal that the terminal has already sent to everyone
# Azure's events after which this machine, or what it holds, is gone; "Freeze" only pauses it.
# https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events
EVENTS = frozenset({"Preempt", "Terminate", "Reboot", "Redeploy"})
EVENTS_PATH = "/metadata/scheduledevents?api-version=2020-07-01"
NAME_PATH = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"


class PreemptionWatch:
    """While entered, `reason` says why this process should end, and is None until it should.

    SIGTERM and SIGINT are noted once; a second one, more than two seconds later, ends the process at once as it would have
    without the watch. SIGUSR1 asks for the same and never ends the process. `events_url` is the address of Azure's metadata
    service (http://169.254.169.254 on its machines), asked every `every_s` seconds for scheduled events that concern this
    machine; one that cannot be reached is warned of once.
    """

    def __init__(self, events_url: str | None = None, *, every_s: float = 5.0) -> None:
        self.events_url, self.every_s = events_url, every_s
        self.reason: str | None = None
        self._noticed: float | None = None  # when the first signal came
        self._before: dict[signal.Signals, Any] = {}
        self._left = threading.Event()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python takes no handlers
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        if self.events_url:
            threading.Thread(target=self._poll, args=(self.events_url,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._left.set()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        now, name = time.monotonic(), signal.Signals(number).name
        if number == signal.SIGUSR1:
            if self.reason is None:
                self.reason = name
                _tell(f"{name}: stopping with a checkpoint after this step")
        elif self._noticed is None:
            self.reason, self._noticed = self.reason or name, now
            _tell(f"{name}: stopping with a checkpoint after this step; once more ends at once")
        elif now - self._noticed > ECHO_S:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _poll(self, address: str) -> None:
        name, known = None, True
        while not self._left.wait(0.0 if name is None and known else self.every_s):
            try:
                name = name or _get(address, NAME_PATH).decode().strip()
                event = event_for(name, json.loads(_get(address, EVENTS_PATH)))
            except (OSError, ValueError, HTTPException) as error:
                if known:
                    logger.warning(f"scheduled events cannot be read from {address} ({error})")
                known = False
                continue
            if event:
                self.reason = self.reason or event
                return


def _tell(text: str) -> None:
    """From a signal's handler, which may have interrupted a print."""
    with contextlib.suppress(OSError):  # the same signal may have ended the reader of the pipe
        os.write(2, f"\n{text}\n".encode())


def event_for(machine: str, document: dict[str, Any]) -> str | None:
    """The first event of Azure's document that ends `machine`, in words; raises ValueError for another document."""
    try:
        for event in document["Events"]:
            if event["EventType"] in EVENTS and machine in event["Resources"]:
                return f"{event['EventType']} of {machine} scheduled for {event.get('NotBefore') or 'now'}"
    except (KeyError, TypeError) as error:
        raise ValueError(f"no document of scheduled events: {error!r}") from error
    return None


def _get(address: str, path: str) -> bytes:
    """What is at `path` below `address`, whose user and query, if it has any, go with the request."""
    base = urlsplit(address)
    user, _, host = base.netloc.rpartition("@")
    below, _, query = path.partition("?")
    query = "&".join(filter(None, (query, base.query)))
    headers = {"Metadata": "true"}
    if user:
        headers["Authorization"] = f"Basic {b64encode(unquote_to_bytes(user)).decode()}"
    url = urlunsplit((base.scheme, host, base.path.rstrip("/") + below, query, ""))
    # never by a proxy: the address is the machine's own
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(url, headers=headers), timeout=10) as answer:
        found: bytes = answer.read()
        return found
