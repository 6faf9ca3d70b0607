"""Random numbers that depend on what is drawn, not on who draws it.

Anything random about one image is keyed by (seed, epoch, image id), so neither the number of data workers
nor the number of ranks changes it.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch (all devices)."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def derived_seed(*key: int | str) -> int:
    """A 63-bit seed that is a pure function of `key`, the same on every platform and Python run.

    >>> derived_seed(0, 1, 42) == derived_seed(0, 1, 42) != derived_seed(0, 2, 42)
    True
    """
    digest = hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


@contextmanager
def torch_seed(*key: int | str) -> Iterator[None]:
    """Within the block torch's CPU generator is seeded by `key`; afterwards it is as it was before."""
    state = torch.random.get_rng_state()
    torch.random.default_generator.manual_seed(derived_seed(*key))
    try:
        yield
    finally:
        torch.random.set_rng_state(state)


def random_state() -> dict[str, Any]:
    """All global random states of this process, as tensors and plain Python values only."""
    numpy_state: Any = np.random.get_state()
    version, internal, gauss = random.getstate()
    return {
        "python": [version, list(internal), gauss],
        "numpy": [numpy_state[0], numpy_state[1].tolist(), *numpy_state[2:]],
        "torch": torch.random.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Put back what `random_state` returned. CUDA states are skipped when the number of devices differs."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))
    torch.random.set_rng_state(state["torch"])
    if torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
