"""Faults of one bit in a step are found where they are, and equal runs are not accused."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from retina_dist.config.compose import load_config
from retina_dist.run.assemble import fit
from retina_dist.testing.bisect import Trace, bisect, trace
from tests.planted_faults import FAULTS, STEP, planted

TINY = (
    "task=classification_parity",
    "model.architecture=shufflenet_v2_x0_5",
    "model.norm=bn",
    "optimizer=sgd",
    "schedule=constant",
    "logging=quiet",
    "logging.digest=true",
    "trainer.num_threads=1",
    "trainer.max_duration=4steps",
    "trainer.checkpoint_every=2steps",
    "trainer.validate_every=4steps",
    "trainer.keep_last=2",
    "trainer.gradient_clip=1.0",
    "trainer.ema_decay=0.9",
    "trainer.log_every=1",
)
# No GPU and one process: other layouts are in tests/e2e/test_bisect.py.
LAYOUTS = {"micro-batches": "trainer.accumulate=2", "virtual ranks": "trainer.virtual_ranks=4"}


SEEDS = range(10)


def train(folder: Path, *overrides: str, fault: str | None = None) -> Path:
    with planted(fault):
        fit(load_config("train", [*TINY, *overrides, f"output_dir={folder}"]))
    return folder


class Laboratory:
    """A run without a fault, and what bisect says of others beside it."""

    def __init__(self, folder: Path, *overrides: str) -> None:
        self.folder = folder
        self.overrides = (f"data.root={folder / 'classes'}", *overrides)
        self.a = train(folder / "a", *self.overrides)
        self.traces: dict[tuple[int, int], Trace] = {}

    def bisect(self, b: Path, fault: str | None = None, *more: str) -> bool:
        """Whether b agrees, in whose environment the code has the fault."""

        def repeat(side: str, step: int, before: int) -> Trace:
            if side == "a":
                if (step, before) not in self.traces:
                    self.traces[step, before] = repeated(self.a, step, before)
                return self.traces[step, before]
            with planted(fault):
                return repeated(b, step, before)

        return bisect(load_config("bisect", [f"a={self.a}", f"b={b}", *more]), repeat)


def repeated(run: Path, step: int, before: int) -> Trace:
    given = [f"a={run}", f"b={run}", f"resume={run}", f"step={step}", f"before={before}"]
    with tempfile.TemporaryDirectory() as folder:
        return trace(load_config("bisect", given), Path(folder))


@pytest.fixture(scope="module", params=LAYOUTS.values(), ids=list(LAYOUTS))
def laboratory(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Laboratory:
    return Laboratory(tmp_path_factory.mktemp("bisect"), request.param)


@pytest.mark.long  # without data and files: test_step_trace.py
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_one_bit_is_named(
    fault: str, laboratory: Laboratory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    b = train(tmp_path / "b", *laboratory.overrides, fault=fault)
    assert not laboratory.bisect(b, fault)
    said = capsys.readouterr().out
    expected = FAULTS[fault]
    assert f"\nstep {STEP}, repeated: " in said
    assert f"\ndiffers in {expected.stage}: {expected.name}" in said


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_equal_runs_are_not_accused(
    seed: int, laboratory: Laboratory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = (*laboratory.overrides, f"seed={seed}", "trainer.max_duration=2steps")
    pair = Laboratory(tmp_path, *chosen)
    b = train(tmp_path / "b", *pair.overrides)
    assert pair.bisect(b)
    assert "all 2 steps that both took are equal, to the last bit" in capsys.readouterr().out
    assert pair.bisect(b, None, f"step={1 + seed % 2}")
    assert "repeated: all is equal, to the last bit" in capsys.readouterr().out
