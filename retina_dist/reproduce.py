"""Did a run happen as it is logged? An auditor's check of its folder, on one page.

    python -m retina_dist.reproduce run=runs/shapes
    python -m retina_dist.reproduce run=RUN windows=all processes=4 launcher=torchrun
    python -m retina_dist.reproduce run=RUN seed=1234 'overrides=["data.root=/data/mine"]'

The run needs digest.csv (logging.digest=true, or trainer.virtual_ranks). Its rows, checkpoints,
settings and metrics are compared with each other. Then windows of its steps are run again in a
temporary folder, each from the start or from a kept checkpoint, and their rows compared. Exit code
1 with the first difference, or where a window cannot be run. Without virtual ranks give the layout
of the run; in another one the digits of the loss that agree are printed.
"""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from retina_dist.base.errors import UserError
from retina_dist.base.files import write_json
from retina_dist.base.settings import MISSING, setting
from retina_dist.config.entry_point import entry_point
from retina_dist.run.audit import Audit, Window, run_again
from retina_dist.strategies.launch_environment import detect_launch
from retina_dist.strategies.start_processes import LAUNCHERS, run_job

WINDOWS = "windows.json"  # for the processes that are started


@dataclass
class ReproduceConfig:
    """`python -m retina_dist.reproduce`."""

    run: str = setting(MISSING, "the folder of a run with digest.csv")
    windows: int | str = setting(
        3, "parts that are run again; all: every step", at_least=1, words=("all",)
    )
    steps: int = setting(20, "of a window, at most", at_least=1)
    seed: int = setting(0, "draws the windows; choose one that nobody knows", at_least=0)
    processes: int = setting(1, "that run them", at_least=1)
    launcher: str | None = setting(
        None, "null: torchrun for several processes", choices=(None, *LAUNCHERS)
    )
    overrides: list[str] = setting([], "settings of the place, such as data.root=/data/mine")
    worker: str | None = setting(None, "set in the processes that it starts")
    debug: bool = False


def reproduce(config: ReproduceConfig) -> bool:
    """Print the page; return whether everything was equal."""
    audit = Audit(Path(config.run), config.overrides)
    print(f"run: {config.run}")
    try:
        for line in audit.records():
            print(line)
        windows = audit.windows(config.windows, config.steps, config.seed)
        with TemporaryDirectory() as folder:
            for number, window in enumerate(windows):
                window.folder = str(Path(folder) / str(number))
            try:
                _run(config, windows, Path(folder))
            except UserError as error:
                print(f"\nNot run again: {error}")
                return False
            for window in windows:
                print(audit.compare(window))
    except UserError as error:
        print(f"\nDifferent: {error}")
        return False
    print(audit.describe_rest(windows))
    return True


def _run(config: ReproduceConfig, windows: list[Window], folder: Path) -> None:
    """Run the windows here, or in the processes of a launcher."""
    if config.processes == 1 and config.launcher is None:
        with redirect_stdout(sys.stderr):
            for window in windows:
                run_again(Path(config.run), config.overrides, window)
    elif windows:
        write_json(folder / WINDOWS, [asdict(window) for window in windows])
        run_job(config.launcher or "torchrun", config.processes, "retina_dist.reproduce", folder)


@entry_point("reproduce", ReproduceConfig)
def main(config: ReproduceConfig) -> None:
    """The page, or in a launched process the windows."""
    if config.worker:
        result = Path(config.worker)
        for each in json.loads(result.with_name(WINDOWS).read_text()):
            run_again(Path(config.run), config.overrides, Window(**each))
        if detect_launch().rank == 0:
            write_json(result, {})
    elif not reproduce(config):
        sys.exit(1)


if __name__ == "__main__":
    main()
