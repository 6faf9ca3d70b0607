"""Which rank is heard, and each rank's log file."""

from __future__ import annotations

import contextlib
import logging
import os
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from retina_dist.reporting.console import configure_logging, print_redacted
from retina_dist.reporting.loggers import RankLog

logger = logging.getLogger("retina_dist.somewhere")


def test_information_is_printed_by_rank_0_and_warnings_by_every_rank(capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(3):
        lines: list[str] = []
        with configure_logging(rank) as console:
            logger.debug("nobody reads this")
            console.log_file = SimpleNamespace(write=lines.append)
            logger.info("hello")
            logger.warning("bad image")
            logger.warning("NaN", extra={"rank_zero_only": True})
            logger.debug("for the file")
        assert lines == ["hello", "warning: bad image", "warning: NaN", "for the file"]
    shown = [
        "hello",
        "warning: bad image",
        "warning: NaN",
        "[rank 1] warning: bad image",
        "[rank 2] warning: bad image",
    ]
    assert capsys.readouterr() == ("\n".join(shown) + "\n", "")


def test_handlers_of_others_are_put_back(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    ours = logging.getLogger("retina_dist")
    before = ours.handlers[:], ours.level, ours.propagate
    with contextlib.suppress(KeyError), configure_logging(0):
        logger.warning("once")
        raise KeyError
    assert (ours.handlers, ours.level, ours.propagate) == before
    logger.warning("after")
    assert caplog.messages == ["after"]  # "once" does not come a second time by the root logger
    assert capsys.readouterr().out == "warning: once\n"


def test_a_rank_log_has_a_line_with_its_time_for_words_and_for_metrics(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "rank_1.log"
    before = datetime.now().astimezone()
    RankLog(path).write("größer")
    RankLog(path).log({"train/loss": 0.123456789, "coco/AP": 1.0}, 20)  # a resumed run adds to the file
    words, metrics = path.read_text(encoding="utf-8").splitlines()
    time, _, text = words.partition(" ")
    assert text == "größer"
    assert abs((datetime.fromisoformat(time) - before).total_seconds()) < 60  # with its time zone, else this raises
    assert metrics.partition(" ")[2] == "step 20 train/loss=0.123457 coco/AP=1"


def test_lines_that_nobody_reads_are_dropped() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        print_redacted("first", pipe)
        print_redacted("second", pipe)
