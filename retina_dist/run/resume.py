"""Where a run writes, and which checkpoint it resumes from."""

import contextlib
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torch.optim.optimizer import StateDict

from retina_dist.base.errors import CheckpointError, ConfigError, UserError, describe_error
from retina_dist.base.files import PathOrUrl, Url, names_in, parse_path, run_in
from retina_dist.base.redaction import redacted
from retina_dist.base.registry import as_dict
from retina_dist.base.settings import flattened
from retina_dist.base.text import as_override, truncate
from retina_dist.base.torch_files import remedy_of
from retina_dist.base.yaml_files import load_yaml
from retina_dist.config.run_config import RunConfig
from retina_dist.engine.checkpoint.folder_owner import Owner, OwnerName, describe_owner, read_owner
from retina_dist.engine.checkpoint.store import load_checkpoint, load_latest
from retina_dist.engine.early_stopping import BestMetric
from retina_dist.engine.plan import Plan
from retina_dist.engine.state import TrainState
from retina_dist.engine.task import Task
from retina_dist.strategies.base import DistributedStrategy

logger = logging.getLogger(__name__)

CHECKPOINTS = "checkpoints"
RESUMABLE = "resume takes a run folder, a .pt file, a URL or auto"

# Settings that decide which image comes at which step: a resumed run cannot change them, nor those
# that its task locks.
RESUME_LOCKED = (
    "task.name",
    "seed",
    "data.batch_size",
    "data.shuffle",
    "optimizer.name",
    "trainer.overfit_batches",
)

Found = tuple[PathOrUrl, StateDict]  # a checkpoint and its content


@dataclass(frozen=True)
class Run:
    """A folder to write to and, if the run is resumed, the checkpoint that it continues.

    Args:
        folder: The run folder.
        resume_step: The step of the checkpoint; None in a fresh run.
        resumed_from: Its path.
        checkpoint: Its content, on the main rank only.
        owner: `Owner.name` of this process, which writes the checkpoints.
        is_restart: Whether an elastic job opens its folder again.
    """

    folder: Path
    resume_step: int | None = None
    resumed_from: PathOrUrl | None = None
    checkpoint: StateDict | None = None
    owner: OwnerName | None = None
    is_restart: bool = False


class RunOpener(contextlib.AbstractContextManager["RunOpener"]):
    """Opens the run of a job, and the same one again after each restart of an elastic job.

    It owns the run's folders until it leaves its context.
    """

    def __init__(self) -> None:
        self.owner = Owner()
        self.folder: Path | None = None  # since the first start
        self._owner_before: str | None = None  # whose the checkpoints were then, by id
        self._mains: list[str] = []  # who was the main rank of each start

    def __exit__(self, *error: object) -> None:
        self.owner.__exit__(*error)

    def open(self, config: RunConfig, strategy: DistributedStrategy, locked: frozenset[str]) -> Run:
        """Open the run on the main rank. Collective.

        The first time by `open_run`, later in the same folder from the state that the strategy
        committed last.
        """
        is_restart = self.folder is not None
        opened: list[Run] = []

        def open_on_main() -> tuple[str, int | None, str, str | None, list[str]]:
            before = self._owner_before
            if self.folder is not None:
                run = self._reopen(self.folder, config, locked, strategy.committed)
            else:
                run = open_run(config, self.owner, locked)
                before = read_owner(checkpoint_folder(config, run.folder)).get("id")
            opened.append(run)
            mains = [*self._mains, str(self.owner.name["id"])]
            return str(run.folder), run.resume_step, str(run.resumed_from), before, mains

        folder, step, source, self._owner_before, self._mains = strategy.on_main(open_on_main)
        self.folder = Path(folder)
        run = opened[0] if opened else Run(self.folder, step, parse_path(source))
        return replace(run, owner=self.owner.name, is_restart=is_restart)

    def _reopen(
        self,
        folder: Path,
        config: RunConfig,
        locked: frozenset[str],
        committed: StateDict | None,
    ) -> Run:
        here = replace(config, output_dir=str(folder))
        # once: another process of this job may hold the lock
        _lock(self.owner, here, folder, is_restart=True)
        checkpoints = checkpoint_folder(here, folder)
        owner = read_owner(checkpoints)
        last = owner.get("id")
        if last not in (None, self._owner_before, *self._mains):
            raise UserError(
                f"{checkpoints} was taken over by {describe_owner(owner)}; "
                "this job writes nothing more."
            )
        if committed:
            return Run(folder, committed["step"], Path("memory"), committed)
        if last in self._mains:  # else the first start ended before it claimed the folder
            run = open_run(replace(here, resume="auto"), None, locked)
            if run.resume_step is not None:
                return run
        return open_run(here, None, locked)


def open_run(
    config: RunConfig, owner: Owner | None = None, locked: frozenset[str] = frozenset()
) -> Run:
    """Settle folder and checkpoint by `output_dir` and `resume`, in this order of precedence:

    1. `resume=PATH`: that checkpoint (of a folder: its newest), into its run folder, or an
       `output_dir` that holds no other run.
    2. `resume=auto`: the newest sound checkpoint of `output_dir`, or of the newest runs/NAME
       folder; without any, a fresh start.
    3. no resume: a fresh start in `output_dir`, which must not hold a run, or in the next free
       runs/NAME.

    NAME is `data.name`, or "debug" for a fast_dev_run. With `trainer.checkpoint_dir`, `auto` looks
    there first, and only at the runs/NAME that use it; any other run must find it without
    checkpoints. With an `owner` the folders are locked before they are looked into, and a new one
    is made; without, nothing is written. A checkpoint must agree with `config` in RESUME_LOCKED
    and in `locked`. Raises ConfigError, also for a folder in use, CheckpointError, or UserError
    for a place that cannot be reached.
    """
    if not config.resume:
        given = _output_dir(config)
        run = Run(_made_folder(config, owner, given))
        # after the lock, so that no other run can leave some now
        _refuse_checkpoints_in(given)
        _refuse_checkpoints_elsewhere(_checkpoint_dir(config))
        return run
    find = _find_newest if config.resume == "auto" else _find_named
    folder, found = find(config, owner)
    if found is None:
        return Run(folder)
    source, content = found
    _check_locked(config, locked, source, content)
    return Run(folder, content["step"], source, content)


def _find_newest(config: RunConfig, owner: Owner | None) -> tuple[Path, Found | None]:
    given = _output_dir(config)
    elsewhere = _checkpoint_dir(config)
    folder = given or _newest_folder(config)
    _lock(owner, config, folder)

    found = None
    if elsewhere:
        found = load_latest(elsewhere)
    if found is None and folder:
        found = load_latest(folder / CHECKPOINTS)
    if found is None:
        place = elsewhere or folder or f"runs/{_name(config)}*"
        logger.info(f"resume=auto: no checkpoint in {place}; a fresh start (or give resume=RUN)")
        return _made_folder(config, owner, given if elsewhere else folder), None
    return folder or _made_folder(config, owner, None), found


def _find_named(config: RunConfig, owner: Owner | None) -> tuple[Path, Found | None]:
    named = parse_path(str(config.resume))
    elsewhere = _checkpoint_dir(config)
    own = run_folder_of(named)
    folder = _output_dir(config) or own
    _lock(owner, config, folder)

    found = _named_checkpoint(named, elsewhere)
    source, _ = found
    if folder is None:
        raise ConfigError(
            f"resume={source} is not inside a run folder, whose config.yaml has the settings; give "
            "that folder, or add output_dir=NEW and the settings that the run was started with, "
            "such as experiment=… data.root=…."
        )
    if own is None or folder.resolve() != own.resolve():
        _refuse_checkpoints_in(folder)
    if elsewhere != source.parent:
        _refuse_checkpoints_elsewhere(elsewhere)
    return folder, found


def _name(config: RunConfig) -> str:
    return "debug" if config.trainer.fast_dev_run else config.data.name


def _output_dir(config: RunConfig) -> Path | None:
    if config.output_dir:
        return Path(config.output_dir)
    return None


def _checkpoint_dir(config: RunConfig) -> PathOrUrl | None:
    if config.trainer.checkpoint_dir:
        return parse_path(config.trainer.checkpoint_dir)
    return None


def checkpoint_folder(config: RunConfig, folder: Path) -> PathOrUrl:
    """Where the run in `folder` keeps its checkpoints."""
    return _checkpoint_dir(config) or folder / CHECKPOINTS


def _made_folder(config: RunConfig, owner: Owner | None, folder: Path | None) -> Path:
    """`folder`, or the next free one, made and locked for `owner` if there is one."""
    if folder is None:
        folder = next_folder(_name(config), make=owner is not None)
        if owner:
            owner.created.append(folder)
    _lock(owner, config, folder)
    return folder


def _newest_folder(config: RunConfig) -> Path | None:
    """The newest runs/NAME, of those that use `trainer.checkpoint_dir` where it is given."""
    shown = redacted(config.trainer.checkpoint_dir or "")
    for _, folder in sorted(_numbered(_name(config)).items(), reverse=True):
        if not shown:
            return folder
        with contextlib.suppress(OSError, LookupError, TypeError, ValueError):
            if load_yaml(folder / "config.yaml")["trainer"]["checkpoint_dir"] == shown:
                return folder
    return None


def run_folder_of(source: PathOrUrl) -> Path | None:
    """The run folder of `source`, which is the folder, a checkpoint in it, or its checkpoints."""
    if isinstance(source, Url):
        return None
    folder = source.parent if source.is_file() else source
    if folder.name == CHECKPOINTS:
        return folder.parent
    is_run = bool(names_in(folder / CHECKPOINTS)) or (folder / "config.yaml").is_file()
    return folder if folder == source and is_run else None


def _lock(
    owner: Owner | None, config: RunConfig, folder: Path | None, *, is_restart: bool = False
) -> None:
    """Lock the run folder and its folder of checkpoints, as far as they are known."""
    if owner is None:
        return
    if folder:
        owner.lock(folder, "output_dir", is_restart=is_restart)
    elsewhere = _checkpoint_dir(config)
    if elsewhere:
        owner.lock(elsewhere, "trainer.checkpoint_dir", is_restart=is_restart)
    elif folder:
        owner.lock(folder / CHECKPOINTS, "output_dir", is_restart=is_restart)


def _no_checkpoint(source: PathOrUrl) -> CheckpointError:
    """The error of a `source` of a resume that is or has no checkpoint."""
    return CheckpointError(f"there is no checkpoint {source}; {run_in(source, RESUMABLE)}.")


def check_resume(source: PathOrUrl, elsewhere: object) -> None:
    """Raise CheckpointError, before the data is read, where `source` is or has no checkpoint.

    A run folder may keep its checkpoints `elsewhere`, and a URL is not looked into yet.
    """
    if isinstance(source, Url) or (elsewhere and source.is_dir()):
        return
    if source.is_file() or source.suffix == ".pt":
        if source.suffix != ".pt" and _has_checkpoints(source.parent / CHECKPOINTS):
            raise CheckpointError(f"{source} is no checkpoint; write resume={source.parent}.")
        load_checkpoint(source)
    elif not _has_checkpoints(source / CHECKPOINTS) and not _has_checkpoints(source):
        raise _no_checkpoint(source)


def _named_checkpoint(source: PathOrUrl, elsewhere: PathOrUrl | None) -> Found:
    """The checkpoint `source` and its content.

    That is a .pt file, or the newest of the folder `source`, or of its run's `elsewhere`.
    """
    is_file = source.is_file() if isinstance(source, Path) else source.name.endswith(".pt")
    if is_file:
        return source, load_checkpoint(source)
    newest = load_latest(source / CHECKPOINTS) or load_latest(source)
    if newest is None and elsewhere and run_folder_of(source):
        newest = load_latest(elsewhere)
    if newest is None:
        raise _no_checkpoint(source)
    return newest


def _refuse_checkpoints_in(run_folder: Path | None) -> None:
    """Raise ConfigError when the folder holds a run, with which a second one would mix its own."""
    if run_folder and _has_checkpoints(run_folder / CHECKPOINTS):
        raise ConfigError(
            f"output_dir={run_folder} already holds a run; continue with "
            f"{as_override('resume', run_folder)}, or give another folder."
        )


def _refuse_checkpoints_elsewhere(folder: PathOrUrl | None) -> None:
    if folder and _has_checkpoints(folder):
        raise ConfigError(
            f"trainer.checkpoint_dir={folder} already holds checkpoints; add "
            "resume=auto to this command to continue, or give another folder."
        )


def _has_checkpoints(folder: PathOrUrl) -> bool:
    return any(name.endswith(".pt") for name in names_in(folder))


def _check_locked(
    config: RunConfig, locked: frozenset[str], path: PathOrUrl, content: StateDict
) -> None:
    """Raise unless the checkpoint was trained with the settings that a resume may not change."""
    try:
        before = flattened(content["config"])
        now = flattened(as_dict(config))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"{path} does not say how it was trained; "
            f"use it as {as_override('model.weights', path)}."
        ) from error
    changed = []
    for key in (*RESUME_LOCKED, *sorted(locked)):
        # a setting younger than the checkpoint is not in it
        if key in before and _value(before[key]) != _value(now.get(key)):
            changed.append(key)
    if not changed:
        return
    key = changed[0]
    old = before[key]
    new = now.get(key)
    section, _, _ = key.partition(".")
    alike = [each for each in changed if each.startswith(f"{section}.")]
    if key == "task.name":
        key = "task"  # the name of the group's entry
    remedy = f"give {key}={old}"
    if key == "data.batch_size":
        remedy += " with trainer.accumulate=auto for less memory"
    if len(alike) > 1:
        remedy = f"leave out what sets {truncate(alike)}, such as {section}=…"
    start = f"start a new run with {as_override('model.weights', path)}"
    if section in ("model", "task"):  # its weights would not fit
        start = "start a new run without resume=RUN"
    raise ConfigError(
        f"{key}={new} differs from the {old} that {path} was trained with; {remedy}, or {start}."
    )


def _value(text: str | None) -> object:
    """The value of a setting's text, in which 1 equals 1.0."""
    with contextlib.suppress(ValueError):
        return json.loads(text or "")
    return text


def restore(
    state: TrainState,
    run: Run,
    config: RunConfig,
    plan: Plan,
    images: str,
    position: tuple[int, int],
) -> bool:
    """Load the checkpoint of `run`, if it has one, into `state`; return whether the run is done.

    Raises CheckpointError when the checkpoint is of other data or of another form.

    Args:
        state: The state to load into.
        run: The opened run.
        config: Its settings.
        plan: Its plan.
        images: The fingerprint of this run's data.
        position: Epoch and images taken of it at the checkpoint's step, in this run's data.
    """
    content = run.checkpoint
    if content is None:
        return False
    try:
        place = content["sampler"]
        if content.get("images") != images or position != (place["epoch"], place["cursor"]):
            raise CheckpointError(
                f"{run.resumed_from} was trained on other images than data={config.data.name}; "
                "resume with the same ones, or start a new run with "
                f"{as_override('model.weights', run.resumed_from)}."
            )
        _warn_of_changes(content, state.best, config.trainer.precision)
        state.load_state_dict(content)
    except UserError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        reason = describe_error(error)
        remedy = remedy_of(content, "resume from another checkpoint")
        raise CheckpointError(
            f"{run.resumed_from} lacks what these settings need ({reason}); {remedy}."
        ) from error
    logger.info(f"resumed from {run.resumed_from}, step {state.step}")
    return _is_done(state, plan)


def warn_of_changed_data(run: Run, task: Task) -> None:
    """Warn of data that is not as it was when the checkpoint of `run`, if it has one,
    was written.
    """
    before = (run.checkpoint or {}).get("data_digests")
    if not isinstance(before, Mapping):
        return
    now = task.data_digests()
    changed = [name for name, digest in now.items() if before.get(name, digest) != digest]
    if changed:
        logger.warning(
            f"{' and '.join(changed)} changed since {run.resumed_from} was written; "
            "the run continues with them as they are now."
        )


def _warn_of_changes(content: StateDict, best: BestMetric, precision: str) -> None:
    """Warn where numbers after the resume cannot be compared with those before it."""
    saved = content["best"]
    if saved["value"] is not None and not best.same_metric(saved):
        former = BestMetric(saved["name"], saved["mode"])
        logger.warning(
            f"best.pt was the {former} and will be the {best}; to keep it, resume with "
            f"trainer.monitor={former.name} trainer.monitor_mode={former.mode}."
        )
    before = flattened(content["config"]).get("trainer.precision")
    if before not in (None, precision):
        logger.warning(
            f"the steps up to {content['step']} were computed in {before} and the next ones in "
            f"{precision}, so the numbers are not those of a run in one precision; "
            f"trainer.precision={before} keeps it."
        )


def _is_done(state: TrainState, plan: Plan) -> bool:
    """Whether nothing is left to do; says so."""
    if plan.validates_at(state.step) and state.last_eval_step < state.step:
        return False
    if state.best.exhausted:
        reason = state.best.describe_stop()
        logger.info(f"nothing to do: {reason} Raise trainer.patience to train on.")
        return True
    if state.step >= plan.stop_step:
        logger.info(
            f"nothing to do up to step {plan.stop_step}; "
            "raise trainer.max_duration or trainer.stop_after."
        )
        return True
    return False


def next_folder(name: str, *, make: bool) -> Path:
    """runs/NAME, or the first runs/NAME-N after all there are.

    With `make` it is made, for this process alone. Raises ConfigError where that fails.
    """
    number = max(_numbered(name), default=0)
    while True:
        number += 1
        folder = Path("runs") / (name if number == 1 else f"{name}-{number}")
        try:
            if make:
                folder.mkdir(parents=True)
            return folder
        except OSError as error:
            # made by another process meanwhile
            if isinstance(error, FileExistsError) and folder.parent.is_dir():
                continue
            raise ConfigError(
                f"{folder} cannot be made ({error.strerror}); give an output_dir=FOLDER."
            ) from error


def _numbered(name: str) -> dict[int, Path]:
    """The folders runs/NAME (1), runs/NAME-2 and so on."""
    form = re.compile(rf"{re.escape(name)}(?:-(\d+))?")
    folders = {}
    for folder in Path("runs").glob("*"):
        match = form.fullmatch(folder.name)
        if match and folder.is_dir():
            folders[int(match[1] or 1)] = folder
    return folders
