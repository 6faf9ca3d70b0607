"""A job whose processes do not all come."""

from __future__ import annotations

import socket

import pytest

from retina_dist.errors import ConfigError
from retina_dist.strategies import ddp
from retina_dist.strategies.launch_environment import Launch
from retina_dist.strategies.select import make_strategy


def test_ranks_that_never_come_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ddp, "_shared_store", None)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    launch = Launch("variables", 0, 3, 0, 3, master_address="127.0.0.1", master_port=port)
    strategy = make_strategy("ddp", launch=launch, device="cpu", timeout_s=1.0)
    with pytest.raises(ConfigError, match=r"rank 0 of 3 could not join .* \(Timed out waiting 1 s for ranks 1, 2\)"):
        strategy.__enter__()
