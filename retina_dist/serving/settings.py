"""The settings of the server."""

from dataclasses import dataclass

from retina_dist.base.errors import ConfigError
from retina_dist.base.settings import MISSING, setting, validate
from retina_dist.task.settings import PredictorConfig


@dataclass
class ServeConfig(PredictorConfig):
    """`python -m retina_dist.serve`."""

    checkpoint: str = setting(MISSING, "a run folder, whose best.pt is taken, or a .pt file")
    host: str = setting("127.0.0.1", "0.0.0.0: all addresses of this machine")
    port: int = setting(8080, "0: any free one", at_least=0, at_most=65_535)
    api_key: str | None = setting(
        None, "required as `Authorization: Bearer KEY`; better in $RETINA_DIST_API_KEY"
    )
    max_body_mb: float = setting(20.0, "1e6 bytes of a request", at_least=0.001, at_most=2000)
    max_pixels: int = setting(
        50_000_000, "images whose header claims more are refused", at_least=1, at_most=10**9
    )
    max_images: int = setting(16, "in a request", at_least=1, at_most=10**4)
    max_queue: int = setting(
        64, "images accepted and not answered; more get 429", at_least=1, at_most=10**4
    )
    max_batch: int | None = setting(
        None, "images of a pass; null: 8 on a GPU, 1 on a CPU", at_least=1, at_most=1024
    )
    wait_ms: float = setting(
        5.0, "how long a batch waits for more images", at_least=0, at_most=10**4
    )
    shutdown_s: int = setting(
        30, "after SIGTERM, for running requests; later ones get 503", at_least=0, at_most=86_400
    )

    def __post_init__(self) -> None:
        validate(self)

    def check(self) -> None:
        """Raise ConfigError where settings exclude each other."""
        if self.max_images > self.max_queue:
            raise ConfigError(
                f"max_images={self.max_images} never fit into max_queue={self.max_queue}; raise it."
            )
        if self.api_key == "":
            raise ConfigError(
                "api_key is empty; give a key, or null for a server that asks for none."
            )
