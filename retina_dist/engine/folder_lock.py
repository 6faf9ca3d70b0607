"""One writer for each run folder: a lock file that names its process and shows that it is alive.

`run.lock` lies in the folder that it protects, local or behind a URL, as one line of JSON. A local one is created by
O_EXCL and changed under flock, one behind a URL is created by fsspec's mode="create" (If-None-Match on Azure, S3 and Google
Cloud). Object stores have no exchange of one content for another through fsspec, so there a takeover is confirmed by reading the
file again after `SETTLE_S`; where a driver ignores mode="create", two processes that start within milliseconds of each other may
both begin, and the one whose name is not in the file stops before its first checkpoint.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import platform
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import partial
from operator import eq
from pathlib import Path
from types import TracebackType

from typing_extensions import Self

from retina_dist.errors import CheckpointError, ConfigError, UserError
from retina_dist.files import Place, Url, read_bytes

logger = logging.getLogger(__name__)

LOCK = "run.lock"
HEARTBEAT_S = 10.0  # between the signs of life of a holder
EXPIRY_S = 90.0  # without one, after which a holder on another machine is gone
SETTLE_S = 2.0  # after which a takeover from another machine is confirmed
LENGTH = 512  # bytes of the file, always, so that one write replaces all of it


@dataclass(frozen=True)
class Holder:
    """The process that a lock file names. `owner` is unique; the times are seconds since 1970 by its clock."""

    owner: str
    host: str
    pid: int
    process_start: str | None  # clock ticks since boot, which tells a process from a later one with its number
    boot_id: str | None
    pid_namespace: str | None  # in which `pid` counts: containers have their own
    since: float
    heartbeat: float

    @classmethod
    def this_process(cls) -> Holder:
        now, pid = time.time(), os.getpid()
        return cls(uuid.uuid4().hex, platform.node()[:200], pid, _process_start(pid), *_machine(), now, now)

    @classmethod
    def decoded(cls, data: bytes) -> Holder | None:
        """None for what no holder writes, such as a file whose creator has not written yet."""
        try:
            holder = cls(**json.loads(data))
            str(holder)
            return holder if type(holder.pid) is int and holder.pid > 0 else None
        except (ValueError, TypeError, OverflowError, OSError, RecursionError):
            return None

    def encoded(self) -> bytes:
        return json.dumps(asdict(self)).encode().ljust(LENGTH - 1)[: LENGTH - 1] + b"\n"

    def is_gone(self) -> bool | None:
        """Whether the process has ended; None where this machine cannot tell."""
        if self.host != platform.node()[:200] or None in _machine() or (self.boot_id, self.pid_namespace) != _machine():
            return None
        try:
            os.kill(self.pid, 0)
        except (ProcessLookupError, OverflowError):
            return True
        except PermissionError:  # of another user, and there
            pass
        start = _process_start(self.pid)
        return start == "" or (start is not None and self.process_start is not None and start != self.process_start)

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since).isoformat(" ", "seconds")
        age = max(0.0, time.time() - self.heartbeat)
        return f"process {self.pid} on {self.host} since {since}, with its last sign of life {age:.0f} s ago"


class FolderLocks:
    """The folders that this process alone may write to, from `acquire` until it leaves the context or ends.

    A lock is taken over when its process is gone: one of the same machine when it does not run any more, one of another when
    `EXPIRY_S` pass in which its sign of life does not change. Clocks are not compared. A process that comes back after its lock
    was taken over learns it from `check`, which the checkpoint store calls before it writes and before it deletes.
    """

    def __init__(self) -> None:
        self._held: dict[str, tuple[Place, Holder]] = {}
        self.created: list[Path] = []  # folders to remove in the end if they are empty
        self._mutex = threading.Lock()
        self._left = threading.Event()
        self._heart: threading.Thread | None = None

    @property
    def owners(self) -> dict[str, str]:
        """The owner of each folder's lock, which lets other processes of the same job `acquire` it at once."""
        return {folder: holder.owner for folder, (_, holder) in self._held.items()}

    def acquire(self, folder: Place, key: str, predecessors: Mapping[str, str] | None = None) -> None:
        """Become the only writer of `folder`, the value of the setting `key`, which is made if need be.

        Raises ConfigError when another process is, or when the folder cannot be written. `predecessors` are the `owners` of a
        process of this job that is not the main one any more.
        """
        name = str(folder)
        if name in self._held and self._is_ours(name):
            return
        if isinstance(folder, Path):
            self.created += [f for f in reversed((folder, *folder.parents)) if not f.exists()]
        try:
            holder = _acquire(folder, key, (predecessors or {}).get(name))
        except OSError as error:
            raise _unwritable(folder, key, error) from error
        with self._mutex:
            self._held[name] = folder, holder
        if self._heart is None:
            self._heart = threading.Thread(target=self._beat, name="folder locks", daemon=True)
            self._heart.start()

    def check(self) -> None:
        """Raise CheckpointError when another process has taken over one of the folders."""
        for name, (folder, _) in list(self._held.items()):
            if not self._is_ours(name):
                other = _read(folder / LOCK)[1] or "another process"
                raise CheckpointError(
                    f"{folder} was taken over by {other}, after this process had shown no sign of life; it writes nothing more."
                )

    def close(self) -> None:
        """Release the folders."""
        self._left.set()
        with self._mutex:
            for folder, holder in self._held.values():
                with contextlib.suppress(OSError, UserError):
                    _remove(folder / LOCK, holder.owner)
            self._held.clear()
        for made in reversed(self.created):
            with contextlib.suppress(OSError):
                made.rmdir()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _is_ours(self, name: str) -> bool:
        """Whether the lock still names this process. One that was deleted is created anew, but not after a silence of this
        process, in which another may have taken the folder over, written and left."""
        folder, holder = self._held[name]
        data, found = _read(folder / LOCK)
        if data is None and time.time() - holder.heartbeat < EXPIRY_S:
            _create(folder / LOCK, holder)
            found = _read(folder / LOCK)[1]
        return found is not None and found.owner == holder.owner

    def _beat(self) -> None:
        while not self._left.wait(HEARTBEAT_S):
            with self._mutex:
                for name, (folder, holder) in list(self._held.items()):
                    alive = replace(holder, heartbeat=time.time())
                    with contextlib.suppress(OSError, UserError):  # the next one may get through
                        if self._is_ours(name) and _exchange(folder / LOCK, partial(_names, holder.owner), alive):
                            self._held[name] = folder, alive


def _acquire(folder: Place, key: str, predecessor: str | None) -> Holder:
    path, mine = folder / LOCK, Holder.this_process()
    while True:
        if _create(path, mine):
            return mine
        data, holder = _read(path)
        if data is None:  # released in between
            continue
        who = holder or f"a process that {path} does not name"
        gone = True if holder and holder.owner == predecessor else holder.is_gone() if holder else None
        elsewhere = gone is None
        if gone is None:
            logger.warning(f"{key}={folder} is in use by {who}; waiting up to {EXPIRY_S:g} s for another sign of life.")
            now = _watched(path, data)
            if now != data and (holder is None or _owner(now) != holder.owner):  # released, or held by yet another one
                continue
            gone = now == data
        if not gone:
            raise ConfigError(
                f"{key}={folder} is in use by {who}; wait until that run has ended or give another folder, and if you know that "
                f"the process is gone, delete {path}."
            )
        if _exchange(path, partial(eq, data), mine):
            if elsewhere:
                time.sleep(SETTLE_S)
                if _owner(_read(path)[0]) != mine.owner:
                    continue
            logger.warning(f"{key}={folder} was in use by {who}, which is gone; this run takes over.")
            return mine


def _watched(path: Place, data: bytes) -> bytes | None:
    """What a lock file holds as soon as that is not `data`, or after `EXPIRY_S`; None for a file that is gone."""
    until = time.monotonic() + EXPIRY_S
    while (now := _read(path)[0]) == data and time.monotonic() < until:
        time.sleep(HEARTBEAT_S / 5)
    return now


def _read(path: Place) -> tuple[bytes | None, Holder | None]:
    """Content of a lock file, None where there is none, and the holder that it names."""
    try:
        data = read_bytes(path)
    except FileNotFoundError:
        return None, None
    return data, Holder.decoded(data)


def _owner(data: bytes | None) -> str | None:
    holder = Holder.decoded(data) if data is not None else None
    return holder.owner if holder else None


def _names(owner: str, data: bytes) -> bool:
    return _owner(data) == owner


def _create(path: Place, holder: Holder) -> bool:
    """Whether there was no lock file, and is one of `holder` now."""
    try:
        if isinstance(path, Url):
            if _read(path)[0] is None:  # a driver may ignore that the file must be new
                path.create_bytes(holder.encoded())
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            with os.fdopen(descriptor, "wb") as file:
                file.write(holder.encoded())
                file.flush()
                os.fsync(file.fileno())
    except FileExistsError:
        pass
    return _owner(_read(path)[0]) == holder.owner  # a request that was repeated finds its own


def _exchange(path: Place, expected: Callable[[bytes], bool], holder: Holder) -> bool:
    """Write `holder` where the file holds what is `expected`; whether it did."""
    if isinstance(path, Url):
        data = _read(path)[0]
        if data is None or not expected(data):
            return False
        path.write_bytes(holder.encoded())
        return True
    with _locked(path) as descriptor:
        if descriptor is None or not expected(_content(descriptor)):
            return False
        os.pwrite(descriptor, holder.encoded(), 0)
        os.ftruncate(descriptor, LENGTH)
        os.fsync(descriptor)
        return True


def _remove(path: Place, owner: str) -> None:
    """Remove the lock file of `owner`, and no other."""
    if isinstance(path, Url):
        if _owner(_read(path)[0]) == owner:
            path.unlink()
        return
    with _locked(path) as descriptor:
        if descriptor is not None and _owner(_content(descriptor)) == owner:
            path.unlink()


def _content(descriptor: int) -> bytes:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int | None]:
    """A descriptor of the file, which nobody else changes meanwhile; None where it is not there any more."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        yield None
        return
    try:
        with contextlib.suppress(OSError):  # file systems without flock
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            same = os.fstat(descriptor).st_ino == os.stat(path).st_ino
        except FileNotFoundError:
            same = False
        yield descriptor if same else None
    finally:
        os.close(descriptor)


def _unwritable(folder: Place, key: str, error: OSError) -> ConfigError:
    return ConfigError(f"{key}={folder} cannot be written ({error.strerror or error}); give another folder.")


def _machine() -> tuple[str | None, str | None]:
    """Boot id and process namespace: two processes for which both agree see each other by their numbers."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return boot_id, os.readlink("/proc/self/ns/pid")
    except OSError:
        return None, None


def _process_start(pid: int) -> str | None:
    """When a process began, "" when it has ended, None where that cannot be read. proc_pid_stat(5), fields 3 and 22."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return "" if fields[0] in "ZX" else fields[19]
