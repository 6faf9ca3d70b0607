"""`python -m retina_dist.bisect`: its processes, exit codes and words."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from retina_dist.strategies.start_processes import command
from tests.commands import ROOT, run_command, run_process
from tests.unit.testing.test_bisect import TINY, train

PLANTS = """
from tests.planted_faults import plant
plant({fault!r}, rank=1)
"""


def environment_with(fault: str, folder: Path) -> str:
    """A Python whose package has the fault on the second rank, as another environment has."""
    (folder / "sitecustomize.py").write_text(PLANTS.format(fault=fault))
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}:{ROOT}" exec "{sys.executable}" "$@"\n')
    script.chmod(0o755)
    return str(script)


def test_runs_that_agree_but_for_their_settings(tmp_path: Path) -> None:
    a = train(tmp_path / "a", f"data.root={tmp_path / 'classes'}", "trainer.max_duration=1steps")
    b = shutil.copytree(a, tmp_path / "b")
    text = (b / "config.yaml").read_text()
    (b / "config.yaml").write_text(text.replace("keep_last: 2", "keep_last: 3"))
    done = run_command("retina_dist.bisect", "a=a", "b=b", cwd=tmp_path)
    assert done.stdout == (
        "settings that differ: trainer.keep_last: 2 and 3\n"
        "all 1 step that both took are equal, to the last bit\n"
    )
    repeated = run_command("retina_dist.bisect", "a=a", "b=a", "step=1", cwd=tmp_path)
    assert repeated.stdout == "\nstep 1, repeated: all is equal, to the last bit\n"
    (b / "digest.csv").unlink()
    failed = run_command("retina_dist.bisect", "a=a", "b=b", cwd=tmp_path, check=False)
    assert failed.returncode == 2
    assert "b has no digest.csv; train with logging.digest=true" in failed.stderr
    assert "Or give a step, which bisect compares without it." in failed.stderr


@pytest.mark.long
@pytest.mark.parametrize("layout", ["trainer.virtual_ranks=4", "trainer.accumulate=2"])
@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("a late layer", "forward: model.stage4.3.branch2.5 of "),
        ("reduction", "reduction: model.stage2.1.branch2.0.weight of rank 0"),
    ],
)
def test_another_environment_on_two_processes(
    fault: str, expected: str, layout: str, tmp_path: Path
) -> None:
    """The rank of a fault, and a collective's fault, of an interpreter that is named."""
    python = environment_with(fault, tmp_path)
    chosen = [*TINY, layout]
    for run, interpreter in {"a": sys.executable, "b": python}.items():
        arguments = [*chosen, f"output_dir={run}"]
        run_process(
            command("torchrun", 2, "retina_dist.train", arguments, interpreter), cwd=tmp_path
        )
    given = ("a=a", "b=b", f"b_python={python}")
    done = run_command("retina_dist.bisect", *given, cwd=tmp_path, check=False)
    assert done.returncode == 1, done.stderr
    if fault == "a late layer":
        place = "rank 1, micro-batch 0" if "accumulate" in layout else "virtual rank 2"
        expected += place
    assert f"\ndiffers in {expected}\n" in done.stdout
    # the other way: without that environment the step is as a's
    done = run_command("retina_dist.bisect", "a=a", "b=b", cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert "repeated: all is equal, to the last bit\nWhat differed is neither in" in done.stdout
