"""Settings of the server."""

from __future__ import annotations

from dataclasses import dataclass

from retina_dist.errors import ConfigError
from retina_dist.run_config import OfCheckpoint
from retina_dist.settings import MISSING, setting, validate


@dataclass
class ServeConfig(OfCheckpoint):
    """`python -m retina_dist.serve`."""

    checkpoint: str = setting(MISSING, "a run folder, whose best.pt is taken, or a .pt file")
    host: str = setting("127.0.0.1", "0.0.0.0: all addresses of this machine")
    port: int = setting(8080, "0: any free one", within=(0, 65_535))
    api_key: str | None = setting(
        None,
        "what /score requires as `Authorization: Bearer KEY`; better in $RETINA_DIST_API_KEY, which ps does not show",
    )
    score_threshold: float = setting(0.0, "beside the checkpoint's own", within=(0, 1), below=1)
    tile: int | None = setting(
        None, "px: detect in windows of this size too, for small objects in large images", at_least=32
    )
    tile_overlap: float = setting(0.2, "share of a window that its neighbour repeats", at_least=0, below=0.9)
    max_body_mb: float = setting(20.0, "1e6 bytes of a request", within=(0.001, 2000))
    max_pixels: int = setting(50_000_000, "images whose header claims more are refused", within=(1, 10**9))
    max_images: int = setting(16, "in a request", within=(1, 10**4))
    max_queue: int = setting(64, "images accepted but not answered; more are refused with 429", within=(1, 10**4))
    max_batch: int | None = setting(
        None, "images of one canvas in a forward pass; null: 8 on a GPU, 1 on a CPU", within=(1, 1024)
    )
    wait_ms: float = setting(5.0, "how long a batch waits for more images", within=(0, 10**4))
    shutdown_s: int = setting(30, "after SIGTERM, for running requests; later ones get 503", within=(0, 86_400))
    device: str = "auto"
    precision: str = setting("fp32", choices=("fp32", "tf32", "bf16", "fp16"))
    debug: bool = False

    def __post_init__(self) -> None:
        validate(self)

    def check(self) -> None:
        """Raise ConfigError where settings exclude each other."""
        if self.max_images > self.max_queue:
            raise ConfigError(f"max_images={self.max_images} never fit into max_queue={self.max_queue}; raise it.")
        if self.api_key == "":
            raise ConfigError("api_key is empty; give a key, or null for a server that asks for none.")
