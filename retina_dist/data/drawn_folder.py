"""A generated data set in a folder: written once, whole or not at all, and never over another."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from retina_dist.errors import DataError
from retina_dist.files import read_bytes


def draw_once(
    root: Path, settings: Mapping[str, int], write: Callable[[Path], None], *, manifest: str, otherwise: str
) -> None:
    """Let `write` fill a temporary folder that becomes `root`; the file `manifest` in it holds the `settings`.

    A folder with the same settings is left as it is. Raises DataError for one with other settings, and for a folder that is no
    generated data set, which the setting `otherwise` would read. Several processes may call it at once.
    """
    if root.exists():
        _check_settings(root, settings, manifest, otherwise)
        return
    root.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f"{root.name}.tmp", dir=root.parent))
    try:
        temporary.chmod(0o755)
        write(temporary)
        (temporary / manifest).write_text(json.dumps(settings, indent=1) + "\n")
        try:
            os.rename(temporary, root)
        except OSError:  # another process was faster
            _check_settings(root, settings, manifest, otherwise)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _check_settings(root: Path, settings: Mapping[str, int], manifest: str, otherwise: str) -> None:
    try:
        found = dict(json.loads(read_bytes(root / manifest)))
    except (OSError, TypeError, ValueError) as error:
        raise DataError(
            f"data.root={root} exists and is no drawn data set (no {manifest}); give another data.root, or {otherwise} to read it."
        ) from error
    if found != settings:
        changed = {k: v for k, v in settings.items() if found.get(k) != v}
        words = ", ".join(f"{k} {found.get(k)}, not {v}" for k, v in changed.items())
        beside = root.with_name("-".join([root.name, *(f"{k}{v}" for k, v in changed.items())]))
        raise DataError(
            f"data.root={root} was drawn with other settings ({words}); draw these beside it with data.root={beside}, or delete "
            f"the folder {root.resolve()} to have it drawn anew."
        )
