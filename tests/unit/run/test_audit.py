"""An audit passes an honest run and finds what was changed in another one."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from retina_dist import __version__
from retina_dist.base.errors import DataError
from retina_dist.base.files import write_json
from retina_dist.reporting.run_files import Start
from retina_dist.run.audit import Audit, Window, _equal_digits
from retina_dist.run.reproduce import (
    DIFFERENT,
    EQUAL,
    UNDECIDED,
    ReproduceConfig,
    _run,
    reproduce,
    work,
)
from retina_dist.strategies.start_processes import command
from tests import tampering
from tests.commands import run_command, run_process
from tests.tampering import SMALL, TAMPERINGS, Case, trained

SEEDS = range(8)  # of each tampering: 104 runs


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return trained(tmp_path_factory.mktemp("honest"))


def audit(case: Case, **settings: object) -> int:
    """The exit code; the windows are run in this process."""
    place = [f"data.root={case.data}"]
    config = ReproduceConfig(run=str(case.run), overrides=place, **settings)

    def run_job(launcher: str, processes: int, module: str, folder: Path, *, threads: int) -> None:
        assert (launcher, processes) == ("python", 1)
        work(config, folder / "result.json")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("retina_dist.run.reproduce.run_job", run_job)
        return reproduce(config)


def test_an_honest_run_passes_and_is_left_as_it_is(
    honest: Case, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in honest.run.rglob("*")}
    assert audit(honest, windows=1, steps=2) == EQUAL
    page = capsys.readouterr().out
    assert "\nsteps 1 to 2, from the start, once more:\n" in page, "a heading of the log"
    assert "steps 1 to 2, from the start: images, losses, gradients, metrics" in page
    assert page.endswith("\n\nEqual: all that was compared, to the last bit.\n")
    assert "run again: 2 of 8 steps\n" in page
    assert "checkpoints: best.pt, last.pt, step_00000004.pt, step_00000008.pt: " in page
    assert {path: path.stat().st_mtime_ns for path in honest.run.rglob("*")} == before


FOUND_IN_RECORDS: dict[Callable[[Case], None], str] = {
    tampering.weights: "step_00000004.pt: it does not have the weights of step 4",
    tampering.optimizer: "step_00000004.pt: it does not have the optimizer of step 4",
    tampering.config_yaml: "config.yaml has other settings than the run was started with",
    tampering.settings_of_a_checkpoint: "step_00000004.pt: it has .*=.*, config.yaml ",
    tampering.metrics: r"metrics.csv has other values at step \d",
    tampering.a_row: "does not follow from the rows before it",
}


@pytest.mark.parametrize("tamper", FOUND_IN_RECORDS)
def test_what_contradicts_the_records_is_named(
    honest: Case, tmp_path: Path, tamper: Callable[[Case], None]
) -> None:
    case = honest.copied(tmp_path, seed=1)
    tamper(case)
    page = Audit(case.run, [f"data.root={case.data}"]).records()
    with pytest.raises(Exception, match=FOUND_IN_RECORDS[tamper]):
        list(page)


def test_a_forged_row_and_another_pixel_are_found_by_running_again(
    honest: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = honest.copied(tmp_path, seed=1)
    tampering.forge(case, lambda row: replace(row, loss="0" * 64) if row.step == 2 else row)
    list(Audit(case.run, [f"data.root={case.data}"]).records())  # agree
    assert audit(case, windows=1, steps=2) == DIFFERENT
    assert "\nDifferent: the cell loss of step 2 is not what the step gives again" in (
        capsys.readouterr().out
    )
    tampering.a_pixel(case)
    assert audit(case, windows=1, steps=1) == DIFFERENT
    assert "\nDifferent: labels or images of the data are not" in capsys.readouterr().out


def test_another_label_is_found_though_a_later_window_cannot_resume(
    honest: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = honest.copied(tmp_path, seed=1)
    tampering.a_label(case)
    assert audit(case, windows=2, steps=1) == DIFFERENT
    assert "\nDifferent: labels or images of the data are not" in capsys.readouterr().out


def test_windows_begin_where_the_run_can_begin_again(honest: Case) -> None:
    records = Audit(honest.run, [f"data.root={honest.data}"])
    list(records.records())
    assert [(w.begin, w.stop) for w in records.windows("all", 1, 0)] == [(0, 4), (4, 8)]
    assert [(w.begin, w.stop) for w in records.windows(1, 3, 0)] == [(0, 3)]
    records.checkpoints |= {step: f"step_{step:08d}.pt" for step in range(1, 8)}
    drawn = {tuple(w.begin for w in records.windows(3, 9, seed)) for seed in range(30)}
    assert {begins[0] for begins in drawn} == {0}
    assert len(drawn) > 10


def test_in_another_layout_the_digits_that_agree_are_counted() -> None:
    run = [(1, {"train/loss": 2.0}), (2, {"train/loss": 1.0, "a": 1.0}), (3, {"a": 3.0})]
    again = [(1, {"train/loss": 2.0}), (2, {"train/loss": 1.001}), (4, {"train/loss": 9.0})]
    assert _equal_digits(run, again) == "train/loss agrees to 3.0 digits at 2 steps"
    assert _equal_digits(run[2:], again) == "no train/loss was logged"
    zero = [(1, {"train/loss": 0.0})]
    assert _equal_digits(zero, zero) == "train/loss agrees to 16.0 digits at 1 step"


def test_another_layout_decides_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without virtual ranks, as a script must learn by the exit code."""
    plain = trained(tmp_path, "trainer.virtual_ranks=null", "logging.digest=true")
    assert audit(plain, windows=1, steps=3) == EQUAL
    capsys.readouterr()
    starts = json.loads((plain.run / "command.json").read_text())
    starts[-1]["job"] = "DDP over Gloo, cpu, 1 thread, 2 processes"
    write_json(plain.run / "command.json", starts)
    assert audit(plain, windows=1, steps=3) == UNDECIDED
    page = capsys.readouterr().out
    assert "\nsteps 1 to 3, from the start: train/loss agrees to 16.0 digits at 1 step\n" in page
    verdict = "it was run again on one process, cpu, 1 thread in place of DDP over Gloo, cpu"
    assert f"\n\nNot decided: the records agree, but {verdict}" in page
    assert "qual" not in page


def test_what_could_not_run_is_not_called_different(
    honest: Case, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **how: object) -> None:
        raise DataError("no such folder")

    monkeypatch.setattr("retina_dist.run.reproduce.fit_again", fail)
    assert audit(honest) == UNDECIDED
    page = capsys.readouterr().out
    assert "run again: 0 of 8 steps" in page
    verdict = "Not decided: the records agree, but a window did not run: no such folder."
    assert page.endswith(f"\n\n{verdict}\n")
    assert "Different" not in page


def test_a_run_that_cannot_begin_again_is_not_called_equal(honest: Case) -> None:
    records = Audit(honest.run, [f"data.root={honest.data}"])
    list(records.records())
    records.checkpoints = {0: None}
    records.starts = [replace(records.starts[-1], step=2)]  # it was continued from step 2
    assert records.windows("all", 1, 0) == []
    assert records.undecided == "no checkpoint is left from which it could run again"


def test_other_versions_decide_nothing(honest: Case) -> None:
    records = Audit(honest.run, [f"data.root={honest.data}"])
    list(records.records())
    records.starts = [replace(records.starts[-1], loss="0" * 64)]
    assert "digits at" in records.compare(Window(0, 4, None, str(honest.run)))
    assert records.undecided.startswith("it was trained with retina_dist ")
    assert f", torch {torch.__version__}, torchvision " in records.undecided
    assert f"\nversions here: retina_dist {__version__}, torch " in records.describe_rest([])


def test_no_job_is_started_for_no_window(honest: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Audit, "windows", lambda *_: [])
    monkeypatch.setattr(
        "retina_dist.run.reproduce.run_job", lambda *_, **how: pytest.fail("started")
    )
    place = [f"data.root={honest.data}"]
    assert reproduce(ReproduceConfig(run=str(honest.run), overrides=place)) == EQUAL


@pytest.mark.parametrize(
    ("virtual_ranks", "given", "expected"),
    [
        (4, {}, ("python", 1)),
        (4, {"processes": 2}, ("torchrun", 2)),
        (None, {}, ("horovodrun", 3)),
        (None, {"processes": 2}, ("horovodrun", 2)),
        (None, {"launcher": "torchrun"}, ("torchrun", 3)),
    ],
)
def test_windows_run_in_the_layout_of_the_run_where_it_counts(
    virtual_ranks: int | None,
    given: dict[str, Any],
    expected: tuple[str, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs = []
    monkeypatch.setattr(
        "retina_dist.run.reproduce.run_job", lambda *job, **how: jobs.append((job, how))
    )
    trainer = SimpleNamespace(virtual_ranks=virtual_ranks)
    start = Start(launcher="horovodrun", processes=3, threads=2)
    made: Any = SimpleNamespace(start=start, config=SimpleNamespace(trainer=trainer))
    _run(ReproduceConfig(run="a", **given), made, [], tmp_path)
    ((job, how),) = jobs
    assert (job[:2], how) == (expected, {"threads": 2})


def test_a_run_without_digests_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no digest\.csv; train with logging\.digest=true"):
        reproduce(ReproduceConfig(run=str(tmp_path)))


def test_the_command_runs_a_window_in_a_process_of_its_own(honest: Case, tmp_path: Path) -> None:
    place = f'overrides=["data.root={honest.data}"]'
    given = [f"run={honest.run}", place, "windows=1", "steps=1"]
    done = run_command("retina_dist.reproduce", *given, cwd=tmp_path)
    assert done.stdout.endswith("\n\nEqual: all that was compared, to the last bit.\n")
    assert "\nsteps 1 to 1, from the start, once more:\n" in done.stderr
    # a log above the heading would have none
    assert done.stderr.index("once more:") < done.stderr.index("plan:")


def test_the_command_ends_with_1_at_a_difference(honest: Case, tmp_path: Path) -> None:
    case = honest.copied(tmp_path, seed=2)
    tampering.a_row(case)
    done = run_command("retina_dist.reproduce", f"run={case.run}", cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert "Different: " in done.stdout


# the whole proof


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("tamper", TAMPERINGS)
def test_a_tampered_run_is_found(
    honest: Case, tmp_path: Path, tamper: Callable[[Case], None], seed: int
) -> None:
    case = honest.copied(tmp_path, seed)
    tamper(case)
    assert audit(case, windows="all") == DIFFERENT


LAYOUTS = (("python", 1), ("torchrun", 2), ("torchrun", 4))


@pytest.fixture(scope="module", params=LAYOUTS, ids=str)
def of_layout(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A run on some processes."""
    folder = tmp_path_factory.mktemp("layout")
    launcher, processes = request.param
    case = Case(folder / "run", folder / "data")
    place = [f"data.root={case.data}", f"output_dir={case.run}"]
    run_process(command(launcher, processes, "retina_dist.train", [*SMALL, *place]), cwd=folder)
    return case


@pytest.mark.long
@pytest.mark.parametrize("seed", range(34))
def test_an_honest_run_passes(of_layout: Case, seed: int) -> None:
    """In 102 audits, on one process."""
    draws = random.Random(seed)
    assert (
        audit(of_layout, windows=draws.randint(1, 2), steps=draws.randint(1, 4), seed=seed) == EQUAL
    )


@pytest.mark.long
def test_an_honest_run_passes_in_another_layout(honest: Case, tmp_path: Path) -> None:
    place = f'overrides=["data.root={honest.data}"]'
    given = [f"run={honest.run}", place, "processes=2", "windows=all"]
    done = run_command("retina_dist.reproduce", *given, cwd=tmp_path)
    assert "\nEqual: all that was compared" in done.stdout
