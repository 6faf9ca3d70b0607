"""When the training image loads CUDA's compatibility libraries: on hosts whose driver is too old
for CUDA 13, and on no others.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from scripts.image import cuda_compat


@pytest.mark.parametrize(
    ("driver", "loaded"),
    [
        ("535.104.05", True),
        ("570.86.15", True),
        ("580.82.07", False),
        ("595.10", False),
        (None, False),
    ],
)
@pytest.mark.parametrize("module", ["x86_64 Kernel Module", "Open Kernel Module for x86_64"])
@pytest.mark.parametrize("there", [True, False])
def test_only_for_drivers_that_are_too_old(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    driver: str | None,
    loaded: bool,
    there: bool,
    module: str,
) -> None:
    found: list[str] = []
    monkeypatch.setattr(ctypes, "CDLL", lambda name, mode: found.append(Path(name).name))
    monkeypatch.setattr(cuda_compat, "FOLDER", tmp_path)
    monkeypatch.setattr(cuda_compat, "DRIVER", tmp_path / "version")
    for name in cuda_compat.LIBRARIES if there else ():
        (tmp_path / name).touch()
    if driver:
        line = f"NVRM version: NVIDIA UNIX {module}  {driver}  Sat Aug 19 01:15:15 UTC 2023\n"
        (tmp_path / "version").write_text(line)
    cuda_compat.load()
    assert found == (list(cuda_compat.LIBRARIES) if loaded and there else [])
