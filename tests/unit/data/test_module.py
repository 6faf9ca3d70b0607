"""What ends a data worker reaches the user as one sentence with a remedy."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from retina_dist.base.errors import UserError
from retina_dist.data.buckets import make_buckets
from retina_dist.data.module import DataModule, ImageDataset, TensorBatch
from retina_dist.data.samplers import BatchSpec
from retina_dist.data.settings import ImageDataSettings


@dataclass(frozen=True)
class OneImage(TensorBatch):
    """The least batch."""

    images: Tensor
    image_ids: Tensor
    real: Tensor | None = None


class Failing(ImageDataset[OneImage]):
    """A data set whose third batch ends in `failure`."""

    def __init__(self, failure: Callable[[], Any]) -> None:
        super().__init__(["a"] * 8, None)
        self.failure = failure

    def __getitem__(self, spec: BatchSpec) -> OneImage:
        if 2 in spec.indices:
            self.failure()
        return OneImage(torch.zeros(1, 3, 4, 4, dtype=torch.uint8), torch.tensor(spec.indices))


def end_by(number: int) -> None:
    os.kill(os.getpid(), number)


def no_memory() -> None:
    raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.")


def full(*_: Any) -> None:
    raise RuntimeError("unable to allocate shared memory(shm) for file </torch_1>: No space left")


def killed() -> None:
    end_by(signal.SIGKILL)


def bus_error() -> None:
    end_by(signal.SIGBUS)


def leave() -> None:
    os._exit(7)


def share_nothing() -> None:
    Tensor.share_memory_ = full  # type: ignore[assignment, method-assign]


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (killed, "was killed, usually for want of memory; lower data.num_workers"),
        (bus_error, "found /dev/shm full; give the container more .*--shm-size"),
        (leave, "ended with exit code 7 .*data.num_workers=0 reads in this process"),
        (no_memory, "has no memory left; lower data.num_workers"),
        (share_nothing, "/dev/shm is full .*No space left.*--shm-size.*data.num_workers=0"),
    ],
)
def test_a_worker_that_ends_is_one_sentence_with_the_remedy(
    failure: Callable[[], Any], words: str
) -> None:
    settings = ImageDataSettings(name="test", num_workers=1, batch_size=1, shuffle=False)
    buckets = make_buckets([(4, 4)] * 8, min_sizes=[4], max_size=4)
    data = DataModule(settings, (Failing(failure), buckets), None)
    with pytest.raises(UserError, match=words):
        list(data.train_steps(0, 8))
