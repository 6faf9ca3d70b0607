"""Settings: typed, checked by name, and every recipe gives a plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from retina_dist.config import config_dir, load_config
from retina_dist.errors import ConfigError
from retina_dist.train import build_plan

CONF = Path(config_dir())
EXPERIMENTS = sorted(p.stem for p in (CONF / "experiment").glob("*.yaml"))
COCO_IMAGES = 117_266


@pytest.mark.parametrize("world_size", [1, 8])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_gives_a_plan(name: str, world_size: int) -> None:
    config = load_config("train", [f"experiment={name}", "data.root=/data"])
    if config.data.batch_size % world_size:
        with pytest.raises(ConfigError, match="use "):
            build_plan(config, COCO_IMAGES, world_size)
        return
    plan = build_plan(config, COCO_IMAGES, world_size)
    assert plan.total_steps > 0
    assert plan.lr_at(plan.total_steps - 1) < plan.lr_at(plan.schedule.warmup) or plan.schedule.name == "constant"


def test_torchvisions_recipe_is_what_it_published() -> None:
    plan = build_plan(load_config("train", ["experiment=torchvision_v1", "data.root=/data"]), COCO_IMAGES, 8)
    assert (plan.micro_batch, plan.lr, plan.steps_per_epoch) == (2, 0.01, 7330)
    assert plan.schedule.milestones == (16 * 7330, 22 * 7330)
    plan = build_plan(load_config("train", ["experiment=detectron2_3x", "data.root=/data"]), COCO_IMAGES, 8)
    assert (plan.total_steps, plan.schedule.milestones) == (270_000, (210_000, 250_000))


@pytest.mark.parametrize("group", ["data", "model", "optimizer", "schedule", "trainer", "strategy", "logging"])
def test_every_group_file_composes(group: str) -> None:
    for path in sorted((CONF / group).glob("*.yaml")):
        extra = ["schedule.milestones=[1epoch]"] if path.stem == "multistep" else []
        load_config("train", [f"{group}={path.stem}", *extra])


@pytest.mark.parametrize("name", ["doctor", "evaluate", "predict", "convert"])
def test_other_entry_points_compose(name: str) -> None:
    needed = {
        "predict": ["checkpoint=a", "input=b"],
        "convert": ["format=csv", "annotations=a", "output=b"],
    }
    load_config(name, needed.get(name, []))


def test_files_begin_with_what_they_are() -> None:
    for path in CONF.rglob("*.yaml"):
        assert path.read_text().startswith("# "), path


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer.lrr=1", r"optimizer\.lrr is not a setting; did you mean optimizer\.lr\?"),
        ("lr=1", r"did you mean optimizer\.lr\?"),
        ("batch_size=4", r"did you mean data\.batch_size\?"),
        ("optimzer.lr=3", r"did you mean optimizer\.lr\?"),
        ("zzzzzz=3", r"zzzzzz is not a setting; see"),
        ("optimizer.lr=abc", r"optimizer\.lr.*abc.*Float"),
        ("data.batch_size=1.5", r"data\.batch_size.*1\.5.*Integer"),
        ("data.min_sizes=800", r"data\.min_sizes.*\[800\]"),
        ("data.min_sizes=[a]", r"data\.min_sizes.*'a'.*Integer"),
        ("data.min_sizes=[]", r"data\.min_sizes=\[\]"),
        ("data=cocoo", r"data=cocoo does not exist; did you mean coco\?"),
        ("experiment=bcdd", r"did you mean bccd\?"),
        ("trainer.length", "cannot be read as KEY=VALUE"),
        ("trainer.clip=[1", "cannot be read as KEY=VALUE"),
        ("data.batch_size=0", r"data\.batch_size=0 is too small"),
        ("model.variant=v3", r"model\.variant=v3 is not one of v1, v2"),
        ("trainer.precision=bf61", r"did you mean bf16\?"),
        ("data.hflip=2", r"data\.hflip=2.* is not within 0 and 1"),
        ("data.scale_jitter=[2,1]", r"data\.scale_jitter"),
        ("model.background_iou=0.6", r"model\.background_iou=0\.6 is above"),
    ],
)
def test_wrong_settings_are_named(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config("train", [override])


def test_a_key_below_what_is_not_there() -> None:
    with pytest.raises(ConfigError, match="data=shapes only"):
        load_config("train", ["data=coco", "data.shapes.num_train=3"])


def test_what_must_be_given_is_asked_for() -> None:
    with pytest.raises(ConfigError, match="checkpoint is not set"):
        load_config("predict", ["input=a"])
