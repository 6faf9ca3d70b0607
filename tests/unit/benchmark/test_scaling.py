"""Epoch lengths as measured, written and drawn."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from PIL import Image

from retina_dist.benchmark.scaling import epoch_minutes, write_epochs


def made_up_rows() -> list[dict]:
    speeds = {("python", 1): [10.0, 12.0, 11.0], ("torchrun", 2): [20.0, 22.0, 21.0], ("mpirun", 2): [16.0, 18.0, 17.0]}
    return [
        {
            "launcher": launcher,
            "processes": processes,
            "images_per_s": sorted(values)[1],
            "speedup": 1.0 if processes == 1 else 1.5,
            "each": [1.0],
            "backend": "a backend",
            **epoch_minutes(13_200, values),
        }
        for (launcher, processes), values in speeds.items()
    ]


def test_the_length_of_an_epoch_is_written_beside_the_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: dict = {}

    def keep(lines: dict, alone: float, out: Path, notes: list[str]) -> None:
        drawn.update(lines=lines, alone=alone, notes=notes)

    monkeypatch.setattr("retina_dist.benchmark.scaling.plot_epochs", keep)
    table, plot = write_epochs(tmp_path / "found.json", made_up_rows(), 13_200, "how")
    assert (table, plot) == (tmp_path / "found.csv", tmp_path / "found.png")
    with open(table, newline="") as file:
        rows = list(csv.DictReader(file))
    minutes = ("epoch_minutes", "epoch_minutes_shortest", "epoch_minutes_longest")
    assert [float(rows[0][key]) for key in minutes] == [20.0, pytest.approx(18.3333), 22.0]  # 13200 / (11, 12, 10) / 60
    assert "each" not in rows[0]
    assert drawn["alone"] == 20.0
    assert drawn["lines"].keys() == {
        f"{name} (a backend): 1.50 times as fast with 2" for name in ("torchrun", "mpirun")
    }
    for line in drawn["lines"].values():  # each begins at the plain process
        assert min(line) == (1, 20.0, pytest.approx(18.3333), 22.0)
    assert drawn["notes"][0] == "an epoch of 13,200 images"


def test_the_length_of_an_epoch_is_drawn(tmp_path: Path) -> None:
    _, plot = write_epochs(tmp_path / "found.json", made_up_rows(), 13_200, "how")
    assert Image.open(plot).width > 600
