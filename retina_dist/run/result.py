"""result.json of a run: how it ended, for sweeps, benchmarks and scripts that compare runs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from retina_dist.errors import Preempted, UserError
from retina_dist.files import write_atomically
from retina_dist.redaction import redacted

RESULT = "result.json"
LOSS = "train/loss"


def write_result(
    folder: Path,
    *,
    error: BaseException | None = None,
    metrics: Mapping[str, float] | None = None,
    step: int = 0,
    loss: float | None = None,
    speeds: Sequence[float] = (),
    **facts: Any,
) -> None:
    """result.json of a run: status, `step`, the last `loss`, the last validation's `metrics`, and `facts` as they are.

    The speed is the mean of `speeds`, those of the log lines, but the first, which has the start in it. What is not finite is
    null.
    """
    status = {"status": "ok", "error": None}
    if error:
        status = {"status": "preempted" if isinstance(error, Preempted) else "failed", "error": sentence(error)}
    content = status | {
        **facts,
        "metrics": {name: _finite(value) for name, value in (metrics or {}).items()},
        "step": step,
        LOSS: _finite(loss),
        "images_per_s": mean(speeds[1:] or speeds),
    }
    text = json.dumps(content, indent=2) + "\n"
    write_atomically(folder / RESULT, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def read_result(folder: Path) -> dict[str, Any]:
    """What `write_result` wrote, empty where there is none."""
    path = folder / RESULT
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def mean(values: Sequence[float]) -> float | None:
    """None for nothing."""
    return math.fsum(values) / len(values) if values else None


def sentence(error: BaseException) -> str:
    """A UserError's own words; of another exception its name and first line."""
    first = (str(error).strip().splitlines() or [""])[0]
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return str(error) if isinstance(error, UserError) else redacted(f"{type(error).__name__}: {first}".rstrip(": "))


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
