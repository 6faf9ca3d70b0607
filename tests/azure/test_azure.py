"""Data sets, shards and checkpoints in Blob storage, over a real HTTP server, by adlfs."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from retina_dist.config.compose import load_config
from retina_dist.data.samplers import BatchSpec
from retina_dist.detection.batch import Batch
from retina_dist.detection.data.dataset import CocoDataModule, DetectionDataset
from retina_dist.detection.data.shapes import make_shapes
from retina_dist.detection.data.transforms import EvalTransform
from retina_dist.detection.settings import DetectionData
from retina_dist.detection.splits import read_split
from retina_dist.detection.write_shards import write_shards
from retina_dist.engine.checkpoint.store import CheckpointStore, load_checkpoint, load_latest
from retina_dist.errors import CheckpointError, ImageError
from retina_dist.files import Url, names_in
from retina_dist.strategies.start_processes import command, environment, why_missing
from tests.azure.conftest import Storage
from tests.chaos import alive, equal, rank_processes, steps_done
from tests.unit.detection.test_module import same_steps

ROOT = Path(__file__).resolve().parents[2]
END_S = 240


@pytest.fixture(scope="session")
def coco(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos in COCO's layout where they are at hand, drawn ones elsewhere."""
    try:
        return request.getfixturevalue("real_data") / "coco-mini"
    except pytest.skip.Exception:
        folder = tmp_path_factory.mktemp("drawn") / "shapes"
        make_shapes(folder, num_train=128, num_val=50, image_size=320)
        return folder


@pytest.fixture(scope="session")
def shards(coco: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards") / "coco"
    write(coco, folder)
    return folder


@pytest.fixture(scope="session")
def uploaded(storage: Storage, shards: Path) -> str:
    """The shards in storage: CONTAINER/coco."""
    place = f"{storage.container()}/coco"
    for name, content in tree(shards).items():
        (Url(f"az://{place}") / name).write_bytes(content)
    return place


def write(source: Path | str, output: Path | str) -> dict[str, int]:
    arguments = ["data=coco", f"data.root={source}", f"output={output}", "shard_mb=1"]
    return write_shards(load_config("shards", arguments))


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def steps(root: Path | str, count: int, *, form: str = "coco", **settings: object) -> list[list[Batch]]:
    train = read_split(DetectionData(name="x", format=form, root=str(root)), "train")
    chosen = {"batch_size": 8, "min_sizes": [64], "max_size": 96, "photometric": 0.5, "num_workers": 0, **settings}
    data = DetectionData(name="x", **chosen)  # type: ignore[arg-type]
    return list(CocoDataModule(data, train=train, val=None).train_steps(0, count))


def test_shards_written_to_storage_are_those_uploaded(storage: Storage, coco: Path, shards: Path) -> None:
    container = storage.container()
    written = write(coco, f"az://{container}/direct")
    there = Url(f"az://{container}/direct")
    assert {name: (there / name).read_bytes() for name in there.all_files()} == tree(shards)
    assert write(coco, there.text) == {"train": 0, "val": 0}
    (there / "train-00001.tar").write_bytes(b"torn")
    assert sum(written.values()) > 2
    assert write(coco, there.text) == {"train": 1, "val": 0}
    assert (there / "train-00001.tar").read_bytes() == (shards / "train-00001.tar").read_bytes()


def test_an_epoch_from_storage_is_that_of_the_folder(coco: Path, uploaded: str) -> None:
    assert same_steps(steps(f"az://{uploaded}", 17, form="shards", num_workers=2), steps(coco, 17))


def test_a_shard_cut_short_in_storage_is_named(storage: Storage, shards: Path) -> None:
    there = Url(f"az://{storage.container()}/coco")
    for name, content in tree(shards).items():
        (there / name).write_bytes(content)
    whole = (shards / "train-00000.tar").read_bytes()
    train = read_split(DetectionData(name="x", format="shards", root=there.text), "train")
    assert train is not None
    dataset = DetectionDataset(train, EvalTransform(max_size=96))
    last = max(i for i, record in enumerate(train.records) if record.path.file == "train-00000.tar")  # type: ignore[union-attr]
    (there / "train-00000.tar").write_bytes(whole[: train.records[last].path.offset + 10])  # type: ignore[union-attr]
    with pytest.raises(ImageError, match=r"train-00000\.tar \(member .*damaged: only 10 bytes are there"):
        dataset[BatchSpec(0, (0, last), canvas=(96, 96), min_size=64)]
    (there / "train-00000.tar").write_bytes(whole[:512])  # the whole image is beyond the end
    with pytest.raises(ImageError, match=r"damaged: only 0 bytes are there"):
        dataset[BatchSpec(0, (last,), canvas=(96, 96), min_size=64)]


# a run


JOB = (
    "model=retinanet_tiny",
    "data.min_sizes=[48]",
    "data.max_size=64",
    "data.num_buckets=1",
    "data.batch_size=2",
    "data.photometric=0.5",
    "trainer.max_duration=12steps",
    "trainer.validate_every=1000steps",
    "trainer.checkpoint_every=4steps",
    "optimizer=sgd",
    "optimizer.lr=0.005",
    "trainer.log_every=1",
    "trainer.num_threads=1",
    "schedule.warmup=2steps",
    "logging=quiet",
    "logging.per_rank_logs=true",
    "strategy.timeout_s=60",
)


def start(line: list[str], folder: Path) -> subprocess.Popen[bytes]:
    env = {**environment(1), "PYTHONPATH": str(ROOT)}
    with (folder / "log.txt").open("a") as log:
        return subprocess.Popen(line, cwd=folder, env=env, stdout=log, stderr=log, start_new_session=True)


def end(job: subprocess.Popen[bytes], run: Path) -> None:
    for process in [*rank_processes(run), job.pid]:
        if alive(process):
            os.kill(process, signal.SIGKILL)
    job.wait()


def wait_for(condition: Callable[[], bool], job: subprocess.Popen[bytes], folder: Path) -> None:
    until = time.monotonic() + END_S
    while not condition():
        assert time.monotonic() < until, (folder / "log.txt").read_text()
        assert job.poll() is None, (folder / "log.txt").read_text()
        time.sleep(0.05)


@pytest.mark.long
def test_a_killed_training_from_storage_to_storage_ends_as_the_undisturbed_one(
    storage: Storage, coco: Path, uploaded: str, tmp_path: Path
) -> None:
    """Shards and checkpoints on az://, two ranks of Horovod with two data workers each, all killed in the middle; the other run
    reads images from the folder, in the main process, and keeps its checkpoints beside itself.
    """
    launcher = "horovodrun" if why_missing("horovodrun") is None else "torchrun"
    container = storage.container()
    there = [f"data.root=az://{uploaded}", "data=shards", "data.num_workers=2", "resume=auto"]
    there += [f"trainer.checkpoint_dir=az://{container}/run", "output_dir=run"]
    here = ["data=coco", f"data.root={coco}", "data.num_workers=0", "output_dir=alone"]
    run, alone = tmp_path / "run", tmp_path / "alone"
    line = command(launcher, 2, "retina_dist.train", [*JOB, *there])
    job = start(line, tmp_path)
    try:
        saved = Url(f"az://{container}/run")
        wait_for(lambda: steps_done(run) >= 5 and "manifest.json" in names_in(saved), job, tmp_path)
    finally:
        end(job, run)
    assert steps_done(run) < 12
    for arguments in (line, command(launcher, 2, "retina_dist.train", [*JOB, *here])):
        job = start(arguments, tmp_path)
        try:
            assert job.wait(END_S) == 0, (tmp_path / "log.txt").read_text()
        finally:
            end(job, run)
    assert f"resumed from az://{container}/run/step_" in (tmp_path / "log.txt").read_text()
    ours, theirs = load_checkpoint(f"az://{container}/run/last.pt"), load_checkpoint(alone / "checkpoints" / "last.pt")
    assert ours["step"] == theirs["step"] == 12
    for key in ("model", "optimizer", "sampler", "best"):
        assert equal(ours[key], theirs[key]), key


def test_torn_uploads_of_checkpoints_fool_nobody(storage: Storage, said: list[str]) -> None:
    folder = Url(f"az://{storage.container()}/run")
    store = CheckpointStore(folder, keep_last=3)
    manifests = []
    for step in (1, 2, 3):
        store.save({"model": {"w": torch.full((1000,), float(step))}}, step)
        store.wait()
        manifests.append((folder / "manifest.json").read_bytes())
    whole = (folder / "step_00000003.pt").read_bytes()

    def newest() -> tuple[int, list[str]]:
        said.clear()
        found = load_latest(folder)
        assert found is not None
        assert found[1]["model"]["w"][0] == found[1]["step"]
        return found[1]["step"], list(said)

    assert newest() == (3, [])
    (folder / "step_00000003.pt").write_bytes(whole[: len(whole) // 2])  # cut short
    assert newest()[0] == 2
    assert "step_00000003.pt is a damaged" in newest()[1][0]
    (folder / "manifest.json").unlink()  # and the manifest is gone
    assert newest()[0] == 2
    (folder / "step_00000003.pt").write_bytes(whole)
    assert newest()[0] == 3
    (folder / "manifest.json").write_bytes(manifests[1])  # older than the file: written before the manifest was
    assert newest() == (2, [])
    for name in names_in(folder):
        if name.endswith(".pt"):
            (folder / name).write_bytes(b"")
    with pytest.raises(CheckpointError, match="every checkpoint in az://"):
        load_latest(folder)
