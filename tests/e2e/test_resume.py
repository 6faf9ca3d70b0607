"""A run that stopped and went on is the same run, bit for bit, with the real model and data."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from retina_dist.base.errors import CheckpointError, ConfigError
from retina_dist.config.compose import load_config
from retina_dist.detection.model.build import build_model
from retina_dist.engine.checkpoint.store import load_checkpoint, sealed
from retina_dist.run.assemble import train
from tests.chaos import differences
from tests.commands import wait_for
from tests.e2e.conftest import ROOT, SMALL


def run(folder: Path, *overrides: str) -> dict:
    data = f"data.root={folder.parent / 'data'}"
    augment = ("data.photometric=0.5", "data.scale_jitter=[0.8,1.25]", "data.min_sizes=[48,64]")
    common = (
        *SMALL,
        data,
        *augment,
        "trainer.max_duration=20steps",
        "trainer.ema_decay=0.9",
        "logging=quiet",
    )
    train(load_config("train", [*common, f"output_dir={folder}", *overrides]))
    return load_checkpoint(folder / "checkpoints" / "last.pt")


def test_20_steps_are_7_and_13(tmp_path: Path) -> None:
    start = tmp_path / "start.pt"
    begin = (f"model.weights={start}", "model.norm=sync_bn")  # whose statistics resume too
    torch.save(build_model(load_config("train", SMALL).model, 6).state_dict(), start)
    whole = run(tmp_path / "whole", "data.num_workers=0", *begin)
    run(tmp_path / "parts", "trainer.stop_after=7steps", "data.num_workers=2", *begin)
    start.unlink()  # the checkpoint brings the weights
    parts = run(tmp_path / "parts", "resume=auto", "data.num_workers=1", *begin)
    assert whole["step"] == parts["step"] == 20
    assert differences(tmp_path / "whole", tmp_path / "parts") == ""
    assert whole["sampler"] == {"epoch": 3, "cursor": 8}
    assert repr(whole["metrics"]) == repr(parts["metrics"])  # NaN where undefined


def test_a_stop_between_two_log_rows_leaves_the_rows_as_they_are(tmp_path: Path) -> None:
    """The stop wrote a row of its own, which the rows after the resume repeated."""

    def rows(name: str) -> list[dict[str, str]]:
        with (tmp_path / name / "metrics.csv").open(newline="") as file:
            found = list(csv.DictReader(file))
        return [{key: row[key] for key in row if not key.startswith("time/")} for row in found]

    settings = ("trainer.max_duration=6steps", "trainer.log_every=2", "data.num_workers=0")
    run(tmp_path / "whole", *settings)
    run(tmp_path / "parts", *settings, "trainer.stop_after=3steps")
    assert [row["step"] for row in rows("parts")] == ["2"]
    run(tmp_path / "parts", *settings, "resume=auto")
    assert rows("parts") == rows("whole")


def test_an_early_stopped_run_has_nothing_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor does it train one more interval at each resume."""
    often = ("trainer.validate_every=1steps", "trainer.monitor=val/loss")
    frozen = ("model=retinanet_tiny", "model.norm=frozen_bn", *often, "optimizer.lr=1e-30")
    stopped = run(tmp_path / "run", *frozen, "trainer.patience=2")
    assert stopped["step"] == 3
    best = f"best val/loss {stopped['best']['value']:.3f}: {tmp_path / 'run/checkpoints/best.pt'}"
    assert best in "".join(capsys.readouterr())
    for _ in range(2):
        assert run(tmp_path / "run", *frozen, "trainer.patience=2", "resume=auto")["step"] == 3
        words = "nothing to do: stopped early: val/loss has not improved in 2 validations. "
        words += "Raise trainer.patience"
        assert words in "".join(capsys.readouterr())
    assert run(tmp_path / "run", *frozen, "trainer.patience=3", "resume=auto")["step"] == 4


def test_a_resume_without_all_of_its_state_or_images_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "run", "trainer.stop_after=1steps")
    closing = "".join(capsys.readouterr()).strip().splitlines()[-1]
    assert closing == (
        "trainer.stop_after ended the run at step 1 of 20; "
        f"continue with resume={tmp_path / 'run'} trainer.stop_after=null"
    )
    last = tmp_path / "run" / "checkpoints" / "step_00000001.pt"
    for key, value in (
        ("optimizer", {}),
        ("model", {"w": 1}),
        ("sampler", {}),
        ("categories", None),
    ):
        content = load_checkpoint(last)
        content.pop(key)
        (tmp_path / "less.pt").write_bytes(
            sealed(content if value is None else content | {key: value})
        )
        with pytest.raises(CheckpointError, match=r"less\.pt"):
            run(tmp_path / f"again_{key}", f"resume={tmp_path / 'less.pt'}")
    with pytest.raises(CheckpointError, match="trained on other images"):
        run(
            tmp_path / "run",
            "resume=auto",
            f"data.root={tmp_path / 'other'}",
            "data.shapes.num_train=20",
        )


def test_what_can_be_known_is_refused_before_images_are_drawn(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"schedule.warmup=20steps fills all 20 steps"):
        run(tmp_path / "run", "schedule.warmup=20steps")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "last.pt").touch()
    with pytest.raises(ConfigError, match="already holds a run"):
        run(tmp_path / "run")
    assert not (tmp_path / "data").exists()


def test_data_workers_end_with_a_killed_run(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    arguments = [
        *SMALL,
        "data.num_workers=2",
        "trainer.max_duration=1000epochs",
        "output_dir=run",
        "logging=quiet",
    ]
    command = [sys.executable, "-m", "retina_dist.train", *arguments]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as run:
        for line in run.stdout:  # until it trains
            if b"loss" in line:
                break
        workers = [pid for pid in group_of(run.pid) if pid != run.pid]
        assert len(workers) >= 2
        run.kill()
        wait_for(
            lambda: not group_of(run.pid), 20
        )  # while nobody collects the run, as in a container without an init


def group_of(group: int) -> list[int]:
    """The processes of a process group, without those that have ended and wait to be collected."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rsplit(")", 1)[1].split()
        except OSError:  # gone meanwhile
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(status.parent.name))
    return found
