"""Which strategy a launcher gets, where its processes meet, and which combinations are refused."""

from __future__ import annotations

import sys

import pytest

from retina_dist.base.errors import ConfigError
from retina_dist.strategies import ddp, horovod
from retina_dist.strategies.ddp import DDPStrategy
from retina_dist.strategies.horovod import HorovodStrategy
from retina_dist.strategies.launch_environment import Launch
from retina_dist.strategies.select import make_strategy, why_alone
from tests.commands import free_port

PYTHON = Launch()
TORCHRUN, HOROVODRUN, MPIRUN = (
    Launch(name, 1, 2, 1, 2) for name in ("torchrun", "horovodrun", "mpirun")
)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "launch", "message"),
    [
        (
            "single",
            Launch("torchrun", 1, 8),
            "under torchrun with 8 processes would train the same model in each; use",
        ),
        (
            "horovod",
            TORCHRUN,
            "cannot run under torchrun with 2 processes; use horovodrun, mpirun or strategy=ddp",
        ),
        (
            "ddp",
            HOROVODRUN,
            "cannot run under horovodrun with 2 processes; start it by torchrun, or use strategy=horovod",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_with_the_remedy(
    name: str, launch: Launch, message: str
) -> None:
    with pytest.raises(ConfigError, match=f"^strategy={name} {message}"):
        make_strategy(name, launch=launch, device="cpu")


@pytest.mark.parametrize(
    ("launch", "place"),
    [
        (Launch("mpirun", 1, 2, 1, 2), ("127.0.0.1", 29500)),  # on one host
        (Launch("mpirun", 5, 8, 1, 4, 1, "10.0.0.4", 6105, "Azure ML"), ("10.0.0.4", 6105)),
        (Launch("srun", 1, 2, 0, 1, 1, "gpu-07", 14703), ("gpu-07", 14703)),
        (Launch("variables", 1, 2, 0, 1, 1, "first"), ("first", 29500)),
    ],
)
def test_ddp_meets_where_the_launcher_says(launch: Launch, place: tuple[str, int]) -> None:
    strategy = make_strategy("ddp", launch=launch, device="cpu")
    assert isinstance(strategy, DDPStrategy)
    assert strategy._rendezvous_endpoint() == place


def test_ddp_over_hosts_that_nobody_names_is_refused() -> None:
    strategy = make_strategy("ddp", launch=Launch("mpirun", 5, 8, 1, 4, 1), device="cpu")
    with pytest.raises(
        ConfigError,
        match=r"strategy=ddp under mpirun on several hosts needs MASTER_ADDR of .*; unset RANK",
    ):
        strategy.__enter__()


def test_ranks_that_never_come_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ddp, "_shared_store", None)
    launch = Launch("variables", 0, 3, 0, 3, master_address="127.0.0.1", master_port=free_port())
    strategy = make_strategy("ddp", launch=launch, device="cpu", timeout_s=1.0)
    with pytest.raises(
        ConfigError, match=r"rank 0 of 3 could not join .* \(Timed out waiting 1 s for ranks 1, 2\)"
    ):
        strategy.__enter__()


def test_deterministic_fixes_the_order_of_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horovod, "_import_horovod", lambda: None)
    alone = make_strategy(launch=MPIRUN, device="cpu", fusion_mb=2.0, deterministic=True)
    assert isinstance(alone, HorovodStrategy)
    assert alone.variables["HOROVOD_FUSION_THRESHOLD"] == "0"
    assert not alone.elastic
    monkeypatch.setenv("HOROVOD_ELASTIC", "1")
    assert make_strategy(launch=MPIRUN, device="cpu").elastic  # type: ignore[attr-defined]


def test_a_missing_horovod_is_said_with_the_way_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "horovod", None)
    monkeypatch.setitem(sys.modules, "horovod.torch", None)
    with pytest.raises(
        ConfigError,
        match=r"Horovod is not installed; .*install_horovod.*strategy=ddp with torchrun",
    ):
        make_strategy("horovod", launch=PYTHON, device="cpu")


def test_a_rank_without_a_world_size_is_said_with_the_remedy() -> None:
    for given, absent in (("RANK", "WORLD_SIZE"), ("WORLD_SIZE", "RANK")):
        note = why_alone("auto", Launch(), {given: "2"})
        assert note
        assert f"{given}=2 is set without {absent}" in note
        assert note.endswith(f"unset {given}, or start by torchrun")
    assert why_alone("auto", Launch(), {"WORLD_SIZE": "1"}) is None
