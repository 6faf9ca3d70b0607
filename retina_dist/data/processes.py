"""Processes that read and decode images: they start without the main script, and hand over what they log."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data import get_worker_info

LOGGER = logging.getLogger("retina_dist")


@contextmanager
def without_main() -> Iterator[None]:
    """Within it, processes of `multiprocessing` start without importing the main script.

    They need only modules of this package. The import would run a script without `if __name__ == "__main__":` again in
    each process (`multiprocessing.spawn.get_preparation_data` reads these two names).
    """
    main = sys.modules["__main__"].__dict__
    hidden: dict[str, Any] = {name: main[name] for name in ("__spec__", "__file__") if name in main}
    main["__spec__"] = None
    main.pop("__file__", None)
    try:
        yield
    finally:
        main.pop("__spec__", None)
        main.update(hidden)


@contextmanager
def worker_records() -> Iterator[list[logging.LogRecord]]:
    """In a data worker: what the package logs within it, for the main process to handle; in the main process always empty."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record)  # type: ignore[method-assign]
    if get_worker_info() is not None:
        LOGGER.addHandler(handler)
    try:
        yield records
    finally:
        LOGGER.removeHandler(handler)
