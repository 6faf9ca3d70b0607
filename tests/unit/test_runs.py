"""Which folder a run writes to, and which checkpoint it goes on from."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from retina_dist.config import TrainConfig, load_config
from retina_dist.engine.checkpoint import CheckpointStore
from retina_dist.errors import CheckpointError, ConfigError
from retina_dist.runs import open_run, write_config


def settings(*overrides: str) -> TrainConfig:
    return load_config("train", list(overrides))


def quiet(text: str) -> None:
    pass


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def save(folder: str, *steps: int, overrides: tuple[str, ...] = ()) -> CheckpointStore:
    store = CheckpointStore(Path(folder) / "checkpoints", keep_last=5)
    for step in steps:
        store.save({"config": asdict(settings(*overrides)), "step": step, "w": torch.full((9,), float(step))}, step)
    return store


def test_fresh_runs_are_numbered() -> None:
    assert open_run(settings(), quiet).folder == Path("runs/shapes")
    Path("runs/shapes").mkdir(parents=True)
    Path("runs/shapes-7").mkdir()
    Path("runs/shapes-old").mkdir()
    assert open_run(settings(), quiet).folder == Path("runs/shapes-8")


def test_a_folder_that_holds_a_run_is_not_overwritten() -> None:
    save("mine", 1)
    with pytest.raises(ConfigError, match="mine already holds a run; go on with resume=auto"):
        open_run(settings("output_dir=mine"), quiet)
    assert open_run(settings("output_dir=new"), quiet).resume_step is None


def test_auto_takes_the_newest_or_starts_fresh() -> None:
    assert open_run(settings("resume=auto"), quiet).folder == Path("runs/shapes")
    save("runs/shapes", 1)
    save("runs/shapes-2", 3, 4)
    run = open_run(settings("resume=auto"), quiet)
    assert (run.folder, run.resume_step) == (Path("runs/shapes-2"), 4)
    assert open_run(settings("resume=auto", "output_dir=runs/shapes"), quiet).resume_step == 1
    assert open_run(settings("resume=auto", "output_dir=other"), quiet).resume_step is None


def test_a_damaged_newest_is_reported_and_passed_over() -> None:
    save("mine", 1, 2)
    Path("mine/checkpoints/step_00000002.pt").write_bytes(b"torn")
    said: list[str] = []
    assert open_run(settings("resume=auto", "output_dir=mine"), said.append).resume_step == 1
    assert "step_00000002.pt is damaged" in said[0]


def test_a_named_checkpoint_or_run_folder() -> None:
    save("mine", 1, 2)
    assert open_run(settings("resume=mine/checkpoints/step_00000001.pt"), quiet).resume_step == 1
    run = open_run(settings("resume=mine"), quiet)
    assert (run.folder, run.resume_step) == (Path("mine"), 2)
    elsewhere = open_run(settings("resume=mine", "output_dir=fork"), quiet)
    assert (elsewhere.folder, elsewhere.resume_step) == (Path("fork"), 2)
    Path("loose.pt").write_bytes(Path("mine/checkpoints/last.pt").read_bytes())
    with pytest.raises(ConfigError, match="lies in no run folder"):
        open_run(settings("resume=loose.pt"), quiet)
    Path("empty").mkdir()
    with pytest.raises(CheckpointError, match="without checkpoints"):
        open_run(settings("resume=empty"), quiet)


def test_what_decides_the_order_of_images_cannot_change() -> None:
    save("mine", 1)
    with pytest.raises(ConfigError, match=r"data\.batch_size=4 differs from the 8 .* give data\.batch_size=8"):
        open_run(settings("resume=mine", "data.batch_size=4"), quiet)
    with pytest.raises(ConfigError, match="seed=1"):
        open_run(settings("resume=mine", "seed=1"), quiet)
    assert open_run(settings("resume=mine", "trainer.length=99epochs", "data.num_workers=0"), quiet).resume_step == 1


def test_the_config_is_written_whole() -> None:
    config = settings("optimizer.lr=0.25")
    write_config(config, Path("run"))
    text = Path("run/config.yaml").read_text()
    assert "lr: 0.25" in text
    assert "warmup:" in text
