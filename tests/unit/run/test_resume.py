"""Which folder a run writes to, and which checkpoint it resumes from."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from retina_dist.base.errors import CheckpointError, ConfigError
from retina_dist.config.compose import load_config
from retina_dist.detection.settings import DetectionRunConfig
from retina_dist.detection.task import DetectionTask
from retina_dist.engine.checkpoint.store import CheckpointStore
from retina_dist.optim.settings import ScheduleConfig
from retina_dist.run.assemble import train
from retina_dist.run.records import write_start
from retina_dist.run.resume import check_resume, next_folder, open_run
from retina_dist.strategies.single_device import SingleDeviceStrategy

ROOT = Path(__file__).resolve().parents[3]


def settings(*overrides: str) -> DetectionRunConfig:
    return load_config("train", list(overrides))


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


DEFAULTS = asdict(settings())


def save(folder: str, *steps: int, place: str | None = None) -> None:
    store = CheckpointStore(place or Path(folder) / "checkpoints", keep_last=5)
    for step in steps:
        store.save({"config": DEFAULTS, "w": torch.full((9,), float(step))}, step)
    store.wait()


def test_fresh_runs_are_numbered() -> None:
    assert open_run(settings()).folder == Path("runs/shapes")
    Path("runs/shapes").mkdir(parents=True)
    Path("runs/shapes-7").mkdir()
    Path("runs/shapes-old").mkdir()
    Path("runs/shapes-9").touch()  # a file is not a run
    assert open_run(settings()).folder == Path("runs/shapes-8")
    assert open_run(settings("data.name=other")).folder == Path("runs/other")
    assert sorted(p.name for p in Path("runs").iterdir()) == [
        "shapes",
        "shapes-7",
        "shapes-9",
        "shapes-old",
    ]


def test_runs_that_cannot_be_made() -> None:
    Path("runs").symlink_to("absent")
    with pytest.raises(
        ConfigError, match="runs/shapes cannot be made .*; give an output_dir=FOLDER"
    ):
        next_folder("shapes", make=True)


def test_a_folder_that_holds_a_run_is_not_overwritten() -> None:
    save("mine", 1)
    with pytest.raises(ConfigError, match="mine already holds a run; continue with resume=mine"):
        open_run(settings("output_dir=mine"))
    run = open_run(settings("output_dir=new", "resume=null"))
    assert (run.folder, run.resumed_from, run.resume_step) == (Path("new"), None, None)
    assert not Path("new").exists()


def test_auto_takes_the_newest_or_starts_fresh() -> None:
    assert open_run(settings("resume=auto")).folder == Path("runs/shapes")
    save("runs/shapes", 1)
    save("runs/shapes-2", 3, 4)
    run = open_run(settings("resume=auto"))
    assert (run.folder, run.resume_step) == (Path("runs/shapes-2"), 4)
    assert open_run(settings("resume=auto", "output_dir=runs/shapes")).resume_step == 1
    assert open_run(settings("resume=auto", "output_dir=other")).resume_step is None


def test_a_named_checkpoint_or_run_folder() -> None:
    save("mine", 1, 2)
    assert open_run(settings("resume=mine/checkpoints/step_00000001.pt")).resume_step == 1
    run = open_run(settings("resume=mine"))
    assert (run.folder, run.resume_step) == (Path("mine"), 2)
    assert open_run(settings("resume=mine/checkpoints")).resumed_from == run.resumed_from
    elsewhere = open_run(settings("resume=mine", "output_dir=fork"))
    assert (elsewhere.folder, elsewhere.resume_step) == (Path("fork"), 2)
    Path("loose.pt").write_bytes(Path("mine/checkpoints/last.pt").read_bytes())
    with pytest.raises(ConfigError, match="is not inside a run folder"):
        open_run(settings("resume=loose.pt"))
    assert open_run(settings("resume=loose.pt", "output_dir=fork")).resume_step == 2
    with pytest.raises(CheckpointError, match="there is no checkpoint absent.pt"):
        open_run(settings("resume=absent.pt"))
    Path("empty").mkdir()
    with pytest.raises(CheckpointError, match="there is no checkpoint empty"):
        check_resume(Path("empty"), None)
    Path("other.pt").write_bytes(b"of another tool")
    with pytest.raises(CheckpointError, match="other.pt cannot be read .* give a checkpoint of"):
        check_resume(Path("other.pt"), None)


def test_a_resume_without_a_run_folder_is_refused_before_data_are_made() -> None:
    save("mine", 1)
    Path("loose.pt").write_bytes(Path("mine/checkpoints/last.pt").read_bytes())
    with pytest.raises(
        ConfigError, match=r"is not inside .*; give that folder, or add output_dir="
    ):
        train(load_config("train", ["resume=loose.pt"]))
    assert not Path("datasets").exists()


def test_a_checkpoint_does_not_go_into_the_folder_of_another_run() -> None:
    save("mine", 1)
    save("other", 7)
    with pytest.raises(ConfigError, match="output_dir=other already holds a run"):
        open_run(settings("resume=mine", "output_dir=other"))
    assert open_run(settings("resume=mine", "output_dir=./mine")).resume_step == 1


def test_what_decides_the_order_of_images_cannot_change() -> None:
    save("mine", 1)
    with pytest.raises(
        ConfigError,
        match=r"=4 differs from the 8 .* give data\.batch_size=8 with trainer\.acc.*=auto",
    ):
        open_run(settings("resume=mine", "data.batch_size=4"))
    with pytest.raises(ConfigError, match="seed=1"):
        open_run(settings("resume=mine", "seed=1"))
    with pytest.raises(ConfigError, match=r"data\.repeat_threshold=0\.1 differs from the null"):
        open_run(
            settings("resume=mine", "data.repeat_threshold=0.1"),
            locked=DetectionTask.locked_settings,
        )
    with pytest.raises(
        ConfigError,
        match="task=classification differs from the detection that .* give task=detection",
    ):
        open_run(
            load_config(
                "train", ["task=classification", "data=folders", "data.root=x", "resume=mine"]
            )
        )
    with pytest.raises(
        ConfigError, match=r"model\.aspect_ratios=\[1\.0, 2\.0, 3\.0\] differs"
    ):  # as many, elsewhere
        open_run(
            settings("resume=mine", "model.aspect_ratios=[1,2,3]"),
            locked=DetectionTask.locked_settings,
        )
    same = settings("resume=mine", "trainer.max_duration=99epochs", "data.num_workers=0")
    same.model.aspect_ratios = [1]  # whole numbers, as Python may give them
    assert open_run(same, locked=DetectionTask.locked_settings).resume_step == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "data: {root: 'https://host/a?sig=***'}",
            "data.root without its secret; give data.root=… again",
        ),
        (
            "optimizer: {_target_: os.system}",
            "optimizer from outside the package, which no file imports; give optimizer=NAME",
        ),
        ("[1]", "does not hold the settings of a run"),
        ("a: [", "does not hold the settings of a run"),
    ],
)
def test_settings_of_a_run_that_cannot_be_taken(text: str, message: str) -> None:
    Path("run").mkdir()
    Path("run/config.yaml").write_text(text)
    with pytest.raises(ConfigError, match=re.escape(message)):
        settings("resume=run")


@pytest.mark.parametrize("before", ["null", "auto", "{circle: 3}"])
def test_an_item_may_be_given_to_a_setting_that_the_run_had_without_one(before: str) -> None:
    run = settings(f"data.class_weights={before}")
    write_start(run, SingleDeviceStrategy("cpu"), Path("run"), "")
    kept = {"circle": 3} if "3" in before else {}
    again = settings("resume=run", "data.class_weights.star=2")
    assert again.data.class_weights == {**kept, "star": 2}


@pytest.mark.parametrize("task", ["detection", "classification"])
def test_the_run_s_settings_are_the_base_of_a_resume(task: str) -> None:
    before = settings(
        f"task={task}", "data.batch_size=4", "optimizer=sgd", "trainer.stop_after=2steps", "seed=3"
    )
    write_start(before, SingleDeviceStrategy("cpu"), Path("run"), "")
    text = Path("run/config.yaml").read_text()
    old = "\nsection: {a: 1, b: {}}\nempty: []\nhollow: {}\n"
    Path("run/config.yaml").write_text(
        text.replace("trainer:\n", "trainer:\n  of_another_version: []\n") + old
    )
    for resume in ("run", "run/checkpoints", "run/checkpoints/last.pt"):
        config = settings(f"resume={resume}", "schedule=constant", "seed=4")
        trainer = replace(before.trainer, stop_after=None)
        schedule = ScheduleConfig(name="constant", warmup="0steps")
        assert config == replace(before, trainer=trainer, schedule=schedule, seed=4, resume=resume)
    assert (
        settings("resume=run", "optimizer=adamw").optimizer == settings("optimizer=adamw").optimizer
    )
    if task == "detection":
        assert settings("resume=run", "experiment=shapes").seed == 0


@pytest.mark.parametrize("then", ["single", "ddp", "horovod", "auto"])
@pytest.mark.parametrize("before", ["single", "ddp", "horovod", "auto"])
def test_a_run_resumes_on_another_backend_than_its_config_names(before: str, then: str) -> None:
    given = [f"strategy={before}", "strategy.compression=fp16", "data.batch_size=4"]
    write_start(settings(*given), SingleDeviceStrategy("cpu"), Path("run"), "")
    text = Path("run/config.yaml").read_text()
    old = "strategy:\n  of_another_version: 1\n"
    Path("run/config.yaml").write_text(text.replace("strategy:\n", old))
    config = settings("resume=run", f"strategy={then}")
    assert config.strategy == settings(f"strategy={then}").strategy
    assert config.data.batch_size == 4
    assert settings("resume=run").strategy == settings(*given).strategy


def test_checkpoints_elsewhere(tmp_path: Path, said: list[str]) -> None:
    there = "trainer.checkpoint_dir='memory://bucket/else #1'"  # which YAML quotes
    assert open_run(settings(there, "output_dir=mine")).resume_step is None
    for used, folder in (
        (there, "runs/shapes"),
        ("seed=1", "runs/shapes-2"),
    ):  # a later run keeps its own
        write_start(settings(used), SingleDeviceStrategy("cpu"), Path(folder), "")
    assert open_run(settings(there, "output_dir=mine", "resume=auto")).resume_step is None
    assert said == [
        "resume=auto: no checkpoint in memory://bucket/else #1; a fresh start (or give resume=RUN)"
    ]
    save("", 1, 2, place="memory://bucket/else #1")
    for output in ("output_dir=mine", "output_dir=null"):
        with pytest.raises(ConfigError, match="memory://bucket/else #1 already holds checkpoints"):
            open_run(settings(there, output))
    run = open_run(settings(there, "output_dir=mine", "resume=auto"))
    assert (run.folder, run.resume_step) == (Path("mine"), 2)
    assert str(run.resumed_from) == "memory://bucket/else #1/step_00000002.pt"
    assert open_run(settings(there, "resume=auto")).folder == Path("runs/shapes")
    for named, step in (("", 2), ("/last.pt", 2), ("/step_00000001.pt", 1)):
        resume = f"resume='memory://bucket/else #1{named}'"
        assert open_run(settings(resume, "output_dir=fork")).resume_step == step
        assert open_run(settings(resume, "output_dir=fork", there)).resume_step == step
        with pytest.raises(ConfigError, match="is not inside a run folder"):
            open_run(settings(resume))
    save("mine", 7)
    new = "trainer.checkpoint_dir=memory://bucket/new"
    assert open_run(settings("output_dir=mine", "resume=auto", new)).resume_step == 7
    with pytest.raises(ConfigError, match="already holds checkpoints"):  # of another run
        open_run(settings("resume=mine", there))
    save("", 5, place=f"file://{tmp_path}/local")
    assert (
        open_run(settings(f"trainer.checkpoint_dir={tmp_path}/local", "resume=auto")).resume_step
        == 5
    )
