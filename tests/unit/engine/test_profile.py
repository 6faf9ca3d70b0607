"""A trace of some steps of a training."""

from __future__ import annotations

import gzip
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from retina_dist.engine.profile import profiled
from tests.unit.engine.test_train_loop import trainer


def events(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt") as file:
        return json.load(file)["traceEvents"]


@pytest.mark.parametrize(
    ("length", "wanted", "traced"),
    [("8steps", "3steps", 3), ("4steps", "3steps", 2), ("3steps", "1epoch", 1)],
)
def test_some_steps_after_the_first_two_are_traced(
    tmp_path: Path, length: str, wanted: str, traced: int
) -> None:
    plain, one = trainer(max_duration=length), trainer(max_duration=length, profile=wanted)
    with profiled(
        one.train_step, one.plan, 0, tmp_path / "profile", one.strategy
    ) as one.train_step:
        assert one.fit() == plain.fit()
    assert sorted(path.name for path in (tmp_path / "profile").iterdir()) == [
        "rank_0.json.gz",
        "rank_0.txt",
    ]
    names = [event.get("name", "") for event in events(tmp_path / "profile" / "rank_0.json.gz")]
    assert len([name for name in set(names) if name.startswith("ProfilerStep#")]) == traced
    assert names.count("Optimizer.step#SGD.step") == traced
    assert "aten::addmm" in (tmp_path / "profile" / "rank_0.txt").read_text()


@pytest.mark.parametrize("steps", [0, 3])
def test_a_run_that_ends_early_keeps_the_steps_that_were_traced(tmp_path: Path, steps: int) -> None:
    one = trainer(max_duration="8steps", profile="3steps")
    with (
        suppress(RuntimeError),
        profiled(one.train_step, one.plan, 0, tmp_path, one.strategy) as step,
    ):
        for micro_batches in one.data.train_steps(0, steps):
            step(micro_batches)
        raise RuntimeError("out of memory")
    assert (tmp_path / "rank_0.json.gz").exists() == (steps > 2)
