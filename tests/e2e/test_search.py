"""The search with Optuna that docs/python.md shows."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.commands import run_process
from tests.e2e.conftest import ROOT

BLOCKS = re.findall(
    r"^```python\n(.*?)^```", (ROOT / "docs" / "python.md").read_text(), re.M | re.S
)
SMALL = """rd.DetectionData(root="data", batch_size=4, min_sizes=[64], max_size=96, num_workers=0),
        model=rd.ModelConfig(backbone="resnet18", fpn_channels=32),
        schedule=rd.ScheduleConfig(name="constant"),
        logging=rd.LoggingConfig(plots=False, tensorboard=False)"""


@pytest.mark.long
@pytest.mark.parametrize(
    "launcher", [[], ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]]
)
def test_rank_0_asks_and_all_ranks_train(
    launcher: list[str], trained: Path, tmp_path: Path
) -> None:
    pytest.importorskip("optuna")
    (script,) = (block for block in BLOCKS if "import optuna" in block)
    for before, after in (
        ("range(20)", "range(3)"),
        ('"2epochs"', '"2steps"'),
        ('rd.DetectionData(root="/data/mine", batch_size=8)', SMALL),
    ):
        assert before in script
        script = script.replace(before, after)
    (tmp_path / "search.py").write_text(script)
    (tmp_path / "data").symlink_to(trained / "datasets" / "shapes")
    line = [sys.executable, *launcher, "search.py"]
    printed = run_process(line, cwd=tmp_path)
    table = [
        text.split(" ", 2) for text in printed.splitlines() if re.match(r"\d \S+ \{'lr'", text)
    ]
    assert [number for number, _, _ in table] == ["0", "1", "2"]
    assert len({values for _, _, values in table}) == 3
    for number, score, _ in table:
        result = json.loads((tmp_path / "runs" / "search" / number / "result.json").read_text())
        assert result["world_size"] == (2 if launcher else 1)
        assert float(score) == pytest.approx(result["metrics"]["coco/AP"])
