"""Sweeps: Hydra runs the jobs; what becomes of one that fails, the table and the plot."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import retina_dist.train
from retina_dist.base.errors import DataError, Preempted
from retina_dist.base.files import write_json
from retina_dist.engine.nonfinite import Divergence
from retina_dist.reporting.intervals import Resampled
from retina_dist.reporting.run_files import RESULT, Result
from retina_dist.reporting.sweep_table import SweepRow, compare_with_best
from retina_dist.tracking.progress import LOSS

TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
Sweep = Callable[..., int]


def trained(config: Any) -> None:
    """A training that is over at once: AP is ten times the learning rate."""
    folder = Path(config.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    value = config.optimizer.lr * 10
    mode = config.trainer.monitor_mode or "max"
    result = {"status": "ok", "error": None, LOSS: 1.0, "images_per_s": 40.123456789, "best": value}
    write_json(folder / RESULT, {**result, "monitor": "coco/AP", "monitor_mode": mode})
    (folder / "checkpoints").mkdir(exist_ok=True)


def table(folder: str | Path) -> list[dict[str, str]]:
    return list(csv.DictReader((Path(folder) / "sweep.csv").open()))


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sweep:
    """`retina-dist train -m ARGUMENTS` in this process with another training; its exit code."""
    monkeypatch.chdir(tmp_path)

    def start(*arguments: str, train: Callable[[Any], Any] = trained) -> int:
        monkeypatch.setattr(retina_dist.train, "train", train)
        monkeypatch.setattr(sys, "argv", ["train", "-m", *arguments])
        try:
            retina_dist.train.main()
        except SystemExit as end:
            return int(end.code or 0)
        return 0

    return start


def test_every_job_has_a_folder_and_a_row(sweep: Sweep, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep("optimizer.lr=1e-3,1e-2", "data.batch_size=4,8", "seed=1") == 0
    rows = table("runs/shapes-sweep")
    assert [row["folder"] for row in rows] == [f"runs/shapes-sweep/{i}" for i in range(4)]
    last = rows[-1]
    assert (last["optimizer.lr"], last["data.batch_size"], last["status"], last["error"]) == (
        "0.01",
        "8",
        "ok",
        "",
    )
    assert (float(last["coco/AP"]), float(last[LOSS]), float(last["images_per_s"])) == (
        0.1,
        1.0,
        40.123456789,
    )
    assert "seed" not in last, "the same in all jobs"
    assert Path("runs/shapes-sweep/report.html").is_file()
    printed = capsys.readouterr().out.splitlines()
    assert (
        printed[-1]
        == "best coco/AP 0.100: optimizer.lr=0.01 data.batch_size=4, runs/shapes-sweep/2"
    )
    assert "job 1: optimizer.lr=0.001 data.batch_size=8 seed=1 experiment=shapes" in printed
    assert any("40.12  " in line for line in printed)
    assert any(
        line.startswith("job  optimizer.lr  data.batch_size  status  coco/AP") for line in printed
    )
    sweep("optimizer.lr=1e-3,1e-2", "trainer.monitor_mode=min", "output_dir=lowest")
    assert capsys.readouterr().out.splitlines()[-1].endswith("lowest/0")


def test_jobs_that_cannot_be_told_from_the_best_are_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    # of images that are hard for all, and of one job alone; their standard error is .02
    noise, own = rng.normal(0, 0.002, (2, 101))

    def job(name: str, best: float, samples: np.ndarray, seen: float) -> SweepRow:
        (tmp_path / name).mkdir()
        Resampled("images", {"coco/AP": seen}, {"coco/AP": seen + samples}).save(tmp_path / name)
        ended = Result(status="ok", monitor="coco/AP", monitor_mode="max", best=best)
        return SweepRow(tmp_path / name, ended)

    rows = [job("a", 0.48, noise, 0.48), job("b", 0.5, noise, 0.5), job("c", 0.49, own, 0.49)]
    bars, verdicts = zip(*compare_with_best(rows), strict=True)
    assert verdicts == ("worse", "best", "not distinguishable from the best")
    low, high = map(float, bars[1].split(" to "))
    assert (low, high) == pytest.approx((0.46, 0.54), abs=0.01)
    rows.append(job("d", 0.9, noise, 0.7))  # resumed after its best validation
    rows.append(SweepRow(tmp_path, Result(status="failed", monitor="coco/AP")))
    assert compare_with_best(rows) == [*((text, "") for text in bars), ("", ""), ("", "")]
    Resampled("images", {}, {}).save(tmp_path / "a")  # every value was NaN
    rows[0].result.best = None
    assert compare_with_best(rows[:2]) == [("", ""), (bars[1], "best")]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b'{"best": "x"}', b"\xff", b"[" * 9999]
)
def test_an_unreadable_result_is_a_row_and_stops_nothing(
    sweep: Sweep, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    """The result of the first job is damaged while the sweep runs."""

    def train(config: Any) -> None:
        trained(config)
        if config.seed == 1:
            Path("s/0", RESULT).write_bytes(content)

    assert sweep("seed=0,1,2", "output_dir=s", train=train) == 0
    assert [row["status"] for row in table("s")] == ["unreadable", "ok", "ok"]
    assert [row["seed"] for row in table("s")] == ["", "1", "2"]
    assert table("s")[0]["error"].startswith("s/0/result.json cannot be read (")
    assert Path("s/report.html").is_file()
    assert "unreadable" in capsys.readouterr().out


def test_a_sweep_after_one_that_failed_has_only_its_own_jobs(
    sweep: Sweep, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(config: Any) -> None:
        raise DataError("no.")

    assert sweep("seed=0,1,2", "output_dir=s", train=fails) == 2
    assert "earlier sweep" not in capsys.readouterr().err
    assert sweep("seed=0,1", "output_dir=s") == 0
    assert [row["status"] for row in table("s")] == ["ok", "ok"]
    replaced = "s holds 3 failed jobs of an earlier sweep, which this one replaces"
    assert replaced in capsys.readouterr().err


def test_hydras_other_ways_to_sweep(sweep: Sweep, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep("seed=range(1,3)", "hydra.sweep.dir=there", "hydra.sweep.subdir=in/s${seed}") == 0
    assert [row["folder"] for row in table("there")] == ["there/in/s1", "there/in/s2"]
    each = ("logging.run_name=a${hydra:job.num}", "trainer.checkpoint_dir=ck/${hydra:job.num}")
    assert (
        sweep("seed=1,2", *each, "output_dir=named")
        == sweep("trainer.checkpoint_dir=a,b", "output_dir=b")
        == 0
    )
    assert [row["status"] for row in table("named")] == ["ok", "ok"]
    assert sweep("model=glob(retinanet_r*)", "output_dir=models") == 0
    assert [row["model"] for row in table("models")] == [
        "retinanet_r18",
        "retinanet_r50",
        "retinanet_r50_v2",
    ]
    assert (
        sweep("experiment=sweep_lr_batch", "data.batch_size=4", "output_dir=file") == 0
    )  # the command line wins
    assert [row["optimizer.lr"] for row in table("file")] == ["0.0003", "0.001", "0.003"]
    assert sweep("optimizer.lr=interval(0,1)") == 2
    assert (
        "interval() is for other sweepers; write the values, as optimizer.lr=1e-4,1e-3."
        in capsys.readouterr().err
    )


def test_in_one_process_any_failure_is_a_row(sweep: Sweep) -> None:
    errors = [DataError("a.json is wrong."), RuntimeError("out of memory\nmore")]

    def train(config: Any) -> None:
        if config.seed:
            raise errors[config.seed - 1]
        trained(config)

    assert sweep("seed=1,0,2", "output_dir=s", train=train) == 0
    assert [row["status"] for row in table("s")] == ["failed", "ok", "failed"]
    assert [row["error"] for row in table("s")] == [
        "a.json is wrong.",
        "",
        "RuntimeError: out of memory",
    ]


def test_a_combination_that_cannot_be_is_a_failed_job(
    sweep: Sweep, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep("data.batch_size=0,4", "output_dir=s") == 0
    assert [row["error"] for row in table("s")] == [
        "data.batch_size=0 is too small; it must be at least 1.",
        "",
    ]
    assert sweep("data.batch_size=0,-1", "output_dir=t") == 2, "no job was trained"
    assert sweep("optimizer.lr=1,2", "output_dir=t") == 0, "a folder without a trained job is free"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["optimizer.lrr=1,2"], "optimizer.lrr is not a setting; did you mean optimizer.lr?"),
        (
            ["optimizer.lr=1", "seedd=1", "data.batch_size=4,8"],
            "seedd is not a setting; did you mean seed?",
        ),
        (
            ["seed=0,1", "trainer.checkpoint_dir=x"],
            "trainer.checkpoint_dir=x is that of all jobs; append '",
        ),
        (["seed=0,1", "optimizer.lr=1e-3,fast"], "optimizer.lr=fast is not a number; write one"),
    ],
)
def test_what_is_wrong_in_a_job_is_refused_before_the_first(
    sweep: Sweep, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert sweep(*arguments, "output_dir=s", train=lambda config: pytest.fail("a job began")) == 2
    assert capsys.readouterr().err.startswith(f"error: {sentence}")
    assert not Path("s").exists()


def test_an_interrupted_sweep_goes_on(sweep: Sweep, capsys: pytest.CaptureFixture[str]) -> None:
    begun: list[tuple[int, str | None]] = []

    def train(config: Any) -> None:
        begun.append((config.seed, config.resume))
        if config.seed == 1 and len(begun) == 2:
            (Path(config.output_dir) / "checkpoints").mkdir(parents=True)
            raise Preempted("asked to.")
        trained(config)

    assert sweep("seed=0,1,2", "output_dir=s", train=train) == 75
    assert [(row["status"], row["error"]) for row in table("s")] == [
        ("ok", ""),
        ("preempted", "asked to."),
    ]
    assert sweep("seed=0,1,2", "output_dir=s", train=train) == 2
    assert "error: s holds a sweep; add resume=auto to this command" in capsys.readouterr().err
    assert sweep("seed=0,1,2", "output_dir=s", "resume=auto", train=train) == 0
    assert begun == [(0, None), (1, None), (0, "auto"), (1, "auto"), (2, "auto")]
    assert [row["status"] for row in table("s")] == ["ok"] * 3


def test_among_processes_only_a_common_error_lets_the_sweep_go_on(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    errors: dict[int, Exception] = {0: Divergence("on all."), 1: DataError("here alone.")}

    def train(config: Any) -> None:
        raise errors[config.seed]

    assert sweep("seed=0,1,2", "output_dir=s", train=train) == 2
    assert [row["error"] for row in table("s")] == ["on all.", "here alone."]
    errors[0] = RuntimeError("a bug")
    assert sweep("seed=0,1", "output_dir=t", train=train) == 1
    monkeypatch.setenv("RANK", "1")
    errors[0], errors[1] = Divergence("on all."), Divergence("found by rank 1.", reporter=1)
    capsys.readouterr()
    assert sweep("seed=0,1", "output_dir=u", train=train) == 0, "rank 0 gives the verdict"
    assert not Path("u/sweep.csv").exists()
    assert capsys.readouterr() == ("", "the job failed: found by rank 1.\n")


def test_without_validation_the_lowest_loss_is_named(
    sweep: Sweep, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(config: Any) -> None:
        write_json(
            Path(config.output_dir) / RESULT,
            {"status": "ok", LOSS: 3.0 - config.seed, "best": None},
        )

    sweep("seed=0,1", "output_dir=s", train=train)
    assert capsys.readouterr().out.splitlines()[-1] == "lowest train/loss 2.000: seed=1, s/1"
