"""Files of `torch.save` and safetensors, read without running code in them."""

import hashlib
import io
import zipfile
from collections.abc import Callable
from typing import Any

import torch

from retina_dist.base import __version__
from retina_dist.base.errors import CheckpointError, describe_error
from retina_dist.base.files import PathOrUrl, Url, read_bytes, run_in
from retina_dist.base.other_names import value_meant
from retina_dist.base.text import escape

# A checkpoint of ours ends with this and the SHA-256 of all that is before it.
SEAL = b"retina_dist sha256 "
SEAL_LENGTH = len(SEAL) + 64


def load_torch(source: PathOrUrl) -> tuple[Any, str]:
    """The tensors and plain values of a file, on the CPU, and its SHA-256; no code is run.

    A checkpoint of retina_dist must end with the SHA-256 of the bytes before. Raises
    CheckpointError.
    """
    read = _reader_of(source)
    data = _read_checkpoint(source)
    digest = hashlib.sha256(memoryview(data)[:-SEAL_LENGTH])
    seal = data[-SEAL_LENGTH:]
    is_whole = seal == SEAL + digest.hexdigest().encode()
    digest.update(seal)
    damaged = CheckpointError(
        f"{source} is damaged: it does not end with its SHA-256; use another checkpoint."
    )
    if seal.startswith(SEAL) and not is_whole:
        raise damaged
    size = _unpacked_size(data)
    if size > len(data):
        raise CheckpointError(
            f"{source} is compressed, {size} bytes in {len(data)}, which torch avoids; use another."
        )

    try:
        content = read(data)
    except Exception as error:  # a damaged file can raise nearly anything
        reason = describe_error(error)
        if "Weights only load failed" in str(error):
            reason = "damaged, or with objects in it that could run code, which are refused"
        remedy = value_meant("checkpoint", source.name.rpartition(".")[2], ()) or (
            "give a checkpoint of retina_dist, such as runs/NAME, or a saved model.state_dict() "
            "as model.weights=FILE"
        )
        raise CheckpointError(
            f"{source} cannot be read as a file of tensors ({reason}); {remedy}."
        ) from error
    # A seal that is damaged itself, or cut off, is missed because what is before it is whole.
    if isinstance(content, dict) and content.keys() >= {"format", "step"} and not is_whole:
        raise damaged
    return content, digest.hexdigest()


def _read_checkpoint(source: PathOrUrl) -> bytes:
    try:
        return read_bytes(source)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        place, remedy = str(source), "give a run folder, or its .pt file"
        if isinstance(error, IsADirectoryError):
            place, remedy = f"in {source}", "give a run that has saved one, or a .pt file"
        remedy = run_in(source, remedy)
        if isinstance(source, Url):
            remedy = f"give the URL of a file, such as {source.parent}/model.safetensors"
        raise CheckpointError(f"there is no checkpoint {place}; {remedy}.") from error
    except OSError as error:
        raise CheckpointError(
            f"{source} cannot be read ({error}); use another checkpoint."
        ) from error


def _reader_of(source: PathOrUrl) -> Callable[[bytes], object]:
    """The reader for the file's ending. Raises CheckpointError without its library."""
    if not source.name.endswith(".safetensors"):
        return lambda data: torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    try:
        from safetensors.torch import load
    except ImportError as error:
        raise CheckpointError(
            f'{source} needs safetensors; pip install "retina-dist[hub]".'
        ) from error
    return load


def _unpacked_size(data: bytes) -> int:
    """Bytes of a zip file's members once unpacked; 0 of another or a damaged file."""
    if not data.startswith(b"PK"):
        return 0
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return sum(member.file_size for member in archive.infolist())
    except Exception:  # a damaged directory can raise nearly anything
        return 0


def remedy_of(content: object, same_version: str = "use another checkpoint") -> str:
    """The end of an error: what to do about a checkpoint that this version cannot use."""
    wrote = ""
    if isinstance(content, dict) and isinstance(content.get("versions"), dict):
        wrote = str(content["versions"].get("retina_dist", ""))
    if wrote in ("", __version__):
        return same_version
    return (
        f"retina_dist {escape(wrote[:40])} wrote it, this is {__version__}: "
        "install that, or give model.weights=FILE"
    )
