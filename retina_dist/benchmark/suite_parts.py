"""The parts of the suite: what each runs, for how long at most, and which figures it leaves."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retina_dist.parity import CASES

ROOT = Path(__file__).resolve().parents[2]
Figures = dict[str, Any]

# COCO's train2017 in the six canvases of its sizes at 800 px, and their shares in percent
COCO = [
    "canvases=[[800,1088],[800,1216],[800,1344],[1088,800],[1216,800],[1344,800]]",
    "shares=[37.1,32.0,7.3,12.5,9.8,1.3]",
]
R50 = ["model=retinanet_r50", "model.norm=frozen_bn", "model.trainable_layers=3"]
# https://github.com/mlcommons/training/tree/master/single_stage_detector: ResNeXt-50 32x4d, 264 classes, 800 x 800, Adam
MLPERF = ["model=retinanet_x50", *R50[1:], "num_classes=264", "optimizer=adam"]


@dataclass(frozen=True)
class Part:
    """One part. `commands` are arguments of Python; the next one is run when one ran out of the GPU's memory.

    `figures` reads what the command has left: its JSON file, and the text that it printed. With `by_figures` a part that left
    them is ok, whatever the exit code.
    """

    name: str
    seconds: int
    commands: Sequence[Sequence[str]]
    figures: Callable[[Mapping[str, Any], str], Figures]
    left_out: str | None = None
    by_figures: bool = False


@dataclass(frozen=True)
class _Suite:
    """What the parts' commands depend on: the machine, the folder that they write to, and how large they are."""

    machine: Mapping[str, Any]
    folder: Path
    small: bool

    @property
    def gpu(self) -> bool:
        return bool(self.machine["gpus"])

    @property
    def device(self) -> str:
        return f"strategy.device={'cuda' if self.gpu else 'cpu'}"

    @property
    def counts(self) -> list[int]:
        """Numbers of processes."""
        return [n for n in (1, 2, 4, 8) if n <= len(self.machine["gpus"])] if self.gpu else [1, 2]

    @property
    def launchers(self) -> str:
        return "launchers=[torchrun]" if self.small else "launchers=[torchrun,horovodrun]"

    @property
    def path(self) -> str:
        return f"paths=[{'bf16-graph' if self.gpu else 'bf16'}]"

    def output(self, name: str) -> str:
        return f"output={self.folder / name}.json"

    def bench(self, kind: str, name: str, *settings: str) -> list[str]:
        return ["-m", f"retina_dist.benchmark.{kind}", self.device, *settings, self.output(name)]


def parts(machine: Mapping[str, Any], folder: Path, small: bool) -> list[Part]:
    """In the order of their importance: the suite has ten minutes. `machine` is what `suite.read_machine` found."""
    suite = _Suite(machine, folder, small)
    return [*_first_parts(suite), *(_small_parts(suite) if small else _full_parts(suite))]


def _first_parts(suite: _Suite) -> list[Part]:
    tests = ROOT / "tests" / "gpu"
    missing = None if suite.gpu else "torch finds no GPU"
    if not tests.is_dir():
        missing = "tests/gpu is part of the checkout only"
    correctness = ["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", str(tests)]
    processes = f"processes={_list(suite.counts[:1] if suite.small else suite.counts)}"
    length = ["dtypes=[fp64]", "steps=1"] if suite.small else ["dtypes=[fp64,fp32]", "steps=3"]
    parity = ["-m", "retina_dist.parity", suite.device, processes, suite.launchers, *length, suite.output("parity")]
    return [
        Part("correctness", 90, [correctness], counted_tests, missing),
        Part("parity", 120 if suite.small else 80, [parity], differences),
    ]


def _small_parts(suite: _Suite) -> list[Part]:
    quick = ["steps=1", "warmup=1", "rounds=1"]
    tiny = ["model=retinanet_tiny", *quick, "count_canvas=null"]
    canvas = ["canvases=[[64,64],[64,96]]", "shares=[2,1]", "batch_sizes=[1,2]"]
    mlperf = [
        suite.bench("step", "mlperf", *tiny, "canvases=[[64,64]]", f"batch_sizes=[{batch}]", suite.path)
        for batch in (4, 2)
    ]
    processes = f"processes={_list(suite.counts) if suite.gpu else '[2]'}"
    scaled = suite.bench("scaling", "scaling", *quick, "data.batch_size=1", processes, suite.launchers)
    return [
        Part("mlperf", 90, mlperf, mlperf_share(suite.machine)),
        Part("step", 90, [suite.bench("step", "step", *tiny, *canvas)], steps),
        Part("scaling", 120, [scaled], scaling),
        _all_reduce(suite),
        _memory(suite, "bf16", 2, "model=retinanet_tiny", "data.synthetic.canvas=[64,64]"),
    ]


def _full_parts(suite: _Suite) -> list[Part]:
    one = ["canvases=[[800,800]]", "steps=10", "warmup=3", "rounds=3", "count_canvas=null", suite.path]
    mlperf = [suite.bench("step", "mlperf", *MLPERF, *one, f"batch_sizes=[{batch}]") for batch in (32, 16, 8, 4, 2)]
    compiled = [
        *R50, "canvases=[[800,1088]]", "batch_sizes=[16]", "steps=5", "rounds=3", "count_canvas=null",
        "paths=[torchvision-fp16,bf16,bf16-compile,bf16-compile-graph]",
    ]  # fmt: skip
    scaled = [
        "model=retinanet_r50", "trainer.precision=bf16", "trainer.channels_last=true", "data.batch_size=8", "rounds=2",
        f"processes={_list(suite.counts)}", suite.launchers,
    ]  # fmt: skip
    large = [*R50, "data.synthetic.canvas=[800,1088]", "trainer.channels_last=true"]
    return [
        Part("mlperf", 90, mlperf, mlperf_share(suite.machine)),
        _memory(suite, "bf16", 16, *large),
        _memory(suite, "fp32", 4, *large),
        _against_torchvision(suite, 16),
        Part("scaling", 90, [suite.bench("scaling", "scaling", *scaled)], scaling),
        _all_reduce(suite),
        _against_torchvision(suite, 8),
        _against_torchvision(suite, 2),
        Part("compiled", 110, [suite.bench("step", "compiled", *compiled)], steps),
    ]


def _against_torchvision(suite: _Suite, batch: int) -> Part:
    paths = "paths=[torchvision,torchvision-tf32,torchvision-fp16,bf16,bf16-graph]"
    settings = [*R50, *COCO, "steps=2", "warmup=2", "rounds=2", "count_canvas=null", paths, f"batch_sizes=[{batch}]"]
    return Part(f"step_{batch}", 60, [suite.bench("step", f"step_{batch}", *settings)], steps)


def _memory(suite: _Suite, precision: str, batch: int, *model: str) -> Part:
    name, length = f"memory_{precision}", ["num_warmup_batches=2", "num_batches_per_iter=1", "num_iters=1"]
    settings = [*model, *length, f"trainer.precision={precision}", f"data.batch_size={batch}", "memory=true"]
    no_gpu = None if suite.gpu else "torch finds no GPU, and counts no other memory"
    return Part(name, 40, [suite.bench("synthetic", name, *settings)], memory_of(precision), no_gpu)


def _all_reduce(suite: _Suite) -> Part:
    """The doctor's exit code is also about disks and /dev/shm, which an all-reduce does not need."""
    count = suite.counts[-1]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    settings = ["cluster=true", "data=shapes", "data.num_workers=0", "model=retinanet_tiny", suite.device]
    command = [*launcher, "-m", "retina_dist.doctor", *settings, suite.output("all_reduce")]
    alone = "one GPU has no other to send to" if count == 1 else None
    return Part("all_reduce", 60, [command], links, alone, by_figures=True)


def _list(values: Sequence[int]) -> str:
    return f"[{','.join(map(str, values))}]"


def counted_tests(_: Mapping[str, Any], text: str) -> Figures:
    """Of pytest's last line.

    >>> counted_tests({}, "...\\n1 failed, 30 passed, 2 skipped in 8.1s")
    {'failed': 1, 'passed': 30, 'skipped': 2}
    """
    return {what: int(n) for n, what in re.findall(r"(\d+) (passed|failed|skipped|errors?)\b", text)}


def differences(found: Mapping[str, Any], _: str) -> Figures:
    """The largest difference from one process, by launcher, number of processes and precision, of the cases that must agree."""
    agree = {case.name for case in CASES if case.agrees}
    worst: dict[str, float] = {}
    for job, cases in found.items():
        for name, kinds in cases.items():
            dtype, _slash, case = name.partition("/")
            if case in agree:
                worst[f"{job} {dtype}"] = max(worst.get(f"{job} {dtype}", 0.0), *kinds.values())
    return {"largest_difference": worst}


def steps(found: Mapping[str, Any], _: str) -> Figures:
    """Images/s of each path and its ratio to the first path; over the mix of canvases if one was measured."""
    rows = found["mix"] or [{**row, "ratio": row["ratio"][1]} for row in found["rows"]]
    return {"rows": [{key: row[key] for key in ("path", "batch_size", "images_per_s", "ratio")} for row in rows]}


def mlperf_share(machine: Mapping[str, Any]) -> Callable[[Mapping[str, Any], str], Figures]:
    """Images a second beside the best that MLPerf published a GPU of this kind."""

    def figures(found: Mapping[str, Any], _: str) -> Figures:
        [row] = found["rows"]
        published = machine["mlperf_img_s"]
        return {
            "images_per_s": row["images_per_s"],
            "published_images_per_s": published,
            "share": round(row["images_per_s"] / published, 3) if published else None,
            "batch_size": row["batch_size"],
            "path": row["path"],
            "peak_memory_gib": row["peak_memory_gib"],
        }

    return figures


def scaling(found: Mapping[str, Any], _: str) -> Figures:
    """Images a second and speed-up by launcher and number of processes."""
    keys = ("launcher", "processes", "images_per_s", "speedup", "backend")
    return {"rows": [{key: row[key] for key in keys} for row in found["rows"]]}


def memory_of(precision: str) -> Callable[[Mapping[str, Any], str], Figures]:
    """The peak of a step as it was predicted and as CUDA's allocator counted it."""

    def figures(found: Mapping[str, Any], _: str) -> Figures:
        return {"rows": [{"name": f"{precision}\nbatch {found['batch_size']}", **found["memory"]}]}

    return figures


def links(found: Mapping[str, Any], _: str) -> Figures:
    """Milliseconds and bus bandwidth of an all-reduce over all GPUs, by size, as `doctor cluster=true` measured them."""
    return {"all_reduce": found["all_reduce"]}


def read_json(path: Path) -> Mapping[str, Any]:
    """What a part has written; nothing where it wrote nothing or is not done."""
    try:
        found: Mapping[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found


def line_of(command: Sequence[str]) -> list[str]:
    """The command line."""
    return [sys.executable, *command]
