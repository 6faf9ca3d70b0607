"""Settings: typed, checked by name, and every recipe gives a plan."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hydra.core.config_store import ConfigStore

from retina_dist.config.compose import config_dir, load_config, register_schema, settings_of
from retina_dist.config.entry_point import reported_errors
from retina_dist.config.overrides import check_overrides
from retina_dist.detection.settings import DetectionRunConfig
from retina_dist.errors import ConfigError, DataError
from retina_dist.optim.schedule import Constant
from retina_dist.run.build import build_plan

CONF = Path(config_dir())
EXPERIMENTS = sorted(p.stem for p in (CONF / "experiment").glob("*.yaml"))
GROUPS = ("task", "data", "model", "optimizer", "schedule", "trainer", "strategy", "nccl", "logging")
COCO_IMAGES = 117_266
OF_CLASSIFICATION = {
    "class_shards",
    "classifier",
    "classifier_tiny",
    "drawn_classes",
    "folders",
    "labels_csv",
    "parity_classes",
}


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """`python ARGUMENTS` in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(CONF.parent), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize("world_size", [1, 8])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_gives_a_plan(name: str, world_size: int) -> None:
    config = load_config("train", [f"experiment={name}", "data.root=/data"])
    plan = build_plan(config, COCO_IMAGES, world_size)
    assert plan.total_steps > 0
    falls = plan.lr_at(plan.total_steps - 1) < plan.lr_at(plan.schedule.warmup)
    assert falls or isinstance(plan.schedule.decay, Constant)


def test_torchvisions_recipe_is_what_it_published() -> None:
    plan = build_plan(load_config("train", ["experiment=torchvision_v1", "data.root=/data"]), COCO_IMAGES, 8)
    assert (plan.micro_batches, plan.lr, plan.steps_per_epoch) == ((2,), 0.01, 7330)
    assert plan.schedule.decay.milestones == (16 * 7330, 22 * 7330)
    plan = build_plan(load_config("train", ["experiment=detectron2_3x", "data.root=/data"]), COCO_IMAGES, 8)
    assert (plan.total_steps, plan.schedule.decay.milestones) == (270_000, (210_000, 250_000))


def test_the_recipe_of_mlperf_is_what_it_published() -> None:
    config = load_config("train", ["experiment=mlperf", "data.root=/data"])
    plan = build_plan(config, 1_170_301, 8)
    assert (plan.micro_batches, plan.lr, plan.steps_per_epoch) == ((32,), 1e-4, 4572)
    assert plan.schedule.warmup == 4572
    model = (config.model.backbone, config.model.variant, config.model.norm, config.model.trainable_layers)
    assert model == ("resnext50_32x4d", "v1", "frozen_bn", 3)


@pytest.mark.parametrize("group", GROUPS)
def test_every_group_file_composes(group: str) -> None:
    for path in sorted((CONF / group).glob("*.yaml")):
        more = ["schedule.milestones=[1epoch]"] if path.stem == "multistep" else []
        more += ["task=classification"] if path.stem in OF_CLASSIFICATION else []
        load_config("train", [f"{group}={path.stem}", *more])


def test_hydra_copies_no_schema_for_each_group_that_it_lists() -> None:
    """Or `--help` takes 2.6 times as long as `import torch, torchvision`."""
    changed = load_config("train", ["optimizer.lr=3"])
    assert copy.deepcopy(ConfigStore.instance()) is ConfigStore.instance()
    assert changed.optimizer.lr == 3
    assert load_config("train", []).optimizer.lr != 3


def test_no_file_is_out_of_reach() -> None:
    groups = {path.parent.name for path in CONF.glob("*/*.yaml")}
    assert groups == {*GROUPS, "experiment", "hydra"}
    assert {path.stem for path in CONF.glob("*.yaml")} == {
        "train",
        "doctor",
        "shards",
        "evaluate",
        "benchmark_step",
        "benchmark_data",
        "benchmark_synthetic",
        "benchmark_scaling",
        "parity",
        "predict",
        "serve",
        "export",
        "convert",
    }
    assert not list(CONF.glob("*/*/*.yaml"))
    assert {path.stem for path in (CONF / "hydra").iterdir()} == {"default"}  # which all of these name


def test_values_have_the_types_of_the_schema() -> None:
    config = load_config(
        "train", ["trainer.gradient_clip=2", "data.min_sizes=[64,96]", "output_dir=7", "optimizer.lr=1e-3"]
    )
    assert isinstance(config, DetectionRunConfig)
    assert (config.trainer.gradient_clip, type(config.trainer.gradient_clip)) == (2.0, float)
    assert (config.data.min_sizes, config.output_dir, config.optimizer.lr) == ([64, 96], "7", 0.001)
    assert config.data.val_min_size is None


@pytest.mark.parametrize("name", ["doctor", "shards", "evaluate", "predict", "serve", "export", "convert"])
def test_other_entry_points_compose(name: str) -> None:
    needed = {
        "predict": ["checkpoint=a", "input=b"],
        "serve": ["checkpoint=a"],
        "export": ["checkpoint=a", "output=b"],
        "convert": ["format=csv", "annotations=a", "output=b"],
        "shards": ["output=b"],
    }
    load_config(name, needed.get(name, []))


def test_files_begin_with_what_they_are() -> None:
    for path in CONF.rglob("*.yaml"):
        assert path.read_text().startswith("# "), path


@pytest.mark.parametrize(
    ("override", "message"),
    [
        # no such key
        ("optimizer.lrr=1", "optimizer.lrr is not a setting; did you mean optimizer.lr?"),
        ("optimzer.lr=3", "optimzer.lr is not a setting; did you mean optimizer.lr?"),
        ("lr=1", "lr is not a setting; did you mean optimizer.lr?"),
        ("lrr=1", "lrr is not a setting; did you mean optimizer.lr?"),
        ("batch_size=4", "batch_size is not a setting; did you mean data.batch_size?"),
        ("num_worker=4", "num_worker is not a setting; did you mean data.num_workers?"),
        ("trainer.min_sizes=[8]", "trainer.min_sizes is not a setting; did you mean data.min_sizes?"),
        # what other tools call it
        ("epochs=12", "epochs is not a setting; did you mean trainer.max_duration=12epochs?"),
        ("trainer.max_epochs=12", "trainer.max_epochs is not a setting; did you mean trainer.max_duration=12epochs?"),
        ("learning_rate=0.1", "learning_rate is not a setting; did you mean optimizer.lr?"),
        ("SOLVER.MAX_ITER=9", "SOLVER.MAX_ITER is not a setting; did you mean trainer.max_duration=90ksteps?"),
        ("trainer.devices=8", "trainer.devices is not a setting; the launcher starts the processes: torchrun"),
        ("imgsz=640", "imgsz is not a setting; did you mean data.min_sizes=[800]?"),
        # read otherwise than written
        ("data.batch_size=1_0", "data.batch_size=1_0 is not a plain number; write data.batch_size=10"),
        ("optimizer.lr=1_0.5", "optimizer.lr=1_0.5 is not a plain number"),
        ("output_dir=2026_01", "write output_dir=202601, or \"output_dir='2026_01'\" for a text."),
        ("data.root='a\tb'", "data.root='a\\tb' has a control character; leave it out."),
        ("output_dir='a\x00b'", "output_dir='a\\x00b' has a control character; leave it out."),
        ("data.name.x=1", "data.name.x is not a setting; did you mean data.name?"),
        ("dat=coco", "dat is not a setting; did you mean data?"),
        (
            "name=a",
            "name is not a setting; did you mean data.name or optimizer.name or schedule.name or strategy.name or nccl.name or "
            "task.name?",
        ),
        ("zzzzzz=3", "zzzzzz is not a setting; see the keys with python -m retina_dist.train --cfg job."),
        ("+lr=1", "lr is not a setting; did you mean optimizer.lr?"),
        ("++data.batchsize=1", "data.batchsize is not a setting; did you mean data.batch_size?"),
        ("optimizer={lr: 1, lrr: 2}", "optimizer.lrr is not a setting; did you mean optimizer.lr?"),
        # no such file
        (
            "data=cocoo",
            "data=cocoo does not exist; did you mean coco? There are bccd, class_shards, coco, csv, drawn_classes, folders, ",
        ),
        ("model=yolo", "model=yolo does not exist; there are classifier, classifier_tiny, retinanet_r18, "),
        ("experiment=bcdd", "experiment=bcdd does not exist; did you mean bccd? There are bccd, "),
        ("model=null", "groups such as data and model take a name"),
        # no such form
        ("trainer.max_duration", "trainer.max_duration cannot be read as KEY=VALUE"),
        ("trainer.gradient_clip=[1", "trainer.gradient_clip=[1 cannot be read as KEY=VALUE"),
        ("data.min_sizes=640,800", 'is more than one value; write "data.min_sizes=[640,800]" if one is meant'),
        ("data.root=a,b", "is more than one value; write \"data.root='a,b'\" if one is meant, or add --multirun"),
        ("data.root=${nope}", "data.root: Interpolation key 'nope' not found."),
        ("~optimizer.lr", "optimizer.lr: "),
        # another type
        ("optimizer.lr=abc", "optimizer.lr=abc is not a number."),
        ("optimizer.lr=null", "optimizer.lr=null is not a number."),
        ("data.batch_size=1.5", "data.batch_size=1.5 is not a whole number."),
        ("data.shuffle=maybe", "data.shuffle=maybe is not a switch; write true or false."),
        ("trainer.max_duration=[1]", "trainer.max_duration=[1] is not a text."),
        ("data.min_sizes=8", "data.min_sizes=8 is not a list of whole numbers; write data.min_sizes=[8]."),
        ("data.min_sizes=[a]", "data.min_sizes=[a] is not a list of whole numbers."),
        ("data.min_sizes=null", "data.min_sizes=null is not a list of whole numbers."),
        ("schedule.milestones=16epochs", "is not a list of texts; write schedule.milestones=[16epochs]."),
        ("data.scale_jitter=0.5", "is not a list of numbers; write data.scale_jitter=[0.5]."),
        ("model.anchor_sizes=[3]", "is not a list of lists of whole numbers; write model.anchor_sizes=[[3]]."),
        ("optimizer={lr: abc}", "optimizer.lr: "),
        # impossible values
        ("data.batch_size=0", "data.batch_size=0 is too small; it must be at least 1."),
        ("data.num_workers=-1", "data.num_workers=-1 is too small"),
        ("seed=-1", "seed=-1 is too small; it must be at least 0."),
        ("seed=9223372036854775808", "seed=9223372036854775808 is too large; it must be below 2^63."),
        ("data.max_size=1000000000000000000000000000000", "is too large; it must be below 2^63."),
        ("optimizer.lr=1" + "0" * 400, "optimizer.lr is too large for a number."),
        ("data.root=" + "{a: " * 300 + "1" + "}" * 300, "a value is nested too deeply"),
        ("model=" + "x" * 5000, "a file of the configuration cannot be read (File name too long)"),
        ("optimizer.lr=nan", "optimizer.lr=nan is no finite number."),
        ("model.aspect_ratios=[1,inf]", "model.aspect_ratios=inf is no finite number."),
        ("model.variant=v3", "model.variant=v3 is not one of v1, v2"),
        ("trainer.precision=bf61", "trainer.precision=bf61 is not one of fp32, tf32, bf16, fp16; did you mean bf16?"),
        ("data.hflip=2", "data.hflip=2.0 is not within 0 and 1."),
        ("optimizer.momentum=-0.9", "optimizer.momentum=-0.9 is not within 0 and 1."),
        ("data.name=../x", "data.name=../x is no name for a folder below runs/."),
        ("data.min_sizes=[]", "data.min_sizes=[] needs at least one size"),
        ("data.min_sizes=[0]", "data.min_sizes=[0] needs at least one size"),
        ("data.scale_jitter=[2,1]", "data.scale_jitter=[2.0, 1.0] is not a pair of rising factors"),
        ("optimizer.lr=0", "optimizer.lr=0.0 is too small; it must be above 0."),
        ("optimizer.momentum=1", "optimizer.momentum=1.0 is too large; it must be below 1."),
        ("trainer.ema_decay=1", "trainer.ema_decay=1.0 is too large; it must be below 1."),
        ("data.min_sizes=[2000]", "data.min_sizes=[2000] is above data.max_size="),
        ("data.val_min_size=2000", "data.val_min_size=2000 is above data.max_size="),
        ("schedule.milestones=[1epoch]", "schedule.milestones=['1epoch'] has no effect with schedule=cosine"),
        ("schedule=multistep", "schedule=multistep has no milestone to lower the rate at"),
        ("model.background_iou=0.6", "model.background_iou=0.6 is above model.foreground_iou=0.5; swap them."),
        ("model.anchor_sizes=[[8],[]]", "model.anchor_sizes=[[8], []] needs equally many sizes"),
        ("model.aspect_ratios=[]", "model.aspect_ratios=[] needs at least one ratio"),
        ("optimizer.betas=[0.9]", "optimizer.betas=[0.9] is not a pair of numbers"),
        (
            "trainer.gradient_clip=0",
            "trainer.gradient_clip=0.0 is too small; it must be above 0; trainer.gradient_clip=null turns it off.",
        ),
    ],
)
def test_wrong_settings_are_named(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("train", [override])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_settings_that_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match=r"nesterov=true needs a momentum; give optimizer\.momentum=0\.9"):
        load_config("train", ["optimizer.nesterov=true", "optimizer.momentum=0"])
    with pytest.raises(ConfigError, match="trainer.max_duration=12 is not a duration"):
        build_plan(load_config("train", ["trainer.max_duration=12"]), 100, 1)


def test_a_static_graph_is_refused_with_accumulation() -> None:
    with pytest.raises(
        ConfigError, match=r"strategy\.static_graph=true and trainer\.accumulate=2 do not go together.+false\."
    ):
        load_config("train", ["strategy=ddp", "strategy.static_graph=true", "trainer.accumulate=2"])
    assert load_config("train", ["strategy=ddp", "strategy.static_graph=true"]).strategy.static_graph


def test_a_key_below_what_is_not_there() -> None:
    with pytest.raises(ConfigError, match="can be set with data=shapes, data=drawn_classes or"):
        load_config("train", ["data=coco", "data.shapes.num_train=3"])


def test_what_must_be_given_is_asked_for() -> None:
    with pytest.raises(ConfigError, match="checkpoint is not set"):
        load_config("predict", ["input=a"])


OWN_FILES = {
    "good": ("data: {batch_size: 3}", None),
    "key": ("lr: 3", "experiment/key.yaml: lr is not a setting; did you mean optimizer.lr?"),
    "type": ("data: {min_sizes: 8}", "experiment/type.yaml: data.min_sizes is not a list of whole numbers."),
    "form": ("data: [", "is no YAML"),
    "group": ("defaults: [override /data: nope]", "data=nope does not exist"),
}


@pytest.mark.parametrize("name", OWN_FILES)
def test_files_of_the_users_own(tmp_path: Path, name: str) -> None:
    content, message = OWN_FILES[name]
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / f"{name}.yaml").write_text(f"# @package _global_\n{content}\n")
    overrides = [f"hydra.searchpath=[file://{tmp_path}]", f"experiment={name}"]
    if message is None:
        assert load_config("train", overrides).data.batch_size == 3
        return
    with pytest.raises(ConfigError) as caught:
        load_config("train", overrides)
    assert message in str(caught.value)


LOADED = "{_target_: torch.load, f: evil.pkl, weights_only: false}"
CALLBACK = "hydra.experimental.callbacks.LogJobReturnCallback"
HYDRAS_OWN = {  # by what is refused, command line and content of an experiment file
    "callback of the command line": (["+hydra.callbacks.x._target_=torch.load", "+hydra.callbacks.x.f=evil.pkl"], ""),
    "callback of a file": ([], f"hydra: {{callbacks: {{x: {LOADED}}}}}"),
    "part of a callback": ([], f"hydra: {{callbacks: {{x: {{_target_: {CALLBACK}, log: {LOADED}}}}}}}"),
    "class of another kind": (["+hydra.callbacks.x._target_=subprocess.Popen"], ""),
    "launcher": (["hydra.launcher._target_=torch.load", "+hydra.launcher.f=evil.pkl"], ""),
    "launcher of a sweep": (["hydra.mode=MULTIRUN", "hydra.launcher._target_=torch.load"], ""),
    "sweeper": (["hydra.sweeper._target_=os.system"], ""),
    "log handler": ([], "hydra: {job_logging: {handlers: {x: {class: torch.load, f: evil.pkl}}}}"),
    "log filter": ([], "hydra: {hydra_logging: {filters: {x: {'()': torch.load, f: evil.pkl}}}}"),
    "interpolation": ([], f"hydra: {{callbacks: {{x: '${{hydra.job_logging.y}}'}}, job_logging: {{y: {LOADED}}}}}"),
    "our group": (["+model._target_=torch.load"], ""),
    "our group in a file": ([], f"model: {LOADED}"),
}


@pytest.mark.parametrize("how", ["searchpath", "--config-dir"])
@pytest.mark.parametrize("name", HYDRAS_OWN)
def test_a_configuration_calls_no_function_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, how: str
) -> None:
    """Hydra would: torch.load of a pickle, which runs what is in it."""
    overrides, content = HYDRAS_OWN[name]
    if not content and how == "--config-dir":
        pytest.skip("the same command line")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(f"# @package _global_\n{content}\n")
    register_schema("train")
    folder = ["--config-dir", str(tmp_path)] if how == "--config-dir" else [f"hydra.searchpath=[file://{tmp_path}]"]
    with pytest.raises(
        ConfigError, match=r"=torch\.load.* (is|are|name)|=os\.system|Popen is not|_target_ is not a setting"
    ):
        check_overrides("train", [*folder, "experiment=mine", *overrides])


def test_hydras_own_classes_may_be_named() -> None:
    register_schema("train")
    for overrides in (
        [f"+hydra.callbacks.x._target_={CALLBACK}"],
        ["hydra.launcher._target_=hydra._internal.core_plugins.basic_launcher.BasicLauncher"],
        ["hydra/job_logging=default"],
        ["hydra.run.dir=x"],
    ):
        assert check_overrides("train", overrides) == []


@pytest.mark.parametrize(
    "content", [{"model": {"_target_": "torch.load", "f": "evil.pkl"}}, {"data": {"root": "${oc.env:HOME}"}}]
)
def test_the_settings_of_a_checkpoint_are_data(content: dict) -> None:
    with pytest.raises(ConfigError, match="the checkpoint's"):
        settings_of(content, DetectionRunConfig)


def test_config_dir_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine.yaml").write_text("name: mine\n")
    result = run("-m", "retina_dist.train", "--config-dir", str(tmp_path), "data=mine", "--cfg", "job", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "name: mine" in result.stdout
    result = run("-m", "retina_dist.convert", "--config-dir=nowhere", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (2, "error: --config-dir nowhere is no folder.\n")


def test_an_error_of_the_user_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    command = ("-m", "retina_dist.convert", "format=csv", "annotations=absent.csv", "output=a.json")
    result = run(*command, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.splitlines() == [
        "error: classes.csv does not exist; name it with data.train_annotations or data.classes."
    ]
    result = run(*command, "debug=true", cwd=tmp_path)
    assert result.returncode == 2
    assert "Traceback (most recent call last)" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("error: classes.csv does not exist")
    assert list(tmp_path.iterdir()) == []


def test_what_is_missing_may_be_looked_at(tmp_path: Path) -> None:
    result = run("-m", "retina_dist.convert", "--cfg", "job", cwd=tmp_path)
    assert result.returncode == 0
    assert "annotations: ???" in result.stdout


def test_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught, reported_errors():
        raise DataError("a.json is wrong.")
    assert caught.value.code == 2
    assert capsys.readouterr().err == "error: a.json is wrong.\n"
    with pytest.raises(SystemExit) as caught, reported_errors():
        raise KeyboardInterrupt
    assert caught.value.code == 130
    with pytest.raises(SystemExit) as caught, reported_errors():  # the traceback is printed without secrets
        raise RuntimeError
    assert caught.value.code == 1


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    code = "from retina_dist.config.entry_point import reported_errors\nwith reported_errors():\n  while True: print('x' * 999)"
    environment = {**os.environ, "PYTHONPATH": str(CONF.parent)}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, cwd=tmp_path
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_who_resizes_depends_on_the_device_unless_it_is_said():
    from retina_dist.detection.data.deferred_resize import resized_by

    for said, on_cpu, on_gpu in (("auto", "workers", "device"), ("workers",) * 3, ("device",) * 3):
        data = load_config("train", [f"data.resize={said}"]).data
        assert (resized_by(data.resize, torch.device("cpu")), resized_by(data.resize, torch.device("cuda"))) == (
            on_cpu,
            on_gpu,
        )
