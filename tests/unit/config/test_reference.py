"""docs/settings.md is what the settings say."""

from __future__ import annotations

from pathlib import Path

from scripts.settings_reference import key_reference

DOCUMENT = Path(__file__).parents[3] / "docs" / "settings.md"


def test_the_reference_is_up_to_date() -> None:
    assert DOCUMENT.read_text() == key_reference(), "run python scripts/settings_reference.py > docs/settings.md"


def test_the_reference_names_each_key_with_its_limits() -> None:
    lines = key_reference().splitlines()
    assert "| `optimizer.momentum` | float | 0.9 | 0 to 1, < 1 |  |" in lines
    assert "| `model.box_loss` | str or null | null | null, l1, smooth_l1, giou | null: the variant's own |" in lines
    assert "## `python -m retina_dist.benchmark step`" in lines
