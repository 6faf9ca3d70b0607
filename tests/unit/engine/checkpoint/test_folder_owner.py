"""Two processes never write to one run folder, and one that is gone keeps nobody out."""

from __future__ import annotations

import multiprocessing
import os
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from retina_dist.base.errors import CheckpointError, ConfigError, UserError
from retina_dist.base.files import PathOrUrl, names_in, parse_path
from retina_dist.detection.settings import DetectionData, DetectionRunConfig
from retina_dist.engine.checkpoint import store
from retina_dist.engine.checkpoint.folder_owner import LOCK, Owner
from retina_dist.engine.checkpoint.store import (
    CheckpointStore,
    load_checkpoint,
    load_latest,
    read_manifest,
)
from retina_dist.engine.plan import TrainerConfig
from retina_dist.run.resume import RunOpener, open_run
from retina_dist.strategies.single_device import SingleDeviceStrategy
from tests.commands import wait_for
from tests.unit.engine.checkpoint.test_store import save

FORK = multiprocessing.get_context("fork")
WEIGHTS = {"w": torch.ones(1)}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def other_process(function: Callable[[], Any]) -> Any:
    """What the function returns in another process, or the text of its ConfigError."""
    answers = FORK.SimpleQueue()

    def run() -> None:
        try:
            answers.put(function())
        except ConfigError as error:
            answers.put(str(error))

    process = FORK.Process(target=run)
    process.start()
    answer = answers.get()
    process.join(20)
    return answer


def settings(checkpoint_dir: str | None = None, **named: str) -> DetectionRunConfig:
    """Without Hydra, which takes longer than all the rest."""
    return DetectionRunConfig(
        data=DetectionData(name="shapes"),
        trainer=TrainerConfig(checkpoint_dir=checkpoint_dir),
        **named,
    )  # type: ignore[arg-type]


# what two processes do


def _starts(number: int, barrier: Any, answers: Any, config: DetectionRunConfig) -> None:
    barrier.wait(20)
    with Owner() as owner:
        try:
            answers.put((number, str(open_run(config, owner).folder)))
        except ConfigError as error:
            answers.put((number, str(error)))
        barrier.wait(20)


@pytest.mark.parametrize(
    ("config", "folders"),
    [
        (settings(), ["runs/shapes", "runs/shapes-2"]),
        (settings(output_dir="mine"), ["mine", "output_dir=mine is in use by "]),
        (settings(output_dir="mine", resume="auto"), ["mine", "output_dir=mine is in use by "]),
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


def test_a_run_without_a_checkpoint_yet_is_not_joined() -> None:
    with Owner() as owner:
        run = open_run(settings(output_dir="mine"), owner)
        assert names_in(run.folder / "checkpoints") == [LOCK]
        for config in (
            settings(output_dir="mine"),
            settings(output_dir="mine", resume="auto"),
            settings("mine/checkpoints"),
            settings("mine/checkpoints", resume="auto"),
        ):
            answer = other_process(lambda config=config: open_run(config, Owner()))
            assert (
                f"is in use by process {os.getpid()} on {owner.name['host']} since {owner.name['since']}; wait"
                in answer
            )
    assert not Path("mine").exists()  # nothing was written, so nothing stays
    with Owner() as owner:
        open_run(settings(output_dir="mine"), owner)


def holding(folder: str) -> Any:
    def hold() -> None:
        Owner().lock(Path(folder), "output_dir")
        time.sleep(60)

    process = FORK.Process(target=hold)
    process.start()
    wait_for(lambda: Path(folder, LOCK).exists() and Path(folder, LOCK).stat().st_size > 0)
    return process


def test_the_lock_of_a_killed_process_is_free_at_once() -> None:
    process = holding("run")
    assert "is in use by process" in other_process(lambda: Owner().lock(Path("run"), "output_dir"))
    process.kill()
    process.join(20)
    with Owner() as owner:
        owner.lock(Path("run"), "output_dir")
        assert f'"pid": {os.getpid()}' in Path("run", LOCK).read_text()
    assert names_in(Path("run")) == []


def test_a_data_worker_that_outlives_its_run_holds_nothing() -> None:
    """Children that were forked inherit the file, but not the lock."""

    process = os.fork()
    if not process:
        Owner().lock(Path("run"), "output_dir")
        if not os.fork():
            time.sleep(3)
        os._exit(0)
    os.waitpid(process, 0)
    with Owner() as owner:
        owner.lock(Path("run"), "output_dir")


def test_a_restart_is_not_refused_by_its_own_job() -> None:
    """The process that was rank 0 before still holds the lock."""
    process = holding("mine")
    opener = RunOpener()
    opener.folder = Path("mine")
    run = opener.open(settings(output_dir="mine"), SingleDeviceStrategy("cpu"), frozenset())
    assert (run.folder, run.resume_step) == (Path("mine"), None)
    process.kill()
    process.join(20)


@pytest.mark.parametrize("claims", [True, False], ids=["claimed", "not claimed yet"])
def test_a_restart_before_the_first_save_resumes_from_the_checkpoint_that_was_named(
    claims: bool,
) -> None:
    config = settings(output_dir="mine", resume="mine/checkpoints/step_00000001.pt")
    before = CheckpointStore("mine/checkpoints", keep_last=3)
    for step in (1, 2, 3):
        before.save({"config": asdict(config)}, step)
    before.wait()
    with RunOpener() as opener:
        for _ in range(2):
            run = opener.open(config, SingleDeviceStrategy("cpu"), frozenset())
            assert run.resume_step == 1
            if claims:
                store = CheckpointStore("mine/checkpoints", resumed_at=1, owner=run.owner)
                store.claim()


@pytest.mark.parametrize("committed", [None, {"step": 3}], ids=["from a file", "from memory"])
def test_a_restart_does_not_take_the_folder_from_a_run_that_claimed_it_meanwhile(
    committed: dict[str, Any] | None,
) -> None:
    place = parse_path("memory://restarted/run")
    alone = SingleDeviceStrategy("cpu")
    config = settings(str(place))
    store_of(place).claim()  # of an earlier run
    with RunOpener() as opener:
        run = opener.open(config, alone, frozenset())
        CheckpointStore(place, owner=run.owner).claim()
        alone.committed = committed
        opener.open(config, alone, frozenset())
        store_of(place).claim()
        with pytest.raises(UserError, match=r"was taken over by process \d+ on \S+ since"):
            opener.open(config, alone, frozenset())


# the owner of the checkpoints


@pytest.fixture(params=["local", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> PathOrUrl:
    return parse_path(
        tmp_path / "run" if request.param == "local" else f"memory://{uuid.uuid4().hex}/run"
    )


def store_of(folder: PathOrUrl, step: int | None = None) -> CheckpointStore:
    return CheckpointStore(folder, keep_last=1, resumed_at=step, owner=Owner().name)


def test_one_that_lost_the_folder_writes_and_removes_nothing(folder: PathOrUrl) -> None:
    former = store_of(folder)
    former.claim()
    save(former, WEIGHTS, 1)
    now = store_of(folder, 1)
    now.claim()
    before = names_in(folder)
    with pytest.raises(
        CheckpointError,
        match=r"step 2 was not saved: .* was taken over by process \d+ on \S+ since",
    ):
        save(former, WEIGHTS, 2)
    assert names_in(folder) == before
    save(now, WEIGHTS, 3)
    assert [e.step for e in read_manifest(folder)] == [3]
    with pytest.raises(CheckpointError, match="taken over"):
        save(former, WEIGHTS, 4)
    newest = load_latest(folder)
    assert newest is not None
    assert newest[1]["step"] == 3


def test_one_that_was_suspended_while_it_wrote_removes_nothing_of_the_new_owner(
    folder: PathOrUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wakes up after its last look at the owner, and writes its manifest over the new one."""
    former, now = store_of(folder), store_of(folder, 1)
    former.claim()
    save(former, WEIGHTS, 1)
    original = store.write_bytes

    def suspended(target: PathOrUrl, data: bytes) -> None:
        if target.name == "manifest.json":
            monkeypatch.undo()
            now.claim()
            save(now, WEIGHTS, 3)
        original(target, data)

    monkeypatch.setattr(store, "write_bytes", suspended)
    with pytest.raises(CheckpointError, match="step 2 was not saved"):
        save(former, WEIGHTS, 2)
    assert "step_00000003.pt" in names_in(folder)
    if isinstance(folder, Path):
        assert load_checkpoint(folder / "last.pt")["step"] == 3
    save(now, WEIGHTS, 4)
    assert [e.step for e in read_manifest(folder)] == [4]
