"""One small trained run that the end-to-end tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands import run_command

ROOT = Path(__file__).resolve().parents[2]

# Small enough for seconds, complete in every other way; a checkpoint is a sixth of ResNet-18's.
SMALL = (
    *(
        "data.shapes.num_train=24",
        "data.shapes.num_val=10",
        "data.shapes.image_size=64",
        "data.num_workers=0",
    ),
    *("data.batch_size=4", "data.val_batch_size=4", "data.min_sizes=[64]", "data.max_size=96"),
    *(
        "model.backbone=mobilenet_v3_small",
        "schedule.warmup=2steps",
        "trainer.num_threads=1",
        "trainer.log_every=1",
    ),
)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that a two-epoch run on small shapes was started in; its run is runs/shapes."""
    folder = tmp_path_factory.mktemp("trained")
    run_command(
        "retina_dist.train",
        *SMALL,
        "trainer.max_duration=2epochs",
        "model.score_threshold=0.001",
        cwd=folder,
    )
    return folder
