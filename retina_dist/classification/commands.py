"""Classification's commands; a training imports none of them."""

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
    """Metrics as a table; every rank calls it."""
    from retina_dist.classification.evaluation import evaluate_as_text

    return evaluate_as_text(config)


def predict(config: PredictConfig) -> None:
    """Write a CSV file of classes."""
    from retina_dist.classification.prediction import predict

    predict(config)


def export(config: ExportConfig) -> None:
    """Write the classifier for other runtimes, compared with the original."""
    from retina_dist.classification.export import export

    export(config)


def examine(config: DoctorConfig) -> DoctorReport:
    """Check the data of a training's settings."""
    from retina_dist.classification.doctor import examine

    return examine(config)


def write_shards(config: ShardsConfig) -> None:
    """Write the images of a training's settings into tar files."""
    from retina_dist.classification.write_shards import write_shards

    write_shards(config)
