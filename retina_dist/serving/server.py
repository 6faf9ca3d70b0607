"""The server process: settings, application, socket, and shutdown by signal."""

from __future__ import annotations

import json
import logging
import signal
import socket
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from retina_dist.base.console import print_redacted
from retina_dist.base.errors import ConfigError
from retina_dist.serving.settings import ServeConfig
from retina_dist.strategies.single_device import SingleDeviceStrategy
from retina_dist.task.predictor import Predictor, command_of

if TYPE_CHECKING:
    import uvicorn

logger = logging.getLogger(__name__)

LOOPBACK = ("127.0.0.1", "::1", "localhost")
UNUSABLE = (OSError, OverflowError, ValueError, TypeError)  # the last two for invalid host names


def serve(config: ServeConfig) -> None:
    """Serve the model of `config.checkpoint` until SIGTERM or SIGINT.

    Raises ConfigError if the extra is missing or the address cannot be used.
    """
    load_predictor = command_of(config, "predictor_of")
    # uvicorn replaces it, and raises the signal again at its end
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    device = SingleDeviceStrategy(config.device).device
    if config.max_batch is None:
        config = replace(config, max_batch=8 if device.type == "cuda" else 1)
    server = server_of(partial(load_predictor, config, device), config)

    with listen(config.host, config.port) as listener:
        host = f"[{config.host}]" if ":" in config.host else config.host
        address = f"http://{host}:{listener.getsockname()[1]}"
        print_redacted(f"serving {config.checkpoint} on {address}/score; try it at {address}/")
        if config.api_key is None and config.host not in LOOPBACK:
            logger.warning(
                "anyone who reaches this address can use it; "
                "set RETINA_DIST_API_KEY to require a key."
            )
        server.run(sockets=[listener])


def server_of(
    model: Callable[[], Predictor], config: ServeConfig, log_level: str = "info"
) -> uvicorn.Server:
    """A server of what `model` loads. Raises ConfigError, before that, if the extra is missing."""
    try:
        import httptools  # noqa: F401 - h11 raises on a HEAD request with a bad body
        import uvicorn

        from retina_dist.serving.connections import HalfOpenProtocol, without_query
        from retina_dist.serving.endpoints import create_app
        from retina_dist.serving.scoring import Scorer
    except ImportError as error:
        raise ConfigError(
            f'serving needs {error.name}; pip install "retina-dist[serve]".'
        ) from error

    predictor = model()
    predictor.run_each(torch.zeros(3, 480, 640, dtype=torch.uint8))  # the first pass is the slowest
    scorer = Scorer(predictor, config.max_pixels)
    settings = uvicorn.Config(
        create_app(scorer, config),
        http=HalfOpenProtocol,
        loop="asyncio",  # whose sockets HalfOpenProtocol can ask for errors
        ws="none",
        timeout_graceful_shutdown=config.shutdown_s,
        log_level=log_level,
    )
    logging.getLogger("uvicorn.access").addFilter(without_query)
    return uvicorn.Server(settings)


@contextmanager
def on_loopback(predictor: Predictor, max_pixels: int) -> Iterator[partial[Any]]:
    """A server of this process on a free port; what sends it an image file, for its answer.

    Raises ConfigError as `server_of`.
    """
    config = ServeConfig(checkpoint=str(predictor.source), max_pixels=max_pixels, max_body_mb=2000)
    server = server_of(lambda: predictor, config, "error")
    with listen("127.0.0.1", 0) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/score"
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            yield partial(_ask, address)
        finally:
            server.should_exit = True
            thread.join()


def _ask(address: str, image: bytes) -> object:
    request = urllib.request.Request(address, image, {"Content-Type": "application/octet-stream"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)["images"][0]


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises ConfigError if the address cannot be used."""
    if host.count(":") == 1:
        name, _, number = host.rpartition("//")[2].partition(":")
        raise ConfigError(
            f"host={host} is more than a name; write host={name} port={number or port}."
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except UNUSABLE as error:
        raise ConfigError(
            f"host={host} port={port} cannot be listened on ({error}); "
            "give an address of this machine, or port=0 for a free port."
        ) from error
