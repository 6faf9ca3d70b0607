"""Files of `torch.save` and safetensors, read without running what is in them."""

from __future__ import annotations

import hashlib
import io
import zipfile
from typing import Any

import torch

from retina_dist import __version__
from retina_dist.errors import CheckpointError, describe_error
from retina_dist.files import PathOrUrl, read_bytes
from retina_dist.text import escape

SEAL = b"retina_dist sha256 "  # and the SHA-256 of all that is before it: the end of a checkpoint of ours
SEAL_LENGTH = len(SEAL) + 64


def load_torch(source: PathOrUrl) -> tuple[Any, str]:
    """What `torch.save` wrote, on the CPU, and the file's SHA-256; only tensors and plain values are unpickled.

    Of a file whose name ends with .safetensors, its tensors by name. Every reader of weights calls it. A checkpoint of
    retina_dist must end with the SHA-256 of the bytes before; other files need no seal. Raises CheckpointError.
    """
    try:
        data = read_bytes(source)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise CheckpointError(
            f"there is no checkpoint {source}; give the path of a .pt file of a run's checkpoints folder."
        ) from error
    except OSError as error:
        raise CheckpointError(f"{source} cannot be read ({error}); use another checkpoint.") from error
    if source.name.endswith(".safetensors"):
        return _from_safetensors(data, source), hashlib.sha256(data).hexdigest()
    digest = hashlib.sha256(memoryview(data)[:-SEAL_LENGTH])
    seal, expected = data[-SEAL_LENGTH:], SEAL + digest.hexdigest().encode()
    digest.update(seal)
    if seal.startswith(SEAL) and seal != expected:
        raise CheckpointError(f"{source} is damaged: its SHA-256 is not the one at its end; use another checkpoint.")
    if data.startswith(b"PK") and (unpacked := _unpacked_size(data)) > len(data):
        raise CheckpointError(
            f"{source} is compressed, {unpacked} bytes in {len(data)}, which torch.save never writes; use another file."
        )
    try:
        content = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle can raise nearly anything
        reason = describe_error(error)
        if "Weights only load failed" in str(error):
            reason = "damaged, or with objects in it that could run code, which are refused"
        raise CheckpointError(
            f"{source} cannot be read as a torch file of tensors and plain values ({reason}); use another file."
        ) from error
    # A seal that is damaged itself, or cut off, is missed because what is before it is whole.
    is_ours = isinstance(content, dict) and content.keys() >= {"format", "step"}
    if is_ours and seal != expected:
        raise CheckpointError(
            f"{source} is damaged, or not as it was written: it does not end with its SHA-256; use another checkpoint."
        )
    return content, digest.hexdigest()


def _unpacked_size(data: bytes) -> int:
    """Bytes of a zip file's members once unpacked; 0 of one with a damaged directory, which torch refuses."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return sum(member.file_size for member in archive.infolist())
    except Exception:  # a damaged directory can raise nearly anything
        return 0


def _from_safetensors(data: bytes, source: PathOrUrl) -> dict[str, torch.Tensor]:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load as tensors_of
    except ImportError as error:
        raise CheckpointError(f'{source} needs safetensors; pip install "retina-dist[hub]".') from error
    try:
        return tensors_of(data)
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise CheckpointError(
            f"{source} is not a readable safetensors file ({describe_error(error)}); use another file."
        ) from error


def remedy_of(content: Any, same_version: str = "use another checkpoint") -> str:
    """What to do about a checkpoint that this version cannot use: the end of an error. Names the version that wrote it.

    >>> remedy_of({"versions": {"retina_dist": "0.1.0"}}).replace(__version__, "0.2.0")
    'retina_dist 0.1.0 wrote it and this is 0.2.0: install that version, or load the weights alone with model.weights=FILE'
    """
    versions = content.get("versions") if isinstance(content, dict) else None
    wrote = str(versions.get("retina_dist", "")) if isinstance(versions, dict) else ""
    if wrote in ("", __version__):
        return same_version
    return (
        f"retina_dist {escape(wrote[:40])} wrote it and this is {__version__}: install that version, or load the weights alone "
        "with model.weights=FILE"
    )
