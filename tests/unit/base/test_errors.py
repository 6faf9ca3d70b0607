"""What an error says in a table, a record, or on one line."""

from __future__ import annotations

import pytest

from retina_dist.base.errors import DataError, describe_error, set_status


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (DataError("a is wrong."), "a is wrong."),
        (ValueError("one\ntwo"), "ValueError: one"),
        (ValueError(), "ValueError"),
        (ValueError("long," * 99 + "\nsecond"), "ValueError: " + "long," * 99),
        (ValueError("token=SECRET"), "ValueError: token=***"),
        (
            RuntimeError(
                "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer"
            ),
            "another process of the job was lost (a test); its own output says why.",
        ),
    ],
)
def test_an_error_is_one_line(error: Exception, text: str) -> None:
    set_status("a test")
    assert describe_error(error) == text


def test_a_name_with_a_newline_stays_on_its_line() -> None:
    assert str(DataError("a\nb.jpg is damaged.")) == "a\\nb.jpg is damaged."
