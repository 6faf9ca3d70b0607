"""Numbers in sentences."""

from __future__ import annotations

import pytest

from retina_dist.words import counted


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (1, "image", "1 image"),
        (2, "box", "2 boxes"),
        ("1.5", "epoch", "1.5 epochs"),
        ("1", "epoch", "1 epoch"),
        (0, "step", "0 steps"),
    ],
)
def test_one_is_singular(number: int | str, noun: str, text: str) -> None:
    assert counted(number, noun) == text


def test_a_zero_may_be_a_word() -> None:
    assert (counted(0, "error", none="no"), counted(1, "error", none="no")) == ("no errors", "1 error")
