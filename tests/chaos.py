#!/usr/bin/env python3
"""Disturb small trainings again and again, resume them, and compare their end with that of an
undisturbed one.

  python -m tests.chaos                      100 faults over one process, DDP and Horovod on two
  python -m tests.chaos --faults 6 --kinds single --seed 7
  python -m tests.chaos --faults 20 --kinds any --steps 200 --per-training 20

A fault comes at a random moment of a random step: one process is killed, all are killed, one is
asked to end, one is stopped for good, the disk is full, or the newest checkpoint is damaged before
the next start. After each the job must end by itself, in time, and resume from its folder by
resume=auto. It has survived when, in the end, every tensor of model, average and optimizer and
every row of metrics.csv but the speed equals the undisturbed run's, bit for bit. Everything random
comes of --seed.

The kinds `any` and `any-classes` train with virtual ranks: each start has another launcher and
number of processes, and the undisturbed run is one process.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch

from retina_dist.engine.checkpoint.store import load_checkpoint
from retina_dist.strategies.launch_environment import detect_launch
from retina_dist.strategies.start_processes import command, environment, why_missing
from tests.e2e.conftest import SMALL

ROOT = Path(__file__).resolve().parents[1]
Layout = tuple[str, int]  # launcher, processes
ANY: list[Layout] = [("python", 1), ("torchrun", 2), ("horovodrun", 2), ("mpirun", 2)]
ANY += [("torchrun", 4), ("horovodrun", 4), ("mpirun", 4)]
LAYOUTS = {
    "single": ANY[:1],
    "ddp": ANY[1:2],
    "horovod": ANY[2:3],
    "any": ANY,
    "any-classes": ANY,
}
CHECKPOINT_EVERY = 3
TIMEOUT_S = 20  # strategy.timeout_s: how long a stopped process is waited for
END_S = 90  # a job that has not ended by then after its fault hangs
RUN = (
    "trainer.validate_every=8steps",
    "trainer.ema_decay=0.9",
    f"trainer.checkpoint_every={CHECKPOINT_EVERY}steps",
    "trainer.keep_last=3",
    f"strategy.timeout_s={TIMEOUT_S}",
    "logging.plots=false",
    "logging.tensorboard=false",
)
JOB = (*SMALL, *RUN)
CLASSES = (
    "task=classification",
    *("data.drawn.num_train=24", "data.drawn.num_val=10", "data.image_size=32"),
    *("data.val_resize=32", "data.mixup=0.2", "data.augment=randaugment", "data.num_workers=0"),
    *("schedule.warmup=2steps", "trainer.num_threads=1", "trainer.log_every=1"),
)
# Four shards, one of them of two images, and a short last step.
RANKS = (
    "trainer.virtual_ranks=4",
    "model.norm=bn",
    "trainer.gradient_clip=1.0",
    "data.batch_size=5",
)
JOBS = {
    "any": (*(x for x in JOB if not x.startswith("data.batch_size=")), *RANKS),
    "any-classes": (*CLASSES, *RUN, *RANKS),
}
# the command of a rank, not of its launcher
TRAINS = re.compile(
    r"[^\0]*python[\d.]*\0(-u\0)?-m\0(retina_dist\.train|tests\.distributed\.float64)\0"
)
FAULTS = (
    "kill one",
    "kill all",
    "ask one to end",
    "stop one",
    "fill the disk",
    "truncate",
    "flip a bit",
)


@dataclass
class Tally:
    """What became of the faults."""

    survived: Counter[str] = field(default_factory=Counter)
    total: Counter[str] = field(default_factory=Counter)
    end_s: dict[str, list[float]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


class Chain:
    """One training of a kind, in its own folder, with faults until its end or until there were
    `wanted`.
    """

    def __init__(
        self, kind: str, seed: int, folder: Path, data: Path, tally: Tally, steps: int = 24
    ) -> None:
        self.kind, self.random = kind, random.Random(f"{kind}/{seed}")
        self.steps = steps
        self.layouts = usable_layouts(kind)
        self.folder, self.data, self.tally = folder, data, tally
        self.label = f"{kind}, seed {seed}"

    def run(self, wanted: int) -> int:
        """Disturb until the training is done or `wanted` faults were made, then let it finish; the
        number of faults.
        """
        faults: list[str] = []
        may_be_filled = os.path.ismount(
            self.folder.parent
        )  # a small separate disk, where that does no harm
        self.reach = max(6, self.steps // wanted)
        while len(faults) < wanted and steps_done(self.folder) < self.steps - 1:
            fault = self.random.choice([f for f in FAULTS if "disk" not in f or may_be_filled])
            if fault not in ("truncate", "flip a bit"):
                self._disturbed(fault)
            elif not damage(self.folder, fault, self.random):
                continue
            faults.append(fault)
        self._finish()
        different = differences(self.folder, undisturbed(self.kind, self.data, self.steps))
        keys = [f"{self.kind}: {fault}" for fault in faults]
        self.tally.total.update(keys)
        if different:
            self.tally.failures.append(f"{self.label}: after {', '.join(faults)}: {different}")
        else:
            self.tally.survived.update(keys)
        return len(faults)

    def _disturbed(self, fault: str) -> None:
        """One start, ended by a fault."""
        begun = steps_done(self.folder)
        step = self.random.randint(begun + 1, min(self.steps - 1, begun + self.reach))
        layout = self._layout()
        wait, victim = self.random.random() * 0.3, self.random.randrange(layout[1])
        with started(self.kind, self.folder, self.data, layout, self.steps) as job:
            self._until(job, step)
            time.sleep(wait)
            ended = time.monotonic()
            if fault == "fill the disk":
                with filled(self.folder):
                    self._must_end(job, fault, step)
            else:
                strike(fault, job, rank_processes(self.folder), victim)
                self._must_end(job, fault, step)
            self.tally.end_s.setdefault(f"{self.kind}: {fault}", []).append(
                time.monotonic() - ended
            )

    def _layout(self) -> Layout:
        """Of the next start."""
        return self.random.choice(self.layouts)

    def _finish(self) -> None:
        with started(self.kind, self.folder, self.data, self._layout(), self.steps) as job:
            code = job.wait(END_S + 60 + self.steps)
        if code:
            self.tally.failures.append(
                f"{self.label}: the last start ended with exit code {code}: "
                f"{last_words(self.folder)}"
            )

    def _until(self, job: subprocess.Popen[bytes], step: int) -> None:
        until = time.monotonic() + END_S
        while steps_done(self.folder) < step and job.poll() is None:
            if time.monotonic() > until:
                self.tally.failures.append(
                    f"{self.label}: no step {step} in {END_S} s: {last_words(self.folder)}"
                )
                return
            time.sleep(0.05)

    def _must_end(self, job: subprocess.Popen[bytes], fault: str, step: int) -> None:
        try:
            job.wait(END_S)
        except subprocess.TimeoutExpired:
            self.tally.failures.append(
                f"{self.label}: hangs after «{fault}» at step {step}: {last_words(self.folder)}"
            )
        until = time.monotonic() + END_S  # what a killed launcher leaves ends too
        while any(map(alive, rank_processes(self.folder))) and time.monotonic() < until:
            time.sleep(0.1)


@contextmanager
def started(
    kind: str, folder: Path, data: Path, layout: Layout, steps: int
) -> Iterator[subprocess.Popen[bytes]]:
    """The job under a launcher."""
    arguments = [*JOBS.get(kind, JOB), f"trainer.max_duration={steps}steps"]
    arguments += [f"data.root={data}-{kind}", f"output_dir={folder}", "resume=auto"]
    log_of(folder).parent.mkdir(parents=True, exist_ok=True)
    line = command(*layout, "retina_dist.train", arguments)
    with running(line, folder, log_of(folder)) as job:
        yield job


@contextmanager
def running(
    line: list[str], folder: Path, log_file: Path, cwd: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A job of the run `folder`, in its own process group; none of its processes is left
    afterwards.
    """
    env = {**environment(1), "PYTHONPATH": str(ROOT)}
    with log_file.open("ab") as log:
        job = subprocess.Popen(
            line, cwd=cwd, stdout=log, stderr=log, env=env, start_new_session=True
        )
    try:
        yield job
    finally:
        for process in [*rank_processes(folder), job.pid]:
            kill(process, signal.SIGKILL)
        job.wait()


def strike(fault: str, job: subprocess.Popen[bytes], ranks: list[int], victim: int) -> None:
    """Do it to the processes of a job."""
    if fault == "kill all":
        for process in [*ranks, job.pid]:
            kill(process, signal.SIGKILL)
    elif len(ranks) > victim:
        number = {
            "kill one": signal.SIGKILL,
            "ask one to end": signal.SIGTERM,
            "stop one": signal.SIGSTOP,
        }[fault]
        kill(ranks[victim], number)
        if fault == "stop one" and len(ranks) == 1:  # nobody is there to miss it
            time.sleep(0.5)
            kill(ranks[victim], signal.SIGKILL)


def damage(folder: Path, fault: str, chance: random.Random) -> bool:
    """Damage the newest checkpoint as a crash of the machine does, where there is one before it."""
    files = sorted((folder / "checkpoints").glob("step_*.pt"))
    if len(files) < 2:
        return False
    content = bytearray(files[-1].read_bytes())
    if fault == "truncate":
        del content[chance.randrange(len(content)) :]
    else:
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    files[-1].write_bytes(content)
    return True


@contextmanager
def filled(folder: Path) -> Iterator[None]:
    """No space left where the checkpoints go."""
    filler = folder.parent / "filler"
    with filler.open("wb") as file, suppress(OSError):
        while True:
            file.write(bytes(1 << 20))
    try:
        yield
    finally:
        filler.unlink()


def steps_done(folder: Path) -> int:
    """The last step that metrics.csv knows."""
    try:
        lines = (folder / "metrics.csv").read_text().splitlines()
    except OSError:
        return 0
    steps = [line.split(",", 1)[0] for line in lines[1:]]
    return max((int(step) for step in steps if step.isdigit()), default=0)


def rank_processes(folder: Path) -> list[int]:
    """The ranks' process numbers, in rank order: what trains into `folder`, without its data
    workers.
    """
    ranks: dict[int, int] = {}
    for process in sorted(
        Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)
    ):  # parents first
        with suppress(OSError):  # gone meanwhile
            line = (process / "cmdline").read_text(errors="replace")
            places = re.findall(r"\0output_dir=([^\0]*)", line)
            if (
                TRAINS.match(line)
                and places
                and (process / "cwd").resolve() / places[-1] == folder.resolve()
            ):
                variables = (process / "environ").read_text(errors="replace").split("\0")
                launch = detect_launch(dict(v.split("=", 1) for v in variables if "=" in v))
                ranks.setdefault(launch.rank, int(process.name))
    return [ranks[rank] for rank in sorted(ranks)]


def alive(process: int) -> bool:
    """Whether it runs; one that has ended and was not asked about does not."""
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False


def kill(process: int, number: signal.Signals) -> None:
    """Send a signal to what may be gone."""
    with suppress(ProcessLookupError):
        os.kill(process, number)


def log_of(folder: Path) -> Path:
    """A job's output, not on the disk that is filled."""
    return folder.parent.parent / f"{folder.name}.log"


def last_words(folder: Path) -> str:
    """The last line of a job's output."""
    lines = log_of(folder).read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it printed nothing"


@cache
def undisturbed(kind: str, data: Path, steps: int) -> Path:
    """The folder of a run of this kind that nothing happened to; made once."""
    folder = data.parent / "calm" / f"undisturbed-{kind}"
    with started(kind, folder, data, usable_layouts(kind)[0], steps) as job:
        if job.wait(END_S + 60 + 2 * steps):
            sys.exit(f"the undisturbed run of {kind} failed: {last_words(folder)}")
    return folder


def usable_layouts(kind: str) -> list[Layout]:
    """Those of a kind whose launcher is installed."""
    return [layout for layout in LAYOUTS[kind] if not why_missing(layout[0])]


def differences(folder: Path, other: Path) -> str:
    """What differs between two finished runs; empty when nothing does."""
    try:
        ours, theirs = (load_checkpoint(f / "checkpoints" / "last.pt") for f in (folder, other))
    except Exception as error:  # whatever it is, the run did not survive
        return f"{type(error).__name__}: {error}"
    keys = ("step", "best", "model", "ema", "optimizer", "scaler", "sampler")
    found = [key for key in keys if not equal(ours[key], theirs[key])]
    if rows(folder) != rows(other):
        found.append("metrics.csv")
    return f"{', '.join(found)} differ from the undisturbed run's" if found else ""


def equal(a: object, b: object) -> bool:
    """Equality to the last bit, through dicts and lists."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return a == b


def rows(folder: Path) -> list[dict[str, str]]:
    """metrics.csv without times."""
    with (folder / "metrics.csv").open() as file:
        return [
            {k: v for k, v in row.items() if not k.startswith("time/")}
            for row in csv.DictReader(file)
        ]


def main() -> None:
    """Parse the arguments, disturb, print the table; exit code 1 if something did not survive."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=100, help="how many in all (%(default)s)")
    parser.add_argument(
        "--kinds", default="single,ddp,horovod", help="which backends take turns (%(default)s)"
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="of the first training; each further one has the next (%(default)s)",
    )
    parser.add_argument(
        "--per-training", type=int, default=5, help="faults of one training at most (%(default)s)"
    )
    parser.add_argument("--steps", type=int, default=24, help="of a training (%(default)s)")
    chosen = parser.parse_args()
    kinds = []
    for kind in chosen.kinds.split(","):
        if kind not in LAYOUTS:
            parser.error(f"--kinds {kind}: there are {', '.join(LAYOUTS)}")
        if not usable_layouts(kind):
            print(f"{kind} left out: {why_missing(LAYOUTS[kind][0][0])}")
        else:
            kinds.append(kind)
    if not kinds:
        sys.exit("nothing can be disturbed here")
    tally, faults, seed = Tally(), 0, chosen.seed
    with tempfile.TemporaryDirectory(prefix="chaos-") as name, small_disk(Path(name)) as disk:
        data = Path(name) / "shapes"
        while faults < chosen.faults:
            kind = kinds[seed % len(kinds)]
            folder = disk / f"run-{seed}"
            chain = Chain(kind, seed, folder, data, tally, chosen.steps)
            undisturbed(kind, data, chosen.steps)
            made = chain.run(min(chosen.per_training, chosen.faults - faults))
            faults += made
            print(
                f"{chain.label}: {made} faults,",
                "; ".join(tally.failures) or "all survived so far",
                flush=True,
            )
            shutil.rmtree(folder, ignore_errors=True)
            seed += 1
    report(tally, chosen.seed, seed - 1)
    sys.exit(1 if tally.failures else 0)


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A disk that may be filled, where this user may mount one; else a plain folder, and disks are
    not filled.
    """
    place = folder / "disk"
    place.mkdir()
    mounted = (
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=2g", "tmpfs", str(place)], capture_output=True
        ).returncode
        == 0
    )
    if not mounted:
        print("No disk is filled: this user may not mount one.")
    try:
        yield place
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(place)], capture_output=True)


def report(tally: Tally, first: int, last: int) -> None:
    """The table, and what failed."""
    print(f"\n{'fault':<28}{'survived':>10}{'total':>7}{'ended within':>14}")
    for key in sorted(tally.total):
        ended = tally.end_s.get(key)
        seconds = f"{max(ended):.1f} s" if ended else "-"
        print(f"{key:<28}{tally.survived[key]:>10}{tally.total[key]:>7}{seconds:>14}")
    print(
        f"{sum(tally.survived.values())} of {sum(tally.total.values())} survived, "
        f"seeds {first} to {last}."
    )
    for failure in tally.failures:
        print(f"NOT SURVIVED: {failure}")


if __name__ == "__main__":
    main()
