"""The table of GPUs, by a user's names and by torch's."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
import torch

from retina_dist.errors import ConfigError
from retina_dist.gpus import GPUS, find_gpu, gpu_of


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("A100-40GB", "A100-40GB"),
        (" a100-80gb", "A100-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"),
        ("NVIDIA H100 80GB HBM3", "H100-80GB"),
        ("NVIDIA L40S", "L40S"),
        ("l40", "L40"),
        ("h200", "H200-141GB"),
        ("NVIDIA GB200", "GB200"),
        ("Tesla V100-SXM2-32GB", "V100-32GB"),
    ],
)
def test_a_gpu_is_found_by_either_name(spelled: str, name: str) -> None:
    assert find_gpu(spelled).name == name


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("A100-40", "A100-40GB"),
        ("H100", "H100-80GB or H100-PCIe-80GB or H100-NVL-94GB?"),
        ("L40X", "L40"),
        ("V100-16", "V100-16GB"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(wrong: str, near: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"gpu={wrong} is not known; did you mean {near}")):
        find_gpu(wrong)


def test_a_name_like_no_other_lists_all() -> None:
    with pytest.raises(ConfigError, match="use one of V100-16GB, .*GB200, or its memory, such as gpu=24GiB"):
        find_gpu("quantum")


@pytest.mark.parametrize("spelled", ["24GiB", " 24 gib", "24.0GiB"])
def test_a_memory_is_a_gpu(spelled: str) -> None:
    assert find_gpu(spelled).memory_gib == 24.0


def test_too_little_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match="gpu=0.5GiB is too little for a GPU; give at least 1GiB"):
        find_gpu("0.5GiB")


def spellings(pattern: str) -> list[str]:
    """Every name that a pattern of the table matches."""
    if alternatives := re.search(r"\(([^()]*)\)", pattern):
        pieces = [
            pattern[: alternatives.start()] + piece + pattern[alternatives.end() :]
            for piece in alternatives[1].split("|")
        ]
    elif "|" in pattern:
        pieces = pattern.split("|")
    elif choice := re.search(r"\[(.*?)\]", pattern):
        pieces = [pattern[: choice.start()] + letter + pattern[choice.end() :] for letter in choice[1]]
    elif optional := re.search(r".\?", pattern):
        pieces = [pattern[: optional.start()] + piece + pattern[optional.end() :] for piece in ("", optional[0][0])]
    else:
        return [pattern]
    return [name for piece in pieces for name in spellings(piece)]


def test_no_spelling_means_two_gpus() -> None:
    for gpu in GPUS:
        for spelled in spellings(gpu.pattern):
            assert [other.name for other in GPUS if re.fullmatch(other.pattern, spelled)] == [gpu.name]
        assert [other.name for other in GPUS if other.name.upper() == gpu.name.upper()] == [gpu.name]
        assert 10 < gpu.memory_gib < 200


@pytest.mark.parametrize(("spelled", "name"), [("NVIDIA H200", "H200-141GB"), ("NVIDIA RTX 9999", "NVIDIA RTX 9999")])
def test_a_device_reports_its_own_memory(monkeypatch: pytest.MonkeyPatch, spelled: str, name: str) -> None:
    found = SimpleNamespace(name=spelled, total_memory=3 * 2**30, major=9, minor=1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: found)
    gpu = gpu_of(torch.device("cuda", 0))
    assert (gpu.name, gpu.memory_gib, gpu.capability) == (name, 3.0, (9, 1))
