"""What all benchmarks do with their figures: say where they come from, write them, compare them with earlier ones."""

from __future__ import annotations

import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import torch

from retina_dist.benchmark.settings import BenchmarkConfig
from retina_dist.errors import ConfigError, UserError
from retina_dist.files import read_bytes, write_atomically
from retina_dist.redaction import redacted_tree
from retina_dist.run.environment import commit, versions


class Slower(UserError):
    """A ratio has fallen below what was allowed."""

    exit_code = 1
    label = ""


def finish(config: BenchmarkConfig, kind: str, ratios: dict[str, float], **facts: Any) -> dict[str, Any]:
    """Write `ratios` (name -> how many times better than what it is compared with) and `facts`, with machine and versions.

    Returns what was written. Raises Slower when a ratio is below `config.fail_under` times that of the file `config.baseline`.
    """
    result: dict[str, Any] = {
        "benchmark": kind,
        "arguments": sys.argv[1:],
        "ratios": {name: round(value, 4) for name, value in ratios.items()},
        **facts,
        "machine": machine(),
        "versions": versions(),
        "commit": commit(),
    }
    if config.output:
        text = json.dumps(redacted_tree(result), indent=1) + "\n"
        write_atomically(Path(config.output), lambda temporary: temporary.write_text(text))
        print(f"\nwritten to {config.output}")
    if config.baseline:
        _compare(config.baseline, kind, ratios, config.fail_under)
    return result


def machine() -> dict[str, Any]:
    """The hardware that a figure belongs to."""
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {"cpu": _cpu_name(), "cores": os.cpu_count(), "threads": torch.get_num_threads(), "gpus": gpus}


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _compare(baseline: str, kind: str, ratios: dict[str, float], fail_under: float) -> None:
    try:
        before = json.loads(read_bytes(Path(baseline)))
        earlier = {name: float(value) for name, value in before["ratios"].items()}
        same = before["benchmark"] == kind
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"baseline={baseline} is not what output=FILE of this benchmark writes ({error}).") from error
    common = earlier.keys() & ratios.keys()
    if not same or not common:
        raise ConfigError(f"baseline={baseline} has no ratio in common with this benchmark {kind}; write a new one.")
    print(f"\nagainst {baseline}:")
    worst = []
    for name in sorted(common):
        share = ratios[name] / earlier[name]
        print(f"  {name:<40}{ratios[name]:>8.3f}  was {earlier[name]:>8.3f}  {share:.2f} of it")
        if not share >= fail_under:
            worst.append(f"{name} is {share:.2f} of {earlier[name]:.3f}")
    if worst:
        raise Slower(f"{'; '.join(worst)}, less than fail_under={fail_under:g}.")
