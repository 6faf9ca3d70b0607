"""Every example runs as its docstring says, at a tiny size, and stays short."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from tests.commands import run_command
from tests.e2e.conftest import ROOT, SMALL

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
MAX_LINES = 60
# Of a network that trains in a second, for examples that take overrides.
TINY = (
    *(word for word in SMALL if not word.startswith("data.shapes")),
    "model.weights=null",
    "model.norm=bn",
    "trainer.precision=fp32",
    "trainer.max_duration=2steps",
    "schedule.warmup=1step",
    "logging=quiet",
)


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    """An empty folder with the examples and a small data set in it."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "mine").symlink_to(trained / "datasets" / "shapes")
    return tmp_path


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_is_short_and_says_its_command(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= MAX_LINES
    document = ast.get_docstring(ast.parse(text)) or ""
    assert re.search(
        rf"^ *(python examples/{path.name}|PYTHONPATH=examples python)", document, re.M
    )


def test_a_folder_is_fine_tuned(folder: Path) -> None:
    printed = run_command("examples.finetune_folder", "mine", *TINY, cwd=folder).stdout
    assert re.search(r"^AP \d\.\d{3}, AP50 \d\.\d{3}$", printed, re.M)
    assert len(re.findall(r"^0000\d\d.jpg: \d+ objects$", printed, re.M)) == 3


def test_an_own_dataset_is_trained_on(folder: Path) -> None:
    printed = run_command("examples.own_dataset", "2steps", cwd=folder).stdout
    assert "'coco/AP': " in printed
    assert (folder / "runs" / "squares" / "checkpoints" / "last.pt").exists()


def test_an_own_augmentation_is_applied(folder: Path) -> None:
    printed = run_command("examples.own_augmentation", "mine", "2steps", cwd=folder).stdout
    assert "'coco/AP': " in printed
    assert (folder / "runs" / "mine" / "first_batch.jpg").exists()


def test_an_own_task_is_trained(folder: Path) -> None:
    line = ["--config-dir", "examples/conf", "task=line", "trainer.max_duration=8epochs"]
    (folder / "own_task.py").symlink_to(ROOT / "examples" / "own_task.py")
    run_command("retina_dist.train", *line, "optimizer.lr=.3", cwd=folder)
    result = json.loads((folder / "runs" / "line" / "result.json").read_text())
    assert result["metrics"]["val/loss"] < 0.3


def test_the_best_learning_rate_is_found(folder: Path) -> None:
    """From Python, since the script has no argument for the sizes."""
    (folder / "small.py").write_text(
        "from examples.search_learning_rate import main\n"
        "main('mine', '1e-4', '1e-3', max_duration='2steps', batch_size=4, min_sizes=[64],"
        " max_size=64, num_workers=0)\n"
    )
    printed = run_command("small", cwd=folder).stdout
    best = json.loads((folder / "runs" / "search" / "best.json").read_text())
    assert f"{best['lr']}: AP {best['AP']:.3f}" in printed
    assert {path.name for path in (folder / "runs" / "search").glob("1e-*")} == {"1e-4", "1e-3"}


def test_results_of_another_tool_are_evaluated(folder: Path, trained: Path) -> None:
    truth = folder / "mine" / "annotations" / "instances_val.json"
    entries = json.loads(truth.read_text())["annotations"]
    found = [{**entry, "score": 0.9} for entry in entries]
    (folder / "results.json").write_text(json.dumps(found))
    printed = run_command(
        "examples.evaluate_results", str(truth), "results.json", cwd=folder
    ).stdout
    assert re.search(r"^AP +1\.000$", printed, re.M)
    assert "AP of " in printed
