"""The REST endpoint of a trained model.

    python -m retina_dist.serve checkpoint=runs/shapes/checkpoints/best.pt port=8080
    curl -H 'Content-Type: image/jpeg' --data-binary @image.jpg http://127.0.0.1:8080/score

After SIGTERM, accepted requests are answered (with 503 after `shutdown_s`), then the exit code is 0. TLS is left to a
reverse proxy.
"""

from __future__ import annotations

from typing import Any

import torch

from retina_dist.config.entry_point import entry_point
from retina_dist.engine.checkpoint.store import load_checkpoint
from retina_dist.predictor import Predictor, refuse_tile
from retina_dist.run_config import task_of_checkpoint
from retina_dist.serving.server import serve
from retina_dist.serving.settings import ServeConfig


@entry_point("serve", ServeConfig)
def main(config: ServeConfig) -> None:
    """Serve."""

    def load_predictor(device: torch.device) -> Predictor[Any, Any]:
        content = load_checkpoint(config.checkpoint)
        how: dict[str, Any] = {"device": device, "precision": config.precision}
        if task_of_checkpoint(content) == "classification":
            from retina_dist.classification.classifier import TrainedClassifier

            refuse_tile(config.tile)
            return TrainedClassifier.from_content(content, config.checkpoint, **how)
        from retina_dist.detection.detector import Detector

        detector = Detector.from_content(content, config.checkpoint, **how)
        return detector.tiled(config.tile, config.tile_overlap) if config.tile else detector

    serve(config, load_predictor)


if __name__ == "__main__":
    main()
