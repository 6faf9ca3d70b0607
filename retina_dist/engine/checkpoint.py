"""Checkpoints on disk: written whole or not at all, verified when read.

Layer 2. Pure file work without a strategy: the trainer calls it on the main process only. A folder holds `step_N.pt` files,
`manifest.json` (step, metric and SHA-256 of each), and `last.pt` and `best.pt` as second names of two of them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch

from retina_dist.errors import CheckpointError
from retina_dist.files import load_torch_file, write_atomically

FORMAT = 1
MANIFEST = "manifest.json"


class CheckpointStore:
    """Saves checkpoints into `folder`, keeping the newest `keep_last` and the best `keep_top` by metric."""

    def __init__(
        self, folder: Path, *, keep_last: int = 1, keep_top: int = 1, mode: Literal["max", "min"] = "max"
    ) -> None:
        self.folder = folder
        self.keep_last, self.keep_top, self.mode = max(1, keep_last), keep_top, mode

    def save(self, content: dict[str, Any], step: int, metric: float | None = None) -> Path:
        """Write `content` as the newest checkpoint; `metric` makes it a candidate for the best."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"step_{step:08d}.pt"
        write_atomically(path, lambda temporary: torch.save({"format": FORMAT, **content}, temporary))
        entry = {"file": path.name, "step": step, "metric": metric, "sha256": _sha256(path)}
        entries = [e for e in read_manifest(self.folder) if e["step"] < step] + [entry]
        kept = self._kept(entries)
        text = json.dumps(kept, indent=1) + "\n"
        write_atomically(self.folder / MANIFEST, lambda temporary: temporary.write_text(text))
        self._name(path, "last.pt")
        best = self._best(kept)
        if best:
            self._name(self.folder / best[0]["file"], "best.pt")
        # Only what this store wrote, and only after the manifest no longer names it.
        for other in self.folder.glob("step_*.pt"):
            if other.name not in {e["file"] for e in kept}:
                other.unlink()
        return path

    def _kept(self, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        chosen = {e["step"] for e in entries[-self.keep_last :] + self._best(entries)[: self.keep_top]}
        return [e for e in entries if e["step"] in chosen]

    def _best(self, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Entries with a metric, best first; the earlier one wins a tie."""
        sign = -1 if self.mode == "max" else 1
        return sorted((e for e in entries if e["metric"] is not None), key=lambda e: (sign * e["metric"], e["step"]))

    def _name(self, path: Path, alias: str) -> None:
        """Make `alias` a second name of `path`: a hard link, or a copy where the file system has none."""

        def link(temporary: Path) -> None:
            try:
                os.link(path, temporary)
            except OSError:
                shutil.copyfile(path, temporary)

        write_atomically(self.folder / alias, link)


def read_manifest(folder: Path) -> list[dict[str, Any]]:
    """The checkpoints of a folder, oldest first; empty when there is no manifest."""
    try:
        entries = json.loads((folder / MANIFEST).read_text())
    except FileNotFoundError:
        return []
    except (json.JSONDecodeError, OSError, UnicodeDecodeError) as error:
        raise CheckpointError(
            f"{folder / MANIFEST} cannot be read ({error}); name a checkpoint file by its path."
        ) from error
    return sorted(entries, key=lambda e: e["step"])


def latest(folder: Path, report: Callable[[str], None] = lambda text: None) -> Path | None:
    """The newest checkpoint of a folder whose content is what was written; None when it has none.

    A damaged one is passed to `report` and the one before it is taken; when all are damaged, CheckpointError.
    """
    entries = read_manifest(folder)
    for entry in reversed(entries):
        path = folder / entry["file"]
        if path.is_file() and _sha256(path) == entry["sha256"]:
            return path
        report(f"{path} is {'damaged' if path.is_file() else 'missing'}; going back to the checkpoint before it.")
    if entries:
        raise CheckpointError(f"every checkpoint in {folder} is damaged or missing; start anew with resume=null.")
    return None


def load_checkpoint(path: Path) -> dict[str, Any]:
    """The content of a checkpoint of ours, on the CPU. Nothing but tensors and plain values is ever unpickled."""
    if not path.is_file():
        raise CheckpointError(
            f"there is no checkpoint {path}; give the path of a .pt file of a run's checkpoints folder."
        )
    expected = {e["file"]: e["sha256"] for e in read_manifest(path.parent)}.get(path.name)
    if expected and _sha256(path) != expected:
        raise CheckpointError(f"{path} is damaged: its SHA-256 is not the one in {MANIFEST}; use another checkpoint.")
    content = load_torch_file(path)
    if not isinstance(content, dict) or "format" not in content:
        raise CheckpointError(
            f"{path} is not a checkpoint of retina_dist; plain weights go into model.weights, not here."
        )
    if content["format"] > FORMAT:
        raise CheckpointError(f"{path} has format {content['format']}, newer than {FORMAT}; upgrade retina_dist.")
    return content


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
