"""Which rank is heard, and each rank's log file."""

from __future__ import annotations

import contextlib
import logging
import os
from datetime import datetime
from pathlib import Path

import pytest

from retina_dist.reporting.console import configure_logging, print_redacted
from retina_dist.reporting.loggers import RankLog


class Notes:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def write(self, text: str) -> None:
        self.lines.append(text)


logger = logging.getLogger("retina_dist.somewhere")


def test_information_is_printed_on_rank_0_only(capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(3):
        with configure_logging(rank):
            logger.info("hello")
    assert capsys.readouterr() == ("hello\n", "")


def test_a_warning_is_printed_by_every_rank_with_its_number_off_the_main_rank(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for rank in range(3):
        with configure_logging(rank):
            logger.warning("bad image")
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["warning: bad image", "[rank 1] warning: bad image", "[rank 2] warning: bad image"]


def test_a_warning_of_all_ranks_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    notes = [Notes(), Notes()]
    for rank in range(2):
        with configure_logging(rank) as console:
            console.log_file = notes[rank]
            logger.warning("NaN", extra={"rank_zero_only": True})
    assert capsys.readouterr().out == "warning: NaN\n"
    assert notes[0].lines == notes[1].lines == ["warning: NaN"]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_log_file_has_all_lines_of_its_rank_in_order(rank: int, capsys: pytest.CaptureFixture[str]) -> None:
    with configure_logging(rank) as console:
        console.log_file = notes = Notes()
        logger.info("plan")
        logger.warning("bad image")
        logger.debug("for the file")
    assert notes.lines == ["plan", "warning: bad image", "for the file"]
    assert "for the file" not in capsys.readouterr().out


def test_debug_without_a_log_file_goes_nowhere(capsys: pytest.CaptureFixture[str]) -> None:
    with configure_logging(0):
        logger.debug("nobody reads this")
    assert capsys.readouterr() == ("", "")


def test_lines_go_where_write_points(capsys: pytest.CaptureFixture[str]) -> None:
    written: list[str] = []
    with configure_logging(1) as console:
        console.write = written.append
        logger.info("hello")
        logger.warning("bad image")
    assert written == ["[rank 1] warning: bad image"]
    assert capsys.readouterr().out == ""


def test_handlers_of_others_are_put_back(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    ours = logging.getLogger("retina_dist")
    before = ours.handlers[:], ours.level, ours.propagate
    with contextlib.suppress(KeyError), configure_logging(0):
        logger.warning("once")
        raise KeyError
    assert (ours.handlers, ours.level, ours.propagate) == before
    assert caplog.messages == []  # not a second time by the root logger
    logger.warning("after")
    assert caplog.messages == ["after"]
    assert capsys.readouterr().out == "warning: once\n"


def test_a_full_disk_is_an_error_where_the_line_is_logged() -> None:
    class Full:
        def write(self, text: str) -> None:
            raise OSError(28, "No space left on device")

    with configure_logging(0) as console:
        console.log_file = Full()
        with pytest.raises(OSError, match="No space"):
            logger.debug("stopped")


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
        print_redacted("first", pipe)
        print_redacted("second", pipe)
