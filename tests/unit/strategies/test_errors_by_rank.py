"""Which rank of a job speaks, and how an error ends a process: in which words, with which exit
code.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from retina_dist.base.console import configure_logging
from retina_dist.base.errors import ConfigError, DataError, PeerLost
from retina_dist.config.entry_point import reported_errors
from retina_dist.strategies.launchers import LAUNCHERS

End = Callable[..., tuple[int | str | None, str]]


@pytest.fixture
def end(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> End:
    """(exit code, stderr) of rank `rank` of `size` that raises `error`.

    No launcher without a size.
    """
    for launcher in LAUNCHERS:
        for name in launcher.names:
            monkeypatch.delenv(name or "NONE", raising=False)

    def run(
        error: BaseException, rank: int = 0, size: int | None = None, **options: bool
    ) -> tuple[int | str | None, str]:
        if size is not None:
            monkeypatch.setenv("RANK", str(rank))
            monkeypatch.setenv("WORLD_SIZE", str(size))
        with pytest.raises(SystemExit) as caught, reported_errors(**options):
            raise error
        out, err = capsys.readouterr()
        assert out == ""
        return caught.value.code, err

    return run


@pytest.mark.parametrize(
    ("rank", "reporter", "text"),
    [
        (0, 0, "error: x\n"),
        (1, 0, ""),
        (1, 1, "[rank 1] error: x\n"),
        (0, 1, ""),
        (0, None, ""),
        (1, None, ""),
    ],
)
def test_an_error_of_all_ranks_is_said_by_its_reporter_only(
    end: End, rank: int, reporter: int | None, text: str
) -> None:
    assert end(DataError("x", collective=True, reporter=reporter), rank, 2) == (2, text)


@pytest.mark.parametrize(("rank", "text"), [(0, "error: x\n"), (1, ""), (3, "")])
def test_an_error_of_the_command_line_is_said_by_rank_0(end: End, rank: int, text: str) -> None:
    assert end(ConfigError("x"), rank, 4, collective=True) == (2, text)


def test_who_lost_another_process_exits_with_1(end: End) -> None:
    """So that a script can tell it from the process that has something to mend."""
    assert end(PeerLost("rank 1 lost another process."), 1, 2) == (
        1,
        "[rank 1] error: rank 1 lost another process.\n",
    )
    assert end(
        PeerLost("rank 0 stopped; its message says why.", collective=True, reporter=None), 1, 2
    ) == (1, "")


@pytest.mark.parametrize("rank", [0, 1])
def test_an_unexpected_error_shows_its_traceback_with_the_rank(end: End, rank: int) -> None:
    code, text = end(ZeroDivisionError("half\nway"), rank, 2)
    lines = text.splitlines()
    assert code == 1
    assert lines[0] == f"[rank {rank}] Traceback (most recent call last):"
    assert lines[-2:] == [f"[rank {rank}] ZeroDivisionError: half", f"[rank {rank}] way"]


def test_a_lost_connection_is_one_line_for_any_strategy(end: End) -> None:
    """Another strategy than DDP lets torch's error pass."""
    error = RuntimeError(
        "[gloo/transport/tcp/pair.cc:537] Connection closed by peer [10.0.0.1]:4711\nmore"
    )
    code, text = end(error, 1, 2)
    lost = "lost another process (Connection closed by peer 10.0.0.1:4711)"
    assert (code, text) == (1, f"[rank 1] error: rank 1 {lost}; see the last output of that one.\n")


def test_an_unexpected_error_of_one_process_shows_its_traceback_without_secrets(end: End) -> None:
    for size in (None, 1):
        code, text = end(RuntimeError("no https://me:secret@host/x"), rank=0, size=size)
        assert code == 1
        assert text.splitlines()[0] == "Traceback (most recent call last):"
        assert text.splitlines()[-1] == "RuntimeError: no https://host/x"


def test_information_is_printed_by_rank_0_and_warnings_by_every_rank(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logger = logging.getLogger("retina_dist.somewhere")
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
        *(f"[rank {rank}] warning: bad image" for rank in (1, 2)),
    ]
    assert capsys.readouterr() == ("\n".join(shown) + "\n", "")
