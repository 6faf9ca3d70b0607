"""NCCL's variables from the group nccl=…: what is set, and what is left to the user or for want of a file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from retina_dist.config.compose import load_config
from retina_dist.strategies.devices import apply_nccl, describe_nccl

TOPOLOGY = {"nd_a100": "/opt/microsoft/ndv4-topo.xml", "nd_h100": "/opt/microsoft/ndv5-topo.xml"}


def applied(overrides: list[str], environment: dict[str, str]) -> str | None:
    """What a training of these settings says, having changed the environment."""
    settings = asdict(load_config("train", overrides).nccl)
    apply_nccl(settings, environment)
    return describe_nccl(settings, environment)


def test_ethernet() -> None:
    environment: dict[str, str] = {}
    assert applied(["nccl=ethernet"], environment) == "nccl=ethernet: NCCL_SOCKET_IFNAME=eth0, NCCL_IB_DISABLE=1"
    assert environment == {"NCCL_SOCKET_IFNAME": "eth0", "NCCL_IB_DISABLE": "1"}


@pytest.mark.parametrize("group", TOPOLOGY)
@pytest.mark.parametrize("there", [True, False])
def test_azures_machines_with_infiniband(group: str, there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    environment: dict[str, str] = {}
    settings = asdict(load_config("train", [f"nccl={group}"]).nccl)
    monkeypatch.setattr(Path, "is_file", lambda path: there and str(path) == TOPOLOGY[group])
    apply_nccl(settings, environment)
    expected = {"NCCL_SOCKET_IFNAME": "eth0", "NCCL_IB_PCI_RELAXED_ORDERING": "1"}
    assert environment == (expected | {"NCCL_TOPO_FILE": TOPOLOGY[group]} if there else expected)
    last = f"NCCL_TOPO_FILE={TOPOLOGY[group]}" if there else f"no NCCL_TOPO_FILE, as {TOPOLOGY[group]} does not exist"
    said = describe_nccl(settings, environment)
    assert said == f"nccl={group}: NCCL_SOCKET_IFNAME=eth0, NCCL_IB_PCI_RELAXED_ORDERING=1, {last}"


def test_the_users_own_variable_wins_and_is_said() -> None:
    environment = {"NCCL_SOCKET_IFNAME": "ib0", "NCCL_TOPO_FILE": "/mine.xml"}
    said = applied(["nccl=nd_a100"], environment)
    assert (environment["NCCL_SOCKET_IFNAME"], environment["NCCL_TOPO_FILE"]) == ("ib0", "/mine.xml")
    assert said is not None
    assert "NCCL_SOCKET_IFNAME=ib0 (your own)" in said
    assert "NCCL_TOPO_FILE=/mine.xml (your own)" in said
    assert "NCCL_IB_PCI_RELAXED_ORDERING=1," in said
