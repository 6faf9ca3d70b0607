"""Detection's commands; a training imports none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from retina_dist.doctor import DoctorConfig
    from retina_dist.evaluate import EvaluateConfig
    from retina_dist.export import ExportConfig
    from retina_dist.predict import PredictConfig
    from retina_dist.reporting.findings import DoctorReport
    from retina_dist.shards import ShardsConfig


def evaluate(config: EvaluateConfig) -> str:
    """COCO metrics as a table; every rank calls it."""
    from retina_dist.detection.evaluation import evaluate_as_text

    return evaluate_as_text(config)


def predict(config: PredictConfig) -> None:
    """Write drawings and a COCO results json."""
    from retina_dist.detection.prediction import predict

    predict(config)


def export(config: ExportConfig) -> None:
    """Write the detector for other runtimes, compared with the original."""
    from retina_dist.detection.export import export

    export(config)


def examine(config: DoctorConfig) -> DoctorReport:
    """Check data and anchors of a training's settings."""
    from retina_dist.detection.doctor.report import examine

    return examine(config)


def write_shards(config: ShardsConfig) -> None:
    """Write the images of a training's settings into tar files."""
    from retina_dist.detection.write_shards import write_shards

    write_shards(config)
