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
from retina_dist.reporting.loggers import read_metrics

RESULT = "result.json"
LOSS, SPEED = "train/loss", "time/images_per_s"


def write_result(
    folder: Path,
    *,
    error: BaseException | None = None,
    metrics: Mapping[str, float] | None = None,
    resume_step: int | None = None,
    **facts: Any,
) -> None:
    """result.json of a run: status, the last validation's `metrics`, the last loss, the mean speed, and `facts` as they are.

    The speed is the mean over the log lines of this process but the first, which has the start in it. What is not finite is
    null.
    """
    status = {"status": "ok", "error": None}
    if error:
        status = {"status": "preempted" if isinstance(error, Preempted) else "failed", "error": sentence(error)}
    steps, losses, speeds = _logged(folder / "metrics.csv", resume_step or 0)
    content = status | {
        **facts,
        "metrics": {name: _finite(value) for name, value in (metrics or {}).items()},
        "step": steps[-1] if steps else resume_step or 0,
        LOSS: _finite(losses[-1]) if losses else None,
        "images_per_s": mean(speeds[1:] or speeds),
    }
    text = json.dumps(content, indent=2) + "\n"
    write_atomically(folder / RESULT, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def read_result(folder: Path) -> dict[str, Any]:
    """What `write_result` wrote, empty where there is none."""
    path = folder / RESULT
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _logged(metrics_csv: Path, after: int) -> tuple[list[int], list[float], list[float]]:
    """Steps, losses and speeds of the log lines after that step."""
    series = read_metrics(metrics_csv)
    steps, losses = series.get(LOSS, ([], []))
    _, speeds = series.get(SPEED, ([], []))
    kept = [i for i, step in enumerate(steps) if step > after]
    return [steps[i] for i in kept], [losses[i] for i in kept], [speeds[i] for i in kept]


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
