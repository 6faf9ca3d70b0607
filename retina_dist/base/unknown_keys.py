"""The setting meant by an unknown key: the closest spelling, or what other tools call it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from retina_dist.base.settings import public_name, settings_by_key

# What Lightning, ultralytics, Detectron2 and MMDetection call our settings, by the last part of the key in lower case. Of the keys
# after the colon, the first that the command has is meant; one with spaces is a clause.
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
imgsz img_size image_size img_scale min_size_train min_size crop_size size: data.min_sizes=[640] | data.image_size | size=[640,640]
min_sizes: data.min_sizes | data.image_size | size=[640,640]
max_size_train: data.max_size
accumulate_grad_batches: trainer.accumulate
gradient_clip_val clip_grad: trainer.gradient_clip
check_val_every_n_epoch val_check_interval val_interval eval_period: trainer.validate_every=1epoch
checkpoint_period save_period: trainer.checkpoint_every=1epoch
log_every_n_steps: trainer.log_every
amp fp16 mixed_precision: trainer.precision=bf16
accelerator device: device | strategy.device
devices gpus num_gpus num_nodes num_processes nproc world_size: the launcher starts the processes: torchrun --nproc-per-node N
weights pretrained load_from: checkpoint | model.weights | model.backbone_weights
ckpt_path resume_from resume_from_checkpoint: resume | checkpoint
default_root_dir save_dir work_dir project output: output_dir
path data_dir data_path dataset train_dir train_path val_dir val_path: data.root | root
data train: data.root | root | input
logger loggers: logging
anchors num_anchors: see model.anchor_sizes and model.aspect_ratios
format: data.format | output=model.onnx
val_split: data.val_fraction
iou nms: model.nms_threshold | the one of the checkpoint, model.nms_threshold, is used
checkpoint: evaluate, predict, serve and export take a checkpoint; train takes resume=RUN, and the doctor checks data
multi_run sweep: give --multirun to train with each of several values
conf confidence threshold score_thr: score_threshold | model.score_threshold
source image: input
seed_everything: seed
patience early_stopping: trainer.patience
classes nc num_classes: model.num_classes | the data decides; leave it out
mosaic copy_paste augment augmentation augmentations: see data.hflip, data.photometric and data.scale_jitter for detection, data.mixup and \
data.cutmix for classification
fliplr flip: data.hflip
flipud: data.vflip
"""
_HABITS: dict[str, list[str]] = {}
for _names, _, _meant in (line.partition(": ") for line in _TABLE.strip().splitlines()):
    _HABITS |= dict.fromkeys(_names.split(), _meant.split(" | "))


def habit(end: str, known: Iterable[str], value: object = None) -> str:
    """What other tools call `end`: the key of `known` that it is here, perhaps with a value, or a clause; "" for neither.

    A whole number as `value` takes the place of the example's.
    """
    names = _HABITS.get(end.lower().replace("-", "_"), ())
    meant = next((name for name in names if " " in name or name.partition("=")[0] in known), "")
    return (
        re.sub(r"(?<![a-z\d])\d+k?", str(value), meant)
        if re.fullmatch(r"\d{1,9}", str(value))
        else meant
    )


def unknown_key(command: str, key: str, known: Iterable[str], value: object = None) -> str:
    """Message for an unknown key of `python -m retina_dist.COMMAND`, with the closest known one.

    First one of its section by spelling, then what other tools call it, its name in another section, and a similar spelling.
    """
    if key.endswith("_target_"):
        return f"{key} is not a setting; name a class in an entry of the groups task, data, model and the like."
    known = list(known)
    section, _, end = key.rpartition(".")
    near = (
        _spelled_like(end, [k for k in known if k.rpartition(".")[0] == section]) if section else []
    )
    if not near and (meant := habit(end, known, value)):
        if " " in meant:
            return f"{key} is not a setting; {meant}."
        near = [meant]
    near = (
        near
        or [k for k in known if k.rpartition(".")[2] == end]
        or get_close_matches(key, known, 1, 0.85)
    )
    near = near or _spelled_like(end, [] if section in known else known)
    hint = f"did you mean {' or '.join(near)}?" if near else f"see the keys with {command} --help."
    return f"{key} is not a setting; {hint}"


def no_argument(schema: type, key: str) -> str:
    """Message for an unknown argument of a class of settings, with the closest known one."""
    own = settings_by_key(schema)
    known = {
        f"{section}.{k}": k for section in ("data", "model", "trainer", "optimizer") for k in own
    }
    known |= {k: k for k in own}
    meant = habit(key, known)
    near = [known.get(meant.partition("=")[0], meant)] if meant else _spelled_like(key, list(own))
    hint = (
        f"{meant}."
        if " " in meant
        else f"did you mean {near[0]}?"
        if near
        else "docs/settings.md lists them."
    )
    return f"{public_name(schema)} has no argument {key}; {hint}"


def _spelled_like(end: str, keys: list[str]) -> list[str]:
    ends = {k.rpartition(".")[2]: k for k in reversed(keys)}
    return [ends[e] for e in get_close_matches(end, ends, 1, 0.8)]


def no_value(overrides: Sequence[str], number: int, known: Iterable[str]) -> str:
    """Message for `overrides[number]`, which is not KEY=VALUE, with a suggestion."""
    word, around = (
        overrides[number],
        [*overrides[max(0, number - 1) : number], *overrides[number + 1 : number + 2]],
    )
    if any(other.endswith((",", "=")) or other.startswith("=") for other in around):
        return f"{word} is not KEY=VALUE; leave out the spaces around = and between the items of a list."
    given = {o.partition("=")[0] for o in overrides}
    if word in known or "input" in given:
        value = f"{word}=VALUE" if word in known else '"input=photos/*.jpg"'
        return f"{word} is not KEY=VALUE; write {value}."
    is_run = word.endswith(".pt") or os.path.isdir(f"{word}/checkpoints")
    keys = ("checkpoint", "resume", "run") if is_run else ("data.root", "input", "root", "run")
    key = next((k for k in keys if k in known and k not in given), "KEY")
    return f"{word} is not KEY=VALUE; write {key}={word}."
