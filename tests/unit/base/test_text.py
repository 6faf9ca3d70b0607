"""Numbers in sentences and in text files, and text that may be shown."""

from __future__ import annotations

import math

from retina_dist.base.text import escape, is_text, parse_number


def test_numbers_of_text_files_are_decimal() -> None:
    assert [parse_number(text) for text in ("1", " -2.50 ", "+.5", "3.", "1e3", "2E-1")] == [
        1,
        -2.5,
        0.5,
        3,
        1000,
        0.2,
    ]
    for text in (
        "",
        "1_0",
        "nan",
        "inf",
        "infinity",
        "0x1",
        "1,5",
        "1 2",
        "٣",
        "１",
        "1e",
        ".",
        "1e1_0",
    ):
        assert math.isnan(parse_number(text)), text
    assert parse_number("1e999") == parse_number("9" * 5000) == math.inf


def test_text_that_a_terminal_would_act_on() -> None:
    for text in ("a\x1b[2J", "a\nb", "a\rb", "\x00", "\x9b31m", "a\u202eb", "\u2028", "\ud800"):
        assert not is_text(text)
        assert escape(text).isprintable()
    for text in ("a b", "é", "猫", "it's", '"', "\\n"):
        assert is_text(text)
        assert escape(text) == text
    assert escape("a\x1b[2J") == "a\\x1b[2J"
    assert not any(map(is_text, ("", None, 3, [])))
