"""The server process: application, socket, and shutdown by signal."""

from __future__ import annotations

import logging
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from retina_dist.errors import ConfigError
from retina_dist.predictor import Predictor
from retina_dist.reporting.console import print_redacted
from retina_dist.serving.settings import ServeConfig
from retina_dist.strategies.single_device import SingleDeviceStrategy

logger = logging.getLogger(__name__)

GPU_BATCH = 8


def serve(config: ServeConfig, load_predictor: Callable[[torch.device], Predictor[Any, Any]]) -> None:
    """Serve until SIGTERM or SIGINT. `load_predictor(device)` loads the model.

    Raises ConfigError if the extra is missing or the address cannot be used.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # uvicorn replaces it, and raises the signal again at its end
    try:
        import httptools  # noqa: F401 - h11 raises on a HEAD request with a bad body
        import uvicorn

        from retina_dist.serving.app import create_app
        from retina_dist.serving.scoring import Scorer
    except ImportError as error:
        raise ConfigError(
            f'serving needs {error.name}, which is not installed; pip install "retina-dist[serve]".'
        ) from error
    device = SingleDeviceStrategy(config.device).device
    config = replace(config, max_batch=config.max_batch or (GPU_BATCH if device.type == "cuda" else 1))
    predictor = load_predictor(device)
    predictor.run_each(torch.zeros(3, 480, 640, dtype=torch.uint8))  # the first pass is the slowest
    scorer = Scorer(predictor, score_threshold=config.score_threshold, max_pixels=config.max_pixels)
    app = create_app(scorer, config)
    with listen(config.host, config.port) as listener:
        address = f"http://{f'[{config.host}]' if ':' in config.host else config.host}:{listener.getsockname()[1]}"
        print_redacted(f"serving {config.checkpoint} on {address}/score, described at {address}/docs")
        if config.api_key is None and config.host not in ("127.0.0.1", "::1", "localhost"):
            logger.warning("anyone who reaches this address can use it; set RETINA_DIST_API_KEY to require a key.")
        settings = uvicorn.Config(
            app, http="httptools", ws="none", timeout_graceful_shutdown=config.shutdown_s, log_level="info"
        )
        uvicorn.Server(settings).run(sockets=[listener])


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises ConfigError if the address cannot be used."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, OverflowError, ValueError, TypeError) as error:  # the last two for invalid host names
        remedy = f"write host={host.partition('://')[2]}" if "://" in host else "choose another, port=0 a free one"
        raise ConfigError(f"host={host} port={port} cannot be listened on ({error}); {remedy}.") from error
