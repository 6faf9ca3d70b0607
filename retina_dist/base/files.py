"""Files written whole or not at all, and places behind a URL."""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import json
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from operator import methodcaller
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from retina_dist.base.errors import ConfigError, UserError, describe_error
from retina_dist.base.text import pluralize

T = TypeVar("T")

PACKED = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar", ".zst")
AZURE = (
    "set AZURE_STORAGE_ACCOUNT_NAME (with az login or a machine's identity) "
    "or AZURE_STORAGE_CONNECTION_STRING"
)
EXTRAS = {"adlfs": '"retina-dist[azure]"', "huggingface_hub": '"retina-dist[hub]"'}
# Seconds before the second, third and last attempt to reach a place behind a URL.
WAITS = (0.5, 1.0, 2.0)
REFUSALS = (
    PermissionError,
    FileExistsError,
    NotADirectoryError,
    ValueError,
    TypeError,
    ImportError,
)
# Seconds of attempts: a file system that took longer has repeated the request itself, as Azure's
# does for 84 s.
MAX_ATTEMPTS_S = 60.0
# With these a spreadsheet takes a text for a formula,
# https://owasp.org/www-community/attacks/CSV_Injection
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` make a temporary file beside `path`, sync it and rename it.

    When it returns, a loss of power does not undo it. Raises UserError when the disk refuses; the
    old file is then as it was.
    """
    temporary = path.with_name(f"{path.name}.tmp{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        remedy = ""
        if is_disk_full(error):
            remedy = f": make room in {path.parent}, or write to another disk (see also ulimit -f)"
        raise UserError(
            f"{path} could not be written ({error}); older files are untouched{remedy}."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def is_disk_full(error: OSError) -> bool:
    """Whether a disk, a user's share of it or the largest file allowed is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def check_output(text: str | Path, key: str, *, folder: bool = False) -> None:
    """Raise ConfigError unless `text`, the value of `key`, can be written here.

    Leaves nothing behind.
    """
    kind = "folder" if folder else "file"
    if "://" in str(text):
        raise ConfigError(f"{key}={text} is a URL; give a local {kind}.")

    path = Path(text)
    if not folder:
        _check_names_file(path, str(text), key)
    problem = ""
    try:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.lstat(path)  # raises for NUL, and for a name that is too long
            if not (path.is_dir() if folder else path.is_file()):
                problem = f"exists and is not a {kind}"
        place = nearest_existing(path if folder else path.absolute().parent)
        tempfile.TemporaryFile(dir=place).close()
    except (OSError, ValueError) as error:
        problem = problem or f"cannot be written ({getattr(error, 'strerror', None) or error})"
    if problem:
        raise ConfigError(f"{key}={text} {problem}; give another {kind}.")


def _check_names_file(path: Path, text: str, key: str) -> None:
    if text.endswith("/") or (os.path.isdir(path) and not path.suffix):
        raise ConfigError(
            f"{key}={text} names a folder; give a file in it, {key}={path}/NAME with its ending."
        )


def nearest_existing(path: Path) -> Path:
    """The path itself, or the nearest folder above it that exists."""
    path = path.absolute()
    return next(place for place in (path, *path.parents) if place.exists())


def open_regular(path: str | Path) -> BinaryIO:
    """A file to read.

    Raises OSError for a missing file, and for a pipe or a device, which could keep a reader for
    ever.
    """
    file = open(  # noqa: SIM115
        path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)
    )
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "this is not a regular file", str(path))
    return file


def read_bytes(source: PathOrUrl) -> bytes:
    """The content of a regular file or of a URL. Raises OSError for a pipe or a device."""
    if isinstance(source, Url):
        return source.read_bytes()
    with open_regular(source) as file:
        return file.read()


def sync_folder(folder: Path) -> None:
    """Return when the names in `folder` are on the disk, where the file system can do that."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # network file systems that take files only
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Url:
    """A file or folder behind fsspec (az://, s3://, memory:// …), with some of Path's methods.

    A write replaces an object whole or not at all, as a PUT does. Each call asks fsspec for the
    file system, which belongs to a thread and a process, and is made again after `WAITS` when the
    network or the service fails. Raises FileNotFoundError for what is not there and UserError for a
    place that cannot be reached or written.
    """

    text: str

    def __str__(self) -> str:
        return self.text

    def __truediv__(self, name: str) -> Url:
        return Url(f"{self.text}/{name}")

    @property
    def name(self) -> str:
        return self.text.rsplit("/", 1)[1]

    @property
    def stem(self) -> str:
        return self.name.rsplit(".", 1)[0]

    @property
    def parent(self) -> Url:
        return Url(self.text.rsplit("/", 1)[0])

    def read_bytes(self) -> bytes:
        """The content of the file."""

        def read(system: Any, path: str) -> bytes:
            return system.cat_file(path)

        return self._call("read", read)

    def read_parts(
        self, parts: Sequence[tuple[str, int | None, int | None]]
    ) -> list[bytes | FileNotFoundError]:
        """Parts of files in this folder: name, first byte and the one after the last, or None."""
        names, starts, ends = map(list, zip(*parts, strict=True))

        def fetch(system: Any, folder: str) -> list[bytes | FileNotFoundError]:
            paths = [f"{folder}/{name}" for name in names]
            answers = list(system.cat_ranges(paths, starts, ends, on_error="return"))
            for i, answer in enumerate(answers):
                if isinstance(answer, (FileNotFoundError, IsADirectoryError)):
                    answers[i] = FileNotFoundError(f"there is no {self}/{names[i]}")
                elif isinstance(answer, BaseException):
                    raise answer
            return answers

        return self._call("read", fetch)

    def write_bytes(self, data: bytes) -> None:
        """Replace the file, in a folder made if need be."""

        def put(system: Any, path: str) -> None:
            try:
                system.pipe_file(path, data)
            except FileNotFoundError:  # a file system with folders
                system.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
                system.pipe_file(path, data)

        self._call("written", put)

    def unlink(self) -> None:
        """Remove the file."""
        self._call("removed", lambda system, path: system.rm_file(path))

    def glob(self, pattern: str) -> list[Url]:
        """The files whose names, from here, fit."""
        return [self / name for name in self.all_files(pattern)]

    def all_files(self, pattern: str | None = None) -> dict[str, dict[str, object]]:
        """The file system's facts on each file below this folder, by its name from here."""

        def listing(system: Any, path: str) -> dict[str, Any]:
            system.invalidate_cache()
            if pattern:
                files = system.glob(f"{path}/{pattern}", detail=True)
            else:
                files = system.find(path, detail=True)
            start = len(path.rstrip("/")) + 1
            return {str(name)[start:]: facts for name, facts in files.items()}

        try:
            return self._call("listed", listing)
        except FileNotFoundError:
            return {}

    def is_dir(self) -> bool:
        """Whether it is a folder."""
        return self._call("looked at", lambda system, path: bool(system.isdir(path)))

    def _call(self, what: str, method: Callable[[Any, str], T]) -> T:
        """Call `method` with the file system and the path in it, again while the network fails.

        `what` it does is for the error.
        """
        system, path = self._open()
        start = time.monotonic()
        attempt = 1
        while True:
            try:
                return method(system, path)
            except (FileNotFoundError, IsADirectoryError) as error:
                raise FileNotFoundError(f"there is no {self}") from error
            except Exception as error:  # each file system has other exception classes
                took_s = time.monotonic() - start
                reason = describe_error(error)
                if not _is_refusal(error):
                    reason += f", {pluralize(attempt, 'attempt')} in {took_s:.1f} s"
                    if attempt <= len(WAITS) and took_s + WAITS[attempt - 1] <= MAX_ATTEMPTS_S:
                        time.sleep(WAITS[attempt - 1])
                        attempt += 1
                        continue
                raise UserError(
                    f"{self} could not be {what} ({reason}); check network and credentials."
                ) from error

    def _open(self) -> tuple[object, str]:
        """The file system, and the path in it."""
        from fsspec.core import url_to_fs

        try:
            return url_to_fs(self.text)
        except ImportError as error:
            package = getattr(error.__cause__, "name", None) or "fsspec[full]"
            raise UserError(
                f"{self} needs a missing package; pip install {EXTRAS.get(package, package)}."
            ) from error
        except Exception as error:
            remedy = "give a path, such as where the job mounts it, or a URL of fsspec's"
            if self.text.startswith(("az:", "abfs")):
                remedy = AZURE
            raise UserError(
                f"{self} cannot be opened ({describe_error(error)}); {remedy}."
            ) from error


def _is_refusal(error: object) -> bool:
    """Whether another attempt would not change the answer.

    It is told by the class, or by the HTTP status of aiohttp, azure-core or requests.
    """
    if isinstance(error, REFUSALS):
        return True
    status = getattr(error, "status", None) or getattr(error, "status_code", None)
    return isinstance(status, int) and status < 500 and status not in (408, 429)


PathOrUrl = Path | Url


def parse_path(text: str | PathOrUrl) -> PathOrUrl:
    """A local path, `file://` included, as Path; any other URL as Url.

    Raises ConfigError for what cannot be either.
    """
    if not isinstance(text, str):
        return text
    protocol, separator, rest = text.partition("://")
    if separator and not (re.fullmatch(r"[A-Za-z][A-Za-z0-9+.:-]*", protocol) and rest.strip("/")):
        raise ConfigError(
            f"{text!r} is not a URL of the form PROTOCOL://PLACE; give a path or a URL."
        )
    if separator and protocol not in ("file", "local"):
        return Url(text.rstrip("/"))
    path = rest if separator else text
    try:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            os.stat(path)
    except (OSError, ValueError) as error:  # too long, or with NUL or half a character
        raise ConfigError(f"{text[:120]!r} cannot be a path ({error}); give another.") from error
    return Path(path)


def names_in(folder: PathOrUrl) -> list[str]:
    """The sorted names in a folder; [] if it does not exist.

    Raises UserError when it cannot be listed.
    """
    try:
        names = folder.all_files() if isinstance(folder, Url) else os.listdir(folder)
        return sorted(name for name in names if "/" not in name)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise UserError(
            f"{folder} cannot be listed ({error}); give yourself the right to read it."
        ) from error


def run_in(folder: PathOrUrl, otherwise: str) -> str:
    """The remedy for a place that is no run or checkpoint: the same name within the run, the last
    run with a checkpoint in the folder, or `otherwise`.
    """
    if isinstance(folder, Url):
        return otherwise
    if folder.is_file():
        for run in folder.parents[:2]:
            if (run / "checkpoints").is_dir():
                return f"give its run, {run}"
    in_run = folder.parent / "checkpoints" / f"{folder.stem}.pt"
    if in_run.is_file():
        return f"write {in_run}"
    files = sorted(folder.glob("*/checkpoints/*.pt"))
    if files:
        newest = max(files, key=os.path.getmtime)
        return f"give a run in it, such as {newest.parents[1]}"
    return spelt_alike(folder, otherwise)


def spelt_alike(path: PathOrUrl, otherwise: str) -> str:
    """The remedy for a path that is not there: what lies beside it under nearly its name, or
    `otherwise`.
    """
    written_out = os.path.expandvars(os.path.expanduser(str(path)))
    if written_out != str(path):
        return f"write {written_out}"
    if isinstance(path, Path) and not path.exists():
        for name in get_close_matches(path.name, names_in(path.parent), 1, 0.75):
            return f"use {path.parent / name}"
    return otherwise


def folder_of(annotations: PathOrUrl | str) -> Path:
    """The folder of the data set that a file of annotations is of, by its place."""
    folder = Path(str(annotations)).parent
    if folder.name.lower() in ("annotations", "labels"):
        return folder.parent
    return folder


def check_folder(root: str) -> None:
    """Raise ConfigError where `root`, a command's setting of this name, is not a folder."""
    path = parse_path(root)
    if not path.is_dir():
        remedy = not_a_folder("root", path, "give the one of the data")
        raise ConfigError(f"root={root} is not a folder; {remedy}.")


def not_a_folder(key: str, path: PathOrUrl, otherwise: str) -> str:
    """The remedy for a `path`, the value of `key`, that is not a folder of data."""
    remedy = spelt_alike(path, otherwise)
    if remedy == otherwise and re.fullmatch(r"[\w-]+/[\w.-]+", str(path)):
        fetched = f"hf download {path} --repo-type dataset --local-dir FOLDER"
        remedy += f", or fetch it from the Hugging Face Hub: {fetched}"
    if isinstance(path, Path) and path.is_file():
        remedy = f"give {key}={folder_of(path)}"
    if re.match(r"[A-Za-z]:", str(path)):
        remedy = "write a path of Windows as here, such as /mnt/c/Users/me/data under WSL"
    if is_packed(str(path)):
        remedy = "unpack it, and give the folder"
    return remedy


def is_packed(path: str | Path) -> bool:
    """Whether the name is that of an archive or a compressed file."""
    return Path(path).suffix.lower() in PACKED


def write_bytes(target: PathOrUrl, data: bytes) -> None:
    """Write `data` durably, whole or not at all. Raises UserError."""
    if isinstance(target, Url):
        target.write_bytes(data)
    else:
        write_atomically(target, methodcaller("write_bytes", data))


def write_text(target: PathOrUrl, text: str, errors: str = "strict") -> None:
    """As `write_bytes`, in UTF-8; `errors` as in `str.encode`."""
    write_bytes(target, text.encode(errors=errors))


def write_json(target: PathOrUrl, content: object, indent: int | None = 1) -> None:
    """As `write_bytes`, `content` as JSON that ends with a newline."""
    write_text(target, json.dumps(content, indent=indent) + "\n")


def write_csv(
    path: Path, rows: Iterable[Iterable[object]], *, escape_formulas: bool = False
) -> None:
    """As `write_bytes`, a row per line; file names that cannot be decoded keep their bytes.

    With `escape_formulas`, for tables that people open in a spreadsheet, a text that would be
    computed there begins with an apostrophe.
    """
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    for row in rows:
        writer.writerow(map(_as_text, row) if escape_formulas else row)
    write_text(path, table.getvalue(), errors="surrogateescape")


def _as_text(cell: object) -> object:
    """The cell, with an apostrophe where a spreadsheet would compute it."""
    if not isinstance(cell, str) or not cell.startswith(FORMULA):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell
