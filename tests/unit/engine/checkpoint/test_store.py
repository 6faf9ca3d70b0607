"""The checkpoint folder: atomic, verified, keeping what it should, wherever it is."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from retina_dist.base import files
from retina_dist.base.errors import CheckpointError, UserError
from retina_dist.base.files import PathOrUrl, names_in, parse_path, write_atomically
from retina_dist.engine.checkpoint import store as checkpoint
from retina_dist.engine.checkpoint.store import (
    CheckpointStore,
    load_checkpoint,
    load_latest,
    sealed,
)
from retina_dist.engine.early_stopping import BestMetric


def content(value: float = 1.0) -> dict:
    return {"model": {"w": torch.full((3,), float(value))}}


def save(store: CheckpointStore, weights: dict, step: int, metric: float | None = None) -> Any:
    store.save(weights, step, metric)
    store.wait()
    return store.folder / f"step_{step:08d}.pt"


def steps_in(folder: PathOrUrl) -> list[str]:
    return [name for name in names_in(folder) if name.startswith("step_")]


def manifest(folder: PathOrUrl) -> list[dict[str, Any]]:
    return json.loads((folder / "manifest.json").read_bytes())


def value_of(path: Any) -> float:
    return load_checkpoint(path)["model"]["w"][0].item()


@pytest.fixture(params=["local", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> PathOrUrl:
    return parse_path(
        tmp_path if request.param == "local" else f"memory://{uuid.uuid4().hex}/checkpoints"
    )


def test_round_trip(folder: PathOrUrl) -> None:
    path = save(CheckpointStore(folder), content(2.0), 5, 0.25)
    names = ["last.pt", "best.pt"]
    assert manifest(folder) == [
        {"file": "step_00000005.pt", "step": 5, "metric": 0.25, "names": names}
    ]
    if isinstance(path, Path):
        assert torch.load(path, weights_only=True)["step"] == 5  # as any torch reads it
    assert load_checkpoint(path)["model"]["w"].tolist() == [2.0] * 3
    newest = load_latest(folder)
    assert newest is not None
    assert newest[0] == path
    assert load_checkpoint(folder / "last.pt")["step"] == 5
    assert load_checkpoint(str(path))["step"] == 5
    assert load_latest(folder / "absent") is None


def test_a_run_folder_means_its_best_checkpoint(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints")
    save(store, content(1.0), 1)
    assert value_of(tmp_path) == 1.0, "the last one where none was validated"
    save(store, content(2.0), 2, 0.5)
    save(store, content(3.0), 3, 0.25)
    assert value_of(tmp_path) == value_of(tmp_path / "checkpoints") == 2.0


def test_keeps_the_last_and_the_best(folder: PathOrUrl) -> None:
    store = CheckpointStore(folder, keep_last=2, save_top_k=1)
    for step, metric in ((1, 0.1), (2, 0.9), (3, 0.2), (4, None), (5, 0.3), (6, float("nan"))):
        store.save(content(step), step, metric)
    store.wait()
    assert steps_in(folder) == ["step_00000002.pt", "step_00000005.pt", "step_00000006.pt"]
    assert value_of(folder / "best.pt") == 2
    assert value_of(folder / "last.pt") == 6
    assert [e["metric"] for e in manifest(folder)] == [0.9, 0.3, None]
    assert ("best.pt" in names_in(folder)) == isinstance(
        folder, Path
    )  # elsewhere it is a name in the manifest


def test_a_folder_that_takes_no_file_is_known_before_the_first_step(
    folder: PathOrUrl, tmp_path: Path
) -> None:
    CheckpointStore(folder / "new").claim()
    assert names_in(folder / "new") == ["manifest.json", "owner.json"]
    assert load_latest(folder / "new") is None
    (tmp_path / "file").touch()
    for refusing in (
        tmp_path / "file",
        tmp_path / "file" / "below",
        tmp_path / ("x" * 300),
        Path("/proc/checkpoints"),
    ):
        with pytest.raises(UserError, match=r"written"):
            CheckpointStore(refusing).claim()
    with pytest.raises(UserError):
        CheckpointStore("s0://nowhere/run").claim()


def test_best_is_never_the_best_of_another_metric(folder: PathOrUrl) -> None:
    save(CheckpointStore(folder, best=BestMetric("coco/AP")), content(1), 1, 0.9)
    store = CheckpointStore(folder, best=BestMetric("val/loss"), resumed_at=1)
    store.claim()
    for step, metric, best in ((2, None, None), (3, 1.5, 3), (4, 1.2, 4), (5, 1.4, 4)):
        save(store, content(step), step, metric)
        if best:
            assert value_of(folder / "best.pt") == best
        else:
            with pytest.raises(CheckpointError, match=r"no checkpoint .*best\.pt"):
                value_of(folder / "best.pt")
    assert steps_in(folder) == ["step_00000004.pt", "step_00000005.pt"]


def test_the_best_value_is_that_of_a_file_in_the_folder(folder: PathOrUrl, said: list[str]) -> None:
    store = CheckpointStore(folder, keep_last=9, best=BestMetric("coco/AP"))
    for step, metric in ((1, 0.5), (2, 0.3)):
        save(store, content(step), step, metric)

    def resumed(where: PathOrUrl, value: float) -> tuple[float | None, int]:
        best = BestMetric("coco/AP")
        best.value, best.evals_since_best = value, 2
        CheckpointStore(where, best=best, resumed_at=2).claim()
        return best.value, best.evals_since_best

    assert resumed(folder, 0.5) == (0.5, 2)
    assert said == []
    assert resumed(folder, 0.7) == (0.5, 0)  # its checkpoint is gone
    assert resumed(folder / "other", 0.5) == (None, 0)
    assert [
        "does not hold the checkpoint with the highest coco/AP so far" in words for words in said
    ] == [True, True]


@pytest.mark.parametrize(
    "damage", [lambda path: path.write_bytes(path.read_bytes()[:-9]), lambda path: path.unlink()]
)
def test_a_run_that_goes_on_replaces_what_is_later_than_its_start(
    folder: PathOrUrl, damage: Any, said: list[str]
) -> None:
    first = CheckpointStore(folder, keep_last=2, save_top_k=1)
    save(first, content(100), 100, 0.5)
    damaged = save(first, content(200), 200, 0.9)
    damage(damaged)
    newest = load_latest(folder)
    assert ["step_00000200.pt" in words for words in said] == [True]
    assert newest is not None
    second = CheckpointStore(folder, keep_last=2, save_top_k=1, resumed_at=newest[1]["step"])
    save(second, content(300), 300, 0.4)  # at another rhythm: nothing is written at 200
    assert steps_in(folder) == ["step_00000100.pt", "step_00000300.pt"]
    assert value_of(folder / "best.pt") == 100
    said.clear()
    assert load_latest(folder)[1]["step"] == 300
    assert said == []


@pytest.mark.parametrize(
    "text",
    [
        None,
        b"{",
        b"null",
        b'[{"file": "../x", "step": 1}]',
        b'[{"file": "step_00000002.pt", "step": 1}]',
        b"\xff",
    ],
)
def test_without_its_manifest_the_files_speak(
    folder: PathOrUrl, text: bytes | None, said: list[str]
) -> None:
    store = CheckpointStore(folder, keep_last=2)
    save(store, content(1), 1, 0.9)
    save(store, content(2), 2, 0.1)
    if text is None:
        (folder / "manifest.json").unlink()
    else:
        (folder / "manifest.json").write_bytes(text)
    assert load_latest(folder)[1]["step"] == 2
    assert ["manifest.json" in words and "themselves" in words for words in said] == [True]
    assert value_of(folder / "step_00000001.pt") == 1
    save(CheckpointStore(folder, keep_last=1, save_top_k=1, resumed_at=2), content(3), 3, 0.2)
    assert steps_in(folder) == ["step_00000001.pt", "step_00000003.pt"]
    assert value_of(folder / "best.pt") == 1  # the metrics were read from the files


@pytest.mark.parametrize("step", [5, 6])
def test_a_crash_between_file_and_manifest_loses_nothing(
    folder: PathOrUrl, step: int, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    """Also where the only checkpoint is written again, as by a run that was stopped before its
    validation.
    """
    save(CheckpointStore(folder), content(1), 5)
    original = checkpoint.write_bytes

    def dies(target: PathOrUrl, data: bytes) -> None:
        if target.name == "manifest.json":
            raise UserError("power cut")
        original(target, data)

    monkeypatch.setattr(checkpoint, "write_bytes", dies)
    with pytest.raises(CheckpointError, match="power cut"):
        save(CheckpointStore(folder, resumed_at=5), content(step), step, 0.5)
    newest = load_latest(folder)[1]
    assert newest["step"] == 5  # what the manifest does not know yet does not count
    assert newest["model"]["w"][0] == (5 if step == 5 else 1)
    assert value_of(folder / "step_00000005.pt") == newest["model"]["w"][0]
    assert said == []
    monkeypatch.undo()
    save(CheckpointStore(folder, resumed_at=5, keep_last=3), content(7), 7)
    assert steps_in(folder) == ["step_00000005.pt", "step_00000007.pt"]
    assert value_of(folder / "step_00000005.pt") == newest["model"]["w"][0]
    with (
        contextlib.nullcontext() if step == 5 else pytest.raises(CheckpointError)
    ):  # the metric is that of the file
        assert load_checkpoint(folder / "best.pt")["step"] == 5


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(CheckpointStore(tmp_path), content(1), 1)
    before = path.read_bytes()

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(UserError, match=r"No space left.* make room in .*"):
        write_atomically(path, lambda temporary: temporary.write_bytes(b"half"))
    assert path.read_bytes() == before
    assert not list(tmp_path.glob("*.tmp*"))


def test_file_and_folder_are_flushed_before_anything_older_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, replace, unlink = os.fsync, os.replace, Path.unlink

    def named(path: object) -> str:
        return Path(os.fspath(path)).name.split(".tmp")[0]  # type: ignore[arg-type]

    store = CheckpointStore(tmp_path / "made" / "checkpoints", keep_last=1)
    save(store, content(1), 1)
    monkeypatch.setattr(
        os,
        "fsync",
        lambda fd: (done.append(f"sync {named(os.readlink(f'/proc/self/fd/{fd}'))}"), fsync(fd)),
    )
    monkeypatch.setattr(
        os, "replace", lambda a, b: (done.append(f"name {named(b)}"), replace(a, b))
    )

    def removed(path: Path, missing_ok: bool = False) -> None:
        unlink(path, missing_ok)
        if ".tmp" not in path.name:
            done.append(f"remove {path.name}")

    monkeypatch.setattr(Path, "unlink", removed)
    save(store, content(2), 2)
    for file in ("step_00000002.pt", "manifest.json"):
        begin = done.index(f"sync {file}")
        assert done[begin : begin + 3] == [f"sync {file}", f"name {file}", "sync checkpoints"]
    assert done.index("name step_00000002.pt") < done.index("name manifest.json")
    assert done[-1] == "remove step_00000001.pt"


def test_what_a_killed_process_left_half_written_goes(tmp_path: Path) -> None:
    for name in ("step_00000009.pt.tmp77", "owner.json.tmp77"):
        tmp_path.joinpath(name).write_bytes(b"half")
    tmp_path.joinpath("notes.tmp77").write_bytes(b"the user's")
    save(CheckpointStore(tmp_path), content(), 1)
    assert [name for name in names_in(tmp_path) if "tmp" in name] == ["notes.tmp77"]


# off the training thread


def test_training_goes_on_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, threads = threading.Event(), set[str]()

    def waiting(content: dict[str, Any]) -> bytes:
        threads.add(threading.current_thread().name)
        assert opened.wait(20)
        return sealed(content)

    monkeypatch.setattr(checkpoint, "sealed", waiting)
    model = nn.BatchNorm1d(3)
    shared, state = model.state_dict(), {"list": [torch.ones(2)], "tuple": (1, [2])}
    store = CheckpointStore(tmp_path)
    path = tmp_path / "step_00000001.pt"
    store.save({"model": shared, "random": state}, 1)
    with torch.no_grad():
        model.weight.fill_(9.0)
        state["list"][0].fill_(9.0)
    state["tuple"][1].append(3)
    assert not path.exists()
    opened.set()
    store.wait()
    found = load_checkpoint(path)
    assert found["model"]["weight"].tolist() == [1.0] * 3
    assert found["random"]["list"][0].tolist() == [1.0, 1.0]
    assert found["random"]["tuple"] == (1, [2])
    assert (
        found["model"]._metadata == shared._metadata
    )  # versions, by which load_state_dict knows old layouts
    assert threading.current_thread().name not in threads


# what is read


class Hostile:
    def __reduce__(self) -> tuple:
        return os.system, ("touch executed",)


def test_a_hostile_pickle_is_refused_and_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"format": 1, "bad": Hostile()}, "hostile.pt")
    Path("plain.pt").write_bytes(pickle.dumps(Hostile()))
    Path("sealed").mkdir()
    Path("sealed/step_00000001.pt").write_bytes(sealed({"step": 1, "bad": Hostile()}))
    for name in ("hostile.pt", "plain.pt", "sealed/step_00000001.pt"):
        with pytest.raises(CheckpointError, match="cannot be read"):
            load_checkpoint(Path(name))
    with pytest.raises(CheckpointError, match="every checkpoint .*; copy them again, or"):
        load_latest("sealed")
    assert not Path("executed").exists()


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (None, "there is no checkpoint"),
        (b"text", "cannot be read"),
        (
            {"w": torch.zeros(1)},
            "not a checkpoint of retina_dist; give a run folder or its .pt file",
        ),
        ({"format": 1}, "its step is None"),
        ({"format": 1, "step": 5}, "does not end with its SHA-256"),
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


def test_a_checkpoint_of_a_later_version_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(CheckpointStore(tmp_path, keep_last=2), content(1), 1)
    with monkeypatch.context() as later:
        later.setattr(checkpoint, "FORMAT", 2)
        save(CheckpointStore(tmp_path, keep_last=2), content(2), 2)
    with pytest.raises(CheckpointError, match="format 2, newer than 1; upgrade"):
        load_latest(tmp_path)


def test_a_place_that_cannot_be_reached_is_not_taken_for_damage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or a run would go back by a checkpoint whenever the network is slow."""
    from fsspec.implementations.memory import MemoryFileSystem

    folder = parse_path(f"memory://{uuid.uuid4().hex}")
    store = CheckpointStore(folder, keep_last=2)
    for step in (1, 2):
        save(store, content(step), step)
    original = MemoryFileSystem.cat_file

    def slow(self: Any, path: str, *arguments: Any, **named: Any) -> bytes:
        if path.endswith("2.pt"):
            raise TimeoutError("no answer in 60 s")
        return original(self, path, *arguments, **named)

    monkeypatch.setattr(MemoryFileSystem, "cat_file", slow)
    monkeypatch.setattr("retina_dist.base.files.WAITS", ())
    with pytest.raises(
        UserError, match=r"step_00000002\.pt could not be read \(TimeoutError: no answer"
    ):
        load_latest(folder)
