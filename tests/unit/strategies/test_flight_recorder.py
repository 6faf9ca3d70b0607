"""The record of collectives that torch writes when one of them times out."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch

from retina_dist.strategies import ddp
from retina_dist.strategies.ddp import (
    FLIGHT_FILE,
    FLIGHT_RECORDER,
    DDPStrategy,
    write_flight_records,
)
from retina_dist.strategies.launch_environment import Launch
from retina_dist.strategies.settings import StrategyConfig


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ddp, "_flight_file", None)
    for name in (*FLIGHT_RECORDER, FLIGHT_FILE):
        monkeypatch.setenv(name, "")  # so that it is restored where it was not set
        monkeypatch.delenv(name)


def test_collectives_are_recorded_and_written_where_the_run_says_after_joining(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in FLIGHT_RECORDER.items():
        monkeypatch.setenv(name, value)
    with DDPStrategy(StrategyConfig(device="cpu"), Launch()) as strategy:
        write_flight_records(tmp_path)
        strategy.all_reduce(torch.ones(7))
        torch._C._distributed_c10d._dump_fr_trace_file(0)
    entries = pickle.loads((tmp_path / "flight_recorder_rank_0").read_bytes())["entries"]
    assert entries[-1]["profiling_name"] == "gloo:all_reduce"
    assert entries[-1]["input_sizes"] == [[7]]


def test_without_a_gpu_nothing_is_set() -> None:
    with DDPStrategy(StrategyConfig(device="cpu"), Launch()):
        assert not set(FLIGHT_RECORDER) & set(os.environ)


def test_records_go_into_the_folder_of_each_job_unless_the_user_said_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for job in ("0", "1"):
        write_flight_records(tmp_path / job)
        assert os.environ[FLIGHT_FILE] == f"{tmp_path / job}/flight_recorder_rank_"
    monkeypatch.setenv(FLIGHT_FILE, "/scratch/mine_")
    write_flight_records(tmp_path)
    assert os.environ[FLIGHT_FILE] == "/scratch/mine_"
