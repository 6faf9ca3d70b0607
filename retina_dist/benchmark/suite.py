"""What this machine's GPUs do, in ten minutes: one JSON file and one image to post.

    python -m retina_dist.benchmark suite                        into suite_DEVICE_DATE
    python -m retina_dist.benchmark suite output_dir=mine        into this folder
    python -m retina_dist.benchmark suite small=true             the same parts with tiny settings, on a CPU too

Parts: the tests that need a GPU, parity of the launchers, MLPerf's configuration against MLPerf's published figure of this GPU,
peak memory predicted and measured, the step against torchvision's loop, 1 to 8 processes, all-reduce. Each has a time limit. One
that fails is reported and counted, and the others still run; what has no time left in the ten minutes is left out. suite.json is
written after each part. Exit code 1 when a part failed.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from retina_dist.benchmark import suite_parts
from retina_dist.benchmark.report import commit, machine
from retina_dist.benchmark.settings import SuiteConfig
from retina_dist.benchmark.suite_parts import ROOT, Part, line_of, read_json
from retina_dist.config.entry_point import entry_point
from retina_dist.errors import ConfigError
from retina_dist.files import write_atomically
from retina_dist.gpus import gpu_of
from retina_dist.redaction import redacted_tree
from retina_dist.reporting.console import print_redacted
from retina_dist.reporting.suite import plot_suite
from retina_dist.run.environment import versions
from retina_dist.strategies.devices import nccl_version
from retina_dist.strategies.launchers import environment

MINUTES = 10
PATIENCE_S = 10.0  # between asking a command to end and killing it
SMI = "name,driver_version,memory.total,power.limit,clocks.max.sm,pcie.link.gen.max,pcie.link.width.max"


def read_machine() -> dict[str, Any]:
    """The GPU, its driver and the library versions. Initializes CUDA, so `run` calls it in a subprocess."""
    gpu = gpu_of(torch.device("cuda", 0)) if torch.cuda.is_available() else None
    return {
        **machine(),
        "gpu": gpu.name if gpu else None,
        "memory_gib": round(gpu.memory_gib, 2) if gpu else None,
        "capability": gpu.capability if gpu else None,
        "mlperf_img_s": gpu.mlperf_img_s if gpu else None,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if gpu else None,
        "nccl": nccl_version() if gpu else None,
        "nvidia_smi": _output("nvidia-smi", f"--query-gpu={SMI}", "--format=csv"),
        "topology": _output("nvidia-smi", "topo", "-m"),
    }


def _in_a_child(function: Callable[[], Any]) -> Any:
    """Return `function()`, called in a subprocess, so that this process does not initialize CUDA."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function).result()


def _output(*command: str) -> list[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return []


def run(config: SuiteConfig) -> dict[str, Any]:
    """Run every part; print progress; write suite.json and suite.png, and return what the JSON holds."""
    found = _in_a_child(read_machine)
    if not found["gpus"] and not config.small:
        raise ConfigError("torch finds no GPU here; small=true runs all parts with tiny settings on the CPU.")
    name = str(found["gpu"] or "cpu").replace(" ", "_")
    folder = Path(config.output_dir or f"suite_{name}_{datetime.now(timezone.utc):%Y-%m-%d}").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {
        "benchmark": "suite",
        "small": config.small,
        "machine": found,
        "versions": versions(),
        "commit": commit(),
        "parts": {},
    }
    end = time.monotonic() + 60 * MINUTES
    for part in suite_parts.parts(found, folder, config.small):
        result["parts"][part.name] = run_part(part, folder, end - time.monotonic())
        _write(result, folder / "suite.json")
    plot_suite(result, folder / "suite.png")
    failed = [name for name, part in result["parts"].items() if part["status"] in ("failed", "timed out")]
    print_redacted(f"\n{folder / 'suite.json'}\n{folder / 'suite.png'}")
    print_redacted(
        f"{len(failed)} of {len(result['parts'])} parts failed" + (f": {', '.join(failed)}" if failed else "")
    )
    return result


def _write(result: Mapping[str, Any], path: Path) -> None:
    text = json.dumps(redacted_tree(result), indent=1) + "\n"
    write_atomically(path, lambda temporary: temporary.write_text(text))


def run_part(part: Part, folder: Path, left_s: float = 60.0 * MINUTES) -> dict[str, Any]:
    """Run a part within its limit and what is left of the suite's time; its figures and status: ok, failed, timed out, left out."""
    reason = part.left_out or (None if left_s > 5 else f"the suite's {MINUTES} minutes were over")
    if reason:
        print_redacted(f"== {part.name}: left out, {reason}")
        return {"status": "left out", "reason": reason}
    written = folder / f"{part.name}.json"
    written.unlink(missing_ok=True)  # of an earlier suite in this folder
    began, limit = time.monotonic(), min(part.seconds, left_s)
    log = folder / f"{part.name}.log"
    log.write_text("")
    for command in part.commands:
        print_redacted(f"== {part.name}: python {' '.join(command)}")
        code, text = _run(line_of(command), limit - (time.monotonic() - began), log)
        if not code or "out of memory" not in text.lower():
            break
    seconds = round(time.monotonic() - began, 1)
    status = "timed out" if code is None else "failed" if code else "ok"
    about: dict[str, Any] = {"status": status, "seconds": seconds}
    about["command"] = ["python", *(_without_folders(word, folder) for word in command)]
    if status != "ok":
        about["reason"] = _without_folders(_reason(text), folder) if code else f"not done within {limit:.0f} s"
    try:
        about["figures"] = part.figures(read_json(written), text)
        if code and part.by_figures:
            about["status"] = "ok"
            del about["reason"]
    except (KeyError, ValueError, TypeError) as error:
        if status == "ok":
            about |= {"status": "failed", "reason": f"its figures cannot be read ({error!r})"}
    print_redacted(
        f"== {part.name}: {about['status']} after {seconds:.0f} s{': ' + about['reason'] if 'reason' in about else ''}"
    )
    return about


def _run(line: Sequence[str], seconds: float, log: Path) -> tuple[int | None, str]:
    """Exit code (None: it took longer than `seconds`) and output of a command, which is shown as it comes and added to `log`.

    Nothing waits for the output's end, which processes that outlive the command would hold back.
    """
    end = time.monotonic() + max(1.0, seconds)
    with open(log, "a") as file, open(log, errors="replace") as reader:
        reader.seek(0, os.SEEK_END)
        child = subprocess.Popen(line, env=_environment(), stdout=file, stderr=file, start_new_session=True)
        text, over = "", False
        try:
            while not over:
                over = child.poll() is not None or time.monotonic() > end
                new = reader.read()
                text += new
                for one in new.splitlines():
                    print_redacted(f"   {one}")
                time.sleep(0 if over else 0.2)
            return child.poll(), text
        finally:
            _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a command and what it has started. A launcher ends its processes, which are in sessions of their own, when asked to."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(PATIENCE_S)
            break


def _environment() -> Mapping[str, str]:
    """The package is found from any folder; no trace of an outer launcher. Threads are left to each command."""
    given = environment(1)
    if "OMP_NUM_THREADS" not in os.environ:
        del given["OMP_NUM_THREADS"]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**given, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


def _without_folders(text: str, folder: Path) -> str:
    """For a file to post: paths relative to the suite's folder and the checkout, as a home has its user's name."""
    return text.replace(f"{folder}{os.sep}", "").replace(f"{ROOT}{os.sep}", "")


def _reason(text: str) -> str:
    """The last line that names an error, else the last one."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()] or ["it printed nothing"]
    return next((line for line in reversed(lines) if "rror" in line), lines[-1])[:300]


@entry_point("benchmark_suite")
def main(config: SuiteConfig) -> Any:
    """All parts, and the exit code."""
    result = run(config)
    if any(part["status"] in ("failed", "timed out") for part in result["parts"].values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
