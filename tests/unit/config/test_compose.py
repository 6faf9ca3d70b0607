"""Settings: typed, checked by name, and every recipe gives a plan."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from torchvision.models import get_model_weights

from retina_dist.__main__ import COMMANDS, MODULES
from retina_dist.base.errors import ConfigError
from retina_dist.base.settings import settings_by_key
from retina_dist.config.compose import config_dir, load_config, schema_of
from retina_dist.config.help import help_page
from retina_dist.config.run_config import data_settings_of
from retina_dist.detection.data.synthetic import make_shapes
from retina_dist.detection.settings import DetectionData
from retina_dist.optim.learning_rate import Constant
from retina_dist.run.build import build_plan
from tests.commands import run_command

CONF = config_dir()
EXPERIMENTS = sorted(p.stem for p in (CONF / "experiment").glob("*.yaml"))
SECTIONS = (
    "data",
    "model",
    "optimizer",
    "schedule",
    "trainer",
    "strategy",
    "augmentation",
    "logging",
    "task",
)
GROUPS = ("task", "data", "model", "optimizer", "schedule", "trainer", "strategy", "logging")
COCO_IMAGES = 117_266
OF_CLASSIFICATION = {"classifier", "classifier_tiny", "drawn_classes", "folders", "parity_classes"}


def main(monkeypatch: pytest.MonkeyPatch, name: str, *arguments: str) -> int:
    """The exit code of `retina-dist NAME ARGUMENTS`, in this process."""
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    try:
        importlib.import_module(f"retina_dist.{name}").main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_gives_a_plan(name: str) -> None:
    plan = build_plan(
        load_config("train", [f"experiment={name}", "data.root=/data"]), COCO_IMAGES, 8
    )
    assert plan.total_steps > 0
    falls = plan.lr_at(plan.total_steps - 1) < plan.lr_at(plan.schedule.warmup)
    assert falls or isinstance(plan.schedule.decay, Constant)


def test_torchvisions_recipe_is_what_it_published() -> None:
    plan = build_plan(
        load_config("train", ["experiment=torchvision_v1", "data.root=/data"]), COCO_IMAGES, 8
    )
    assert (plan.micro_batches, plan.lr, plan.steps_per_epoch) == ((2,), 0.01, 7330)
    assert plan.schedule.decay.milestones == (16 * 7330, 22 * 7330)
    plan = build_plan(
        load_config("train", ["experiment=detectron2_3x", "data.root=/data"]), COCO_IMAGES, 8
    )
    assert (plan.total_steps, plan.schedule.decay.milestones) == (270_000, (210_000, 250_000))


@pytest.mark.parametrize(("num_images", "epochs"), [(40, 100), (1000, 16), (10_000, 12)])
def test_fine_tuning_is_as_long_as_the_data_needs(num_images: int, epochs: int) -> None:
    config = load_config("train", ["experiment=finetune", "data.root=/data"])
    model = (config.model.weights, config.model.norm, config.model.trainable_layers)
    assert model == ("RetinaNet_ResNet50_FPN_Weights.COCO_V1", "frozen_bn", 3)
    plan = build_plan(config, num_images, 1)
    assert (plan.lr, plan.total_steps) == (0.005, epochs * num_images // 8)
    assert f"= {epochs} epochs" in str(plan)
    config = load_config("train", ["experiment=finetune_classifier", "data.root=/data"])
    assert (config.model.weights, build_plan(config, 640, 1).lr) == (
        "ResNet50_Weights.IMAGENET1K_V2",
        0.01,
    )


def test_fine_tuning_on_a_cpu_takes_weights_of_its_own_body_and_freezes_its_norms() -> None:
    model = load_config("train", ["experiment=finetune_cpu", "data.root=/data"]).model
    weights = get_model_weights(model.backbone)[model.backbone_weights]
    assert weights.url.startswith("https://download.pytorch.org/models/mobilenet_v2")
    assert (model.norm, model.trainable_layers, model.anchors_per_cell) == ("frozen_bn", 3, 2)


def test_the_recipe_of_mlperf_is_what_it_published() -> None:
    config = load_config("train", ["experiment=mlperf", "data.root=/data"])
    plan = build_plan(config, 1_170_301, 8)
    assert (plan.micro_batches, plan.lr, plan.steps_per_epoch, plan.schedule.warmup) == (
        (32,),
        1e-4,
        4572,
        4572,
    )
    model = (
        config.model.backbone,
        config.model.variant,
        config.model.norm,
        config.model.trainable_layers,
    )
    assert model == ("resnext50_32x4d", "v1", "frozen_bn", 3)


@pytest.mark.parametrize("group", GROUPS)
def test_every_group_file_composes(group: str) -> None:
    for path in sorted(set((CONF / group).glob("*.yaml")) - {CONF / "task" / "of_checkpoint.yaml"}):
        more = ["schedule.milestones=[1epoch]"] if path.stem == "multistep" else []
        more += ["task=classification"] if path.stem in OF_CLASSIFICATION else []
        load_config("train", [f"{group}={path.stem}", *more])


def test_values_have_the_types_of_the_schema() -> None:
    given = [
        "trainer.gradient_clip=2",
        "data.min_sizes=[64,96]",
        "output_dir=7",
        "optimizer.lr=1e-3",
    ]
    config = load_config("train", given)
    assert isinstance(config.data, DetectionData)
    assert (config.trainer.gradient_clip, type(config.trainer.gradient_clip)) == (2.0, float)
    assert (config.data.min_sizes, config.output_dir, config.optimizer.lr) == ([64, 96], "7", 0.001)
    assert config.data.val_min_size is None


@pytest.mark.parametrize(
    ("override", "message"),
    [
        # no such key
        ("optimizer.lrr=1", "optimizer.lrr is not a setting; did you mean optimizer.lr?"),
        ("batch_size=4", "batch_size is not a setting; did you mean data.batch_size?"),
        # what other tools call it
        ("epochs=50", "epochs is not a setting; did you mean trainer.max_duration=50epochs?"),
        (
            "trainer.devices=8",
            "trainer.devices is not a setting; the launcher starts the processes: torchrun",
        ),
        ("amp=1", "amp is not a setting; did you mean trainer.precision=bf16?"),
        (
            "data.mosaic=1",
            "data.mosaic is not a setting; see data.hflip, data.photometric and data.scale_jitter",
        ),
        (
            "checkpoint=a.pt",
            "evaluate, predict, serve and export take a checkpoint; train takes resume=RUN",
        ),
        # of the other task
        (
            "data=folders",
            "data=folders is for task=classification, but the task is detection; give task=",
        ),
        (
            "task.name=classification",
            "data=shapes is for task=detection, but the task is classification",
        ),
        # read otherwise than written
        (
            "data.batch_size=1_0",
            "data.batch_size=1_0 is not a plain number; write data.batch_size=10",
        ),
        ("output_dir=2026_01", "write output_dir=202601, or \"output_dir='2026_01'\" as text."),
        ("data.root='a\tb'", "data.root='a\\tb' has a control character; leave it out."),
        # no such file
        (
            "data=cocoo",
            "data=cocoo does not exist; did you mean coco? There are auto, bccd, coco, csv, ",
        ),
        ("data=yolo", "data=yolo is not an entry; give data=auto data.root=FOLDER"),
        (
            "model=resnet50",
            "model=resnet50 does not exist; give model.backbone=resnet50 to detect, or task=",
        ),
        # no such form
        (
            "trainer.max_duration",
            "trainer.max_duration is not KEY=VALUE; write trainer.max_duration=VALUE.",
        ),
        ("runs/a/best.pt", "runs/a/best.pt is not KEY=VALUE; write resume=runs/a/best.pt."),
        ("trainer.gradient_clip=[1", "trainer.gradient_clip=[1 cannot be read as KEY=VALUE"),
        (
            "data.min_sizes=640,800",
            'is more than one value; write "data.min_sizes=[640,800]" where a list',
        ),
        ("data.root=${nope}", "data.root: Interpolation key 'nope' not found; write a whole key"),
        ("~optimizer.lr", "optimizer.lr is not set; give optimizer.lr="),
        # another type
        ("optimizer.lr=abc", "optimizer.lr=abc is not a number; write one in digits, such as 0.1."),
        (
            "optimizer.lr=[1e-3,1e-2]",
            "is not a number; write one, or several without brackets with --multirun.",
        ),
        (
            "data.batch_size=auto",
            "give one; in a training, trainer.accumulate=auto fits it into the memory.",
        ),
        ("data.batch_size=1.5", "data.batch_size=1.5 is not a whole number; write one in digits."),
        ("data.shuffle=maybe", "data.shuffle=maybe is not a switch; write true or false."),
        ("trainer.accumulate=many", "accumulate=many is not auto; write a whole number or auto."),
        ("data.scale_jitter=0.5", "is not a list of numbers; write data.scale_jitter=[0.8,1.25]."),
        # impossible values
        ("data.batch_size=0", "data.batch_size=0 is too small; it must be at least 1."),
        (
            "seed=9223372036854775808",
            "seed=9223372036854775808 is too large; it must be below 2^63.",
        ),
        (
            "model=runs/x/checkpoints/best.pt",
            "or, in a training, model.weights=runs/x/checkpoints/best.pt.",
        ),
        ("optimizer.lr=nan", "optimizer.lr=nan is not a finite number."),
        (
            "trainer.precision=bf61",
            "trainer.precision=bf61 is not one of fp32, tf32, bf16, fp16, auto; did you mean bf16?",
        ),
        ("model.aspect_ratios=[]", "model.aspect_ratios=[] is empty; give at least one value."),
        ("data.name=../x", "data.name=../x cannot name a folder below runs/"),
        ("data.min_sizes=[640,16]", "data.min_sizes=16 is too small; it must be at least 32."),
        ("optimizer.betas=[0.9,1]", "optimizer.betas=1.0 is too large; it must be below 1."),
        (
            "schedule.milestones=[1epoch]",
            "schedule.milestones=['1epoch'] has no effect with schedule=cosine",
        ),
        ("model.anchor_sizes=[[8],[]]", "model.anchor_sizes=[[8], []] needs equally many sizes"),
        (
            "optimizer.momentum=0.9",
            "optimizer.momentum=0.9 has no effect with optimizer=adamw; leave it out, or give",
        ),
        (
            "trainer.gradient_clip=0",
            "is too small; it must be above 0; trainer.gradient_clip=null turns it off.",
        ),
    ],
)
def test_wrong_settings_are_named(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("train", [override])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_settings_that_exclude_each_other() -> None:
    with pytest.raises(
        ConfigError, match=r"nesterov=true needs a momentum; give optimizer\.momentum=0\.9"
    ):
        load_config("train", ["optimizer=sgd", "optimizer.nesterov=true", "optimizer.momentum=0"])
    with pytest.raises(ConfigError, match="output_dir=ok is data.root; give another folder."):
        load_config("train", ["data.root=ok", "output_dir=ok"])
    with pytest.raises(
        ConfigError, match="trainer.compile=true cannot trace model.activation_checkpointing=true"
    ):
        load_config("train", ["trainer.compile=true", "model.activation_checkpointing=true"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainer.accumulate=2", "excludes trainer.accumulate=2; use trainer.accumulate=1."),
        ("trainer.precision=bf16", "=bf16; use trainer.precision=fp32 or tf32."),
        ("trainer.compile=true", "excludes trainer.compile=true; use trainer.compile=false."),
        ("strategy.compression=fp16", "use strategy.compression=none."),
        ("model.norm=sync_bn", "excludes model.norm=sync_bn; use model.norm=bn or frozen_bn."),
        ("trainer.num_threads=null", "needs trainer.num_threads, as an operator's sums depend"),
    ],
)
def test_what_virtual_ranks_exclude(override: str, message: str) -> None:
    good = ["trainer.virtual_ranks=4", "trainer.num_threads=1", "model.norm=bn"]
    load_config("train", good)
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        load_config("train", [*good, override])
    assert str(caught.value).startswith("trainer.virtual_ranks=4 ")


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("predict", ["input=a"], "checkpoint is not set"),
        (
            "predict",
            ["model=runs/x"],
            "model is the kind of network; write checkpoint=runs/x or, in a training, ",
        ),
        ("predict", ["input=a", "device"], "device is not KEY=VALUE; write device=VALUE."),
        (
            "train",
            ["data.root", "=", "ok"],
            "data.root is not KEY=VALUE; leave out the spaces around =",
        ),
        ("train", "data=coco", 'overrides is of type str; give a list such as ["data.root=a"].'),
        ("trian", [], "there is no command trian; did you mean train?"),
        (
            "train",
            ["data=auto", "data.root=/shapes", "data.shapes.seed=1"],
            "is read with data=parity or data=shapes",
        ),
        (
            "benchmark_step",
            ["paths=[fp32,fp64]"],
            "paths=fp64 is not one of torchvision, torchvision-tf32, ",
        ),
        ("export", ["format=onnx"], "format is not a setting; did you mean output=model.onnx?"),
        (
            "train",
            ["task=classification", "model.num_classes=3"],
            "is not a setting; the data decides; leave it out.",
        ),
    ],
)
def test_wrong_lists_of_overrides_are_named(name: str, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(name, overrides)
    assert message in str(caught.value)


def test_a_root_alone_is_read_in_its_own_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Drawn data stay the default without a root, in a root that they were drawn into, and where their settings are given."""
    monkeypatch.chdir(tmp_path)
    make_shapes(tmp_path / "drawn", num_train=2, num_val=1, image_size=32)
    make_shapes(tmp_path / "mine", num_train=2, num_val=1, image_size=32)
    (tmp_path / "mine" / "shapes.json").unlink()

    def chosen(*overrides: str) -> str:
        return str(load_config("train", overrides).data.name)

    assert chosen("data.root=mine") == chosen("data.root='mine'", "seed=1") == "mine"
    assert chosen("data.root=absent") == "absent"
    assert (
        chosen("data.root=mine", "task=classification")
        == chosen("data.root=mine", "resume=auto")
        == "mine"
    )
    assert (
        chosen()
        == chosen("data.root=drawn")
        == chosen("data.root=absent", "data.shapes.seed=1")
        == "shapes"
    )
    assert [chosen("data.root=mine", own) for own in ("data=coco", "experiment=bccd")] == [
        "coco",
        "bccd",
    ]
    assert chosen("data=synthetic", "data.synthetic.num_images=9") == "synthetic", (
        "all that the entry has is given"
    )
    assert main(monkeypatch, "train", "data.root=mine", "dry_run=true") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "data.root is read by data=auto"
    assert any(line.endswith("COCO json, as recognised") for line in lines)
    result = run_command(
        "retina_dist.train", "data.root=mine", "seed=1,2", "dry_run=true", "-m", cwd=tmp_path
    )
    assert result.stdout.count("data: mine") == 2
    assert main(monkeypatch, "train", "--cfg", "job", "data.root=mine") == 0
    shown = capsys.readouterr().out
    assert main(monkeypatch, "train", "data.root=mine", "--cfg", "job") == 0
    assert capsys.readouterr().out == shown
    assert "format: auto" in shown


def test_a_run_resumes_with_data_of_its_own_task(tmp_path: Path) -> None:
    rest = "optimizer: {lr: 0.1}\ntrainer: {max_duration: 1epoch}\n"
    (tmp_path / "config.yaml").write_text(f"task: {{name: classification}}\n{rest}")
    with pytest.raises(
        ConfigError, match="data=coco is for task=detection, but the task is classification"
    ):
        load_config("train", [f"resume={tmp_path}", "data=coco"])
    with pytest.raises(
        ConfigError, match="is a run of task=classification; leave task=detection out, or start"
    ):
        load_config("train", [f"resume={tmp_path}", "task=detection"])


OWN_FILES = {
    "good": ("data: {batch_size: 3}", None),
    "type": (
        "data: {min_sizes: 8}",
        "data.min_sizes=8 is not a list of whole numbers; write data.min_sizes=[8].",
    ),
    "form": ("data: [", "is not YAML"),
    "tab": ("data:\n\troot: mine", "with spaces in place of tabs"),
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


def test_the_settings_of_a_checkpoint_are_data() -> None:
    content = {"config": {"data": {"name": "a", "root": "${oc.env:HOME}"}}}
    data = data_settings_of(content, DetectionData, "a.pt")
    assert data.root == "${oc.env:HOME}", "nothing is looked up"


LINES = {
    "--imgsz 640": "--imgsz is not an option; settings are written KEY=VALUE: data.min_sizes=[640].",
    "--config-dir nowhere --help": "--config-dir nowhere is not a folder; give the one above",
    "-m output_dir=a,b": "output_dir=a,b has no effect here; give one folder as output_dir=FOLDER, and each job of",
    "--resume": "--resume is not an option; settings are written KEY=VALUE: resume=VALUE.",
    "--config mine.yaml": "--config is not an option; put it into FOLDER/experiment and give ",
    "mine.yaml": "mine.yaml is not KEY=VALUE; put it into FOLDER/experiment and give ",
}


@pytest.mark.parametrize("line", LINES)
def test_a_wrong_command_line_is_one_sentence_and_writes_nothing(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(monkeypatch, "train", *line.split()) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(f"error: {LINES[line]}")
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert list(tmp_path.iterdir()) == []


def test_hydras_own_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--cfg, --info and a folder of one's own; what is looked at may be unfinished."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine.yaml").write_text("name: mine\n")
    monkeypatch.chdir(tmp_path)
    own_data = ("--config-dir", str(tmp_path), "data=mine")
    assert main(monkeypatch, "train", *own_data, "--cfg", "job", "-p", "data") == 0
    assert {"name: mine", "val_batch_size: 8"} <= set(capsys.readouterr().out.splitlines()), (
        "the schema's defaults too"
    )
    assert main(monkeypatch, "train", *own_data, "-m", "seed=1,2", "--help") == 0
    assert "data.name                      str = mine" in capsys.readouterr().out
    (tmp_path / "config.yaml").write_text("defaults: [train, override /data: synthetic, _self_]\n")
    line = (".", "--config-name", "config", "data.name=my.", "dry_run=true")
    assert (
        "data: my."
        in run_command(
            "retina_dist.train", "-m", "--config-dir", *line, "seed=1,2", cwd=tmp_path
        ).stdout
    )
    own = "dry_run: false\noptimizer: {lr: 1}\ntrainer: {max_duration: 1step}\ndata: {name: a, synthetic: {}}\n"
    (tmp_path / "config.yaml").write_text(own)
    assert (
        "data: my." in run_command("retina_dist.train", "--config-path", *line, cwd=tmp_path).stdout
    )
    assert main(monkeypatch, "convert", "--cfg", "job") == 0
    assert "output: ???" in capsys.readouterr().out
    assert (
        "train_schema"
        in run_command("retina_dist.train", "--info", "defaults", cwd=tmp_path).stdout
    )


@pytest.mark.parametrize("command", [*sorted(COMMANDS.keys() - MODULES.keys()), "benchmark_step"])
def test_help_is_a_page_for_people(command: str) -> None:
    schema = schema_of(command)
    module = importlib.import_module(
        schema.__module__ if command == "benchmark_step" else f"retina_dist.{command}"
    )
    page = help_page(command, schema, module.__doc__ or "", CONF, {})
    assert not re.search("ydra.main|powered by", page)
    assert all(
        f"  {key} " in page
        for key in settings_by_key(schema)
        if "." not in key and key not in SECTIONS
    )
    assert ("model=" in page) == ("optimizer=" in page), (
        "the groups that the command takes, and no other"
    )
    assert max(map(len, page.splitlines())) <= 132


@pytest.mark.parametrize(
    ("override", "lr"), [("optimizer=adamw", "0.001"), ("optimizer.lr=3", "3.0")]
)
def test_help_has_the_values_that_a_command_line_leads_to(
    override: str, lr: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(monkeypatch, "train", override, "--help") == 0
    page = capsys.readouterr().out
    assert re.search(rf"optimizer\.lr +float = {lr} \(> 0", page), page
    monkeypatch.setenv("RETINA_DIST_API_KEY", "my key")
    assert main(monkeypatch, "serve", "--help") == 0
    assert re.search(r"api_key +str or null = \*\*\*:", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("task", "other"), [("detection", "classification"), ("classification", "detection")]
)
def test_a_training_imports_what_it_needs(task: str, other: str, tmp_path: Path) -> None:
    code = f"""import sys, tokenize
sys.argv = ["train", "dry_run=true", "task={task}"]
from retina_dist.train import main
main()
files = {{name: module.__file__ for name, module in sys.modules.items() if name.startswith("retina_dist")}}
print(sorted(name.split(".")[1] for name in files if "." in name))
print(sum(len(list(tokenize.generate_tokens(open(f).readline))) for f in files.values() if f))"""
    environment = {**os.environ, "PYTHONPATH": str(CONF.parent), "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-c", code]
    printed = subprocess.run(
        line, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    ).stdout
    *_, rooms, tokens = printed.splitlines()
    assert not {"benchmark", "serving", "preflight", "doctor", other} & set(ast.literal_eval(rooms))
    assert int(tokens) <= 151_715, "with comments and line ends"


def test_a_run_with_an_alias_bomb_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    for i in range(1, 10):
        lines.append(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]")
    (tmp_path / "config.yaml").write_text("\n".join(lines))
    line = ("--config-path", str(tmp_path), "--config-name", "config")
    assert main(monkeypatch, "train", *line) == 2
    assert "config.yaml cannot be read (line 2: the alias *a0" in capsys.readouterr().err
