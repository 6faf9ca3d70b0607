"""Two processes never write to one run folder, and one that is gone keeps nobody out."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from retina_dist.config.compose import load_config
from retina_dist.detection.settings import DetectionData, DetectionRunConfig
from retina_dist.engine import folder_lock
from retina_dist.engine.checkpoint_store import CheckpointStore, load_latest
from retina_dist.engine.folder_lock import LOCK, FolderLocks, Holder
from retina_dist.engine.settings import TrainerConfig
from retina_dist.errors import CheckpointError, ConfigError
from retina_dist.files import Place, names_in, place
from retina_dist.run.folder import make_next_folder, open_run

FORK = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def _quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(folder_lock, "HEARTBEAT_S", 0.02)
    monkeypatch.setattr(folder_lock, "EXPIRY_S", 0.3)
    monkeypatch.setattr(folder_lock, "SETTLE_S", 0.05)


@pytest.fixture(params=["local", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return place(tmp_path / "run" if request.param == "local" else f"memory://{uuid.uuid4().hex}/run")


@pytest.fixture
def locks() -> Iterator[FolderLocks]:
    with FolderLocks() as made:
        yield made


def write(folder: Place, holder: Holder) -> None:
    if isinstance(folder, Path):
        folder.mkdir(parents=True, exist_ok=True)
    (folder / LOCK).write_bytes(holder.encoded())


def on_another_host() -> Holder:
    return replace(Holder.this_process(), host="node17", boot_id="another", pid=4711)


def ended(*arguments: Any, target: Callable[..., None], number: int | None = None) -> int:
    """The id of a process that has run `target` and ended, by the signal `number` if one is given."""
    process = FORK.Process(target=target, args=arguments)
    process.start()
    if number is not None:
        wait_for(Path(arguments[0]))
        os.kill(process.pid, number)  # type: ignore[arg-type]
    process.join(20)
    assert process.pid
    return process.pid


def wait_for(path: Path) -> None:
    until = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < until
        time.sleep(0.01)


def settings(checkpoint_dir: str | None = None, **named: str) -> DetectionRunConfig:
    """Without Hydra, which takes longer than all the rest."""
    return DetectionRunConfig(
        data=DetectionData(name="shapes"), trainer=TrainerConfig(checkpoint_dir=checkpoint_dir), **named
    )  # type: ignore[arg-type]


# what two processes do


def _starts(number: int, barrier: Any, answers: Any, config: DetectionRunConfig) -> None:
    barrier.wait(20)
    with FolderLocks() as locks:
        try:
            answers.put((number, str(open_run(config, locks).folder)))
        except ConfigError as error:
            answers.put((number, str(error)))
        barrier.wait(20)


@pytest.mark.parametrize(
    ("config", "folders"),
    [
        (settings(), ["runs/shapes", "runs/shapes-2"]),
        (settings(output_dir="mine"), ["mine", "output_dir=mine is in use by process"]),
        (settings(output_dir="mine", resume="auto"), ["mine", "output_dir=mine is in use by process"]),
    ],
    ids=["numbered", "named", "auto"],
)
def test_two_processes_started_together(config: DetectionRunConfig, folders: list[str]) -> None:
    barrier, answers = FORK.Barrier(2), FORK.Queue()
    processes = [FORK.Process(target=_starts, args=(i, barrier, answers, config)) for i in range(2)]
    for process in processes:
        process.start()
    found = sorted(text for _, text in (answers.get(timeout=20) for _ in processes))
    for process in processes:
        process.join(20)
    assert found[0] == folders[0]
    assert found[1].startswith(folders[1])


def test_numbered_folders_are_made_once() -> None:
    Path("runs").mkdir()
    Path("runs/shapes").touch()  # a file is no run, and in the way
    assert [make_next_folder("shapes") for _ in range(3)] == [Path(f"runs/shapes-{n}") for n in (2, 3, 4)]


def test_a_run_without_a_checkpoint_yet_is_not_joined(locks: FolderLocks) -> None:
    run = open_run(settings(output_dir="mine"), locks)
    assert names_in(run.folder / "checkpoints") == [LOCK]
    for config in (
        settings(output_dir="mine"),
        settings(output_dir="mine", resume="auto"),
        settings("mine/checkpoints"),
        settings("mine/checkpoints", resume="auto"),
    ):
        with FolderLocks() as other, pytest.raises(ConfigError, match=f"is in use by process {os.getpid()} on "):
            open_run(config, other)
    locks.close()
    assert not Path("mine").exists()  # nothing was written, so nothing stays
    with FolderLocks() as other:
        open_run(settings(output_dir="mine"), other)


# whose process is gone


def _holds(folder: str, stays: bool) -> None:
    locks = FolderLocks()
    locks.acquire(Path(folder).parent, "output_dir")
    time.sleep(60 if stays else 0)
    os._exit(0)


@pytest.mark.parametrize("number", [signal.SIGKILL, None], ids=["killed", "without a goodbye"])
def test_a_lock_of_an_ended_process_is_taken_over_at_once(tmp_path: Path, number: int | None, said: list[str]) -> None:
    pid = ended(tmp_path / LOCK, number is not None, target=_holds, number=number)
    with FolderLocks() as locks:
        locks.acquire(tmp_path, "output_dir")
        assert len(said) == 1
        assert f"was in use by process {pid} on " in said[0]
        assert json.loads((tmp_path / LOCK).read_bytes())["pid"] == os.getpid()
    assert names_in(tmp_path) == []


def test_another_process_with_the_same_number_is_not_the_holder(folder: Place, locks: FolderLocks) -> None:
    write(folder, replace(Holder.this_process(), process_start="1"))
    locks.acquire(folder, "output_dir")


def test_a_zombie_is_gone(locks: FolderLocks, tmp_path: Path) -> None:
    process = FORK.Process(target=_holds, args=(str(tmp_path / LOCK), False))
    process.start()
    wait_for(tmp_path / LOCK)
    assert process.pid
    until = time.monotonic() + 20
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < until
        time.sleep(0.01)
    locks.acquire(tmp_path, "output_dir")
    process.join(20)


# on another machine


def test_a_silent_holder_elsewhere_is_taken_over(folder: Place, said: list[str]) -> None:
    write(folder, on_another_host())
    with FolderLocks() as locks:
        locks.acquire(folder, "output_dir")
        assert "in use by process 4711 on node17" in said[0]
        assert "waiting up to 0.3 s" in said[0]
        assert "gone; this run takes over" in said[1]
        locks.check()


def test_a_living_holder_elsewhere_is_not(folder: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_lock, "EXPIRY_S", 60)
    with FolderLocks() as theirs, FolderLocks() as ours:
        theirs.acquire(folder, "output_dir")
        monkeypatch.setattr(Holder, "is_gone", lambda holder: None)  # as this machine knows of another
        with pytest.raises(
            ConfigError, match=rf"in use by process .* last sign of life 0 s ago.*delete {folder / LOCK}"
        ):
            ours.acquire(folder, "output_dir")
        theirs.check()


def test_clocks_are_not_compared(folder: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_lock, "EXPIRY_S", 60)
    hour = 3600
    with FolderLocks() as theirs, FolderLocks() as ours:
        theirs.acquire(folder, "output_dir")
        now = time.time
        monkeypatch.setattr(Holder, "is_gone", lambda holder: None)
        monkeypatch.setattr(folder_lock.time, "time", lambda: now() - hour)
        with pytest.raises(ConfigError, match="in use"):
            ours.acquire(folder, "output_dir")


def test_a_holder_that_releases_meanwhile(folder: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, on_another_host())
    monkeypatch.setattr(folder_lock.logger, "warning", lambda text: (folder / LOCK).unlink())
    with FolderLocks() as locks:
        locks.acquire(folder, "output_dir")
        locks.check()


@pytest.mark.parametrize("data", [b"", b"{}", b"null", b"\xff", b'{"pid": 1}', b"[" * 5000])
def test_a_lock_that_cannot_be_read_expires(tmp_path: Path, data: bytes, locks: FolderLocks) -> None:
    (tmp_path / LOCK).write_bytes(data)
    locks.acquire(tmp_path, "output_dir")
    locks.check()


def test_a_driver_that_knows_no_exclusive_creation(monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    original = MemoryFileSystem.pipe_file
    monkeypatch.setattr(MemoryFileSystem, "pipe_file", lambda self, path, value, **ignored: original(self, path, value))
    folder = place(f"memory://{uuid.uuid4().hex}")
    with FolderLocks() as theirs, FolderLocks() as ours:
        theirs.acquire(folder, "trainer.checkpoint_dir")
        with pytest.raises(ConfigError, match="in use"):
            ours.acquire(folder, "trainer.checkpoint_dir")


def test_another_process_of_the_job_takes_over_at_once(folder: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_lock, "EXPIRY_S", 60)
    with FolderLocks() as former, FolderLocks() as now:
        former.acquire(folder, "output_dir")
        now.acquire(folder, "output_dir", former.owners)
        now.check()
        now.acquire(folder, "output_dir")  # a second attempt of the same process
        with pytest.raises(CheckpointError, match="was taken over by process"):
            former.check()


# a process that comes back


def test_one_that_lost_its_lock_writes_and_removes_nothing(folder: Place) -> None:
    with FolderLocks() as former, FolderLocks() as now:
        former.acquire(folder, "output_dir")
        store = CheckpointStore(folder, keep_last=1, check=former.check)
        store.save({"w": torch.ones(1)}, 1)
        store.wait()
        now.acquire(folder, "output_dir", former.owners)
        store.save({"w": torch.ones(1)}, 2)
        with pytest.raises(CheckpointError, match="step 2 was not saved: .* was taken over by process"):
            store.wait()
        found = load_latest(folder)
        assert found is not None
        assert found[1]["step"] == 1
    assert LOCK not in names_in(folder)


def test_one_that_lost_its_lock_does_not_release_that_of_the_other(folder: Place) -> None:
    with FolderLocks() as now:
        with FolderLocks() as former:
            former.acquire(folder, "output_dir")
            now.acquire(folder, "output_dir", former.owners)
        now.check()


def test_one_that_was_silent_takes_back_no_folder_that_another_has_left(
    folder: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one took it over, finished, and released it while this process was suspended."""
    monkeypatch.setattr(folder_lock, "HEARTBEAT_S", 60)
    with FolderLocks() as former:
        former.acquire(folder, "output_dir")
        with FolderLocks() as now:
            now.acquire(folder, "output_dir", former.owners)
        time.sleep(0.4)
        with pytest.raises(CheckpointError, match="was taken over by another process"):
            former.check()
        assert LOCK not in names_in(folder)


def test_a_deleted_lock_comes_back(folder: Place) -> None:
    with FolderLocks() as locks:
        locks.acquire(folder, "output_dir")
        (folder / LOCK).unlink()
        locks.check()
        assert LOCK in names_in(folder)


def test_signs_of_life(folder: Place) -> None:
    with FolderLocks() as locks:
        locks.acquire(folder, "output_dir")
        before = (folder / LOCK).read_bytes()
        until = time.monotonic() + 20
        while (folder / LOCK).read_bytes() == before:
            assert time.monotonic() < until
            time.sleep(0.01)


# in a training


def test_a_training_holds_its_folder_and_releases_it(tmp_path: Path) -> None:
    """Also when it fails."""
    from retina_dist.engine.trainer import Trainer
    from retina_dist.run.assemble import train

    small = ("data.shapes.num_train=4", "data.shapes.num_val=2", "data.shapes.image_size=64", "data.batch_size=2")
    size = ("data.min_sizes=[64]", "data.max_size=64", "data.num_workers=0", "data.root=shapes", "logging=quiet")
    config = load_config("train", ["trainer=debug", "output_dir=mine", *small, *size])
    seen: list[list[str]] = []

    class Stops(Exception):
        pass

    def fit(self: Any) -> dict[str, float]:
        seen.append([name for name in (*names_in(Path("mine")), *names_in(Path("mine/checkpoints"))) if name == LOCK])
        raise Stops

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Trainer, "fit", fit)
        with pytest.raises(Stops):
            train(config)
    assert seen == [[LOCK, LOCK]]
    assert not list(tmp_path.rglob(LOCK))
    assert asdict(config)["output_dir"] == "mine"
