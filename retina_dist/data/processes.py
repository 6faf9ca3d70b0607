"""Processes that read and decode images, started without the main script. Layer 0."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def without_main() -> Iterator[None]:
    """Within it, processes of `multiprocessing` start without an import of the main script.

    Their objects are of modules of this package. The import would run a script that has no `if __name__ == "__main__":`
    again, in each process (`multiprocessing.spawn.get_preparation_data` reads these two names).
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
