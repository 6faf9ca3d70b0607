"""Write the figures of a benchmark, with machine and versions."""

import os
import platform
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from retina_dist.base.files import write_json
from retina_dist.base.redaction import redacted_tree
from retina_dist.base.settings import setting
from retina_dist.detection.settings import DetectionRunConfig
from retina_dist.run.records import commit, versions
from retina_dist.strategies.start_processes import LAUNCHERS


@dataclass
class BenchmarkConfig(DetectionRunConfig):
    """The settings of a training, and where the figures go."""

    output: str | None = setting(None, "a JSON file", writes="file")


@dataclass
class LaunchedConfig(BenchmarkConfig):
    """The settings of what starts every launcher with several numbers of processes."""

    processes: list[int] = setting([2], "each compared with one process", at_least=1)
    launchers: list[str] = setting([*LAUNCHERS], "those that are installed", choices=LAUNCHERS)
    worker: str | None = setting(None, "set in the processes that it starts")


def finish(
    config: BenchmarkConfig, kind: str, ratios: dict[str, float], **facts: object
) -> dict[str, object]:
    """Write `ratios` (name -> times better than the base) and `facts`, with machine and versions.

    Returns what was written.
    """
    result: dict[str, object] = {
        "benchmark": kind,
        "arguments": sys.argv[1:],
        "ratios": {name: round(value, 4) for name, value in ratios.items()},
        **facts,
        "machine": machine(),
        "versions": versions(),
        "commit": commit(),
    }
    if config.output:
        write_json(Path(config.output), redacted_tree(result))
        print(f"\nwritten to {config.output}")
    return result


def machine() -> dict[str, object]:
    """The hardware that a figure belongs to."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        named = re.search(r"^model name\s*: (.*)$", info.read_text(), re.MULTILINE)
        if named:
            cpu = named[1]
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }
