"""Files written whole or not at all, places behind a URL, torch data read without running what is in it. Layer 0."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from retina_dist.errors import CheckpointError, UserError

T = TypeVar("T")


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` make a temporary file beside `path`, flush it to the disk and rename it: `path` is the old or the new.

    When it returns, a loss of power does not undo it. Raises UserError when the disk refuses; the old file is then as it
    was, and the temporary one is gone.
    """
    temporary = path.with_name(f"{path.name}.tmp{os.getpid()}")
    try:
        write(temporary)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        _remove(temporary)
        raise UserError(f"{path} could not be written ({error}){_remedy(error, path.parent)}") from error
    finally:
        _remove(temporary)


def sync_folder(folder: Path) -> None:
    """Return when the names in `folder` are on the disk, where the file system knows how to do that."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # network file systems that take files only
            raise
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def _remedy(error: OSError, folder: Path) -> str:
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return "; older files are untouched."
    with contextlib.suppress(OSError):
        free = f" with {shutil.disk_usage(folder).free / 2**20:.1f} MiB free"
        return f"; older files are untouched: make room in {folder}{free}, or write to another disk."
    return f"; older files are untouched: make room in {folder}, or write to another disk."


@dataclass(frozen=True)
class Url:
    """A file or folder behind fsspec (az://, s3://, memory:// …), with the part of Path's methods that checkpoints need.

    A write replaces an object whole or not at all, as a PUT does; an object store has no rename, no link, no folder to sync.
    Each call asks fsspec for the file system, since one belongs to the thread and the process that made it. Raises
    FileNotFoundError for what is not there and UserError for a place that cannot be reached or written.
    """

    text: str

    def __str__(self) -> str:
        return self.text

    def __truediv__(self, name: str) -> Url:
        return Url(f"{self.text}/{name}")

    @property
    def name(self) -> str:
        """The last part."""
        return self.text.rsplit("/", 1)[1]

    @property
    def parent(self) -> Url:
        """All but the last part."""
        return Url(self.text.rsplit("/", 1)[0])

    def read_bytes(self) -> bytes:
        return self._call("read", lambda system, path: system.cat_file(path))

    def write_bytes(self, data: bytes) -> None:
        def put(system: Any, path: str) -> None:
            try:
                system.pipe_file(path, data)
            except FileNotFoundError:  # a file system with folders
                system.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
                system.pipe_file(path, data)

        self._call("written", put)

    def unlink(self) -> None:
        self._call("removed", lambda system, path: system.rm_file(path))

    def names(self) -> list[str]:
        """Of the files in this folder; none where it does not exist."""

        def look(system: Any, path: str) -> list[str]:
            system.invalidate_cache()
            found = system.ls(path, detail=True)
            return [str(entry["name"]).rsplit("/", 1)[-1] for entry in found if entry["type"] == "file"]

        try:
            return self._call("listed", look)
        except FileNotFoundError:
            return []

    def _call(self, what: str, method: Callable[[Any, str], T]) -> T:
        from fsspec.core import url_to_fs

        try:
            system, path = url_to_fs(self.text)
        except ImportError as error:
            package = getattr(error.__cause__, "name", None) or "fsspec[full]"
            raise UserError(f"{self} needs a package that is not installed; pip install {package}.") from error
        except Exception as error:
            raise UserError(f"{self} cannot be opened ({_words(error)}); give a path or a URL of fsspec's.") from error
        try:
            return method(system, path)
        except (FileNotFoundError, IsADirectoryError) as error:
            raise FileNotFoundError(f"there is no {self}") from error
        except Exception as error:  # each file system has errors of its own
            raise UserError(
                f"{self} could not be {what} ({_words(error)}); look at the network, the credentials and the place."
            ) from error


Place = Path | Url


def place(text: str | Place) -> Place:
    """A local path, `file://` included, as Path; any other URL as Url."""
    if not isinstance(text, str):
        return text
    protocol, found, rest = text.partition("://")
    if not found:
        return Path(text)
    return Path(rest) if protocol in ("file", "local") else Url(text.rstrip("/"))


def names_in(folder: Place) -> list[str]:
    """Names of what is in a folder, sorted; none where it does not exist. Raises UserError when it cannot be listed."""
    try:
        return sorted(folder.names() if isinstance(folder, Url) else os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise UserError(f"{folder} cannot be listed ({error}); give yourself the right to read it.") from error


def write_bytes(target: Place, data: bytes) -> None:
    """Write `data` durably, whole or not at all. Raises UserError."""
    if isinstance(target, Url):
        target.write_bytes(data)
    else:
        write_atomically(target, lambda temporary: temporary.write_bytes(data))


def load_torch_file(path: Path) -> Any:
    """What `torch.save` wrote, on the CPU; only tensors and plain values are unpickled. Raises CheckpointError."""
    return _load(path, path)


def load_torch_bytes(data: bytes, source: object) -> Any:
    """As `load_torch_file`, of a file's content already read; `source` is its name in errors."""
    return _load(io.BytesIO(data), source)


def _load(file: Path | io.BytesIO, source: object) -> Any:
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle can raise nearly anything
        reason = _words(error)
        if "Weights only load failed" in str(error):
            reason = "damaged, or with objects in it that could run code, which are refused"
        raise CheckpointError(
            f"{source} cannot be read as a torch file of tensors and plain values ({reason}); use another file."
        ) from error


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or ['no reason given'])[0][:160]}"
