"""Files written whole or not at all, and torch files read without running what is in them. Layer 0."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from retina_dist.errors import CheckpointError, UserError


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` make a temporary file beside `path`, flush it to the disk and rename it: `path` is the old or the new.

    Raises UserError when the disk refuses; the old file is then as it was.
    """
    temporary = path.with_name(f"{path.name}.tmp{os.getpid()}")
    try:
        write(temporary)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"{path} could not be written ({error}); older files are untouched.") from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def load_torch_file(path: Path) -> Any:
    """What `torch.save` wrote, on the CPU; only tensors and plain values are unpickled. Raises CheckpointError."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle can raise nearly anything
        reason = f"{type(error).__name__}: {(str(error).strip().splitlines() or ['no reason given'])[0][:160]}"
        if "Weights only load failed" in str(error):
            reason = "damaged, or with objects in it that could run code, which are refused"
        raise CheckpointError(
            f"{path} cannot be read as a torch file of tensors and plain values ({reason}); use another file."
        ) from error
