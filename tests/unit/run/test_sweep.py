"""Sweeps: Hydra's product as jobs, what becomes of one that fails, the table and the plot."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from retina_dist.config.compose import register_schema
from retina_dist.config.overrides import SweepJob, check_overrides
from retina_dist.detection.settings import DetectionRunConfig
from retina_dist.engine.nonfinite import Divergence
from retina_dist.errors import ConfigError, DataError
from retina_dist.reporting.loggers import CsvLogger
from retina_dist.reporting.plots import plot_sweep
from retina_dist.run.result import LOSS, read_result, write_result
from retina_dist.run.sweep import (
    aligned,
    command,
    error_in,
    job_name,
    quoted,
    run_sweep,
    short_names,
    start,
)

TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}


def jobs_of(*arguments: str) -> list[SweepJob]:
    register_schema("train")
    return check_overrides("train", ["-m", *arguments])


def trained(config: DetectionRunConfig) -> None:
    """A training that is over at once: AP is ten times the learning rate."""
    assert config.output_dir
    folder = Path(config.output_dir)
    CsvLogger(folder / "metrics.csv").log({LOSS: 1.0}, 3)
    write_result(
        folder, step=3, loss=1.0, speeds=[1.0, 30.0, 50.0], best=config.optimizer.lr * 10, metrics={"coco/AP": 0.0}
    )


def table(folder: str | Path) -> list[dict[str, str]]:
    return list(csv.DictReader((Path(folder) / "sweep.csv").open()))


@pytest.fixture(autouse=True)
def _somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# the jobs


def test_jobs_are_hydras_product() -> None:
    jobs = jobs_of("optimizer.lr=1e-3,1e-2", "data.batch_size=4,8", "seed=1", "data.min_sizes=[64,96]")
    assert [tuple(job.swept.values()) for job in jobs] == [("0.001", "4"), ("0.001", "8"), ("0.01", "4"), ("0.01", "8")]
    assert list(jobs[0].swept) == ["optimizer.lr", "data.batch_size"]
    config = jobs[3].load()
    assert (config.optimizer.lr, config.data.batch_size, config.data.min_sizes) == (0.01, 8, [64, 96])
    assert check_overrides("train", ["optimizer.lr=1e-3"]) == []


def test_hydras_other_ways_to_sweep() -> None:
    assert [job.swept for job in jobs_of("seed=range(1,3)")] == [{"seed": "1"}, {"seed": "2"}]
    assert [job.swept["model"] for job in jobs_of("model=glob(retinanet_r*)")] == [
        "retinanet_r18",
        "retinanet_r50",
        "retinanet_r50_v2",
    ]
    jobs = jobs_of("experiment=sweep_lr_batch", "data.batch_size=4")  # the file sweeps, the command line wins
    assert [job.swept["optimizer.lr"] for job in jobs] == ["0.0003", "0.001", "0.003"]
    assert {job.load().data.batch_size for job in jobs} == {4}
    with pytest.raises(ConfigError, match="does not support sweep type"):
        jobs_of("optimizer.lr=interval(0,1)")


def test_a_sweep_may_begin_unless_no_job_can_be() -> None:
    assert len(jobs_of("optimizer.lr=abc,1e-3", "data.batch_size=0,4")) == 4
    with pytest.raises(ConfigError, match="lr=abc is not a number"):
        jobs_of("optimizer.lr=abc,def")
    with pytest.raises(ConfigError, match="optimizer.lrr is not a setting; did you mean optimizer.lr"):
        jobs_of("optimizer.lrr=1,2")


# going through them


def test_every_job_has_a_folder_and_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_sweep(jobs_of("optimizer.lr=1e-3,1e-2", "data.batch_size=4,8"), trained) == 0
    rows = table("runs/shapes-sweep")
    assert [row["folder"] for row in rows] == [
        "runs/shapes-sweep/0_lr=0.001_batch_size=4",
        "runs/shapes-sweep/1_lr=0.001_batch_size=8",
        "runs/shapes-sweep/2_lr=0.01_batch_size=4",
        "runs/shapes-sweep/3_lr=0.01_batch_size=8",
    ]
    last = rows[-1]
    assert (last["optimizer.lr"], last["data.batch_size"], last["status"], last["error"]) == ("0.01", "8", "ok", "")
    assert (float(last["coco/AP"]), float(last[LOSS]), float(last["images_per_s"])) == (0.1, 1.0, 40.0)
    assert (Path("runs/shapes-sweep") / "sweep.png").is_file()
    said = capsys.readouterr().out
    best = "best coco/AP 0.100: optimizer.lr=0.01 data.batch_size=4, runs/shapes-sweep/2_lr=0.01_batch_size=4"
    assert said.splitlines()[-1] == best
    assert "job  optimizer.lr  data.batch_size  status  coco/AP" in said
    run_sweep(jobs_of("seed=1,2"), trained)
    assert len(table("runs/shapes-sweep-2")) == 2


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (Divergence("train/loss=nan by step 2."), "train/loss=nan by step 2."),
        (DataError("a.json is wrong."), "a.json is wrong."),
        (RuntimeError("out of memory\nmore"), "RuntimeError: out of memory"),
    ],
)
def test_in_one_process_any_failure_is_marked(error: Exception, sentence: str) -> None:
    def train(config: DetectionRunConfig) -> None:
        if config.seed == 1:
            raise error
        trained(config)

    assert run_sweep(jobs_of("seed=0,1,2", "output_dir=s"), train) == 0
    rows = table("s")
    assert [row["status"] for row in rows] == ["ok", "failed", "ok"]
    assert rows[1]["error"] == sentence


def test_a_combination_that_cannot_be_is_a_failed_job() -> None:
    assert run_sweep(jobs_of("data.batch_size=0,4", "output_dir=s"), trained) == 0
    assert [row["error"] for row in table("s")] == ["data.batch_size=0 is too small; it must be at least 1.", ""]


def test_a_sweep_without_success_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    def train(config: DetectionRunConfig) -> None:
        raise Divergence("no.")

    assert run_sweep(jobs_of("seed=0,1", "output_dir=s"), train) == 2
    assert "best" not in capsys.readouterr().out
    assert Path("s/sweep.png").is_file()


def test_among_processes_only_a_common_error_lets_the_sweep_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    errors: dict[int, Exception] = {0: Divergence("on all."), 1: DataError("here alone.")}

    def train(config: DetectionRunConfig) -> None:
        raise errors[config.seed]

    with pytest.raises(DataError, match="here alone"):
        run_sweep(jobs_of("seed=0,1,2", "output_dir=s"), train)
    assert [row["error"] for row in table("s")] == ["on all.", "here alone."]
    errors[0] = RuntimeError("a bug")
    with pytest.raises(RuntimeError, match="a bug"):
        run_sweep(jobs_of("seed=0,1", "output_dir=t"), train)


def test_other_ranks_write_nothing_and_leave_the_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {**TORCHRUN, "RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    begun: list[int] = []

    def train(config: DetectionRunConfig) -> None:
        begun.append(config.seed)
        raise Divergence("on all.")

    assert run_sweep(jobs_of("seed=0,1"), train) == 0
    assert begun == [0, 1]
    assert not list(Path().iterdir())
    assert capsys.readouterr() == ("", "")


def test_an_interrupted_sweep_leaves_what_it_did() -> None:
    def train(config: DetectionRunConfig) -> None:
        if config.seed == 1:
            raise KeyboardInterrupt
        trained(config)

    with pytest.raises(KeyboardInterrupt):
        run_sweep(jobs_of("seed=0,1,2", "output_dir=s"), train)
    assert [(row["status"], row["error"]) for row in table("s")] == [("ok", ""), ("failed", "interrupted")]
    assert Path("s/sweep.png").is_file()


def test_a_dry_sweep_writes_nothing() -> None:
    assert run_sweep(jobs_of("seed=0,1", "dry_run=true"), lambda config: None) == 0
    assert not list(Path().iterdir())


def test_where_a_sweep_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("a").mkdir()
    Path("a/sweep.csv").touch()
    Path("b/checkpoints").mkdir(parents=True)
    with pytest.raises(ConfigError, match="output_dir=a already holds a sweep; give another folder."):
        run_sweep(jobs_of("seed=0,1", "output_dir=a"), trained)
    with pytest.raises(ConfigError, match="output_dir=b already holds a run"):
        run_sweep(jobs_of("seed=0,1", "output_dir=b"), trained)
    with pytest.raises(ConfigError, match="output_dir cannot be swept"):
        run_sweep(jobs_of("output_dir=c,d"), trained)
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="launcher=mpirun starts each job's processes itself, but this is RANK and"):
        run_sweep(jobs_of("seed=0,1", "launcher=mpirun"), trained)


@pytest.mark.parametrize(("mode", "number"), [("max", 2), ("min", 0)])
def test_the_best_is_by_the_monitors_mode(mode: str, number: int, capsys: pytest.CaptureFixture[str]) -> None:
    run_sweep(jobs_of("optimizer.lr=1e-3,1e-2,2e-2", f"trainer.monitor_mode={mode}", "output_dir=s"), trained)
    assert f"s/{number}_lr=" in capsys.readouterr().out.splitlines()[-1]


def test_without_validation_the_lowest_loss_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    def train(config: DetectionRunConfig) -> None:
        folder = Path(str(config.output_dir))
        CsvLogger(folder / "metrics.csv").log({LOSS: 3.0 - config.seed}, 1)
        write_result(folder, step=1, loss=3.0 - config.seed, best=None)

    run_sweep(jobs_of("seed=0,1", "output_dir=s"), train)
    assert capsys.readouterr().out.splitlines()[-1] == "lowest train/loss 2.000: seed=1, s/1_seed=1"


# names


def test_names_of_folders() -> None:
    assert job_name(0, {"optimizer.lr": "0.001", "data.batch_size": "4"}) == "0_lr=0.001_batch_size=4"
    assert job_name(3, {"data.min_sizes": "[64,96]", "data.root": "../a b"}) == "3_min_sizes=-64,96-_root=..-a-b"
    assert len(job_name(1, {"data.root": "x" * 500})) == 120
    assert short_names(["optimizer.name", "data.name", "seed"]) == ["optimizer.name", "data.name", "seed"]


def test_the_table_is_aligned() -> None:
    assert aligned(["a", "bb"], [["xxx", "1"], ["y", ""]]) == "a    bb\nxxx  1\ny"


# result.json


def test_result_of_a_run(tmp_path: Path) -> None:
    assert read_result(tmp_path) == {}
    metrics = {"coco/AP": float("nan"), "coco/AP50": 0.5}
    write_result(tmp_path, step=5, loss=0.2, speeds=[2.0, 30.0, 50.0], metrics=metrics, best=0.25, world_size=2)
    result: dict[str, Any] = json.loads((tmp_path / "result.json").read_text())
    assert result == read_result(tmp_path)
    assert (result["status"], result["error"], result["step"], result["best"]) == ("ok", None, 5, 0.25)
    assert result["metrics"] == {"coco/AP": None, "coco/AP50": 0.5}
    assert (result[LOSS], result["images_per_s"]) == (0.2, 40.0)  # without the first line
    write_result(tmp_path, error=Divergence("it is nan."))
    assert (read_result(tmp_path)["status"], read_result(tmp_path)["error"]) == ("failed", "it is nan.")


def test_result_before_the_first_log(tmp_path: Path) -> None:
    CsvLogger(tmp_path / "metrics.csv")
    write_result(tmp_path, error=RuntimeError("broken\nhere"))
    result = read_result(tmp_path)
    assert (result["step"], result[LOSS], result["images_per_s"]) == (0, None, None)
    assert result["error"] == "RuntimeError: broken"


# the launcher


def test_the_command_of_a_job() -> None:
    (job, _) = jobs_of("optimizer.lr=1e-3,1e-2", "launcher=mpirun", "output_dir=s")
    module = ["-m", "retina_dist.train"]
    rest = ["optimizer.lr=0.001", "launcher=null", "hydra.mode=RUN", "output_dir='s/0'"]
    assert command("horovodrun -np 2", job, Path("s/0")) == ["horovodrun", "-np", "2", sys.executable, *module, *rest]
    assert command("/a/torchrun --nproc-per-node 2", job, Path("s/0")) == [
        "/a/torchrun",
        "--nproc-per-node",
        "2",
        *module,
        *rest,
    ]
    with pytest.raises(ConfigError, match="launcher=mpirun ' is no command line"):
        command("mpirun '", job, Path("s/0"))


def test_hydra_reads_a_quoted_folder_as_it_is() -> None:
    for folder in ("runs/0_lr=0.1_x=4", "it's a, folder", "a\\'b"):
        (job,) = jobs_of(f"output_dir={quoted(folder)}")
        assert job.load().output_dir == folder


def test_a_command_passes_its_words_on_and_tells_its_error(capfd: pytest.CaptureFixture[str]) -> None:
    code = "import sys; print('hello'); print('error: it is wrong.', file=sys.stderr); sys.exit({})"
    assert start([sys.executable, "-c", code.format(2)]) == "it is wrong."
    assert "hello\n" in capfd.readouterr().out
    assert start([sys.executable, "-c", code.format(0)]) is None
    assert start([sys.executable, "-c", "import sys; sys.exit(3)"]) == "exit code 3"
    with pytest.raises(ConfigError, match="launcher=nowhere cannot be started .*; is it installed and on the PATH"):
        start(["nowhere"])


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("error: a is wrong.", ["a is wrong."]),
        ("[rank 1] error: a is wrong.\n", ["a is wrong."]),
        ("[1]<stderr>:[rank 1] error: a is wrong.\n", ["a is wrong."]),
        ("[1,1]<stderr>: error: a is wrong.\n", ["a is wrong."]),
        ("[rank 0] RuntimeError: broken", ["RuntimeError: broken"]),
        ("torch.cuda.OutOfMemoryError: broken", []),
        ("step 3 loss 1 no error: here", []),
    ],
)
def test_errors_in_the_words_of_others(line: str, found: list[str]) -> None:
    assert error_in(line) == found


# the plot


def drawn(out: Path, settings: list[dict[str, str]], failed: list[bool], best: int | None) -> tuple[int, int]:
    measures = {name: [None if lost else 0.1 * i for i, lost in enumerate(failed)] for name in ("AP", "loss", "speed")}
    plot_sweep(settings, measures, out, failed=failed, best=best)
    with Image.open(out) as image:
        assert len(image.convert("L").resize((64, 64)).getcolors()) > 10  # not blank
        return image.size


def test_images_of_all_kinds(tmp_path: Path) -> None:
    grid = [{"lr": lr, "batch": batch} for lr in ("0.1", "1", "10") for batch in ("4", "8")]
    wide = drawn(tmp_path / "grid.png", grid, [False] * 5 + [True], 2)
    assert wide[0] > 2 * wide[1]
    drawn(tmp_path / "lost.png", grid, [True] * 6, None)
    drawn(tmp_path / "line.png", [{"lr": lr, "seed": "0"} for lr in ("0.1", "1", "10")], [False, True, False], 2)
    drawn(tmp_path / "names.png", [{"model": name} for name in "abc"], [False, True, False], 0)
    drawn(tmp_path / "many.png", [{"a": str(i), "b": str(i), "c": "$"} for i in range(9)], [False] * 9, 8)
    drawn(tmp_path / "one.png", [{"seed": "0"}], [False], 0)
