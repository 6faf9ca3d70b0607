"""The plan of a Horovod build and its patches; the build itself is tried by `make test`, which
needs its result.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "install_horovod.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("install_horovod", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["install_horovod"] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


def test_only_the_expected_source_is_patched(script: ModuleType, tmp_path: Path) -> None:
    lists = tmp_path / "CMakeLists.txt"
    lists.write_text("project(horovod)\n\nset(CMAKE_CXX_STANDARD 14)\n")
    patch = (
        "Why.\n--- a/CMakeLists.txt\n+++ b/CMakeLists.txt\n@@ -1,3 +1,3 @@\n project(horovod)\n \n"
    )
    patch += "-set(CMAKE_CXX_STANDARD 14)\n+set(CMAKE_CXX_STANDARD 20)\n\nWhy.\n"
    script.apply(patch, tmp_path)
    assert lists.read_text() == "project(horovod)\n\nset(CMAKE_CXX_STANDARD 20)\n"
    with pytest.raises(
        script.InstallError,
        match=r"CMakeLists.txt of Horovod 0.28.1 has no line 'set\(CMAKE_CXX_STANDARD 14\)'",
    ):
        script.apply(patch, tmp_path)


def test_a_missing_compiler_is_named_before_anything_is_fetched(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(script.InstallError, match=r"apt-get install g\+\+ make"):
        script.find_compiler(20)
    monkeypatch.undo()
    compiler = tmp_path / "old-c++"
    compiler.write_text('#!/bin/sh\n[ "$1" = --version ] && echo old-c++ 7.5 && exit 0\nexit 1\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(script.InstallError, match=r"\(old-c\+\+ 7.5\) cannot compile C\+\+20"):
        script.find_compiler(20)
