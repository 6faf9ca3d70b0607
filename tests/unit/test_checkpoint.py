"""The checkpoint folder: atomic, verified, keeping what it should."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest
import torch

from retina_dist import files
from retina_dist.engine.checkpoint import CheckpointStore, latest, load_checkpoint
from retina_dist.errors import CheckpointError, UserError
from retina_dist.files import write_atomically


def content(value: float = 1.0) -> dict:
    return {"model": {"w": torch.full((3,), value)}, "step": 1}


def steps_in(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.glob("step_*.pt"))


def test_round_trip(tmp_path: Path) -> None:
    path = CheckpointStore(tmp_path).save(content(2.0), step=5)
    assert load_checkpoint(path)["model"]["w"].tolist() == [2.0] * 3
    assert latest(tmp_path) == path
    assert load_checkpoint(tmp_path / "last.pt")["step"] == 1


def test_keeps_the_last_and_the_best(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=2, keep_top=1)
    for step, metric in ((1, 0.1), (2, 0.9), (3, 0.2), (4, None), (5, 0.3)):
        store.save(content(step), step, metric)
    assert steps_in(tmp_path) == ["step_00000002.pt", "step_00000004.pt", "step_00000005.pt"]
    assert load_checkpoint(tmp_path / "best.pt")["model"]["w"][0] == 2
    assert load_checkpoint(tmp_path / "last.pt")["model"]["w"][0] == 5


def test_lower_can_be_better_and_the_first_of_equals_stays_best(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, mode="min")
    for step, metric in ((1, 0.5), (2, 0.2), (3, 0.2), (4, 0.4)):
        store.save(content(step), step, metric)
    assert load_checkpoint(tmp_path / "best.pt")["model"]["w"][0] == 2


def test_going_back_replaces_the_later_steps(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=5)
    for step in (1, 2, 3):
        store.save(content(step), step)
    store.save(content(20), 2)
    assert steps_in(tmp_path) == ["step_00000001.pt", "step_00000002.pt"]
    assert load_checkpoint(latest(tmp_path))["model"]["w"][0] == 20


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "remove"])
def test_a_damaged_newest_is_reported_and_the_one_before_is_used(tmp_path: Path, damage: str) -> None:
    store = CheckpointStore(tmp_path, keep_last=2)
    first, second = store.save(content(1), 1), store.save(content(2), 2)
    data = bytearray(second.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 1
        second.write_bytes(data)
    elif damage == "remove":
        second.unlink()
    else:
        second.write_bytes(data[: len(data) // 2] if damage == "truncate" else b"")
    said: list[str] = []
    assert latest(tmp_path, said.append) == first
    assert len(said) == 1
    assert second.name in said[0]
    if damage != "remove":
        with pytest.raises(CheckpointError, match="damaged"):
            load_checkpoint(second)


def test_all_damaged_is_an_error(tmp_path: Path) -> None:
    path = CheckpointStore(tmp_path).save(content(), 1)
    path.write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="every checkpoint"):
        latest(tmp_path)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = CheckpointStore(tmp_path).save(content(1), 1)
    before = path.read_bytes()

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(UserError, match="No space left"):
        write_atomically(path, lambda temporary: temporary.write_bytes(b"half"))
    assert path.read_bytes() == before
    assert not list(tmp_path.glob("*.tmp*"))


class Hostile:
    def __reduce__(self) -> tuple:
        return os.system, ("touch executed",)


def test_a_hostile_pickle_is_refused_and_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"format": 1, "bad": Hostile()}, "hostile.pt")
    Path("plain.pt").write_bytes(pickle.dumps(Hostile()))
    for name in ("hostile.pt", "plain.pt"):
        with pytest.raises(CheckpointError, match="cannot be read"):
            load_checkpoint(Path(name))
    assert not Path("executed").exists()


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (None, "there is no checkpoint"),
        (b"text", "cannot be read"),
        ({"w": torch.zeros(1)}, "not a checkpoint of retina_dist"),
        ({"format": 99}, "newer"),
    ],
)
def test_wrong_files_are_named(tmp_path: Path, made: object, message: str) -> None:
    path = tmp_path / "some.pt"
    if isinstance(made, bytes):
        path.write_bytes(made)
    elif made is not None:
        torch.save(made, path)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(path)


def test_the_manifest_names_step_metric_and_digest(tmp_path: Path) -> None:
    CheckpointStore(tmp_path).save(content(), 7, 0.25)
    (entry,) = json.loads((tmp_path / "manifest.json").read_text())
    assert (entry["step"], entry["metric"], entry["file"]) == (7, 0.25, "step_00000007.pt")
    assert len(entry["sha256"]) == 64
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(CheckpointError, match="manifest"):
        latest(tmp_path)
