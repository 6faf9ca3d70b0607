"""Settings of the server."""

from __future__ import annotations

from dataclasses import dataclass

from retina_dist.errors import ConfigError
from retina_dist.settings import MISSING, check_limits, setting


@dataclass
class ServeConfig:
    """`python -m retina_dist.serve`."""

    checkpoint: str = MISSING
    host: str = setting("127.0.0.1", "0.0.0.0: all of this machine's addresses")
    port: int = setting(8080, "0: any that is free", within=(0, 65_535))
    api_key: str | None = setting(
        None,
        "what /score requires as `Authorization: Bearer KEY`; better in $RETINA_DIST_API_KEY, which ps does not show",
    )
    score_threshold: float = setting(0.0, "beside the checkpoint's own", within=(0, 1), below=1)
    max_body_mb: float = setting(20.0, "1e6 bytes of a request", within=(0.001, 2000))
    max_pixels: int = setting(50_000_000, "an image whose header claims more is refused", within=(1, 10**9))
    max_images: int = setting(16, "of a request", within=(1, 10**4))
    max_request_pixels: int = setting(100_000_000, "of a request's images together", within=(1, 10**11))
    max_queue: int = setting(64, "images taken and not yet answered; more are refused with 429", within=(1, 10**4))
    max_batch: int | None = setting(
        None, "images of one canvas in one pass; null: 8 on a GPU, 1 on a CPU", within=(1, 1024)
    )
    wait_ms: float = setting(5.0, "how long an image waits for others at most", within=(0, 10**4))
    prepare_threads: int = setting(2, "that read bodies, decode and resize; requests take turns", within=(1, 256))
    max_connections: int = setting(
        256, "with more, the one that has waited longest for its client is closed", within=(2, 10**5)
    )
    receive_s: float = setting(
        30.0,
        "for a request to arrive, and for an answer to be taken; then the connection is closed",
        within=(0.1, 3600),
    )
    shutdown_s: int = setting(30, "after SIGTERM, for the requests under way; later ones get 503", within=(0, 86_400))
    device: str = "auto"
    precision: str = setting("fp32", choices=("fp32", "tf32", "bf16", "fp16"))
    debug: bool = False

    def __post_init__(self) -> None:
        check_limits(self)
        if self.max_request_pixels < self.max_pixels:
            raise ConfigError(
                f"max_request_pixels={self.max_request_pixels} refuses images that max_pixels={self.max_pixels} allows; raise it, "
                "or lower max_pixels."
            )
        if self.max_connections <= self.max_queue:
            raise ConfigError(
                f"max_connections={self.max_connections} leaves none for health checks beside max_queue={self.max_queue} requests; "
                "give more."
            )
        if self.api_key == "":
            raise ConfigError("api_key is empty; give a key, or null for a server that asks for none.")
