"""The server process: application, socket, and shutdown by signal."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from retina_dist.errors import ConfigError
from retina_dist.reporting.console import print_redacted
from retina_dist.serving.scoring import Scorer
from retina_dist.serving.settings import ServeConfig
from retina_dist.strategies.single_device import SingleDeviceStrategy

logger = logging.getLogger(__name__)

GPU_BATCH = 8


def make_app(config: ServeConfig, load_scorer: Callable[..., Scorer[Any]]) -> Any:
    """The FastAPI application over the task's scorer. Raises ConfigError where the extra is missing."""
    try:
        from retina_dist.serving.app import Limits, create_app
    except ImportError as error:
        raise ConfigError(
            f'serving needs {error.name}, which is not installed; pip install "retina-dist[serve]".'
        ) from error
    device = SingleDeviceStrategy(config.device).device
    limits = Limits(
        max_body=int(config.max_body_mb * 1e6),
        max_queue=config.max_queue,
        max_batch=config.max_batch or (GPU_BATCH if device.type == "cuda" else 1),
        wait_s=config.wait_ms / 1e3,
        prepare_threads=config.prepare_threads,
    )
    scorer = load_scorer(
        config,
        device,
        max_pixels=config.max_pixels,
        max_images=config.max_images,
        max_request_pixels=config.max_request_pixels,
    )
    return create_app(scorer, limits, config.api_key)


def serve(config: ServeConfig, load_scorer: Callable[..., Scorer[Any]]) -> None:
    """Serve until SIGTERM or SIGINT. `load_scorer(config, device, **limits)` loads the checkpoint of a task."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # uvicorn replaces it, and raises the signal again at its end
    app = make_app(config, load_scorer)
    import uvicorn

    from retina_dist.serving.connections import Connection

    with listen(config.host, config.port) as listener:
        address = f"http://{f'[{config.host}]' if ':' in config.host else config.host}:{listener.getsockname()[1]}"
        print_redacted(f"serving {config.checkpoint} on {address}/score, described at {address}/docs")
        if config.api_key is None and config.host not in ("127.0.0.1", "::1", "localhost"):
            logger.warning("anyone who reaches this address can use it; set RETINA_DIST_API_KEY to require a key.")
        settings = uvicorn.Config(
            app,
            http=partial(Connection, receive_s=config.receive_s, max_connections=config.max_connections),  # type: ignore[arg-type]
            ws="none",
            timeout_graceful_shutdown=config.shutdown_s,
            log_level="info",
        )
        try:
            uvicorn.Server(settings).run(sockets=[listener])
        finally:
            # a decode or a forward pass is still running: the interpreter would wait for it, or crash
            if app.state.busy:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(130 if isinstance(sys.exc_info()[1], KeyboardInterrupt) else 0)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises ConfigError if the address cannot be used."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, OverflowError, ValueError, TypeError) as error:  # the last two for invalid host names
        raise ConfigError(
            f"host={host} port={port} cannot be listened on ({error}); choose another, port=0 a free one."
        ) from error
