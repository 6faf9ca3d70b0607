"""Data sets, shards and checkpoints in Blob storage, over a real HTTP server, by adlfs."""

from __future__ import annotations

from pathlib import Path

import pytest

from retina_dist.base.files import Url
from retina_dist.detection.batch import Batch
from retina_dist.detection.data.dataset import CocoDataModule
from retina_dist.detection.data.synthetic import make_shapes
from retina_dist.detection.settings import DetectionData
from retina_dist.engine.checkpoint.store import load_checkpoint, read_manifest
from retina_dist.strategies.start_processes import command, why_missing
from tests.azure.conftest import new_container
from tests.chaos import equal, steps_done
from tests.coco_files import split_of
from tests.distributed.test_faults import END_S, log_of, started, wait_for
from tests.unit.data.test_shards import tree, write
from tests.unit.detection.test_module import same_steps


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
def uploaded(storage: None, shards: Path) -> str:
    """The shards in storage: CONTAINER/coco."""
    place = f"{new_container()}/coco"
    for name, content in tree(shards).items():
        (Url(f"az://{place}") / name).write_bytes(content)
    return place


def steps(
    root: Path | str, count: int, *, form: str = "coco", **settings: object
) -> list[list[Batch]]:
    chosen = {
        "batch_size": 8,
        "min_sizes": [64],
        "max_size": 96,
        "photometric": 0.5,
        "num_workers": 0,
        **settings,
    }
    data = DetectionData(name="x", **chosen)  # type: ignore[arg-type]
    return list(
        CocoDataModule(data, train=split_of(root, format=form), val=None).train_steps(0, count)
    )


def test_shards_written_to_storage_are_those_uploaded(
    storage: None, coco: Path, shards: Path
) -> None:
    container = new_container()
    write(coco, f"az://{container}/direct")
    there = Url(f"az://{container}/direct")
    assert {name: (there / name).read_bytes() for name in there.all_files()} == tree(shards)
    assert sum(name.endswith(".tar") for name in tree(shards)) > 2


def test_an_epoch_from_storage_is_that_of_the_folder(coco: Path, uploaded: str) -> None:
    assert same_steps(steps(f"az://{uploaded}", 17, form="shards", num_workers=2), steps(coco, 17))


# a run


JOB = (
    *(
        "data.min_sizes=[48]",
        "data.max_size=64",
        "data.num_buckets=1",
        "data.batch_size=2",
        "data.photometric=0.5",
    ),
    *(
        "trainer.max_duration=12steps",
        "trainer.validate_every=1000steps",
        "trainer.checkpoint_every=4steps",
    ),
    *(
        "model=retinanet_tiny",
        "optimizer=sgd",
        "optimizer.lr=0.005",
        "schedule.warmup=2steps",
        "logging=quiet",
    ),
    *("trainer.log_every=1", "trainer.num_threads=1", "strategy.timeout_s=60"),
)


@pytest.mark.long
def test_a_killed_training_from_storage_to_storage_ends_as_the_undisturbed_one(
    storage: None, coco: Path, uploaded: str, tmp_path: Path
) -> None:
    """Shards and checkpoints on az://, two ranks of Horovod with two data workers each, all killed
    in the middle; the other run reads images from the folder, in the main process, and keeps its
    checkpoints beside itself.
    """
    launcher = "horovodrun" if why_missing("horovodrun") is None else "torchrun"
    container = new_container()
    there = [f"data.root=az://{uploaded}", "data=shards", "data.num_workers=2", "resume=auto"]
    there += [f"trainer.checkpoint_dir=az://{container}/run", "output_dir=run"]
    here = ["data=coco", f"data.root={coco}", "data.num_workers=0", "output_dir=alone"]
    run, alone = tmp_path / "run", tmp_path / "alone"
    line = command(launcher, 2, "retina_dist.train", [*JOB, *there])
    with started(line, tmp_path):
        saved = Url(f"az://{container}/run")
        wait_for(lambda: steps_done(run) >= 5 and bool(read_manifest(saved)), tmp_path)
    assert steps_done(run) < 12
    for arguments in (line, command(launcher, 2, "retina_dist.train", [*JOB, *here])):
        with started(arguments, tmp_path) as job:
            assert job.wait(END_S) == 0, log_of(tmp_path)
    assert f"resumed from az://{container}/run/step_" in log_of(tmp_path)
    ours, theirs = (
        load_checkpoint(f"az://{container}/run/last.pt"),
        load_checkpoint(alone / "checkpoints" / "last.pt"),
    )
    assert ours["step"] == theirs["step"] == 12
    for key in ("model", "optimizer", "sampler", "best"):
        assert equal(ours[key], theirs[key]), key
