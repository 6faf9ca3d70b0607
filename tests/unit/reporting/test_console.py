"""Which rank is heard."""

from __future__ import annotations

import logging

import pytest

from retina_dist.reporting.console import configure_logging

logger = logging.getLogger("retina_dist.somewhere")


def test_information_is_printed_by_rank_0_and_warnings_by_every_rank(capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(3):
        with configure_logging(rank):
            logger.debug("nobody reads this")
            logger.info("hello")
            logger.warning("bad image")
            logger.warning("NaN", extra={"rank_zero_only": True})
    shown = [
        "hello",
        "warning: bad image",
        "warning: NaN",
        "[rank 1] warning: bad image",
        "[rank 2] warning: bad image",
    ]
    assert capsys.readouterr() == ("\n".join(shown) + "\n", "")
