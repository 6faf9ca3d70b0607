"""What all benchmarks write, and when one says that something has become slower."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from retina_dist.benchmark.report import Slower, finish
from retina_dist.errors import ConfigError


@dataclass
class Settings:
    output: str | None = None
    baseline: str | None = None
    fail_under: float = 0.9


def test_the_file_says_what_was_measured_where(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    finish(Settings(output=str(path)), "step", {"fp32": 1.25}, rows=[1, 2])
    found = json.loads(path.read_text())
    assert (found["benchmark"], found["ratios"], found["rows"]) == ("step", {"fp32": 1.25}, [1, 2])
    assert found["machine"]["cores"] > 0
    assert {"torch", "torchvision"} <= found["versions"].keys()


@pytest.mark.parametrize(("ratio", "slower"), [(0.91, False), (0.9, False), (0.89, True), (float("nan"), True)])
def test_a_ratio_below_the_allowed_share_of_the_earlier_one_is_an_error(
    tmp_path: Path, ratio: float, slower: bool
) -> None:
    before = tmp_path / "before.json"
    finish(Settings(output=str(before)), "step", {"fp32": 1.0, "bf16": 2.0})
    settings = Settings(baseline=str(before))
    if not slower:
        finish(settings, "step", {"fp32": ratio})
        return
    with pytest.raises(Slower, match=r"fp32 is .* of 1.000, less than fail_under=0.9") as raised:
        finish(settings, "step", {"fp32": ratio, "bf16": 2.0})
    assert raised.value.exit_code == 1


@pytest.mark.parametrize("content", [None, "[]", "{}", '{"benchmark": "data", "ratios": {"fp32": 1}}'])
def test_a_baseline_of_something_else_is_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "before.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match="baseline="):
        finish(Settings(baseline=str(path)), "step", {"fp32": 1.0})


@pytest.mark.parametrize(("words", "code"), [([], 2), (["speed"], 2), (["--help"], 0)])
def test_the_kinds_are_listed_when_none_is_named(words: list[str], code: int) -> None:
    done = subprocess.run([sys.executable, "-m", "retina_dist.benchmark", *words], capture_output=True, text=True)
    assert done.returncode == code
    assert "python -m retina_dist.benchmark scaling" in done.stdout + done.stderr
