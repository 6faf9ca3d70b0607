"""result.json of a run: how it ended, for sweeps, benchmarks and scripts that compare runs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from retina_dist.errors import Preempted, UserError
from retina_dist.files import first_line, write_json
from retina_dist.redaction import redacted

RESULT = "result.json"
LOSS = "train/loss"


def write_result(
    folder: Path,
    *,
    error: BaseException | None = None,
    metrics: Mapping[str, float] | None = None,
    loss: float | None = None,
    speeds: Sequence[float] = (),
    **facts: Any,
) -> None:
    """Write how the run ended: status, the last `loss`, the last validation's `metrics`, and `facts` as they are.

    The speed is the mean of `speeds`, those of the log lines, but the first, which has the start in it. What is not finite is
    null.
    """
    content = {
        "status": "ok" if error is None else "preempted" if isinstance(error, Preempted) else "failed",
        "error": error and sentence(error),
        **facts,
        "metrics": {name: _finite(value) for name, value in (metrics or {}).items()},
        LOSS: _finite(loss),
        "images_per_s": fmean(speeds[1:] or speeds) if speeds else None,
    }
    write_json(folder / RESULT, content, indent=2)


def read_result(folder: Path) -> dict[str, Any]:
    """The content of result.json; empty without the file."""
    path = folder / RESULT
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def sentence(error: BaseException) -> str:
    """A UserError's text; of another exception its name and first line."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return str(error) if isinstance(error, UserError) else redacted(first_line(error))


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
