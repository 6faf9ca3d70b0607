"""docs/settings.md is what the settings say."""

from __future__ import annotations

from pathlib import Path

from scripts.settings_reference import key_reference

DOCUMENT = Path(__file__).parents[3] / "docs" / "settings.md"


def test_the_reference_is_up_to_date() -> None:
    assert DOCUMENT.read_text() == key_reference(), "run python scripts/settings_reference.py > docs/settings.md"
