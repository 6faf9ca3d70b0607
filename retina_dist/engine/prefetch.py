"""The next step's batches are copied to a GPU while the current step computes."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any

import torch


def prefetched(steps: Iterator[Sequence[Any]], device: torch.device) -> Generator[Sequence[Any], None, None]:
    """The same steps in the same order; on CUDA with their batches on `device`, elsewhere as they come.

    Copies, and what `to` computes, run on a side stream, one step ahead; with pinned memory the host does not wait for them. An
    error of `steps` is raised at its step. Closing the generator closes `steps`.
    """
    try:
        yield from _one_ahead(steps, device) if device.type == "cuda" else steps
    finally:
        if hasattr(steps, "close"):
            steps.close()


def _one_ahead(steps: Iterator[Sequence[Any]], device: torch.device) -> Iterator[Sequence[Any]]:
    side = torch.cuda.Stream(device)

    def fetch() -> tuple[Sequence[Any], Any] | Exception | None:
        """The next step on its way, with the event of its arrival; None at the end."""
        try:
            batches = next(steps, None)
        except Exception as error:
            return error
        if batches is None:
            return None
        # Memory of earlier batches, all that the host has let go of, may be used again once the work queued with it is done.
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            return [batch.to(device, non_blocking=True) for batch in batches], side.record_event()

    coming = fetch()
    while coming is not None:
        if isinstance(coming, Exception):
            raise coming
        (batches, arrived), coming = coming, fetch()
        torch.cuda.current_stream(device).wait_event(arrived)
        yield batches
        del batches  # before the next copy, so that the memory of two steps' batches is enough
