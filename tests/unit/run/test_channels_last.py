"""`trainer.channels_last=null`: by the kind of device, the same on all ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from retina_dist.config.compose import load_config
from retina_dist.run.build import agreed_channels_last
from retina_dist.strategies.single_device import SingleDeviceStrategy
from retina_dist.testing.thread_ranks import ThreadRank, on_ranks


@pytest.mark.parametrize(("capability", "expected"), [("AVX2", False), ("AVX512", True)])
def test_a_cpu_with_avx2_alone_keeps_the_usual_format(
    monkeypatch: pytest.MonkeyPatch, capability: str, expected: bool
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    strategy = SingleDeviceStrategy("cpu")
    config = load_config("train", ["trainer.channels_last=null"])
    assert agreed_channels_last(config, strategy) is expected
    for asked in (True, False):
        stated = replace(config, trainer=replace(config.trainer, channels_last=asked))
        assert agreed_channels_last(stated, strategy) is asked


def test_ranks_of_two_kinds_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Horovod sums gradients in the order of their memory."""
    config = load_config("train", ["trainer.channels_last=null"])

    def on_rank(strategy: ThreadRank) -> bool:
        strategy.device = torch.device("cpu", 0) if strategy.rank else torch.device("meta")
        return agreed_channels_last(config, strategy)

    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert on_ranks(2, on_rank) == [False, False]
