"""Run folders: where a run writes, and which checkpoint it resumes from.

A run folder holds config.yaml, metrics.csv, checkpoints/, tensorboard/ and images.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from retina_dist.config.run_config import RunConfig
from retina_dist.engine.checkpoint_store import load_checkpoint, load_latest
from retina_dist.engine.folder_lock import LOCK, FolderLocks
from retina_dist.errors import CheckpointError, ConfigError
from retina_dist.files import Place, Url, names_in, place, write_atomically
from retina_dist.redaction import redacted_tree

logger = logging.getLogger(__name__)

CHECKPOINTS = "checkpoints"

# Settings that decide which image comes at which step: a resumed run cannot change them, nor those that its task locks.
RESUME_LOCKED = (
    "seed",
    "data.batch_size",
    "data.shuffle",
    "task.name",
    "optimizer.name",
    "trainer.overfit_batches",
)


DIFF_IGNORED = (
    "output_dir",
    "resume",
    "launcher",
    "dry_run",
    "gpu",
    "debug",
    "trainer.stop_after",
    "trainer.checkpoint_dir",
    "data.num_workers",
    "data.root",
    "strategy.device",
    "strategy.timeout_s",
    "logging.per_rank_logs",
    "logging.mlflow_parent",
)


@dataclass(frozen=True)
class Run:
    """A folder to write to and, if the run is resumed, its step and the checkpoint's path; on the main rank also the
    checkpoint's content."""

    folder: Path
    resume_step: int | None = None
    resumed_from: Place | None = None
    checkpoint: dict[str, Any] | None = None


def open_run(
    config: RunConfig,
    locks: FolderLocks | None = None,
    locked: frozenset[str] = frozenset(),
) -> Run:
    """Settle folder and checkpoint by `output_dir` and `resume`, in this order of precedence:

    1. `resume=PATH`: that checkpoint (of a run folder: its newest), into its own run folder unless `output_dir` is given,
       which must then hold no other run.
    2. `resume=auto`: the newest sound checkpoint of `output_dir`, or of the newest runs/NAME folder; without any, a fresh start.
    3. no resume: a fresh start in `output_dir`, which must not hold a run, or in the next free runs/NAME.

    NAME is `data.name`, or "debug" for a fast_dev_run. With `trainer.checkpoint_dir`, `auto` looks there, and whatever else
    starts there must find it without checkpoints.

    With `locks` the folder of the run and that of its checkpoints are locked before they are looked into, and a new one is made;
    without, nothing is written. A checkpoint must agree with `config` in RESUME_LOCKED and in `locked`, the task's settings.
    Raises ConfigError, also when another process holds a folder, or CheckpointError, or UserError for a place that cannot be
    reached.
    """
    given = Path(config.output_dir) if config.output_dir else None
    name = "debug" if config.trainer.fast_dev_run else config.data.name
    elsewhere = place(config.trainer.checkpoint_dir) if config.trainer.checkpoint_dir else None

    def lock(folder: Path | None) -> Path | None:
        if locks:
            lock_run(locks, config, folder)
        return folder

    def fresh(folder: Path | None) -> Run:
        if folder is None and locks:
            folder = make_next_folder(name)
            locks.created.append(folder)
        folder = folder or next_folder(name)
        lock(folder)
        return Run(folder)

    if not config.resume:
        _refuse_a_run(given)
        _refuse_checkpoints(elsewhere)
        run = fresh(given)
        _refuse_a_run(given)  # the one that held the lock just now may have left one
        _refuse_checkpoints(elsewhere)
        return run
    if config.resume == "auto":
        folder = lock(given or _newest_folder(name))
        where = elsewhere or (folder / CHECKPOINTS if folder else None)
        newest = load_latest(where) if where else None
        if newest is None:
            logger.info(f"resume=auto: no checkpoint in {elsewhere or folder or f'runs/{name}*'}; a fresh start")
            return fresh(given if elsewhere else folder)
        return _continued(config, locked, folder or fresh(None).folder, *newest)
    named = place(config.resume)
    own = _run_folder_of(named)
    folder = lock(given or own)
    source, content = _named(named)
    if folder is None:
        raise ConfigError(f"resume={source} lies in no run folder; say where to write with output_dir=….")
    if own is None or folder.resolve() != own.resolve():
        _refuse_a_run(folder)
    if elsewhere != source.parent:
        _refuse_checkpoints(elsewhere)
    return _continued(config, locked, folder, source, content)


def lock_run(
    locks: FolderLocks, config: RunConfig, folder: Path | None, predecessors: Mapping[str, str] | None = None
) -> None:
    """Lock the run folder and that of its checkpoints, as far as they are known. See `FolderLocks.acquire`."""
    if folder:
        locks.acquire(folder, "output_dir", predecessors)
    if config.trainer.checkpoint_dir:
        locks.acquire(place(config.trainer.checkpoint_dir), "trainer.checkpoint_dir", predecessors)
    elif folder:
        locks.acquire(folder / CHECKPOINTS, "output_dir", predecessors)


def checkpoint_folder(config: RunConfig, folder: Path) -> Place:
    """Where the run in `folder` keeps its checkpoints."""
    return place(config.trainer.checkpoint_dir) if config.trainer.checkpoint_dir else folder / CHECKPOINTS


def _run_folder_of(source: Place) -> Path | None:
    """The run folder that `source` is, or that it lies in as a checkpoint or as the folder of the checkpoints."""
    if isinstance(source, Url):
        return None
    folder = source.parent if source.is_file() else source
    checkpoints = folder if folder.name == CHECKPOINTS else folder / CHECKPOINTS
    inside = folder == checkpoints or (folder == source and bool(names_in(checkpoints)))
    return checkpoints.parent if inside else None


def _named(source: Place) -> tuple[Place, dict[str, Any]]:
    """The checkpoint `source`, a .pt file, or the newest of the folder `source`; and its content."""
    if isinstance(source, Path) and not source.exists():
        raise CheckpointError(f"there is no checkpoint {source}; resume takes a run folder, a .pt file, a URL or auto.")
    if source.is_file() if isinstance(source, Path) else source.name.endswith(".pt"):
        return source, load_checkpoint(source)
    found = load_latest(source / CHECKPOINTS) or load_latest(source)
    if found is None:
        raise CheckpointError(f"resume={source} is a folder without checkpoints; give a run folder or a .pt file.")
    return found


def _refuse_a_run(folder: Path | None) -> None:
    """Raise ConfigError when `folder` holds a run, whose checkpoints a second one would mix with its own."""
    if folder and any(name != LOCK for name in names_in(folder / CHECKPOINTS)):
        raise ConfigError(f"output_dir={folder} already holds a run; go on with resume=auto, or give another folder.")


def _refuse_checkpoints(folder: Place | None) -> None:
    """Raise ConfigError when `folder`, a trainer.checkpoint_dir, is in use."""
    if folder and any(name.endswith(".pt") for name in names_in(folder)):
        raise ConfigError(
            f"trainer.checkpoint_dir={folder} already holds checkpoints; go on with resume=auto, or give another folder."
        )


def write_config(config: RunConfig, folder: Path) -> None:
    """Every setting of the run as config.yaml, without secrets: MLflow gets the file."""
    text = OmegaConf.to_yaml(OmegaConf.create(redacted_tree(asdict(config))))
    write_atomically(folder / "config.yaml", lambda temporary: temporary.write_text(text))


def _continued(config: RunConfig, locked: frozenset[str], folder: Path, path: Place, content: dict[str, Any]) -> Run:
    before, now = content.get("config"), asdict(config)
    if not isinstance(before, dict):
        raise CheckpointError(f"{path} does not say how it was trained; start a new run with model.weights={path}.")
    for key in (*RESUME_LOCKED, *sorted(locked)):
        old, new = _lookup(before, key), _lookup(now, key)
        if old is not None and old != new:  # a setting younger than the checkpoint is not in it
            raise ConfigError(
                f"{key}={new} differs from the {old} that {path} was trained with; a run cannot change it midway: give "
                f"{key}={old}, or start a new run with model.weights={path}."
            )
    return Run(folder, content["step"], path, content)


def changed_settings(before: dict[str, Any], now: dict[str, Any], prefix: str = "") -> list[str]:
    """ "KEY OLD -> NEW" for each setting that differs, but for those that only say where and how long this process works."""
    changes = []
    for name, new in redacted_tree(now).items():  # as the settings in a checkpoint are
        key, old = f"{prefix}{name}", redacted_tree(before.get(name))
        if isinstance(new, dict) and isinstance(old, dict):
            changes += changed_settings(old, new, f"{key}.")
        elif old != new and key not in DIFF_IGNORED:
            changes.append(f"{key} {old} -> {new}")
    return changes


def _lookup(tree: dict[str, Any], key: str) -> Any:
    value: Any = tree
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _numbered(name: str) -> list[tuple[int, Path]]:
    """(number, folder) of runs/NAME (number 1), runs/NAME-2 and so on that exist."""
    form = re.compile(rf"{re.escape(name)}(?:-(\d+))?")
    found = []
    for folder in Path("runs").glob("*"):  # not NAME*: a name may have brackets
        match = form.fullmatch(folder.name)
        if match and folder.is_dir():
            found.append((int(match[1] or 1), folder))
    return sorted(found)


def next_folder(name: str) -> Path:
    """runs/NAME, or the first runs/NAME-N after all that are there."""
    taken = _numbered(name)
    return _folder(name, taken[-1][0] + 1 if taken else 1)


def make_next_folder(name: str) -> Path:
    """As `next_folder`, and made: of processes that start together each gets its own. Raises ConfigError."""
    taken = _numbered(name)
    for number in itertools.count(taken[-1][0] + 1 if taken else 1):
        folder = _folder(name, number)
        try:
            folder.parent.mkdir(exist_ok=True)
            folder.mkdir()
            return folder
        except FileExistsError as error:
            if not folder.parent.is_dir():
                raise ConfigError(f"{folder} cannot be made ({error.strerror}); give an output_dir=FOLDER.") from error
        except OSError as error:
            raise ConfigError(f"{folder} cannot be made ({error.strerror}); give an output_dir=FOLDER.") from error
    raise AssertionError("there is always another number")


def _folder(name: str, number: int) -> Path:
    return Path("runs") / (name if number == 1 else f"{name}-{number}")


def _newest_folder(name: str) -> Path | None:
    taken = _numbered(name)
    return taken[-1][1] if taken else None
