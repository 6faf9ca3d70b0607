"""What a training of these settings needs of each machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

PREFETCHED = 2  # batches that each data worker makes ahead, torch's default
FILES_OF_A_RANK = 256  # libraries, logs, sockets of the launcher: an estimate with room
FILES_OF_A_WORKER = 40  # pipes, and a descriptor for each tensor of a batch under way
FILES_OF_A_PEER = 4  # sockets


@dataclass(frozen=True)
class Needs:
    """In bytes and files; None where the task does not tell."""

    shm_of_rank: int | None  # batches that workers hand over
    open_files: int  # of a rank
    disk: int | None  # checkpoints, of the main rank


def needs_of(config: Any, world_size: int, image_bytes: int | None, model_bytes: int | None) -> Needs:
    """The needs of a training's settings, where an image of a batch has so many bytes, and the model's weights."""
    trainer, workers = config.trainer, getattr(config.data, "num_workers", 0)
    accumulate = trainer.accumulate if isinstance(trainer.accumulate, int) else 1
    batch = -(-config.data.batch_size // (world_size * accumulate))
    if getattr(config.data, "synthetic", None):
        workers = 0
    states = 1 if config.optimizer.name == "sgd" else 2  # momentum; Adam's two means
    copies = 1 + states + bool(trainer.ema_decay)
    kept = trainer.keep_last + trainer.save_top_k + 1  # plus the checkpoint that is being written
    return Needs(
        shm_of_rank=None if image_bytes is None else workers * PREFETCHED * batch * image_bytes,
        open_files=FILES_OF_A_RANK + FILES_OF_A_WORKER * workers + FILES_OF_A_PEER * (world_size - 1),
        disk=None if model_bytes is None or "://" in (trainer.checkpoint_dir or "") else kept * copies * model_bytes,
    )
