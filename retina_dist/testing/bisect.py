"""Where two runs that should agree part: `retina_dist.bisect`."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from retina_dist.base.console import print_redacted
from retina_dist.base.errors import DataError, UserError
from retina_dist.base.files import write_json
from retina_dist.base.settings import MISSING, setting
from retina_dist.base.text import pluralize, truncate
from retina_dist.config.resumed_settings import OF_ONE_START
from retina_dist.config.run_config import RunConfig
from retina_dist.engine.checkpoint.store import read_manifest
from retina_dist.reporting.run_files import RunFiles
from retina_dist.run.audit import fit_again
from retina_dist.run.records import COMMAND, start_of
from retina_dist.run.resume import checkpoint_folder
from retina_dist.strategies.launch_environment import detect_launch
from retina_dist.strategies.start_processes import launcher_like, run_job
from retina_dist.testing.step_trace import Difference, Stages, StepTracer, Traced, first_difference
from retina_dist.tracking.digest import OF_EACH_STEP, DigestRow, read_digests

METRICS = "The runs part in validation: compare its data, its code and the settings of both."
REPEATED = (
    "What differed is neither in the settings nor in the code as it is now: compare the machines, "
    "their devices and threads, the data of that time, and the commits in command.json."
)


@dataclass
class BisectConfig(RunConfig):
    """`python -m retina_dist.bisect`: its other settings hold for both runs."""

    a: str = setting(MISSING, "the folder of a run")
    b: str = setting(MISSING, "of another one, which should agree with it")
    a_python: str | None = setting(None, "interpreter that repeats the step of a; null: this one")
    b_python: str | None = setting(None, "and of b")
    step: int | None = setting(
        None, "to be repeated; null: the first that differs in digest.csv", at_least=1
    )
    worker: str | None = setting(None, "set in the processes that it starts, as the next one")
    before: int = 0


@dataclass(frozen=True)
class Trace:
    """A repeated step: the step of the checkpoint that it began at, the states after each step
    from there, and what the step computed.
    """

    began_at: int
    states: dict[str, str]
    stages: Stages


Repeat = Callable[[str, int, int], Trace]  # of the run a or b: `repeat` without its settings


def differing_step(a: Sequence[DigestRow], b: Sequence[DigestRow]) -> tuple[int, list[str]] | None:
    """The first step in which two digest.csv differ, and the columns; None where all agree."""
    theirs = {row.step: row for row in b if not row.is_start}
    for row in a:
        if not row.is_start:
            columns = row.differing(theirs.get(row.step, row), OF_EACH_STEP)
            if columns:
                return row.step, columns
    return None


def print_differences(
    of_what: str, a: Mapping[str, str | None], b: Mapping[str, str | None]
) -> None:
    """Print the values of two runs by name where they differ, but for those of one start."""
    found = []
    for name in {**a, **b}:
        mine = a.get(name, "null")  # one may lack a whole section
        other = b.get(name, "null")
        if mine != other and name not in OF_ONE_START:
            found.append(f"{name}: {mine} and {other}")
    if found:
        print(f"{of_what} that differ: {truncate(found, 8)}")


def locate(step: int, repeat: Repeat) -> tuple[int, Difference | None]:
    """Repeat a step of both runs; where their states parted before it, that earlier step.

    Returns the step, and what differs first in it.
    """
    before = step - 1
    while True:
        a = repeat("a", step, before)
        b = repeat("b", step, before)
        earlier = [int(at) for at, state in a.states.items() if b.states.get(at, state) != state]
        began_at = max(a.began_at, b.began_at)
        found = first_difference(a.stages, b.stages)
        if earlier:
            step = min(earlier)
            before = min(before, step - 1)
        elif began_at and found and found.stage == "start":
            before = began_at - 1
        else:
            return step, found


def repeat(config: BisectConfig, side: str, step: int, before: int) -> Trace:
    """Repeat a step of a run, in the layout that it had, from its newest checkpoint at or before
    `before`.
    """
    run = Path(vars(config)[side])
    start = start_of(run, step)
    if not start.launcher:
        raise DataError(f"{run}/{COMMAND} is of an older version and has no launcher; train again.")
    print_redacted(f"repeating step {step} of {side}: {start.job}", sys.stderr)
    with TemporaryDirectory() as folder:
        content = run_job(
            launcher_like(start.launcher, start.processes),
            start.processes,
            "retina_dist.bisect",
            Path(folder),
            further=[f'resume="{run}"', f"step={step}", f"before={before}"],
            python=vars(config)[f"{side}_python"] or sys.executable,
            threads=start.threads,
        )
    return msgspec.convert(content, Trace)


def trace(config: BisectConfig, output: Path) -> Trace:
    """Train the run `resume` to the end of `step` in the folder `output`; every rank calls it."""
    kept = checkpoint_folder(config, Path(str(config.resume)))
    entries = [entry for entry in read_manifest(kept) if entry.step <= config.before]
    source = str(kept / entries[-1].file) if entries else None
    tracer = StepTracer(config.step or 1)
    try:
        fit_again(config, source, str(output), [tracer])
    except Traced:
        return Trace(tracer.began_at, tracer.states, tracer.stages)
    raise UserError(f"{config.resume} ends before step {config.step}; give one that it took.")


def bisect(config: BisectConfig, repeat: Repeat) -> bool:
    """Print where two runs part; return whether they agree."""
    a = RunFiles(Path(config.a))
    b = RunFiles(Path(config.b))
    print_differences("settings", a.settings, b.settings)
    print_differences("layouts and versions", a.environment, b.environment)
    one = start_of(a.folder).processes
    other = start_of(b.folder).processes
    if one != other and a.settings.get("trainer.virtual_ranks") == "null":
        print(
            f"the images of a step are dealt out to {one} and {other} processes, so its parts "
            "differ: only runs with trainer.virtual_ranks are comparable over layouts"
        )
    step = config.step
    columns: list[str] = []
    if step is None:
        try:
            ours = read_digests(a.folder)
            theirs = read_digests(b.folder)
        except DataError as error:
            raise DataError(f"{error} Or give a step, which bisect compares without it.") from error
        if ours[0].images != theirs[0].images:
            print("the data differ")
        last = pluralize(min(ours[-1].step, theirs[-1].step), "step")
        differing = differing_step(ours, theirs)
        if differing is None:
            print(f"all {last} that both took are equal, to the last bit")
            return True
        step, columns = differing
        print(f"of {last} that both took, the first that differs is {step}: {', '.join(columns)}")
    step, found = locate(step, repeat)
    print(f"\nstep {step}, repeated: ", end="")
    if found:
        print(found)
        return False
    print("all is equal, to the last bit")
    if columns:
        print(METRICS if columns == ["metrics"] else REPEATED)
    return not columns


def repeat_in_worker(config: BisectConfig, output: Path) -> None:
    """In a launched process: write the `Trace` of the step to `output`; every rank calls it."""
    content = trace(config, output.with_suffix(""))
    if detect_launch().rank == 0:
        write_json(output, asdict(content))
