"""Whether a run happened as it is logged: `retina_dist.reproduce`."""

from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from retina_dist.base.errors import UserError
from retina_dist.base.files import write_json
from retina_dist.base.settings import MISSING, setting
from retina_dist.reporting.run_files import read_result, read_typed
from retina_dist.run.audit import Audit, Window, fit_again, settings_of
from retina_dist.strategies.launch_environment import detect_launch
from retina_dist.strategies.launchers import ALONE
from retina_dist.strategies.start_processes import LAUNCHERS, launcher_like, run_job

WINDOWS = "windows.json"  # for the processes that are started
EQUAL, DIFFERENT, UNDECIDED = range(3)  # exit codes


@dataclass
class ReproduceConfig:
    """`python -m retina_dist.reproduce`."""

    run: str = setting(MISSING, "the folder of a run with digest.csv")
    windows: int | str = setting(
        3, "parts that are run again; all: every step", at_least=1, words=("all",)
    )
    steps: int = setting(20, "of a window, at most", at_least=1)
    seed: int = setting(0, "draws the windows; choose one that nobody knows", at_least=0)
    processes: int | None = setting(
        None, "that run them; null: one with virtual ranks, else as many as the run had", at_least=1
    )
    launcher: str | None = setting(
        None, "null: that of the run, or torchrun", choices=(None, *LAUNCHERS)
    )
    overrides: list[str] = setting([], "settings of the place, such as data.root=/data/mine")
    worker: str | None = setting(None, "set in the processes that it starts")
    debug: bool = False


def reproduce(config: ReproduceConfig) -> int:
    """Print the page; return the exit code."""
    audit = Audit(Path(config.run), config.overrides)
    print(f"run: {config.run}")
    try:
        for line in audit.records():
            print(line)
        windows = audit.windows(config.windows, config.steps, config.seed)
        with TemporaryDirectory() as folder:
            try:
                if windows:
                    _run(config, audit, windows, Path(folder))
            except UserError as error:
                audit.undecided = f"a window did not run: {error}"
            done = [each for each in windows if read_result(Path(each.folder)).status == "ok"]
            for window in done:
                print(audit.compare(window))
    except UserError as error:
        print(f"\nDifferent: {error}")
        return DIFFERENT
    print(audit.describe_rest(done))
    if audit.undecided:
        print(f"\nNot decided: the records agree, but {audit.undecided.rstrip('.')}.")
        return UNDECIDED
    print("\nEqual: all that was compared, to the last bit.")
    return EQUAL


def _run(config: ReproduceConfig, audit: Audit, windows: list[Window], folder: Path) -> None:
    """Run the windows in the processes of a launcher, each with as many threads as in the run."""
    like = audit.start.launcher
    processes = config.processes or audit.start.processes
    if audit.config.trainer.virtual_ranks:
        like = ALONE.name
        processes = config.processes or 1
    for number, window in enumerate(windows):
        window.folder = str(folder / str(number))
    write_json(folder / WINDOWS, [asdict(window) for window in windows])
    launcher = config.launcher or launcher_like(like, processes)
    threads = audit.start.threads
    run_job(launcher, processes, "retina_dist.reproduce", folder, threads=threads)


def work(config: ReproduceConfig, result: Path) -> None:
    """Run the windows of the file beside `result`; every rank calls it."""
    is_main = detect_launch().rank == 0
    run = settings_of(Path(config.run), config.overrides)
    for window in read_typed(result.with_name(WINDOWS), list[Window]):
        if is_main:
            print(f"\n{window}, once more:", flush=True)
        stop = f"{window.stop}steps"
        fit_again(run, window.checkpoint, window.folder, stop_after=stop, digest=True)
    if is_main:
        write_json(result, {})
