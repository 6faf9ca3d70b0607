"""Every rank's facts on every rank, by the strategy's own collectives."""

from __future__ import annotations

import json
from dataclasses import asdict

import torch

from retina_dist.preflight.facts import Facts
from retina_dist.strategies.base import DistributedStrategy


def gather_facts(strategy: DistributedStrategy, facts: Facts) -> list[Facts]:
    """The facts of all ranks, in order, without the GPUs' network. Every rank calls it."""
    own = torch.frombuffer(bytearray(json.dumps(asdict(facts)).encode()), dtype=torch.uint8)
    lengths = strategy.all_gather(torch.tensor([len(own)])).tolist()
    everyone = strategy.all_gather(own)
    return [Facts(**json.loads(bytes(part.tolist()))) for part in everyone.split(lengths)]
