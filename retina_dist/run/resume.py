"""Where a run writes, and which checkpoint it resumes from; `config` is its settings, `run_config.RunConfig`."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from retina_dist.base.errors import CheckpointError, ConfigError, UserError, describe_error
from retina_dist.base.files import PathOrUrl, Url, names_in, parse_path
from retina_dist.base.redaction import redacted
from retina_dist.base.registry import as_dict
from retina_dist.base.settings import flattened
from retina_dist.base.torch_files import remedy_of
from retina_dist.base.yaml_files import load_yaml
from retina_dist.engine.checkpoint.folder_owner import Owner, describe_owner, read_owner
from retina_dist.engine.checkpoint.store import load_checkpoint, load_latest
from retina_dist.engine.early_stopping import BestMetric
from retina_dist.engine.plan import Plan
from retina_dist.engine.state import TrainState
from retina_dist.strategies.base import DistributedStrategy

logger = logging.getLogger(__name__)

CHECKPOINTS = "checkpoints"
NO_CHECKPOINT = "there is no checkpoint {}; resume takes a run folder, a .pt file, a URL or auto."

# Settings that decide which image comes at which step: a resumed run cannot change them, nor those that its task locks.
RESUME_LOCKED = (
    "task.name",
    "seed",
    "data.batch_size",
    "data.shuffle",
    "optimizer.name",
    "trainer.overfit_batches",
)


@dataclass(frozen=True)
class Run:
    """A folder to write to and, if the run is resumed, its step and the checkpoint's path; on the main rank its content too."""

    folder: Path
    resume_step: int | None = None
    resumed_from: PathOrUrl | None = None
    checkpoint: dict[str, Any] | None = None


class RunOpener:
    """Opens the run of a job as `owner`, and the same one again in each further attempt of an elastic job."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.folder: Path | None = None  # since the first attempt
        self.before: str | None = None  # who owned the checkpoints at the first attempt, by id
        self.mains: list[str] = []  # who was the main rank of each attempt

    def open(
        self,
        config: Any,
        strategy: DistributedStrategy,
        locked: frozenset[str],
        committed: dict[str, Any] | None,
    ) -> Run:
        """The run, opened on the main rank: by `open_run`, in a further attempt from the state `committed`. Collective."""
        opened: list[Run] = []

        def open_on_main() -> tuple[str, int | None, str, str | None, list[str]]:
            if self.folder:
                run, before = self._reopen(self.folder, config, locked, committed), self.before
            else:
                run = open_run(config, self.owner, locked)
                before = read_owner(checkpoint_folder(config, run.folder)).get("id")
            opened.append(run)
            mains = [*self.mains, str(self.owner.name["id"])]
            return str(run.folder), run.resume_step, str(run.resumed_from), before, mains

        folder, resume_step, source, self.before, self.mains = strategy.on_main(open_on_main)
        self.folder = Path(folder)
        return opened[0] if opened else Run(self.folder, resume_step, parse_path(source))

    def _reopen(
        self, folder: Path, config: Any, locked: frozenset[str], committed: dict[str, Any] | None
    ) -> Run:
        here = replace(config, output_dir=str(folder))
        _lock(
            self.owner, here, folder, is_restart=True
        )  # once: another process of this job may hold the lock
        checkpoints = checkpoint_folder(here, folder)
        last = (owner := read_owner(checkpoints)).get("id")
        if last not in (None, self.before, *self.mains):
            raise UserError(
                f"{checkpoints} was taken over by {describe_owner(owner)}; this job writes nothing more."
            )
        if committed:
            return Run(folder, committed["step"], Path("memory"), committed)
        if last in self.mains:  # else the first attempt ended before it claimed the folder
            run = open_run(replace(here, resume="auto"), None, locked)
            if run.resume_step is not None:
                return run
        return open_run(here, None, locked)


def open_run(config: Any, owner: Owner | None = None, locked: frozenset[str] = frozenset()) -> Run:
    """Settle folder and checkpoint by `output_dir` and `resume`, in this order of precedence:

    1. `resume=PATH`: that checkpoint (of a folder: its newest), into its run folder, or an `output_dir` that holds no other run.
    2. `resume=auto`: the newest sound checkpoint of `output_dir`, or of the newest runs/NAME folder; without any, a fresh start.
    3. no resume: a fresh start in `output_dir`, which must not hold a run, or in the next free runs/NAME.

    NAME is `data.name`, or "debug" for a fast_dev_run. With `trainer.checkpoint_dir`, `auto` looks there first, and only at the
    runs/NAME that use it; any other run must find it without checkpoints. With an `owner` the folders are locked before they are
    looked into, and a new one is made; without, nothing is written. A checkpoint must agree with `config` in RESUME_LOCKED and in
    `locked`. Raises ConfigError, also for a folder in use, CheckpointError, or UserError for a place that cannot be reached.
    """
    given = Path(config.output_dir) if config.output_dir else None
    name = "debug" if config.trainer.fast_dev_run else config.data.name
    elsewhere = parse_path(config.trainer.checkpoint_dir) if config.trainer.checkpoint_dir else None

    def fresh(folder: Path | None) -> Run:
        if folder is None:
            folder = next_folder(name, make=owner is not None)
            if owner:
                owner.created.append(folder)
        _lock(owner, config, folder)
        return Run(folder)

    if not config.resume:
        run = fresh(given)
        _refuse_checkpoints(given, elsewhere)  # locked, so that no other run can leave some now
        return run
    if config.resume == "auto":
        runs = [run for _, run in sorted(_numbered(name).items())]
        if elsewhere:
            runs = [
                run for run in runs if _saved_to(run) == redacted(config.trainer.checkpoint_dir)
            ]
        folder = given or (runs[-1] if runs else None)
        _lock(owner, config, folder)
        places = (elsewhere, folder and folder / CHECKPOINTS)
        newest = next((found for place in places if place and (found := load_latest(place))), None)
        if newest is None:
            logger.info(
                f"resume=auto: no checkpoint in {elsewhere or folder or f'runs/{name}*'}; a fresh start"
            )
            return fresh(given if elsewhere else folder)
        return _continued(config, locked, folder or fresh(None).folder, *newest)
    named = parse_path(config.resume)
    own = run_folder_of(named)
    folder = given or own
    _lock(owner, config, folder)
    source, content = _named(named, elsewhere)
    if folder is None:
        raise ConfigError(
            f"resume={source} is not inside a run folder; say where to write with output_dir=…."
        )
    forked = own is None or folder.resolve() != own.resolve()
    _refuse_checkpoints(
        folder if forked else None, elsewhere if elsewhere != source.parent else None
    )
    return _continued(config, locked, folder, source, content)


def checkpoint_folder(config: Any, folder: Path) -> PathOrUrl:
    """Where the run in `folder` keeps its checkpoints."""
    return (
        parse_path(config.trainer.checkpoint_dir)
        if config.trainer.checkpoint_dir
        else folder / CHECKPOINTS
    )


def _saved_to(folder: Path) -> str | None:
    """The `trainer.checkpoint_dir` of the run in `folder`, as its config.yaml has it; None without one."""
    with contextlib.suppress(OSError, LookupError, TypeError, ValueError):
        return load_yaml(folder / "config.yaml")["trainer"]["checkpoint_dir"]
    return None


def run_folder_of(source: PathOrUrl) -> Path | None:
    """The run folder that `source` is, or that it lies in as a checkpoint or as the folder of the checkpoints."""
    if isinstance(source, Url):
        return None
    folder = source.parent if source.is_file() else source
    if folder.name == CHECKPOINTS:
        return folder.parent
    is_run = bool(names_in(folder / CHECKPOINTS)) or (folder / "config.yaml").is_file()
    return folder if folder == source and is_run else None


def _lock(
    owner: Owner | None, config: Any, folder: Path | None, *, is_restart: bool = False
) -> None:
    """Lock the run folder and its folder of checkpoints, as far as they are known."""
    if owner and folder:
        owner.lock(folder, "output_dir", is_restart=is_restart)
    if owner and config.trainer.checkpoint_dir:
        owner.lock(
            parse_path(config.trainer.checkpoint_dir),
            "trainer.checkpoint_dir",
            is_restart=is_restart,
        )
    elif owner and folder:
        owner.lock(folder / CHECKPOINTS, "output_dir", is_restart=is_restart)


def check_resume(source: PathOrUrl, elsewhere: object) -> None:
    """Raise CheckpointError, before the data is read, if neither the local `source` nor perhaps `elsewhere` has a checkpoint."""
    may_hold = isinstance(source, Url) or source.is_file() or (elsewhere and source.is_dir())
    if not may_hold and not any(
        name.endswith(".pt") for name in [*names_in(source / CHECKPOINTS), *names_in(source)]
    ):
        raise CheckpointError(NO_CHECKPOINT.format(source))


def _named(source: PathOrUrl, elsewhere: PathOrUrl | None) -> tuple[PathOrUrl, dict[str, Any]]:
    """The checkpoint `source`, a .pt file, or the newest of the folder `source`, or of its run's `elsewhere`; and its content."""
    if source.is_file() if isinstance(source, Path) else source.name.endswith(".pt"):
        return source, load_checkpoint(source)
    newest = load_latest(source / CHECKPOINTS) or load_latest(source)
    if newest is None and elsewhere and run_folder_of(source):
        newest = load_latest(elsewhere)
    if newest is None:
        raise CheckpointError(NO_CHECKPOINT.format(source))
    return newest


def _refuse_checkpoints(run_folder: Path | None, elsewhere: PathOrUrl | None) -> None:
    """Raise ConfigError when a folder holds checkpoints, with which a second run would mix its own."""
    for folder, words in (
        (
            run_folder / CHECKPOINTS if run_folder else None,
            f"output_dir={run_folder} already holds a run",
        ),
        (elsewhere, f"trainer.checkpoint_dir={elsewhere} already holds checkpoints"),
    ):
        if folder and any(name.endswith(".pt") for name in names_in(folder)):
            raise ConfigError(f"{words}; continue with resume=auto, or give another folder.")


def _continued(
    config: Any, locked: frozenset[str], folder: Path, path: PathOrUrl, content: dict[str, Any]
) -> Run:
    try:
        before, now = flattened(content["config"]), flattened(as_dict(config))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"{path} does not say how it was trained; use it as model.weights={path}."
        ) from error
    for key in (*RESUME_LOCKED, *sorted(locked)):
        old, new = before.get(key), now.get(key)
        if old is not None and _value(old) != _value(
            new
        ):  # a setting younger than the checkpoint is not in it
            key = "task" if key == "task.name" else key  # the name of the group's entry
            raise ConfigError(
                f"{key}={new} differs from the {old} that {path} was trained with; give {key}={old}, or use model.weights={path}."
            )
    return Run(folder, content["step"], path, content)


def _value(text: str | None) -> Any:
    """The value of a setting's text, in which 1 equals 1.0."""
    with contextlib.suppress(ValueError):
        return json.loads(text or "")
    return text


def restore(
    state: TrainState, run: Run, config: Any, plan: Plan, *, images: Any, position: tuple[int, int]
) -> bool:
    """Load the checkpoint of `run`, if it has one, into `state`; return whether the run is already done.

    `images` and `position` are this run's fingerprint of the data and its place in them at the checkpoint's step. Raises
    CheckpointError when the checkpoint is of other data or of another form.
    """
    content = run.checkpoint
    if content is None:
        return False
    try:
        if content.get("images") != images or position != (
            content["sampler"]["epoch"],
            content["sampler"]["cursor"],
        ):
            raise CheckpointError(
                f"{run.resumed_from} was trained on other images than data={config.data.name}; resume with the same ones, or start "
                f"a new run with model.weights={run.resumed_from}."
            )
        best = BestMetric(content["best"]["name"], content["best"]["mode"])
        if content["best"]["value"] is not None and not state.best.same_metric(content["best"]):
            keep = f"trainer.monitor={best.name} trainer.monitor_mode={best.mode}"
            logger.warning(
                f"best.pt was the {best} and will be the {state.best}; to keep it, resume with {keep}."
            )
        state.load_state_dict(content)
    except UserError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        reason, remedy = describe_error(error), remedy_of(content, "resume from another checkpoint")
        raise CheckpointError(
            f"{run.resumed_from} lacks what these settings need ({reason}); {remedy}."
        ) from error
    before = flattened(content["config"]).get("trainer.precision")
    if before not in (None, config.trainer.precision):
        logger.warning(
            f"the steps up to {state.step} were computed in {before} and the next ones in "
            f"{config.trainer.precision}, so the numbers are not those of a run in one precision; "
            f"trainer.precision={before} keeps it."
        )
    logger.info(f"resumed from {run.resumed_from}, step {state.step}")
    if plan.validates_at(state.step) and state.last_eval_step < state.step:
        return False
    if state.best.exhausted:
        logger.info(
            f"nothing to do: {state.best.describe_stop()} Raise trainer.patience to train on."
        )
    elif state.step >= plan.stop_step:
        logger.info(
            f"nothing to do up to step {plan.stop_step}; raise trainer.max_duration or trainer.stop_after."
        )
    return state.best.exhausted or state.step >= plan.stop_step


def next_folder(name: str, *, make: bool) -> Path:
    """runs/NAME, or the first runs/NAME-N after all there are; with `make` it is made, for this process alone, or a ConfigError."""
    for number in itertools.count(max(_numbered(name), default=0) + 1):
        folder = Path("runs") / (name if number == 1 else f"{name}-{number}")
        try:
            if make:
                folder.mkdir(parents=True)
            return folder
        except OSError as error:
            if (
                isinstance(error, FileExistsError) and folder.parent.is_dir()
            ):  # made by another process meanwhile
                continue
            raise ConfigError(
                f"{folder} cannot be made ({error.strerror}); give an output_dir=FOLDER."
            ) from error
    raise AssertionError("there is always another number")


def _numbered(name: str) -> dict[int, Path]:
    """The folders runs/NAME (1), runs/NAME-2 and so on."""
    form = re.compile(rf"{re.escape(name)}(?:-(\d+))?")
    matches = [(form.fullmatch(f.name), f) for f in Path("runs").glob("*") if f.is_dir()]
    return {int(match[1] or 1): folder for match, folder in matches if match}
