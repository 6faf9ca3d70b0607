"""The commands that start others: parity's table and exit code, the benchmark's ratios."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from retina_dist import parity
from retina_dist.errors import UserError
from retina_dist.parity import ParityConfig

PLUGINS = Path(__file__).parents[1] / "plugins"


def test_two_processes_agree_and_the_measure_would_have_seen_it(cli: Callable, tmp_path: Path) -> None:
    arguments = ["launchers=[torchrun]", "output=found.json"]
    done = cli("retina_dist.parity", *arguments, cwd=tmp_path)
    assert "All others agree." in done.stdout
    first, *progress = done.stderr.splitlines()
    assert first == "torchrun, 2 processes (1 of 1)"
    assert [line.partition(" differs by ")[0] for line in progress] == [f"  fp64/{case.name}" for case in parity.CASES]
    found = json.loads((tmp_path / "found.json").read_text())["torchrun 2"]
    assert found.keys() == {f"fp64/{case.name}" for case in parity.CASES}
    for case in parity.CASES:
        worst = max(found[f"fp64/{case.name}"].values())
        assert worst <= 1e-10 if case.agrees else worst > 1e-4, case.name


@pytest.mark.long  # the ranks of one process: tests/unit/classification
def test_two_processes_agree_on_classification(cli: Callable, tmp_path: Path) -> None:
    """With mixup, cutmix and automatic augmentation."""
    cli("retina_dist.parity", "task=classification_parity", "launchers=[torchrun]", "output=found.json", cwd=tmp_path)
    found = json.loads((tmp_path / "found.json").read_text())["torchrun 2"]
    for case in parity.CASES:
        assert not case.agrees or max(found[f"fp64/{case.name}"].values()) <= 1e-10, case.name


def test_a_task_and_a_strategy_from_outside_are_compared(cli: Callable, tmp_path: Path) -> None:
    """8 bits on the wire are a difference that the comparison sees."""
    outside = ["--config-dir", str(PLUGINS / "conf"), "task=discs", "data.num_train=20", "launchers=[torchrun]"]
    lossy = cli("retina_dist.parity", *outside, "strategy=rounding", cwd=tmp_path, check=False)
    assert lossy.returncode == 1
    assert "past the tolerance" in lossy.stdout


TORCHRUN_TALKS = ["W1122 torchrun: started", *["  error_file: <N/A>"] * 40]


@pytest.mark.parametrize(
    ("lines", "kept"),
    [
        (["[rank 1] error: no such folder", *TORCHRUN_TALKS], ["[rank 1] error: no such folder"]),
        (["[1,0]<stderr>:error: bad", "E1122 torchrun: failed"], ["[1,0]<stderr>:error: bad"]),
        (
            [
                "[rank 1] Traceback (most recent call last):",
                '[rank 1]   File "a.py"',
                "[rank 1] KeyError: 3",
                "E torchrun",
            ],
            ["[rank 1] Traceback (most recent call last):", '[rank 1]   File "a.py"', "[rank 1] KeyError: 3"],
        ),
        (["Traceback (most recent call last):", "  cut short"], ["Traceback (most recent call last):", "  cut short"]),
        (TORCHRUN_TALKS, TORCHRUN_TALKS[-10:]),
    ],
)
def test_the_reason_of_a_failure_is_kept(lines: list[str], kept: list[str]) -> None:
    assert parity.reasons(lines) == kept


def test_a_job_that_fails_shows_its_last_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    script = "import sys; print('[1,0]<stdout>: compared: fp64/clip differs by 1.0e-14'); sys.exit('no GPU here')"
    monkeypatch.setattr(parity, "command", lambda *_: [sys.executable, "-c", script])
    with pytest.raises(UserError, match=r"mpirun with 2 processes failed \(exit code 1\):\nno GPU here$"):
        parity._launch("mpirun", 2, tmp_path)
    assert capsys.readouterr().err == "  fp64/clip differs by 1.0e-14\n"


@pytest.mark.parametrize(("difference", "good"), [(0.9e-10, True), (1.1e-10, False), (float("nan"), False)])
def test_past_the_tolerance_is_marked(capsys: pytest.CaptureFixture, difference: float, good: bool) -> None:
    config = replace(ParityConfig(), dtypes=["fp64"])
    column = {f"fp64/{case.name}": {"losses": 0.0, "weights": difference} for case in parity.CASES}
    assert parity._print_table(config, {"torchrun 2": column}) is good
    marked = [line for line in capsys.readouterr().out.splitlines() if "!" in line and not line.startswith("Marked")]
    assert len(marked) == (0 if good else sum(case.agrees for case in parity.CASES))


@pytest.mark.long
def test_two_processes_agree_on_convolutions_in_groups(cli: Callable, tmp_path: Path) -> None:
    arguments = ["launchers=[torchrun]", "processes=[2]", "model=retinanet_x50", "model.fpn_channels=64", "steps=2"]
    assert "All others agree." in cli("retina_dist.parity", *arguments, cwd=tmp_path).stdout


@pytest.mark.long
def test_the_benchmark_gives_ratios_to_one_plain_process(cli: Callable, tmp_path: Path) -> None:
    arguments = [
        "scaling",
        "launchers=[torchrun]",
        "steps=1",
        "warmup=1",
        "rounds=1",
        "data.batch_size=1",
        "output=found.json",
    ]
    printed = cli("retina_dist.benchmark", *arguments, cwd=tmp_path).stdout
    assert "DDP over Gloo, cpu, 1 thread, 2 processes" in printed
    found = json.loads((tmp_path / "found.json").read_text())
    alone, two = found["rows"]
    assert (alone["launcher"], alone["processes"], alone["speedup"]) == ("python", 1, 1.0)
    assert (two["launcher"], two["processes"]) == ("torchrun", 2)
    assert two["speedup"] == pytest.approx(two["images_per_s"] / alone["images_per_s"], abs=0.01)
    assert found["num_images"] == 800  # as many as are drawn
    assert two["epoch_minutes"][0] == pytest.approx(800 / two["images_per_s"] / 60, rel=0.01)
    assert (tmp_path / "found.png").stat().st_size
    assert "written to found.png" in printed
