"""The REST endpoint of a trained model.

    python -m retina_dist.serve checkpoint=runs/shapes/checkpoints/best.pt port=8080
    curl -H 'Content-Type: image/jpeg' --data-binary @image.jpg http://127.0.0.1:8080/score

After SIGTERM, accepted requests are answered (with 503 after `shutdown_s`), then the exit code is
0. TLS is left to a reverse proxy.
"""

from retina_dist.config.entry_point import entry_point
from retina_dist.serving.server import serve
from retina_dist.serving.settings import ServeConfig


@entry_point("serve", ServeConfig)
def main(config: ServeConfig) -> None:
    """Serve."""
    serve(config)


if __name__ == "__main__":
    main()
