"""Which rank is heard, and each rank's log file."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from retina_dist.reporting.console import configure_logging

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
