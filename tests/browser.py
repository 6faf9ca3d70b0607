"""Headless Chromium for the tests of pages, driven by its DevTools protocol over a pipe: no other
package is needed.

https://chromedevtools.github.io/devtools-protocol
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.commands import wait_for

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATH = next(filter(None, map(shutil.which, NAMES)), None)
WHY_NOT = (
    "" if PATH else f"none of {', '.join(NAMES)} is installed (Debian: apt-get install chromium)"
)


class Page:
    """A tab: what it requested and every error that it reported, since it was opened."""

    def __init__(self, to: int, source: int) -> None:
        self._to, self._source, self._buffer = to, source, b""
        self._number, self._session = 0, None
        self.requests: list[str] = []
        self.errors: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a command; events that arrive before it are noted."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._buffer:
                self._buffer += os.read(self._source, 1 << 20)
            text, _, self._buffer = self._buffer.partition(b"\0")
            answer = json.loads(text)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        method, what = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(what["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(what["exceptionDetails"]))
        elif method == "Log.entryAdded" and what["entry"]["level"] == "error":
            self.errors.append(what["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and what["type"] in ("error", "assert"):
            self.errors.append(json.dumps(what["args"]))

    def look(
        self, width: int, height: int = 900, scheme: str = "light", touch: bool = False
    ) -> None:
        """The window's size in px, the user's colour scheme, and whether it is a phone."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=touch,
        )
        self.call("Emulation.setTouchEmulationEnabled", enabled=touch)
        media = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=media)

    def open(
        self, url: str, until: str = "document.readyState == 'complete'", timeout_s: float = 60
    ) -> None:
        """Open `url` and wait until the expression is true."""
        self.call("Page.navigate", url=url)
        self.wait(until, timeout_s)

    def wait(self, until: str, timeout_s: float = 60) -> None:
        """Wait until the expression is true."""
        wait_for(
            lambda: self.run(until),
            timeout_s,
            lambda: f"{until} did not become true: {self.errors}",
        )

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str, code: int = 0, text: str = "") -> None:
        """Press a key, such as press("Tab", 9)."""
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, text=text
            )


@contextmanager
def chromium() -> Iterator[Page]:
    """A fresh profile without any network but this machine's."""
    reading, to = os.pipe()
    source, writing = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # Chromium reads commands from its file descriptor 3 and writes answers to 4.
        arrange = f'exec 3<&{reading} 4>&{writing}; exec "$@"'
        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
        ]
        flags += [
            f"--user-data-dir={profile}",
            "--remote-debugging-pipe",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        ]
        process = subprocess.Popen(
            ["bash", "-c", arrange, "bash", str(PATH), *flags],
            pass_fds=(reading, writing),
            stderr=subprocess.DEVNULL,
        )
        os.close(reading), os.close(writing)
        try:
            yield Page(to, source)
        finally:
            process.terminate()
            process.wait(30)
            os.close(to), os.close(source)
