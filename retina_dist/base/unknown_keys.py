"""The setting meant by an unknown key: the closest spelling, or what other tools call it."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches

from retina_dist.base.settings import settings_by_key
from retina_dist.base.text import as_override

# What Lightning, ultralytics, Detectron2 and MMDetection call our settings, by the last part of
# the key in lower case. Of the keys after the colon, the first that the command has is meant; one
# with spaces is a clause.
_TABLE = """
epochs epoch max_epochs num_epochs num_train_epochs: trainer.max_duration=12epochs
max_steps max_iter max_iters num_steps iterations steps: trainer.max_duration=90ksteps
lr learning_rate base_lr lr0: optimizer.lr
lr_scheduler scheduler: schedule
optim optimiser: optimizer
warmup_epochs: schedule.warmup=1epoch
warmup_iters warmup_steps warmup: schedule.warmup=1000steps
batch batch_size ims_per_batch bs: batch_size | data.batch_size
workers num_workers: num_workers | data.num_workers | leave it out
imgsz img_size image_size img_scale min_size_train min_size crop_size size: data.min_sizes=[640] | \
data.image_size | size=[640,640] | \
the size of the training is used; leave it out
min_sizes: data.min_sizes | data.image_size | size=[640,640]
max_size_train: data.max_size
accumulate_grad_batches: trainer.accumulate
gradient_clip_val clip_grad: trainer.gradient_clip
check_val_every_n_epoch val_check_interval val_interval eval_period: trainer.validate_every=1epoch
checkpoint_period save_period: trainer.checkpoint_every=1epoch
log_every_n_steps: trainer.log_every
amp fp16 mixed_precision: trainer.precision=bf16
accelerator device: device | strategy.device
devices gpus num_gpus num_nodes num_processes nproc world_size: the launcher starts the processes: \
torchrun --nproc-per-node N
weights pretrained load_from: checkpoint | model.weights | model.backbone_weights
ckpt_path resume_from resume_from_checkpoint: resume | checkpoint
default_root_dir save_dir work_dir project output: output_dir
path data_dir data_path dataset train_dir train_path val_dir val_path: data.root | root
data train: data.root | root | input
logger loggers: logging
freeze freeze_backbone frozen_stages: model.trainable_layers
loss cls_loss: see model.focal_alpha, model.focal_gamma and model.box_loss
anchors num_anchors: see model.anchor_sizes and model.aspect_ratios
format: data.format | output=model.onnx
split: data.val_split
help: --help, alone
recipe preset: write experiment=NAME
opset half simplify dynamic: leave it out
backbone model.name arch: model.backbone | model.architecture
name run_name experiment_name: output_dir
iou nms: model.nms_threshold | the one of the checkpoint, model.nms_threshold, is used
config config_file: put it into FOLDER/experiment and give --config-dir FOLDER experiment=NAME
checkpoint: evaluate, predict, serve and export take a checkpoint; train takes resume=RUN, and \
the doctor checks data
multi_run sweep: give --multirun to train with each of several values
conf confidence threshold score_thr: score_threshold | model.score_threshold
source image: input
seed_everything: seed
patience early_stopping: trainer.patience
classes nc num_classes: model.num_classes | the data decides; leave it out
names class_names: the data names its classes; leave it out
mosaic copy_paste augment augmentation augmentations: see data.hflip, data.photometric and \
data.scale_jitter for detection, data.mixup and data.cutmix for classification
fliplr flip: data.hflip
flipud: data.vflip
"""


_ALIASES: dict[str, list[str]] = {}  # the keys that may be meant, by each name of the table
for _line in _TABLE.strip().splitlines():
    _names, _, _meant = _line.partition(": ")
    _ALIASES |= dict.fromkeys(_names.split(), _meant.split(" | "))


def alias(end: str, known: Collection[str], value: object = None) -> str:
    """The key of `known` that other tools call `end`, perhaps with a value, or a clause, or "".

    A whole number as `value` takes the place of the example's.
    """
    for meant in _ALIASES.get(end.lower().replace("-", "_"), ()):
        is_clause = " " in meant
        if is_clause or meant.partition("=")[0] in known:
            if not re.fullmatch(r"\d{1,9}", str(value)):
                return meant
            return re.sub(r"(?<![a-z\d])\d+k?", str(value), meant)
    return ""


def unknown_key(command: str, key: str, known: Collection[str], value: object = None) -> str:
    """Message for an unknown key of `python -m retina_dist.COMMAND`, with the closest known one.

    First what other tools call it, then one of its section by spelling, its name in another
    section, and a similar spelling.
    """
    if key.endswith("_target_"):
        return (
            f"{key} is not a setting; name a class in an entry of the groups task, data or model."
        )

    if key.startswith("experiment."):
        return f"{key} is not a setting; the experiment's first line must be # @package _global_."
    near = _nearest(key, known, value)
    hint = f"see the keys with {command} --help."
    if near:
        hint = f"did you mean {' or '.join(near)}?"
        if " " in near[0]:
            hint = f"{near[0]}."
    return f"{key} is not a setting; {hint}"


def _nearest(key: str, known: Collection[str], value: object) -> list[str]:
    """The known keys that `key` may mean, or a clause that tells."""
    section, _, end = key.rpartition(".")
    meant = alias(key, known, value) or alias(end, known, value)
    if meant:
        return [meant]
    of_section = [k for k in known if section and k.rpartition(".")[0] == section]
    near = _spelled_like(end, of_section)
    if near:
        return near
    near = [k for k in known if k.rpartition(".")[2] == end]
    near = near or get_close_matches(key, known, 1, 0.85)
    if near or section in known:
        return near
    return _spelled_like(end, known)


def unknown_argument(name: str, schema: type, key: str) -> str:
    """Message for an unknown argument of the settings `schema`, called `name`."""
    own = settings_by_key(schema)
    known: dict[str, str] = {}
    for section in ("", "data.", "model.", "trainer.", "optimizer."):
        known |= {f"{section}{argument}": argument for argument in own}

    hint = "docs/settings.md lists them."
    meant = alias(key, known)
    if meant:
        hint = f"did you mean {known.get(meant.partition('=')[0], meant)}?"
    if " " in meant:
        hint = f"{meant}."
    elif not meant:
        for near in _spelled_like(key, own):
            hint = f"did you mean {near}?"
    return f"{name} has no argument {key}; {hint}"


def _spelled_like(end: str, keys: Iterable[str]) -> list[str]:
    ends: dict[str, str] = {}
    for key in keys:
        ends.setdefault(key.rpartition(".")[2], key)
    return [ends[near] for near in get_close_matches(end, ends, 1, 0.8)]


def no_value(overrides: Sequence[str], number: int, known: Collection[str]) -> str:
    """Message for `overrides[number]`, which is not KEY=VALUE, with a suggestion."""
    word = overrides[number]
    remedy = _remedy_of_word(word, overrides, number, known)
    if remedy:
        return f"{word} is not KEY=VALUE; {remedy}."

    given = {override.partition("=")[0] for override in overrides if "=" in override}
    bare = [each for each in overrides if "=" not in each and each not in known]
    if "input" in known and ("input" in given or len(bare) > 2):  # the shell's words of a pattern
        return f'{word} is not KEY=VALUE; write "input=photos/*.jpg".'
    written = []
    for each in bare:
        key = _key_of_value(each, known, given, is_one_of_several=len(bare) > 1)
        given.add(key)
        written.append(as_override(key, each))
    return f"{word} is not KEY=VALUE; write {' '.join(written)}."


def _remedy_of_word(
    word: str, overrides: Sequence[str], number: int, known: Collection[str]
) -> str:
    """The remedy for a part of a list, a key or a YAML file; "" for another word."""
    around = [*overrides[max(0, number - 1) : number], *overrides[number + 1 : number + 2]]
    if any(other.endswith((",", "=")) or other.startswith("=") for other in around):
        return "leave out the spaces around = and between the items of a list"
    key, _, value = overrides[number - 1].partition("=")
    if number and os.path.exists(f"{value} {word}"):
        return f"write {as_override(key, f'{value} {word}')}"
    if word in known:
        return f"write {word}=VALUE"
    meant = alias(word, known)
    if " " in meant or "=" in meant:
        return f"write {meant}"
    stem, _, ending = word.rpartition(".")
    name = os.path.basename(stem)
    if ending in ("yaml", "yml") and "data.root" in known and name != "data":
        return f"put it into FOLDER/experiment and give --config-dir FOLDER experiment={name}"
    return ""


def _key_of_value(
    word: str, known: Collection[str], given: Collection[str], *, is_one_of_several: bool
) -> str:
    """The key that a value without one may be of: a run's, a file's or a folder's."""
    is_run = word.endswith(".pt") or os.path.isdir(f"{word}/checkpoints")
    keys = ["data.root", "input", "root", "run", "output"]
    if is_run or (is_one_of_several and "checkpoint" in known):
        keys = ["checkpoint", "resume", *keys[1:]]
    for key in keys:
        if key in known and key not in given:
            return key
    return "experiment" if "data.root" in known else "KEY"


def in_settings_of(command: type, remedy: str) -> str:
    """The remedy of a training in the settings of a command that has no training's.

    What the command calls otherwise is renamed, and what it lacks left out.

    >>> from retina_dist.evaluate import EvaluateConfig
    >>> in_settings_of(EvaluateConfig, "give data.val_images=DIR, or set data.bad_images=skip.")
    'give images=DIR.'
    """
    own = "|".join(settings_by_key(command))
    remedy = re.sub(rf"\b(?:data|strategy)\.(?:train_|val_)?(?=(?:{own})=)", "", remedy)
    return re.sub(
        r"; give (?:experiment|task)=.*(?=\.$)|"
        r",? or [^;,=]*\b(?:data|model)(?:\.\w+)?=(?:\[\S*\]|[^\s;,]+?)(?=[;,.]?(?:\s|$))",
        "",
        remedy,
    )
