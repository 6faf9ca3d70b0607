"""The table of launchers: what follows from a row, tried with every row and with one that
is added.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from retina_dist.strategies import launchers
from retina_dist.strategies.launch_environment import detect_launch
from retina_dist.strategies.launchers import ALONE, LAUNCHERS, Launcher, Names
from retina_dist.strategies.select import make_strategy
from retina_dist.strategies.start_processes import command, described, environment

ROOT = Path(__file__).parents[3]
ROWS = [pytest.param(row, id=f"{row.name}, {row.names.rank}") for row in LAUNCHERS]
# Flux sets PMI's variables too, so its row stands above MPICH's.
FLUX = Launcher(
    "flux",
    Names("FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", ""),
    ("ddp",),
    clears=("FLUX_",),
    command=("flux", "run", "-n", "{n}", "python", "-m"),
)
FLUX_PROCESS = {
    "FLUX_TASK_RANK": "1",
    "FLUX_JOB_SIZE": "2",
    "FLUX_TASK_LOCAL_ID": "1",
    "PMI_RANK": "1",
    "PMI_SIZE": "2",
}


def set_variables(row: Launcher, rank: int = 1, size: int = 2) -> dict[str, str]:
    """A process's variables, as far as detection needs them."""
    found = {row.names.rank: str(rank), row.names.world_size: str(size)}
    return {**found, row.also: "x"} if row.also else found


@pytest.mark.parametrize("row", ROWS)
def test_each_launcher_is_recognised_and_its_own_strategy_taken(row: Launcher) -> None:
    launch = detect_launch(set_variables(row))
    assert (launch.launcher, launch.rank, launch.world_size) == (row.name, 1, 2)
    assert f"strategy {row.strategies[0]}: " in described(set_variables(row))


@pytest.mark.parametrize("row", ROWS)
def test_a_job_that_a_process_starts_sees_nothing_of_its_launcher(
    row: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in set_variables(row).items():
        monkeypatch.setenv(name, value)
    assert launchers.launcher_of(environment(1)) is ALONE


@pytest.mark.parametrize("row", ROWS)
def test_each_launcher_is_in_the_documentation(row: Launcher) -> None:
    text = " ".join((ROOT / "docs" / "distributed.md").read_text().split())
    assert (row.title or row.name) in text


def test_a_launcher_is_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    assert detect_launch(FLUX_PROCESS).launcher == "mpirun"  # by PMI_RANK, which is why it matters
    monkeypatch.setattr(launchers, "LAUNCHERS", (FLUX, *LAUNCHERS))
    monkeypatch.setattr("retina_dist.strategies.start_processes.executable", lambda name: name)
    launch = detect_launch(FLUX_PROCESS)
    assert str(launch) == "flux with 2 processes"
    assert make_strategy(launch=launch, device="cpu").backend.startswith("DDP")
    assert "strategy ddp: flux" in described(FLUX_PROCESS)
    assert command("flux", 3, "module", ["a=1"])[:4] == ["flux", "run", "-n", "3"]
    monkeypatch.setenv("FLUX_TASK_RANK", "1")
    assert "FLUX_TASK_RANK" not in environment(1)
