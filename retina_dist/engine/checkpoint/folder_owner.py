"""One writer for each folder: a lock for processes of one file system, and `owner.json` beside the
checkpoints.

Two runs that start into one local folder see the same lock, and the second one is refused. Object
stores have no lock, and a suspended process keeps its own: there the last one to start writes
`owner.json` (see `CheckpointStore.claim`), and the checkpoint store of every other process stops
before it writes or removes anything.
"""

import contextlib
import errno
import fcntl
import json
import os
import platform
import uuid
from datetime import datetime
from pathlib import Path
from typing import Any

from retina_dist.base.errors import ConfigError
from retina_dist.base.files import PathOrUrl, read_bytes
from retina_dist.base.text import escape

LOCK = "run.lock"
OWNER = "owner.json"
OwnerName = dict[str, Any]  # of a process: id, host, pid and since
WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)  # what such a file system answers


def read_owner(folder: PathOrUrl, name: str = OWNER) -> OwnerName:
    """The process that owns a folder, as `Owner.name`; {} when the file is missing or damaged."""
    try:
        owner = json.loads(read_bytes(folder / name))
    except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError):
        return {}
    return owner if isinstance(owner, dict) else {}


def describe_owner(owner: OwnerName) -> str:
    """ "process 17 on node3 since 2026-01-31 12:00:00", of what `read_owner` read."""
    facts = escape(f"process {owner.get('pid')} on {owner.get('host')} since {owner.get('since')}")
    return facts if owner else "another process"


class Owner(contextlib.AbstractContextManager["Owner"]):
    """This process as the only writer of some folders, from `lock` until it leaves the context or
    ends.
    """

    def __init__(self) -> None:
        since = datetime.now().isoformat(" ", "seconds")
        self.name = {
            "id": uuid.uuid4().hex,
            "host": platform.node()[:200],
            "pid": os.getpid(),
            "since": since,
        }
        self.created: list[Path] = []  # folders to remove in the end if they are empty
        self._locks: dict[Path, int] = {}

    def lock(self, folder: PathOrUrl, key: str, *, is_restart: bool = False) -> None:
        """Make and lock a local `folder`, the value of the setting `key`; the lock ends with the
        process and is not inherited.

        Raises ConfigError when it cannot be written or another process holds it, unless
        `is_restart` says that both are one job's.
        """
        if not isinstance(folder, Path) or folder in self._locks:
            return
        self.created += [f for f in reversed((folder, *folder.parents)) if not f.exists()]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._locks[folder] = self._locked(folder / LOCK)
        except BlockingIOError as error:
            if not is_restart:
                holder = describe_owner(read_owner(folder, LOCK))
                raise ConfigError(
                    f"{key}={folder} is in use by {holder}; wait, or give another folder."
                ) from error
        except OSError as error:
            raise ConfigError(
                f"{key}={folder} cannot be written ({error.strerror}); give another folder."
            ) from error

    def _locked(self, path: Path) -> int:
        """The descriptor of the locked file. Raises BlockingIOError where another process
        has it.
        """
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in WITHOUT_LOCKS:
                    os.close(descriptor)
                    raise
            with contextlib.suppress(FileNotFoundError):
                # not removed by its last holder meanwhile
                if os.fstat(descriptor).st_ino == os.stat(path).st_ino:
                    os.pwrite(descriptor, json.dumps(self.name).encode().ljust(512), 0)
                    return descriptor
            os.close(descriptor)

    def __exit__(self, *error: object) -> None:
        """Release the folders, and remove those that were made and hold nothing."""
        for folder, descriptor in self._locks.items():
            with contextlib.suppress(OSError):
                (folder / LOCK).unlink()
            os.close(descriptor)
        self._locks.clear()
        for made in reversed(self.created):
            with contextlib.suppress(OSError):
                made.rmdir()
