"""Random numbers keyed by image and epoch, or by step and rank, whichever process draws them."""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch (all devices)."""
    _seed_without_torch(seed)
    torch.manual_seed(seed)


def _seed_without_torch(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)


def seed_step(*key: int | str) -> None:
    """Seed the same generators by `key`, GPUs' once a GPU is in use; it takes microseconds."""
    seed = derived_seed(*key)
    _seed_without_torch(seed)
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


def derived_seed(*key: int | str) -> int:
    """A 63-bit seed that is a pure function of `key`, the same on every platform and Python run.

    >>> derived_seed(0, 1, 42) == derived_seed(0, 1, 42) != derived_seed(0, 2, 42)
    True
    """
    digest = hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


@contextmanager
def torch_seed(*key: int | str) -> Iterator[None]:
    """Seed torch's CPU generator by `key`; after the block it is as it was before."""
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(derived_seed(*key))
        yield


@contextmanager
def every_seed(*key: int | str) -> Iterator[None]:
    """Seed Python, NumPy and torch's CPU generator by `key`; then they are as they were before."""
    of_python = random.getstate()
    of_numpy = np.random.get_state()
    try:
        with torch_seed(*key):
            _seed_without_torch(derived_seed(*key))
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)
