"""The REST endpoint of a trained detector.

    python -m retina_dist.serve checkpoint=runs/shapes/checkpoints/best.pt port=8080
    curl -H 'Content-Type: image/jpeg' --data-binary @image.jpg http://127.0.0.1:8080/score

Layer 4. SIGTERM answers what was taken, with 503 what takes longer than `shutdown_s`, then ends with exit code 0. TLS is a reverse
proxy's work.
"""

from __future__ import annotations

from retina_dist.config.entry_point import entry_point
from retina_dist.config.schema import ServeConfig
from retina_dist.detection.serving import load_scorer
from retina_dist.serving.server import serve


@entry_point("serve")
def main(config: ServeConfig) -> None:
    """Serve."""
    serve(config, load_scorer)


if __name__ == "__main__":
    main()
