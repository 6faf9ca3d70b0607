"""Two hundred damaged copies of a checkpoint folder: none is loaded as if nothing had happened."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from retina_dist.base.errors import CheckpointError
from retina_dist.base.torch_files import SEAL_LENGTH
from retina_dist.detection.model.weights import load_weights
from retina_dist.engine.checkpoint.store import CheckpointStore, load_checkpoint, load_latest
from tests.unit.mutations import mutated_bytes

COPIES = 200
FIRST, NEWEST, MANIFEST = "step_00000100.pt", "step_00000200.pt", "manifest.json"


def content(step: int) -> dict:
    generator = torch.Generator().manual_seed(step)
    weights = {f"layer{i}.weight": torch.randn(20, 30, generator=generator) for i in range(6)}
    momentum = {i: {"momentum_buffer": torch.zeros(20, 30)} for i in range(6)}
    return {
        "model": weights,
        "optimizer": {"state": momentum, "param_groups": [{"lr": 0.1}]},
        "sampler": {"epoch": 1},
    }


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound") / "checkpoints"
    store = CheckpointStore(folder, keep_last=2)
    for step in (100, 200):
        store.save(content(step), step, step / 1000)
    store.wait()
    return folder


def is_as_written(found: dict) -> bool:
    expected = content(found["step"])
    return all(
        torch.equal(value, found["model"][name]) for name, value in expected["model"].items()
    )


def test_no_damaged_checkpoint_is_loaded_silently(
    sound: Path, tmp_path: Path, said: list[str]
) -> None:
    """The newest, or a second one too, or the manifest too is damaged: back to a sound one with a
    word, or an error.
    """
    dice = random.Random(0)
    outcomes = {"went back": 0, "error": 0, "newest is sound": 0}
    by_name = {"refused": 0, "as written": 0}
    for number in range(COPIES):
        folder = tmp_path / str(number)
        shutil.copytree(sound, folder)
        (folder / "last.pt").unlink()  # copied by its name, no hard link any more
        kind = number % 10
        damaged = [NEWEST]
        if kind in (0, 1, 2, 3, 4, 5, 7):
            damage(folder / NEWEST, dice)
        if kind == 5:
            damaged.append(FIRST)
            damage(folder / FIRST, dice)
        elif kind == 6:  # swapped
            damaged.append(FIRST)
            (folder / NEWEST).write_bytes((sound / FIRST).read_bytes())
            (folder / FIRST).write_bytes((sound / NEWEST).read_bytes())
        elif kind == 8:  # the manifest alone
            damaged = []
            damage(folder / MANIFEST, dice)
        elif kind == 9:
            damage(folder / NEWEST, dice)
            damage(folder / MANIFEST, dice) if number % 20 == 9 else (folder / MANIFEST).unlink()
        said.clear()
        try:
            newest = load_latest(folder)
        except CheckpointError:
            outcomes["error"] += 1
            assert {FIRST, NEWEST} == set(damaged)
        else:
            assert newest is not None
            path, found = newest
            assert path.name not in damaged
            assert is_as_written(found)
            outcomes["went back" if path.name == FIRST else "newest is sound"] += 1
            if path.name == FIRST:
                assert any(NEWEST in words for words in said)
        try:
            assert is_as_written(load_checkpoint(folder / NEWEST)), number
            assert NEWEST not in damaged
            by_name["as written"] += 1
        except CheckpointError:
            by_name["refused"] += 1
        shutil.rmtree(folder)
    # Kinds 5 and 6 have no sound checkpoint left, kind 8 has both; damage inside a digest of the
    # manifest costs that one.
    assert sum(outcomes.values()) == COPIES
    assert outcomes["error"] == 40
    assert outcomes["went back"] >= 140
    assert by_name["refused"] >= 180


def damage(path: Path, dice: random.Random) -> None:
    data = path.read_bytes()
    changed = data
    while changed == data:
        changed = mutated_bytes(data, dice, head=len(data))
    path.write_bytes(changed)


def test_no_damaged_checkpoint_gives_weights(tmp_path: Path) -> None:
    """As model.weights: a bit in each byte of the seal and of the zip's last record, 60 bits
    elsewhere, the seal cut off.
    """
    store = CheckpointStore(tmp_path / "checkpoints")
    source = nn.Linear(30, 20)
    store.save({"model": source.state_dict(), "optimizer": {}, "sampler": {"epoch": 1}}, 100)
    store.wait()
    path = tmp_path / "checkpoints" / "last.pt"
    data, dice = path.read_bytes(), random.Random(0)
    load_weights(model := nn.Linear(30, 20), str(path))
    assert torch.equal(model.weight, source.weight)

    end = len(data) - SEAL_LENGTH - 22
    damaged = tmp_path / "weights.pt"
    for place in [*range(end, len(data)), *(dice.randrange(end) for _ in range(60))]:
        changed = bytearray(data)
        changed[place] ^= 1 << dice.randrange(8)
        damaged.write_bytes(changed)
        with pytest.raises(CheckpointError):
            load_weights(model, str(damaged))
    for length in range(len(data) - SEAL_LENGTH, len(data), 9):
        damaged.write_bytes(data[:length])
        with pytest.raises(CheckpointError):
            load_weights(model, str(damaged))
