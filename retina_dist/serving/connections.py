"""HTTP connections with time limits for slow clients."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class Connection(H11Protocol):
    """uvicorn's connection with limits on slow clients, which uvicorn lacks (https://github.com/Kludex/uvicorn/issues/157).

    It is closed if a request has not arrived completely `receive_s` seconds after the connection was opened or the last response
    was sent, or if the client does not read a response for as long. With more than `max_connections` open, the one that has waited
    longest for its client is closed, idle ones first; requests in progress are never closed.
    """

    def __init__(self, *arguments: Any, receive_s: float, max_connections: int, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.receive_s, self.max_connections = receive_s, max_connections
        self.write_paused = False
        self.deadline: asyncio.TimerHandle | None = None  # None while the client waits for us

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()
        others = [c for c in self.connections if c is not self and not c.transport.is_closing()]  # type: ignore[union-attr]
        if len(others) >= self.max_connections:
            waiting = [c for c in others if isinstance(c, Connection) and c.deadline]
            min(waiting, key=Connection._worth, default=self).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.write_paused = True
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.write_paused = False
        self._watch()

    def _watch(self) -> None:
        """Start the timer when the connection waits for its client; stop it when the client waits for the server."""
        if not self.write_paused and self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._stop()
        elif self.deadline is None:
            self.deadline = self.loop.call_later(self.receive_s, self.transport.abort)

    def _stop(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None

    def _worth(self) -> tuple[bool, float]:
        """Sort key: the smallest is closed first."""
        return self.conn.their_state is not h11.IDLE, self.deadline.when() if self.deadline else 0.0
