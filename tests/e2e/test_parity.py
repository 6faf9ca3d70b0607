"""The commands that start others: parity's table and exit code, the benchmark's ratios."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from retina_dist.base.errors import ConfigError, UserError
from retina_dist.config.compose import load_config
from retina_dist.config.run_config import task_class
from retina_dist.strategies.start_processes import run_job
from retina_dist.testing import parity
from retina_dist.testing.bits import train_digests
from retina_dist.testing.parity import ParityConfig
from tests.commands import run_command

PLUGINS = Path(__file__).parents[1] / "plugins"


def test_two_processes_agree_and_the_measure_would_have_seen_it(tmp_path: Path) -> None:
    arguments = ("launchers=[torchrun]", "model.backbone=mobilenet_v3_small", "output=found.json")
    done = run_command("retina_dist.parity", *arguments, cwd=tmp_path)
    assert "All others agree." in done.stdout
    first, *progress = done.stderr.splitlines()
    assert first == "torchrun 2 (1 of 1)"
    assert [line.partition(" differs by ")[0] for line in progress] == [
        case.name for case in parity.CASES
    ]
    expected = [
        line.endswith(", as expected of statistics of each process's own images")
        for line in progress
    ]
    assert expected == [not case.agrees for case in parity.CASES]
    found = json.loads((tmp_path / "found.json").read_text())["torchrun 2"]
    for case in parity.CASES:
        assert found[case.name] <= 1e-10 if case.agrees else found[case.name] > 1e-4, case.name


@pytest.mark.long  # the ranks of one process: tests/unit/classification
def test_two_processes_agree_on_classification(tmp_path: Path) -> None:
    """With mixup, cutmix and automatic augmentation."""
    done = run_command(
        "retina_dist.parity", "task=classification_parity", "launchers=[torchrun]", cwd=tmp_path
    )
    assert "All others agree." in done.stdout


def test_a_task_and_a_strategy_from_outside_are_compared(tmp_path: Path) -> None:
    """8 bits on the wire are a difference that the comparison sees."""
    outside = [
        "--config-dir",
        str(PLUGINS / "conf"),
        "task=discs",
        "data.num_train=20",
        "launchers=[torchrun]",
    ]
    lossy = run_command(
        "retina_dist.parity", *outside, "strategy=rounding", cwd=tmp_path, check=False
    )
    assert lossy.returncode == 1
    assert "past the tolerance" in lossy.stdout


def test_a_job_that_fails_is_named_below_its_output(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(
        UserError, match=r"^python with 2 processes failed \(exit code 1\); its output is above\.$"
    ):
        run_job(
            "python", 2, "retina_dist.strategies.start_processes", tmp_path
        )  # which takes no arguments
    assert "how each starts N processes here" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("difference", "good"), [(0.9e-10, True), (1.1e-10, False), (float("nan"), False)]
)
def test_past_the_tolerance_is_marked(
    capsys: pytest.CaptureFixture, difference: float, good: bool
) -> None:
    column = {case.name: difference for case in parity.CASES}
    assert parity._print_table(ParityConfig(), {"torchrun 2": column}) is good
    marked = [
        line
        for line in capsys.readouterr().out.splitlines()
        if "!" in line and not line.startswith("Marked")
    ]
    assert len(marked) == (0 if good else sum(case.agrees for case in parity.CASES))


@pytest.mark.long  # its parts: tests/unit/engine/test_virtual_ranks.py, tests/distributed
def test_two_processes_have_the_bits_of_one(tmp_path: Path) -> None:
    arguments = ("bits=true", "steps=3", "launchers=[torchrun]", "output=found.json")
    done = run_command("retina_dist.parity", *arguments, cwd=tmp_path)
    assert "All are equal, to the last bit." in done.stdout
    found = json.loads((tmp_path / "found.json").read_text())
    assert list(found) == ["python 1", "torchrun 2"]
    assert list(found["python 1"]) == [
        f"{norm} {kind}" for norm in ("frozen_bn", "bn") for kind in ("weights", "metrics")
    ]
    assert found["python 1"] == found["torchrun 2"]
    assert len(set(found["python 1"].values())) == 4


@pytest.mark.parametrize("override", ["trainer.accumulate=2", "trainer.precision=bf16"])
def test_bits_are_not_compared_where_virtual_ranks_exclude_a_setting(
    override: str, tmp_path: Path
) -> None:
    config = load_config("parity", ["bits=true", override])
    with pytest.raises(ConfigError, match=f"virtual_ranks=4 excludes {override}; use "):
        train_digests(config, 1, 4, str(tmp_path / "run"))


def test_the_bits_of_a_single_step(tmp_path: Path) -> None:
    """Which leaves no step for a warm-up."""
    config = load_config("parity", ["task=classification_parity", "bits=true", "logging=quiet"])
    task_class(config).prepare(config)
    found = train_digests(config, 1, 2, str(tmp_path / "run"))
    assert list(found) == ["frozen_bn weights", "frozen_bn metrics", "bn weights", "bn metrics"]


def test_a_job_with_other_bits_is_marked(capsys: pytest.CaptureFixture) -> None:
    one = {"weights": "a1", "metrics": "b1"}
    assert parity._print_bits({"python 1": one, "torchrun 2": one})
    assert "!" not in capsys.readouterr().out
    other = {"python 1": one, "torchrun 2": one, "mpirun 2": {**one, "metrics": "b2"}}
    assert not parity._print_bits(other)
    assert "! b2  mpirun 2" in capsys.readouterr().out


@pytest.mark.long
def test_the_benchmark_gives_ratios_to_one_plain_process(tmp_path: Path) -> None:
    length = ("steps=1", "warmup=1", "rounds=1", "data.batch_size=1")
    printed = run_command(
        "retina_dist.benchmark",
        "scaling",
        "launchers=[torchrun]",
        *length,
        "output=found.json",
        cwd=tmp_path,
    ).stdout
    assert "DDP over Gloo, cpu, 1 thread, 2 processes" in printed
    found = json.loads((tmp_path / "found.json").read_text())
    alone, two = found["rows"]
    assert (alone["launcher"], alone["processes"], alone["speedup"]) == ("python", 1, 1.0)
    assert (two["launcher"], two["processes"]) == ("torchrun", 2)
    assert two["speedup"] == pytest.approx(two["images_per_s"] / alone["images_per_s"], abs=0.01)
    assert found["num_images"] == 800  # as many as are drawn
    assert two["epoch_minutes"][0] == pytest.approx(800 / two["images_per_s"] / 60, rel=0.01)
    assert (tmp_path / "found.html").stat().st_size
    assert "report: found.html" in printed
