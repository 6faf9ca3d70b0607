"""Checkpoints: written whole or not at all, off the training thread, and verified when read.

The trainer calls the store on the main process only. A folder, local or behind a URL, holds
`step_N.pt` files, `manifest.json` (step, metric and second names of each) and `owner.json` (who may
write). A local one also holds `last.pt` and `best.pt`, hard links to two of them; elsewhere these
names are looked up in the manifest. Each file ends with the SHA-256 of the bytes before it (a
comment to zip and torch), so that it can be verified without the manifest.
"""

import contextlib
import copy
import hashlib
import io
import json
import logging
import math
import os
import re
import shutil
from collections.abc import Mapping
from concurrent import futures
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.optim.optimizer import StateDict

from retina_dist.base.errors import CheckpointError, UserError
from retina_dist.base.files import (
    PathOrUrl,
    names_in,
    parse_path,
    read_bytes,
    write_atomically,
    write_bytes,
)
from retina_dist.base.torch_files import SEAL, SEAL_LENGTH, load_torch
from retina_dist.engine.checkpoint.folder_owner import OWNER, OwnerName, describe_owner, read_owner
from retina_dist.engine.early_stopping import BestMetric

logger = logging.getLogger(__name__)

FORMAT = 1
MANIFEST = "manifest.json"
LAST, BEST = "last.pt", "best.pt"
STEP_FILE = re.compile(r"step_(\d+)\.pt")
LEFT_OVER = re.compile(r"(step_\d+\.pt|manifest\.json|owner\.json|last\.pt|best\.pt)\.tmp\d+")


class NewerFormat(CheckpointError):
    """A sound checkpoint of a later version, which nothing older should take the place of."""


class CheckpointEntry(msgspec.Struct):
    """A checkpoint in the manifest; `names` are its second names."""

    file: str
    step: int
    metric: float | None
    names: list[str] = []


class CheckpointStore:
    """Saves checkpoints into `folder` (a path or a URL), keeping the newest `keep_last` and the
    best `save_top_k` by `best`.

    `resumed_at` is the step that a run resumed from: `claim` forgets later checkpoints in the
    folder, the first save removes them. `owner` is `Owner.name` of this process; nothing is written
    or removed once another process has claimed the folder.
    """

    def __init__(
        self,
        folder: str | PathOrUrl,
        *,
        keep_last: int = 1,
        save_top_k: int = 1,
        best: BestMetric | None = None,
        resumed_at: int | None = None,
        owner: OwnerName | None = None,
    ) -> None:
        self.folder = parse_path(folder)
        self.owner = owner
        self.keep_last = keep_last
        self.save_top_k = save_top_k
        self.resumed_at = resumed_at
        self.best = best or BestMetric()
        # what the folder holds, once this store has looked
        self._entries: list[CheckpointEntry] | None = None
        self._writer = futures.ThreadPoolExecutor(1, "checkpoint")
        self._writing: futures.Future[None] | None = None

    def claim(self) -> None:
        """Make this process the owner of the folder, and its manifest end at `resumed_at`; before
        anything else is written.

        From then on the store of any other process refuses to write here. `best` restarts from the
        best checkpoint of the folder unless `best.value` has one there. Raises CheckpointError when
        the folder takes no file.
        """
        try:
            write_bytes(self.folder / OWNER, json.dumps(self.owner).encode())
            self._entries = self._held()
            self._check_best(self._entries)
            self._write_manifest(self._entries)
        except (OSError, UserError) as error:
            raise CheckpointError(
                f"{self.folder} cannot be written ({error}); give another folder."
            ) from error

    def _check_owner(self) -> None:
        """Raise UserError when another process has claimed the folder since this one did."""
        owner = read_owner(self.folder)
        if owner and owner != self.owner:
            raise UserError(
                f"{self.folder} was taken over by {describe_owner(owner)}; this run writes no more."
            )

    def _check_best(self, held: list[CheckpointEntry]) -> None:
        best = self.best
        if best.value is None:  # the run now ranks by another metric than the one it was saved with
            for e in held:
                e.metric = None
        elif self.save_top_k and best.value not in [e.metric for e in held]:
            lost = f"does not hold the checkpoint with the {best} so far, {best.value:.6g}"
            best.value = None
            best.evals_since_best = 0
            start = ""
            if ranked := self._best(held):
                best.value = ranked[0].metric
                start = f" from {best.value:.6g}"
            logger.warning(f"{self.folder} {lost}; the best restarts{start}.")

    def save(self, content: StateDict, step: int, metric: float | None = None) -> None:
        """Copy `content` and have it written as the newest checkpoint; `wait` returns when it is on
        the disk.

        `metric` makes it a candidate for the best. Waits for the save before, and raises its error,
        as `wait` does.
        """
        self.wait()
        if metric is not None and not math.isfinite(metric):
            metric = None
        copied = _snapshot({**content, "step": step, "metric": metric})
        self._writing = self._writer.submit(self._write, copied, step, metric)

    def wait(self) -> None:
        """Return when the last save is on the disk. Raises CheckpointError, once, when it could not
        be written.
        """
        if self._writing:
            futures.wait([self._writing])
            writing = self._writing
            self._writing = None
            writing.result()

    def _write(self, content: StateDict, step: int, metric: float | None) -> None:
        try:
            self._replace(sealed(content), step, metric)
            self._check_owner()
            self._tidy()
        except (OSError, UserError) as error:
            raise CheckpointError(
                f"the checkpoint of step {step} was not saved: {error}"
            ) from error

    def _replace(self, data: bytes, step: int, metric: float | None) -> None:
        """Write the file, then the manifest, then the second names."""
        if self._entries is None:
            self._entries = self._held()
        there = set(names_in(self.folder))
        entries = [e for e in self._entries if e.step < step and e.file in there]
        entries.append(CheckpointEntry(_file_of(step), step, metric))
        chosen = entries[-self.keep_last :] + self._best(entries)[: self.save_top_k]
        kept = [e for e in entries if e in chosen]
        self._check_owner()
        write_bytes(self.folder / _file_of(step), data)
        self._check_owner()
        named = self._write_manifest(kept)
        self._entries = kept
        if isinstance(self.folder, Path):
            self._check_owner()
            for alias, target in named.items():
                _link(self.folder / target, self.folder / alias)
            if BEST not in named:  # what has this name is the best of another metric
                (self.folder / BEST).unlink(missing_ok=True)

    def _write_manifest(self, entries: list[CheckpointEntry]) -> dict[str, str]:
        """Write the manifest, and return the file of each second name."""
        named = {}
        best = self._best(entries)
        if entries:
            named[LAST] = entries[-1].file
        if best and self.save_top_k:
            named[BEST] = best[0].file
        for e in entries:
            e.names = [alias for alias, target in named.items() if target == e.file]
        encoded = msgspec.json.format(msgspec.json.encode(entries), indent=1)
        write_bytes(self.folder / MANIFEST, encoded + b"\n")
        return named

    def _tidy(self) -> None:
        """Remove the checkpoints that the manifest no longer names, and what a killed process left
        half written.
        """
        files = {e.file for e in self._entries or ()}
        for name in names_in(self.folder):
            if LEFT_OVER.fullmatch(name) or (STEP_FILE.fullmatch(name) and name not in files):
                # a file that cannot be removed does no harm
                with contextlib.suppress(OSError, UserError):
                    (self.folder / name).unlink()

    def _held(self) -> list[CheckpointEntry]:
        """The checkpoints up to where this run began: of the manifest, or else the sound files."""
        files = _step_files(self.folder)
        entries: dict[str, CheckpointEntry] = {}
        with contextlib.suppress(CheckpointError):
            entries = {e.file: e for e in read_manifest(self.folder)}
            # after a crash between file and manifest the file is newer than its entry
            files = [e.file for e in entries.values() if e.step == self.resumed_at]
        for file in files:
            with contextlib.suppress(CheckpointError):
                content = load_checkpoint(self.folder / file)
                metric = None
                if self.best.same_metric(content.get("best", {})):
                    metric = content.get("metric")
                entries[file] = CheckpointEntry(file, content["step"], metric)
        last = math.inf if self.resumed_at is None else self.resumed_at
        return [e for e in entries.values() if e.step <= last]

    def _best(self, entries: list[CheckpointEntry]) -> list[CheckpointEntry]:
        """Entries with a metric, best first; the earlier one wins a tie."""
        ranked = [e for e in entries if e.metric is not None]
        return sorted(ranked, key=lambda e: (self.best.rank(e.metric or 0.0), e.step))


def read_manifest(folder: PathOrUrl) -> list[CheckpointEntry]:
    """The checkpoints that the manifest names, oldest first. Raises CheckpointError unless it is
    sound, or none is there.
    """
    try:
        content = read_bytes(folder / MANIFEST)
        entries = msgspec.json.decode(content, type=list[CheckpointEntry])
        for e in entries:
            if e.file != _file_of(e.step):
                raise ValueError(f"an entry is {e}")
        return sorted(entries, key=attrgetter("step"))
    except UserError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, FileNotFoundError) and not _step_files(folder):
            return []
        raise CheckpointError(
            f"{folder / MANIFEST} cannot be read ({error}); name a checkpoint file."
        ) from error


def load_latest(folder: str | PathOrUrl) -> tuple[PathOrUrl, StateDict] | None:
    """The newest sound checkpoint of a folder and its content; None when the folder has none.

    Tries the manifest's checkpoints, newest first, then the other files `step_N.pt`; a damaged
    checkpoint, and a damaged or missing manifest, is a warning. Raises CheckpointError where all
    are damaged.
    """
    folder = parse_path(folder)
    entries: list[CheckpointEntry] = []
    try:
        entries = read_manifest(folder)
    except CheckpointError as error:
        logger.warning(f"{str(error).split(';')[0]}; going by the checkpoint files themselves.")
    names = dict.fromkeys([e.file for e in reversed(entries)] + _step_files(folder)[::-1])
    for name in names:
        try:
            return folder / name, load_checkpoint(folder / name)
        except NewerFormat:
            raise
        except CheckpointError as error:
            logger.warning(f"{str(error).split(';')[0]}; going back to the checkpoint before it.")
    if names:
        raise CheckpointError(
            f"every checkpoint in {folder} is damaged or missing; "
            "copy them again, or start a new run in another folder."
        )
    return None


def load_checkpoint(source: str | PathOrUrl) -> StateDict:
    """The content of a checkpoint of ours, on the CPU. Nothing but tensors and plain values is ever
    unpickled.

    `source` may be a run folder, as in `located`. Raises CheckpointError unless the file is sealed
    and of our format.
    """
    source = located(source)
    content: Any = load_torch(source)[0]
    if not isinstance(content, dict) or not isinstance(content.get("format"), int):
        raise CheckpointError(
            f"{source} is not a checkpoint of retina_dist; give a run folder or its .pt file "
            "(plain weights start a training, by model.weights=FILE)."
        )
    if content["format"] > FORMAT:
        raise NewerFormat(
            f"{source} has format {content['format']}, newer than {FORMAT}; upgrade retina_dist."
        )
    step = content.get("step")
    name = STEP_FILE.fullmatch(source.name)
    if type(step) is not int or (name and int(name[1]) != step):
        raise CheckpointError(f"{source} is damaged: its step is {step!r}; use another checkpoint.")
    return content


def located(source: str | PathOrUrl) -> PathOrUrl:
    """The checkpoint file that `source` means: of a run folder its best one, else its last; any
    other place as it is.

    `last.pt` and `best.pt` of a folder behind a URL are looked up in its manifest.
    """
    source = parse_path(source)
    if isinstance(source, Path):
        for folder in (source / "checkpoints", source):
            for name in (BEST, LAST):
                if (folder / name).is_file():
                    return folder / name
    elif source.name in (LAST, BEST):
        with contextlib.suppress(CheckpointError):
            for e in read_manifest(source.parent):
                if source.name in e.names:
                    return source.parent / e.file
    return source


def amend(source: str, known: Mapping[str, object], **values: object) -> PathOrUrl:
    """Write `values` into a checkpoint, under each of its names; return its file.

    Its tensors stay as they are. Raises UserError unless it still has the `known` values.
    """
    path = located(source)
    content = load_checkpoint(path)
    if repr({name: content.get(name) for name in known}) != repr(dict(known)):
        raise UserError(f"{path} was replaced meanwhile; evaluate it again.")
    aliases: set[Path] = set()
    if isinstance(path, Path):
        path = path.resolve()
        aliases.update(filter(path.samefile, path.parent.glob("*.pt")))
    write_bytes(path, sealed({**content, **values}))
    for alias in aliases - {path}:
        _link(Path(str(path)), alias)
    return path


def sealed(content: StateDict) -> bytes:
    """The file of a checkpoint by torch.save, with its own SHA-256 as the zip's comment at
    the end.
    """
    file = io.BytesIO()
    torch.save({**content, "format": FORMAT}, file)
    file.seek(-2, os.SEEK_END)
    file.write(SEAL_LENGTH.to_bytes(2, "little"))  # the zip's last field: the length of its comment
    digest = hashlib.sha256(file.getbuffer()).hexdigest()
    file.write(SEAL + digest.encode())
    return file.getvalue()


def _snapshot(value: Any) -> Any:
    """A copy that later training does not change: tensors on the CPU, containers of the
    same types.
    """
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        copied = copy.copy(value)  # keeps a state_dict's version numbers
        for key, item in value.items():
            copied[key] = _snapshot(item)
        return copied
    if type(value) in (list, tuple):
        return type(value)(map(_snapshot, value))
    return copy.deepcopy(value)


def _link(path: Path, alias: Path) -> None:
    """Make `alias` a second name of `path`: a hard link, or a copy where the file system
    has none.
    """

    def link(temporary: Path) -> None:
        temporary.unlink(
            missing_ok=True
        )  # a killed process with this number left a second name of an older checkpoint
        try:
            os.link(path, temporary)
        except OSError:
            shutil.copyfile(path, temporary)

    write_atomically(alias, link)


def _file_of(step: int) -> str:
    return f"step_{step:08d}.pt"


def _step_files(folder: PathOrUrl) -> list[str]:
    """The names of the checkpoint files of a folder, oldest first."""
    return sorted(filter(STEP_FILE.fullmatch, names_in(folder)), key=lambda name: (len(name), name))
