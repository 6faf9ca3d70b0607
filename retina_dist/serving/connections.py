"""HTTP connections of which the client has closed its sending half, or all."""

import logging
import socket

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
LOOK_EVERY_S = 0.1


class HalfOpenProtocol(HttpToolsProtocol):
    """Answers a client that has closed its sending half, and notices one that is gone.

    Both send the same: the end of their data. They differ once something is written to them,
    because the system of a client that is gone replies with a reset. So an interim response is
    written, which clients skip (RFC 9110, section 15.2), and the socket is then asked for an error
    until the request is answered. HTTP/1.0 knows no interim response: its clients are answered.
    """

    _watches = False

    def eof_received(self) -> bool:  # type: ignore[override]
        """Whether the connection stays open, which is so while a whole request is unanswered."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or cycle.more_body:
            return False
        cycle.keep_alive = False

        if not self._watches and cycle.scope["http_version"] == "1.1":
            self._watches = True
            if not cycle.response_started:
                self.transport.write(INTERIM)
            self._watch()
        return True

    def _watch(self) -> None:
        if self.transport.is_closing():
            return
        connection = self.transport.get_extra_info("socket")
        if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
        else:
            self.loop.call_later(LOOK_EVERY_S, self._watch)


def _path_of(value: object) -> object:
    return value.partition("?")[0] if isinstance(value, str) else value


def without_query(record: logging.LogRecord) -> bool:
    """A filter of the access log: no queries, in which a client may have put its key."""
    if isinstance(record.args, tuple):
        record.args = tuple(map(_path_of, record.args))
    return True
