"""Who is still there when a collective has failed."""

from __future__ import annotations

import pytest

from retina_dist.strategies import missing_ranks as module
from retina_dist.strategies.missing_ranks import missing_ranks, peer_lost_message


def test_those_that_do_not_answer_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAIT_S", 0.3)
    notes = {"here/2"}
    assert missing_ranks(0, 4, notes.add, notes.__contains__) == [1, 3]
    assert "here/0" in notes  # others may be asking too


def test_all_there_or_no_way_to_ask_names_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAIT_S", 5.0)
    assert missing_ranks(1, 2, lambda key: None, lambda key: True) == []

    def gone(key: str) -> None:
        raise ConnectionRefusedError("the store went with its process")

    assert missing_ranks(1, 2, gone, lambda key: True) == []


def test_the_sentence_names_ranks_and_what_was_going_on() -> None:
    assert peer_lost_message(0, [2, 3], "step 7", "timed out") == (
        "rank 0 waited for ranks 2, 3 at step 7 (timed out); what ranks 2, 3 printed last says more."
    )
    assert peer_lost_message(1, [], "the start", "closed") == "rank 1 lost another process at the start (closed)."
