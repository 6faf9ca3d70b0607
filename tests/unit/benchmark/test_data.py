"""The figures themselves depend on the machine; that there is one of everything does not."""

from __future__ import annotations

import json

import numpy as np
import pytest

from retina_dist.benchmark import data
from retina_dist.config.compose import load_config
from retina_dist.errors import ConfigError


def test_every_part_is_timed_and_compared(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(data, "HEIGHT", 48)
    monkeypatch.setattr(data, "WIDTH", 64)
    output = tmp_path / "found.json"
    settings = [
        "num_images=5",
        "rounds=2",
        "workers=[0]",
        "data.min_sizes=[80]",
        "data.batch_size=4",
        f"output={output}",
    ]
    data.benchmark(load_config("benchmark_data", settings))
    found = json.loads(output.read_text())
    assert found["benchmark"] == "data"
    assert found["ratios"].keys() == {f"{faster} / {slower}" for faster, slower in data.COMPARED}
    assert len(found["ms_an_image"]) == 12
    assert found["images_per_s"].keys() == {"data loader, num_workers=0"}
    for row in (*found["ms_an_image"].values(), *found["images_per_s"].values()):
        assert 0 <= row["min"] <= row["median"] <= row["max"]
    assert "5 made images" in found["what"]
    assert "times as fast" in capsys.readouterr().out


def test_made_images_are_as_heavy_as_cocos(tmp_path):
    data.make_images(tmp_path, 3)
    files = list((tmp_path / "images").iterdir())
    assert np.mean([file.stat().st_size for file in files]) == pytest.approx(163_000, rel=0.1)
    truth = json.loads((tmp_path / "images.json").read_text())
    assert all(a["bbox"][0] + a["bbox"][2] <= 640 and a["bbox"][1] + a["bbox"][3] <= 480 for a in truth["annotations"])


def test_it_is_for_one_process(monkeypatch):
    monkeypatch.setattr("retina_dist.strategies.single_device.SingleDeviceStrategy.world_size", 2, raising=False)
    with pytest.raises(ConfigError, match="one process"):
        data.benchmark(load_config("benchmark_data", ["num_images=1"]))
