"""Which rank is heard, and each rank's log file."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

import pytest

from retina_dist.reporting.console import Voice, tell
from retina_dist.reporting.loggers import RankLog


class Notes:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def write(self, text: str) -> None:
        self.lines.append(text)


def test_what_all_ranks_say_is_heard_once(capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(3):
        Voice(rank, 3).say("hello")
    assert capsys.readouterr() == ("hello\n", "")


def test_a_warning_is_heard_from_every_rank_with_its_number_off_the_main_rank(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for rank in range(3):
        Voice(rank, 3).warn("bad image")
    assert capsys.readouterr().out == "bad image\n[rank 1] bad image\n[rank 2] bad image\n"


@pytest.mark.parametrize("rank", [0, 1])
def test_a_ranks_log_has_all_it_said_in_order_without_labels(rank: int, capsys: pytest.CaptureFixture[str]) -> None:
    voice = Voice(rank, 2)
    voice.log = notes = Notes()
    voice.say("plan")
    voice.warn("bad image")
    voice.note("for the file")
    assert notes.lines == ["plan", "bad image", "for the file"]
    assert "for the file" not in capsys.readouterr().out


def test_a_note_without_a_log_is_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    Voice(0, 1).note("nobody hears")
    assert capsys.readouterr() == ("", "")


def test_words_go_where_out_points(capsys: pytest.CaptureFixture[str]) -> None:
    voice, heard = Voice(1, 2), []
    voice.out = heard.append
    voice.say("hello")
    voice.warn("bad image")
    assert heard == ["[rank 1] bad image"]
    assert capsys.readouterr().out == ""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "rank_1.log"


def test_a_rank_log_has_a_line_with_its_time_for_words_and_for_metrics(path: Path) -> None:
    log = RankLog(path)
    before = datetime.now().astimezone()
    log.write("größer")
    log.log({"train/loss": 0.123456789, "coco/AP": 1.0}, 20)
    words, metrics = path.read_text(encoding="utf-8").splitlines()  # before close: a killed run loses no line
    time, _, text = words.partition(" ")
    assert text == "größer"
    assert abs((datetime.fromisoformat(time) - before).total_seconds()) < 60  # with its time zone, else this raises
    assert metrics.partition(" ")[2] == "step 20 train/loss=0.123457 coco/AP=1"
    log.close()


def test_a_resumed_run_adds_to_its_rank_log(path: Path) -> None:
    for text in ("first", "second"):
        log = RankLog(path)
        log.write(text)
        log.close()
    assert [line.partition(" ")[2] for line in path.read_text(encoding="utf-8").splitlines()] == ["first", "second"]


def test_words_nobody_reads_any_more_are_dropped() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        tell("first", pipe)
        tell("second", pipe)
