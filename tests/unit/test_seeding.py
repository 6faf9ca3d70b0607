"""Random numbers that depend on their key alone."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from retina_dist.seeding import derived_seed, seed_everything, seed_step, torch_seed


def draw() -> list[float]:
    """One number of each global generator."""
    return [random.random(), float(np.random.rand()), float(torch.rand(()))]


def test_a_derived_seed_is_the_same_everywhere() -> None:
    """The numbers are part of what a seed means: with others a resumed run sees other images."""
    assert derived_seed(0, 1, 42) == 3552432081976069100  # printf 0/1/42 | b2sum -l 64, halved
    assert derived_seed("order", 0) == 4005301241807109418


def test_derived_seeds_differ_and_fit_every_generator() -> None:
    seeds = {derived_seed(a, b, c) for a in range(10) for b in range(10) for c in range(30)}
    assert len(seeds) == 3000
    assert derived_seed(1, 23) != derived_seed(12, 3)
    assert all(0 <= seed < 2**63 for seed in seeds)
    bits = np.array([[seed >> i & 1 for i in range(63)] for seed in seeds])
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 0.05  # 5 standard deviations of 3000 coin flips
    torch.Generator().manual_seed(max(seeds))
    np.random.default_rng(max(seeds))


def test_torch_seed_leaves_no_trace() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    with torch_seed(1, "flip"):
        first = torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(100)
    with torch_seed(1, "flip"):
        assert torch.equal(torch.rand(3), first)
    with torch_seed(2, "flip"):
        assert not torch.equal(torch.rand(3), first)
    state = torch.get_rng_state()
    with pytest.raises(KeyError), torch_seed(3):
        raise KeyError
    assert torch.equal(torch.get_rng_state(), state)


def test_everything_is_seeded() -> None:
    seed_everything(3)
    first = draw()
    seed_everything(3)
    assert draw() == first
    seed_everything(4)
    assert all(a != b for a, b in zip(draw(), first, strict=True))
    seed_everything(2**63 - 1)  # beyond what NumPy takes
    for key, same in (((1, "step", 2, 0), True), ((1, "step", 2, 1), False)):
        seed_step(1, "step", 2, 0)
        first = draw()
        seed_step(*key)
        assert (draw() == first) is same
