"""RetinaNet on COCO-format data, with interchangeable distributed backends.

The public names are imported when first used: `import retina_dist` loads neither hydra nor pycocotools.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.2.0.dev0"

_PUBLIC = {
    "Batch": "retina_dist.detection.batch",
    "CocoDataModule": "retina_dist.detection.data.module",
    "CocoEvaluator": "retina_dist.detection.coco_metrics",
    "Detections": "retina_dist.detection.batch",
    "Detector": "retina_dist.detection.detector",
    "DistributedStrategy": "retina_dist.strategies.base",
    "RetinaNet": "retina_dist.detection.model.retinanet",
    "SingleDeviceStrategy": "retina_dist.strategies.single_device",
    "Trainer": "retina_dist.engine.trainer",
    "TrainState": "retina_dist.engine.state",
    "build_retinanet": "retina_dist.detection.model.retinanet",
    "load_annotations": "retina_dist.detection.readers.coco",
    "load_config": "retina_dist.config.compose",
    "load_weights": "retina_dist.detection.model.weights",
    "resolve_plan": "retina_dist.engine.plan",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'retina_dist' has no attribute '{name}'")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
