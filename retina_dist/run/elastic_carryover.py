"""What one attempt of an elastic job hands to the next, after processes were lost or added."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from retina_dist.config.run_config import RunConfig
from retina_dist.engine.folder_lock import FolderLocks
from retina_dist.files import place
from retina_dist.reporting.mlflow_logger import TrackedRun
from retina_dist.run.environment import versions
from retina_dist.run.folder import Run, lock_run, open_run
from retina_dist.run.tracking import tracked_run
from retina_dist.strategies.base import DistributedStrategy


class ElasticCarryover:
    """The run folder, its locks and the MLflow run, which all attempts of a job share; empty in the first attempt.

    `exits` ends the locks and the MLflow run after the strategy, when the other ranks wait for nothing any more.
    """

    def __init__(self, exits: ExitStack) -> None:
        self.exits = exits
        self.locks = exits.enter_context(FolderLocks())  # of this process
        self.owners: dict[str, str] = {}  # which of the main process hold the folders
        self.folder: Path | None = None
        self.tracked: list[TrackedRun] = []  # at most one, on the main rank

    @property
    def is_restart(self) -> bool:
        """Whether an attempt before this one has opened the run."""
        return self.folder is not None

    def open_run(
        self, config: RunConfig, strategy: DistributedStrategy, committed: dict[str, Any] | None, locked: frozenset[str]
    ) -> Run:
        """The run folder, which the main rank chooses and locks; its checkpoint's content is on that rank only.

        A restart continues in the folder of the first attempt, from the state `committed` in memory or the newest checkpoint.
        """
        opened: list[Run] = []

        def open_on_main() -> tuple[str, int | None, str, dict[str, str]]:
            run = self._reopen(config, committed, locked) if self.folder else open_run(config, self.locks, locked)
            opened.append(run)
            return str(run.folder), run.resume_step, str(run.resumed_from), self.locks.owners

        folder, resume_step, source, owners = strategy.on_main(open_on_main)
        self.folder = Path(folder)
        self.owners.update(owners)
        return opened[0] if opened else Run(self.folder, resume_step, place(source))

    def _reopen(self, config: RunConfig, committed: dict[str, Any] | None, locked: frozenset[str]) -> Run:
        assert self.folder is not None
        lock_run(self.locks, config, self.folder, self.owners)
        if committed:
            return Run(self.folder, committed["step"], Path("memory"), committed)
        here = replace(config, output_dir=str(self.folder))
        run = open_run(replace(here, resume="auto"), self.locks, locked)
        if run.resume_step is None and config.resume not in (None, "auto"):  # nothing was saved since the first attempt
            return open_run(here, self.locks, locked)
        return run

    def track(
        self, server: str | None, config: RunConfig, run: Run, strategy: DistributedStrategy, is_restart: bool
    ) -> None:
        """Start the MLflow run, on the main rank, unless an attempt before has."""
        if strategy.is_main and not self.tracked:
            tags = {"world_size": strategy.world_size, "backend": strategy.backend, **versions()}
            self.tracked.append(self.exits.enter_context(tracked_run(server, config, run, tags, go_on=is_restart)))
