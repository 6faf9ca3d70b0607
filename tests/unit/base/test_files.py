"""Files written whole or not at all."""

from __future__ import annotations

import csv
from pathlib import Path

from retina_dist.base.files import write_csv

FORMULAS = ["=1+1", "+cmd", "-x", "@SUM(A1)", "\t=1", "-1.jpg"]
PLAIN = ["-0.5", "+1e-3", "-inf", "nan", "a=b", "", "'=x", 7, -1.5]


def test_a_table_for_people_holds_no_formula(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", [FORMULAS, PLAIN], escape_formulas=True)
    with (tmp_path / "a.csv").open(newline="") as file:
        formulas, plain = csv.reader(file)
    assert formulas == [f"'{text}" for text in FORMULAS]
    assert plain == [str(text) for text in PLAIN]


def test_a_table_for_programs_is_as_it_was_given(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", [FORMULAS])
    with (tmp_path / "a.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [FORMULAS]
