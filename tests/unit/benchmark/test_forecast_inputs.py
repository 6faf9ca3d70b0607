"""Where the step of one GPU and its fixed cost come from."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from retina_dist.benchmark import scaling
from retina_dist.benchmark.communication import LEAVING_MS
from retina_dist.benchmark.forecast import benchmark
from retina_dist.benchmark.published import FITTED
from retina_dist.config.compose import load_config
from retina_dist.errors import ConfigError

GIVEN = ["step_ms=[100]", "batch_size=10", "gpus=[1,8,16]"]
CUSTOM = ["sku=[custom]", "custom.gpus=4", "custom.inside=10", "custom.inside_us=5", "custom.outside=1"]


def test_a_step_can_come_from_the_file_of_benchmark_step(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = tmp_path / "step.json"
    content = {
        "benchmark": "step",
        "step_ms": 100.0,
        "batch_size": 10,
        "step_of": {"path": "bf16", "canvas": [800, 1088]},
    }
    path.write_text(json.dumps(content | {"machine": {"cpu": "a CPU", "gpus": ["NVIDIA X"]}}))
    found = benchmark(load_config("benchmark_forecast", [f"measured=[{path}]", "gpus=[1]"]))
    assert found["rows"][0]["images_per_s"] == 100
    assert f"measured on NVIDIA X, bf16, 800x1088 ({path})" in capsys.readouterr().out
    path.write_text(json.dumps(content | {"step_of": {"path": "fp32"}, "machine": {"cpu": "a CPU", "gpus": []}}))
    benchmark(load_config("benchmark_forecast", [f"measured=[{path}]", "gpus=[1]"]))
    assert f"measured on a CPU, no GPU, fp32 ({path})" in capsys.readouterr().out


def test_a_step_can_come_from_the_file_of_benchmark_scaling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = {1: 20.0, 2: 38.0}  # images a second of one process, of two
    monkeypatch.setattr(
        scaling, "_launch", lambda name, n: {"images_per_s": [speeds[n]], "job": "", "backend": name, "num_images": 100}
    )
    monkeypatch.setattr(scaling, "task_class", lambda config: SimpleNamespace(prepare=lambda config: None))
    monkeypatch.setattr(scaling, "write_epochs", lambda *_: ())
    settings = [
        "launchers=[torchrun]",
        "data.batch_size=3",
        "trainer.accumulate=2",
        f"output={tmp_path / 'scaling.json'}",
    ]
    scaling.benchmark(load_config("benchmark_scaling", settings))
    found = benchmark(load_config("benchmark_forecast", [f"measured=[{tmp_path / 'scaling.json'}]", "gpus=[1]"]))
    (row,) = found["rows"]
    assert (row["step_ms"], row["batch_size"], row["images_per_s"]) == (300.0, 6, 20.0)  # 3 x 2 images at 20 a second


def test_two_batch_sizes_give_the_fixed_cost_and_a_shared_batch_its_step(tmp_path: Path) -> None:
    """20 ms and 5 ms an image, by hand: 4 images on each of 8 GPUs take 40 ms where 16 took 100."""
    rows = [
        {"path": path, "canvas": [800, 1088], "batch_size": n, "images_per_s": 1e3 * n / (fixed + 5 * n)}
        for path, fixed in (("bf16", 20), ("fp32", 99))
        for n in (8, 16)
    ]
    path = tmp_path / "step.json"
    step = {"step_ms": 100.0, "batch_size": 16, "step_of": {"path": "bf16", "canvas": [800, 1088]}, "rows": rows}
    path.write_text(json.dumps(step))
    exact = ["straggler_cv=0", "gradient_mb=1e-6", "custom.inside_us=0", "custom.outside_us=0"]
    given = [f"measured=[{path}]", "gpus=[1,8]", "global_batch=32", *CUSTOM, *exact]
    one, eight = benchmark(load_config("benchmark_forecast", given))["rows"]
    assert one["step_ms"] == pytest.approx(180)
    assert eight["step_ms"] == pytest.approx(40 + LEAVING_MS, abs=1e-3)
    assert (eight["batch_size"], eight["images_per_s"]) == (32, pytest.approx(32e3 / (40 + LEAVING_MS), rel=1e-4))
    assert one["efficiency"] == pytest.approx((100 / 16) / (180 / 32), abs=1e-5)


def test_a_fixed_cost_measured_as_none_is_not_assumed(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    rows = [{"path": "bf16", "canvas": [800, 1088], "batch_size": n, "images_per_s": 100.0} for n in (8, 16)]
    path = tmp_path / "step.json"
    step = {"step_ms": 160.0, "batch_size": 16, "step_of": {"path": "bf16", "canvas": [800, 1088]}, "rows": rows}
    path.write_text(json.dumps(step))
    (row,) = benchmark(load_config("benchmark_forecast", [f"measured=[{path}]", "gpus=[1]", "global_batch=32"]))["rows"]
    assert row["step_ms"] == pytest.approx(320, abs=1e-3)
    assert "assumed as in MLPerf" not in capsys.readouterr().out


def test_a_fixed_cost_that_nothing_measured_is_assumed_and_said(capsys: pytest.CaptureFixture) -> None:
    (row,) = benchmark(load_config("benchmark_forecast", [*GIVEN, "gpus=[1]", "global_batch=20"]))["rows"]
    assert row["step_ms"] == pytest.approx(100 * (FITTED.retinanet + 20) / (FITTED.retinanet + 10), abs=1e-3)
    assert "ms of it fixed, assumed as in MLPerf's RetinaNet" in capsys.readouterr().out
    (row,) = benchmark(load_config("benchmark_forecast", [*GIVEN, "gpus=[1]", "global_batch=20", "fixed_ms=[40]"]))[
        "rows"
    ]
    assert row["step_ms"] == pytest.approx(160)


@pytest.mark.parametrize("content", [None, "[]", "{}", '{"step_ms": 0, "batch_size": 1}'])
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "step.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match="measured="):
        benchmark(load_config("benchmark_forecast", [f"measured=[{path}]"]))
