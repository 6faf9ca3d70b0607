"""The record of collectives that torch writes when one of them times out."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch

from retina_dist.strategies.ddp import DDPStrategy
from retina_dist.strategies.launch_environment import Launch
from retina_dist.strategies.settings import StrategyConfig


def test_collectives_are_recorded_and_written_where_the_run_says_after_joining(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCH_FR_BUFFER_SIZE", raising=False)
    with DDPStrategy(StrategyConfig(device="cpu"), Launch()) as strategy:
        assert int(os.environ["TORCH_FR_BUFFER_SIZE"]) > 0
        monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", f"{tmp_path}/flight_recorder_rank_")
        strategy.all_reduce(torch.ones(7))
        torch._C._distributed_c10d._dump_fr_trace_file(0)
    entries = pickle.loads((tmp_path / "flight_recorder_rank_0").read_bytes())["entries"]
    assert entries[-1]["profiling_name"] == "gloo:all_reduce"
    assert entries[-1]["input_sizes"] == [[7]]
