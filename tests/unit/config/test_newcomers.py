"""What a newcomer types, and the remedy that the answer names."""

from __future__ import annotations

import copy
import errno
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

import retina_dist
from retina_dist import convert, predict
from retina_dist.__main__ import main
from retina_dist.api import Trainer
from retina_dist.base.arguments import Numbers, Results
from retina_dist.base.errors import CheckpointError, ConfigError, DataError, UserError
from retina_dist.base.files import run_in, write_atomically
from retina_dist.base.registry import as_dict
from retina_dist.base.unknown_keys import in_settings_of
from retina_dist.classification.classifier import TrainedClassifier
from retina_dist.classification.metrics import evaluate_rows
from retina_dist.classification.settings import ClassificationData
from retina_dist.config.compose import data_entry, described, load_config, repeated
from retina_dist.config.entry_point import parse
from retina_dist.config.resumed_settings import settings_of_run
from retina_dist.config.run_config import RunConfig
from retina_dist.data.images import find_images, pixels_of
from retina_dist.data.tree import Tree
from retina_dist.detection.convert import ConvertConfig
from retina_dist.detection.detector import Detector
from retina_dist.detection.model.retinanet import build_retinanet
from retina_dist.detection.model.weights import weights_of
from retina_dist.detection.readers.formats import tree_of
from retina_dist.detection.readers.recognition import recognise
from retina_dist.detection.readers.torch_dataset import TorchDatasetConfig
from retina_dist.detection.settings import DetectionData, ModelConfig
from retina_dist.detection.splits import read_split
from retina_dist.engine.checkpoint.store import load_checkpoint
from retina_dist.engine.early_stopping import check_metric
from retina_dist.engine.plan import to_steps
from retina_dist.model.weights import find_weights, read_state
from retina_dist.optim.learning_rate import build_schedule
from retina_dist.optim.settings import MultiStepSettings, OptimizerConfig
from retina_dist.report import compare
from retina_dist.reporting.run_files import RunFiles
from retina_dist.reporting.run_report import tell_apart
from retina_dist.run.assemble import train
from retina_dist.run.resume import check_resume
from retina_dist.serving.server import listen
from retina_dist.task.export_formats import check_ending
from retina_dist.task.settings import EvaluateConfig
from retina_dist.tracking.callbacks import Callback, CallbackError, CallbackList
from retina_dist.tracking.digest import read_digests
from retina_dist.tracking.settings import LoggingConfig
from retina_dist.train import main as start_training

REMEDIES = {
    # what other tools call it
    "data.train=mine/train": "give data.root=FOLDER, whose splits are found, or",
    "dataset=mine": "did you mean data.root?",
    "logger=wandb": "see logging.tensorboard and logging.mlflow_uri; docs/extending.md has a",
    "threshold=0.5": "did you mean model.score_threshold?",
    "strategy.world_size=2": "the launcher starts the processes: torchrun",
    "model.num_anchors=9": "see model.anchor_sizes and model.aspect_ratios.",
    "data.augmentation=mosaic": "see data.hflip, data.photometric and data.scale_jitter",
    "task=classify": "did you mean classification or",
    "model.name=resnet50": "did you mean model.backbone?",
    "data.flip=0.5": "did you mean data.hflip?",
    "model.freeze=10": "see model.trainable_layers, how many stages of a detector's body train, c",
    "data.batch_size=-1": "must be at least 1; give one; in a training, trainer.accumulate=auto",
    "trainer.save_top_k=-1": "at least 0; give as many as there are validations to keep all, as",
    "data.num_workers=-1": "at least 0; give 0 to read in the training process, or a number of",
    "seed=1-5": "write one, or all with commas and --multirun, as seed=1,2,3.",
    "split=test": "did you mean data.val_split?",
    "recipe=finetune": "write experiment=NAME",
    "loss=focal": "see model.focal_alpha, model.focal_gamma and model.box_loss",
    "model.backbone_weights=true": "is not a text; write one, or leave",
    "data.root=": "data.root is empty, as of an unset variable; give a value",
    "resume=": "resume is empty, as of an unset variable; give a value, or leave it out.",
    "trainer.ema=true": "did you mean trainer.ema_decay=0.9998?",
    "data.mean=[0.5,0.5,0.5]": "images are normalised as for the weights of ImageNet; leave it",
    "schedule.T_max=12": "the schedule ends with trainer.max_duration; leave it out",
    "optimizer.lr_step_size=3": "write schedule=multistep schedule.milestones=[3epochs].",
    "data.root=a data.batch_size=2": "are several settings, so leave the quotes around them out",
    "model.norm=batchnorm": "is not one of null, frozen_bn, bn, sync_bn",
    "data.hsv_h=1": "did you mean data.photometric=0.5?",
    "MODEL.RETINANET.TOPK_CANDIDATES_TEST=1000": "did you mean model.topk_candidates?",
    "MODEL.ANCHOR_GENERATOR.ASPECT_RATIOS=[1]": "did you mean model.aspect_ratios?",
    "trainer.max_epoch=10": "did you mean trainer.max_duration=10epochs?",
    "momentum=0.9": "write optimizer=sgd optimizer.momentum=0.9.",
    "nothing_like_it=1": "nothing_like_it is not a setting; leave it out, or see the keys with",
    # their words for our values
    "trainer.precision=32": "bf16, fp16, auto; did you mean fp32?",
    "trainer.precision=16-mixed": "did you mean fp16?",
    "trainer.precision=bf16-mixed": "did you mean bf16?",
    "data.box_format=cxcywh": "leave it out for YOLO, and write other boxes in pixels as xywh or",
    "data.format=kitti": "leave it out, and the error names what converts it.",
    "data.format=roboflow": "did you mean auto?",
    "trainer.precision=fp8": "tf32, bf16, fp16, auto; give one of them.",
    "strategy=fsdp": "did you mean ddp?",
    "strategy.compression=Compression.fp16": "did you mean fp16?",
    "strategy.timeout_s=30min": "is not a number; write seconds, such as 1800.",
    "processes=2": "the launcher starts the processes: torchrun --nproc-per-node N.",
    "data.in_channels=1": "images are RGB; leave it out.",
    "fold=0": "did you mean data.train_annotations=FOLD.json?",
    "data=voc2007": "give data.root=FOLDER, whose format is recognised, or, where each class has",
    "augmentation=mosaic": "see data.hflip, data.photometric and data.scale_jitter; there are",
    "task=segmentation": "give detection, for boxes, or classification, for whole images; there",
    "trainer=ddp": "give strategy=ddp, or settings such as trainer.precision=bf16; there are",
    "optimizer=torch.optim.SGD": "did you mean sgd?",
    "optimizer.betas=0.9": "write two, as [0.9,0.999].",
    "data.classes=cat,dog": "; leave it out, and remove the boxes of other classes",
    "optimizer.lr=0,01": "write optimizer.lr=0.01 with a point",
    "model.anchor_sizes=[32,64]": "its own brackets: write model.anchor_sizes=[[32],[64],",
    "model.anchor_sizes=[[32],[64]]": "has five, P3 to P7: write [[32],[64],[128],[256],[512]].",
    "SOLVER.STEPS=[60000,80000]": "write schedule=multistep schedule.milestones=[60000steps].",
    "model.neck.num_outs=5": "the pyramid has P3 to P7; leave it out.",
    "erasing=0.4": "detection has none; leave it out.",
    "OUTPUT_DIR=runs/a": "did you mean output_dir?",
    "INPUT.FORMAT=BGR": "images are RGB; leave it out.",
    "model.bbox_head.loss_cls.gamma=2": "did you mean model.focal_gamma?",
    "data.val.ann_file=a.json": "did you mean data.val_annotations?",
    "wandb.project=mine": "docs/extending.md has a logger for Weights & Biases; leave it out.",
    "global_batch_size=16": "did you mean data.batch_size?",
    "restart=true": "did you mean resume=auto?",
    "allow_tf32=true": "did you mean trainer.precision=tf32?",
    "clip_max_norm=0.1": "did you mean trainer.gradient_clip=1?",
    "jit_compile=true": "did you mean trainer.compile=true?",
    "data.letterbox=true": "images are padded to the canvas of their bucket; leave it out.",
    "data.min_box_size=2": "every box with an area in its image counts; leave it out.",
    "rotation_range=10": "see data.hflip, data.photometric and data.scale_jitter",
    "hyp=hyp.yaml": "give --config-dir FOLDER experiment=NAME",
    "custom_hooks=[EMAHook]": "from Python, rd.Trainer takes callbacks",
    "auto_scale_lr.enable=true": "did you mean optimizer.lr_rule=linear?",
    "trainer.max_duration=null": "is not a text; write a duration, such as 12epochs.",
    "data.batch_size=64,64": "is more than one value; give one, as data.batch_size=64, or add --mu",
    "optimizer.lr=1e-3,1e-4": "give one, as optimizer.lr=1e-3, or add --multirun",
    "optimizer.lr=0,001": "write optimizer.lr=0.001 with a point, or",
    "optimizer.betas=0.8,0.9": 'write "optimizer.betas=[0.8,0.9]" where a list is asked for',
    "seed=0,1": "give one, as seed=0, or add --multirun",
    # entries of another group, and paths of entries
    "experiment=retinanet_r18": "does not exist; to choose a network alone, give model=…; there",
    "model=finetune": "does not exist; to choose a recipe, give experiment=…; there are classif",
    "experiment=conf/experiment/small.yaml": "is a file; give experiment=small if it is of the li",
    "experiment=conf/experiment/small": "does not exist; did you mean small? There",
    "data.root=a,b": "one value; give one folder ('data.root=\"a,b\"' if it is one), or add",
    "data.root:mine": "write data.root=mine.",
    "optimizer.lr==0.01": "write optimizer.lr=0.01.",
    "trainer.profile=true": "write a duration, such as 3steps.",
    "SOLVER.CHECKPOINT_PERIOD=500": "did you mean trainer.checkpoint_every=500steps?",
    "fp32=true": "did you mean trainer.precision=fp32?",
    "data.val=mine/val": "give data.root=FOLDER, whose splits are found, or",
    "data.root:": "write data.root=VALUE.",
    "sheets=true": "it is one of python -m retina_dist.doctor: leave it out.",
    "time=2": "steps or images; to stop after 2 hours with a checkpoint, write timeout 2h before",
    "data.format=pascal_voc": "did you mean voc?",
    "optimizer=AdamW": "did you mean adamw? There are",
    "schedule=CosineAnnealingLR": "did you mean cosine? There are",
    "schedule.name=StepLR": "did you mean multistep?",
    "strategy.compression=int8": "is not one of none, bf16, fp16; give one of them.",
    "logging.mlflow_uri=localhost:5000": "has no scheme; write http://localhost:5000 for a server",
    # shortened
    "model=retinanet": "did you mean retinanet_nano or retinanet_r18 or",
    "help": "write --help, alone",
    "epochs": "write trainer.max_duration=12epochs",
    # written as in Python
    "data.min_sizes=[64,]": 'write "data.min_sizes=[64]".',
    "model.aspect_ratios=[1:2,1:1]": "write each item in digits",
    "data.min_sizes=(640,800)": 'write "data.min_sizes=[640,800]".',
    "data.scale_jitter=0.5": "write data.scale_jitter=[0.8,1.25].",
    "data.classes=[a,b]": "write data.classes=FILE.csv; to train on some classes, remove",
    "data.names=[a,b]": "the data names its classes; leave it out.",
    "data.root=mine,": "write data.root=mine.",
    "data.min_sizes=[64 96]": 'write "data.min_sizes=[64,96]", with commas.',
    "model.aspect_ratios=[.5 1. 2]": 'write "model.aspect_ratios=[.5,1.,2]", with commas.',
    "data:root=mine": "write data.root=mine.",
    "labels=a.json": "did you mean data.train_annotations?",
    "logging=wandb": (
        "give logging.tensorboard=true or logging.mlflow_uri=URI; there are default, quiet; an "
        "entry of your own needs --config-dir FOLDER, where FOLDER/logging/wandb.yaml is."
    ),
    "logging=quite": "did you mean quiet? There are",
    # off, and with another example than on
    "amp=False": "did you mean trainer.precision=fp32?",
    "SOLVER.AMP.ENABLED=True": "did you mean trainer.precision=bf16?",
    "model.nms=false": "is not one of hard, matrix; give one of them.",
    "model.norm=false": "is not one of null, frozen_bn, bn, sync_bn; give one of them.",
    "device=0": "did you mean strategy.device=cuda:0?",
    "device=cpu": "did you mean strategy.device?",
    "strategy.device=[0,1]": "give cpu, cuda or cuda:0, and several GPUs to torchrun --nproc-per-",
    "train_pipeline.Resize.scale=[640,640]": "did you mean data.min_sizes=[640]?",
    "model=yolov8n.pt": "is no RetinaNet; leave it out, or give experiment=finetune, which",
    "model=weights/yolo11n.yaml": "is no RetinaNet; leave it out",
    "data.hflip=true": "is not a number; write a number from 0 to 1.",
    "trainer.ema_decay=on": "is not a number; write a number such as 0.9998.",
    "data.max_size=[1333,800]": "as 1333, and data.min_sizes=[800] for the shorter.",
    "model.aspect_ratios=[1:2,2:1]": "write each item in digits, 1:2 as 0.5.",
    "data.name=a/b": "leave out slashes, or give a folder of data as root.",
    # several values, one of which is asked for
    "device=0,1": "start a process for each GPU: torchrun --nproc-per-node N",
    "experiment=finetune,small": "give one, as experiment=finetune, or add --multirun",
    "optimizer.lr=${oc.env:RETINA_UNSET}": "write export RETINA_UNSET=VALUE before",
    "optimizer.lr=${lr}": "'lr' not found; write a whole key, such as ${optimizer.lr}",
    "CUDA_VISIBLE_DEVICES=0": "before the command: CUDA_VISIBLE_DEVICES=0 python -m retina_dist.tr",
    "TEST.FOO_BAR=1": "or see the keys with python -m retina_dist.train --help",
    "precision=fp64": "leave it out, or compare in float64 with python -m retina_dist.parity.",
    "eps=5": "did you mean optimizer.eps?",
    "data/root=mine": "write data.root=mine.",
    "dry_run": "write dry_run=true.",
    "train": "train is not KEY=VALUE; leave it out.",
    "fit": "fit is not KEY=VALUE; leave it out.",
    "–m": "write its dash as a hyphen, - or --, as -m or --multirun.",
    "—multirun": "write its dash as a hyphen, - or --, as -m or --multirun.",
    "mine.yaml": "or for a run's config.yaml give --config-dir RUN --config-name config.",
    "experiment:small": "write experiment=small.",
    "experiment@small": "write experiment=small.",
    "~schedule": "write schedule=VALUE.",
    "print_config=true": "give --cfg job.",
    # null, nothing and shares
    "model.weights=None": "is not a text; write model.weights=null.",
    "trainer.stop_after=none": "is not a text; write trainer.stop_after=null.",
    "data.val_fraction=None": "is not a number; write data.val_fraction=null.",
    "trainer.patience=off": "is not a whole number; write trainer.patience=null.",
    "trainer.ema_decay=false": "is not a number; write trainer.ema_decay=null.",
    "trainer.patience=0": "at least 1; trainer.patience=null turns it off.",
    "data.hflip=50": "data.hflip=50.0 is too large; write 50% as 0.5.",
    "data.val_fraction=20": "is too large; write 20% as 0.2.",
    "data.val_fraction=20%": "write a share for percent, as 0.2 for 20%.",
    "+trainer.max_duration=3epochs": "is a setting already; write trainer.max_duration=… without",
    "optimizer.lr=${env:LR}": "write ${oc.env:NAME} for a variable of the environment.",
    "optimizer@trainer.optimizer=sgd": "is not a choice; write optimizer=NAME",
    "hydra/launcher=slurm": "hydra/launcher=slurm does not exist; did you mean submitit_slurm?",
    "+experiment=small": "write experiment=NAME without a +, and in defaults",
    "exp=small": "write experiment=NAME.",
    "_base_=small": "write defaults: and below it - NAME of the other recipe.",
    "model=[retinanet_r18,retinanet_r50]": "write model=retinanet_r18.",
    "optimizer.lr=loguniform(1e-5,1e-3)": "write the values, as optimizer.lr=1,2, with --multirun",
    "data.class_weights={a=1,b=2}": 'write "data.class_weights={a:1,b:2}".',
    "logging.mlflow=mlruns": "write logging.mlflow_uri=URI.",
    "experiment=runs/a/config.yaml": "config.yaml --config-dir RUN --config-name config.",
    "optimizer._target_=torch.optim.AdamW": "leave it out and give optimizer=NAME of sgd, adamw,",
    "schedule._target_=torch.optim.lr_scheduler.StepLR": "give schedule=NAME of multistep, cosine",
    # which the shell leaves as it is
    "data.root=~/mine": "write data.root=$HOME/mine.",
}


@pytest.mark.parametrize("override", REMEDIES)
def test_the_remedy_is_named(override: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("train", [override])
    assert REMEDIES[override] in str(caught.value)


OF_OTHER_COMMANDS = {
    ("train", "data.root=a", "data.batch_size=8", "images"): "experiment=images, or leave it out.",
    ("train", "task=classification", "experiment=finetune"): (
        "experiment=finetune is for task=detection, but the task is classification; leave "
        "task=classification out, or give experiment=finetune_classifier."
    ),
    ("parity", "nproc=2"): "did you mean processes?",
    ("parity", "num_steps=3"): "did you mean steps=3?",
    ("benchmark_step", "batch_size=4"): "did you mean batch_sizes=[4]?",
    ("shards", "data.root=a", "out=b"): "did you mean output?",
    ("shards", "data.root=a", "output=b", "size=64"): "did you mean shard_mb=64?",
    ("report", "run=a", "format=pdf"): "which a browser prints as PDF; leave it out.",
    ("report", "checkpoint=a.pt"): "did you mean run?",
    ("report", "a=runs/a"): "did you mean run?",
    ("report", "run=runs/a", "b=runs/b"): "did you mean other?",
    ("reproduce", "run=a", "data.root=b"): "did you mean overrides=[data.root=/data/mine]?",
    ("bisect", "good=a", "bad=b"): "did you mean a?",
    ("predict", "checkpoint=a.pt", "input=a", "gpu=0"): "did you mean device=cuda:0?",
    ("predict", "checkpoint=a.pt", "input=a", "sahi=true"): "did you mean tile=640?",
    ("predict", "checkpoint=a.pt", "input=a", "save=true"): "predictions are written to output_dir",
    ("export", "checkpoint=a.pt", "output=a.onnx", "tolerance=1"): "did you mean box_tolerance?",
    ("serve", "checkpoint=a.pt", "route=/score"): "requests go to /score, at host and port; leave",
    ("evaluate", "checkpoint=a.pt", "max_dets=[1,10]"): "did you mean max_detections?",
    ("train", "task=classification", "data.mixup=true"): "one in digits, such as 0.1.",
    ("bisect", "run=runs/a", "other=runs/b"): "did you mean a?",
    ("bisect", "runs/a", "runs/b"): "write a=runs/a b=runs/b.",
    ("doctor", "sheets=true"): "sheets=true is not a text; give a folder.",
    ("report", "run=runs/a", "compare=runs/b"): "did you mean other?",
    ("parity", "backends=gloo"): "did you mean launchers?",
    ("doctor", "tile=640"): "retina_dist.evaluate and python -m retina_dist.predict and",
    ("convert", "input=mine", "output=a.json"): "did you mean root?",
    ("predict", "checkpoint=a.pt", "folder=mine"): "did you mean input?",
    ("predict", "checkpoint=a.pt", "input=a", "labels=false"): "pictures have them; leave it out.",
    ("evaluate", "checkpoint=a.pt", "split=valid"): "did you mean val?",
    ("train", "optimizer=sgd", "eps=5"): "write optimizer=adamw optimizer.eps=1e-8.",
    ("train", "optimizer.lr=choice(1e-3", "1e-4)"): "leave out the spaces around = and between",
    (
        "train",
        "SOLVER.BASE_LR",
        "0.01",
    ): "SOLVER.BASE_LR is not KEY=VALUE; write optimizer.lr=0.01.",
    ("train", "SOLVER.MAX_ITER", "9000"): "write trainer.max_duration=9000steps.",
    ("train", "data.root", "mine"): "write data.root=mine.",
    ("benchmark_step", "data.root=mine"): "data.root is not read: the images are noise; leave",
    ("train", "trainer.max_duration=2", "steps"): "write trainer.max_duration=2steps.",
    ("train", "data.batch_size=2", "trainer.max_duration=30", "epochs"): "max_duration=30epochs.",
    ("predict", "checkpoint=a.pt", "input=a", "iou=0.5"): "did you mean nms_threshold",
    ("predict", "checkpoint=a.pt", "input=a", "save_txt=true"): "written to output_dir; leave it",
    ("train", "task=classification", "model.freeze=true"): "every layer of a classifier is trained",
    ("train", "task=classification", "data=folders", "data.val_split=0.2"): (
        "give a share as data.val_fraction=0.2."
    ),
    ("train", "task=classification", "model.trainable_layers=2"): "every layer of a classifier is",
    ("train", "task=classification", "data.n_folds=5"): "and give data.root=FOLDER.",
    ("train", "task=classification", "data.augment=rand-m9-mstd0.5"): "did you mean randaugment?",
    ("predict", "checkpoint=a.pt", "input=a", "topk=3"): "every class of a classifier is written",
    ("predict", "checkpoint=a.pt", "input=a", "tile_overlap=0.3"): "without tile; give tile=640.",
    ("export", "run=runs/a", "output=a.onnx"): "did you mean checkpoint?",
    ("train", "trainer.val_check_interval=50"): "did you mean trainer.validate_every=50steps?",
    ("report", "runs/a", "runs/b"): "write run=runs/a other=runs/b.",
    ("serve", "checkpoint=a.pt", "threshold=0.5"): "did you mean score_threshold?",
    ("predict", "checkpoint=runs/a", "a.jpg", "b.jpg", "c.jpg"): 'write "input=photos/*.jpg"',
    ("export", "runs/a", "a.onnx"): "write checkpoint=runs/a output=a.onnx",
    ("export", "a.pt", "a.onnx"): "write checkpoint=a.pt output=a.onnx",
    ("export", "checkpoint=a.pt", "output=a.onnx", "opset=11"): "leave it out",
    ("export", "checkpoint=a.pt", "output=a.pt2", "size=640"): "write size=[640,640] for 640 px",
    ("predict", "checkpoint=a.pt", "input=a", "image_size=640"): "the size of the training is used",
}


@pytest.mark.parametrize("line", OF_OTHER_COMMANDS)
def test_the_remedy_of_other_commands_is_named(line: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(line[0], line[1:])
    assert OF_OTHER_COMMANDS[line] in str(caught.value)


def test_python_names_what_reads_a_checkpoint_and_settings() -> None:
    with pytest.raises(ConfigError, match=r"use Detector\.from_checkpoint\(PATH\)"):
        Detector("runs/a")  # type: ignore[arg-type, call-arg]
    with pytest.raises(ConfigError, match=r"give rd\.load_config"):
        Trainer.from_config({"data.root": "a"})  # type: ignore[arg-type]


REQUIRED = {
    "data": DetectionData(root="a"),
    "optimizer": OptimizerConfig(lr=0.1),
    "max_duration": "2steps",
}
CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {
    "^predict: got an unexpected keyword argument 'conf'; call set_limits": (
        Detector.predict,
        (None, "a.jpg"),
        {"conf": 0.5},
    ),
    r"^evaluate: too many positional arguments; write evaluate\(\)\.": (
        Trainer.evaluate,
        (None, "mine"),
        {},
    ),
    "from_checkpoint: .*'score_threshold'; call set_limits\\(score_threshold=0.3\\) after": (
        Detector.from_checkpoint,
        ("runs/a",),
        {"score_threshold": 0.5},
    ),
    "^from_checkpoint: missing a required argument: 'path'; its first argument is the path": (
        Detector.from_checkpoint,
        (),
        {"checkpoint": "runs/a"},
    ),
    r"too many .*; write from_checkpoint\(path=…\), perhaps with device, precision, model, by name": (
        Detector.from_checkpoint,
        ("runs/a", "cuda"),
        {},
    ),
    r"OptimizerConfig: too many .*; write OptimizerConfig\(lr=…\), perhaps with name, lr_rule,": (
        OptimizerConfig,
        ("sgd", *range(20)),
        {},
    ),
    r"LoggingConfig has no argument wandb; docs/extending.md has a logger": (
        LoggingConfig,
        (),
        {"wandb": True},
    ),
    r"TorchDatasetConfig: missing .*; write TorchDatasetConfig\(train=…, categories=…\)": (
        TorchDatasetConfig,
        (),
        {"root": "a"},
    ),
    "data=ClassificationData is not a section; give it to rd.ClassifierTrainer": (
        Trainer,
        (),
        {**REQUIRED, "data": ClassificationData(root="a")},
    ),
    r"write build_retinanet\(num_classes=2, backbone=.*\), with the settings of a ModelConfig": (
        build_retinanet,
        ("resnet50", 3),
        {},
    ),
    "build_retinanet loads no weights; leave them out": (
        build_retinanet,
        (),
        {"num_classes": 3, "weights": "coco"},
    ),
    "num_classes=None is not a whole number; give the number of classes": (
        build_retinanet,
        (),
        {"num_classes": None},
    ),
    "num_classes=0 is too small; it must be at least 1": (build_retinanet, (), {"num_classes": 0}),
    "nms_threshold=5 is too large": (build_retinanet, (), {"num_classes": 1, "nms_threshold": 5}),
    "head_convs='4' is not a whole number; write head_convs=4": (
        build_retinanet,
        (),
        {"num_classes": 1, "head_convs": "4"},
    ),
    "model.add_classes=true needs a detector of a run, and COCO_V1 is torchvision's; give": (
        ModelConfig,
        (),
        {"add_classes": True, "weights": "COCO_V1"},
    ),
    'Trainer has no argument epochs; did you mean max_duration="9epochs"': (
        Trainer,
        (),
        {**REQUIRED, "epochs": 9},
    ),
    r"Trainer has no argument lr; did you mean optimizer=rd\.OptimizerConfig\(lr=…\)": (
        Trainer,
        (),
        {**REQUIRED, "lr": 0.1},
    ),
    r'DetectionData has no argument epochs; did you mean rd\.Trainer\(max_duration="9epochs"\)': (
        DetectionData,
        (),
        {"epochs": 9},
    ),
    "TorchDatasetConfig has no argument class_names; did you mean categories": (
        TorchDatasetConfig,
        (),
        {"class_names": ["a"]},
    ),
    r"is no command; write load_config\(\"train\", \[": (load_config, (["seed=1"],), {}),
    "set_limits: .*'conf'; write score_threshold=0.3": (
        Detector.set_limits,
        (None,),
        {"conf": 0.3},
    ),
    "callbacks=.* is not a list of Callbacks; give objects of classes below rd.Callback": (
        Trainer,
        (),
        {**REQUIRED, "callbacks": [print]},
    ),
    "validate_every=1 is not a text; write a duration, such as 1epoch": (
        Trainer,
        (),
        {**REQUIRED, "validate_every": 1},
    ),
    "overrides is of type dict; give a list such as": (load_config, ("train", {"seed": 1}), {}),
    "data is of type str; give ClassificationData\\(root": (
        TrainedClassifier.val_of,
        (None, "photos"),
        {},
    ),
    r"logging=wandb is not a section; give rd\.LoggingConfig\(NAME=VALUE\), .* Weights & Biases": (
        Trainer,
        (),
        {**REQUIRED, "logging": "wandb"},
    ),
    r"data=DataLoader is not a section; give .* or rd\.TorchDatasetConfig\(train=…, val": (
        Trainer,
        (),
        {**REQUIRED, "data": torch.utils.data.DataLoader([1])},  # type: ignore[arg-type]
    ),
    r"model=Linear is not a section; give rd\.ModelConfig\(.*, which builds torchvision's Re": (
        Trainer,
        (),
        {**REQUIRED, "model": torch.nn.Linear(1, 1)},
    ),
    r"optimizer=SGD is not a section; give rd\.OptimizerConfig\(.*, such as name='sgd', lr=0\.01": (
        Trainer,
        (),
        {**REQUIRED, "optimizer": torch.optim.SGD(torch.nn.Linear(1, 1).parameters())},
    ),
    r"fit: too many positional arguments; write fit\(\) alone, .* data=rd\.TorchDatasetConfig\(": (
        Trainer.fit,
        (None, [1]),
        {},
    ),
    "train=.* is not a dataset; give train=loader.dataset, of which batches are made here": (
        TorchDatasetConfig,
        (),
        {"train": torch.utils.data.DataLoader([1]), "categories": ["a"]},  # type: ignore[arg-type]
    ),
}


@pytest.mark.parametrize("said", CALLS)
def test_a_wrong_call_names_the_argument_and_the_remedy(said: str) -> None:
    function, args, kwargs = CALLS[said]
    with pytest.raises(ConfigError, match=said):
        function(*args, **kwargs)


@pytest.mark.parametrize(
    ("command", "flag", "said"),
    [
        ("train", "--dry-run", "written KEY=VALUE: dry_run=true."),
        ("evaluate", "--checkpoint runs/a", "written KEY=VALUE: checkpoint=runs/a."),
        ("predict", "--checkpoint runs/a", "written KEY=VALUE: checkpoint=runs/a."),
        ("train", "--data a", "written KEY=VALUE: data.root=a."),
        ("train", "-d a", "written KEY=VALUE: data.root=a."),
        ("train", "--opt adamw", "written KEY=VALUE: optimizer=adamw."),
        ("train", "-e 3", "written KEY=VALUE: trainer.max_duration=3epochs."),
        ("train", "--nproc-per-node 2", "give it to the launcher, before -m, as in torchrun"),
        ("train", "--print-config", "--print-config is not an option; give --cfg job."),
        ("train", "--multirun=true", "'true'; it takes no value."),
        ("train", "--config-dir", "expected one argument; see python -m retina_dist.train --help."),
        ("train", "--data-root a", "written KEY=VALUE: data.root=a."),
        ("train", "--weight-decay 0.1", "written KEY=VALUE: optimizer.weight_decay=0.1."),
        ("train", "--hflp 0.1", "written KEY=VALUE: data.hflip=0.1."),
        ("train", "-x 3", "settings are written KEY=VALUE, see python -m retina_dist.train --help"),
    ],
)
def test_an_option_is_answered_with_the_setting(command: str, flag: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(command, flag.split())


def test_data_named_in_part_draw_no_shapes() -> None:
    for key in ("train_images", "val_images", "val_annotations"):
        assert data_entry("train", [f"data.{key}=a"]) == ["data=auto"]


def test_a_path_of_windows_and_a_network_in_capitals_are_answered() -> None:
    with pytest.raises(DataError, match="is not a folder; write a path of Windows as here, such"):
        tree_of("C:Usersmedata")
    with pytest.raises(ConfigError, match=r"such as resnet50\."):
        build_retinanet(num_classes=1, backbone="ResNet-50")


REFUSED_LINES = {
    "report run=a,b": "give one, and the other as other=… ('run=\"a,b\"' if it is one), or add",
    "evaluate checkpoint=a,b": "is more than one value; give one ('checkpoint=",
    "convert root=a to=yolo output=b": "convert writes COCO json alone, which other tools",
    "report run=a output=out.pdf": "output=out.pdf is not HTML, as a report is; give FILE.html.",
    "report run=a annotations=a.json": (
        "annotations=a.json is read where two results are compared; leave it out."
    ),
    "compare runs/a runs/a": "compare takes two run folders or COCO results",
    "compare a a b": "compare takes two run folders or COCO results",
    "compare a=runs/a b=runs/b": "compare takes two run folders or COCO results",
    "train resume=true": "give a run folder, a checkpoint or resume=auto.",
    "data.root=mine": "write a command first, as in retina-dist train data.root=mine.",
    "val": "there is no command val; did you mean evaluate?",
    "Detect": "there is no command Detect; did you mean predict?",
    "train --config-name finetune dry_run=true": (
        "no configuration finetune; give experiment=finetune, with"
    ),
    "train --resolve seed=1": "--resolve is for --cfg job; leave it out.",
    "train -m --cfg job": "--multirun, --cfg and --info exclude each other; leave one out.",
    "train -m seed=1,2 hydra.run.dir=a": "give one folder as output_dir=FOLDER, and each job of",
    "train hydra.mode=MULTIRUN seed=1,2 hydra.run.dir=a": "give one folder as output_dir=FOLDER,",
    "train hydra.sweep.dir=a": "give one folder as output_dir=FOLDER, and each job of --multirun",
    "train --cfg own.yaml": "give --config-dir FOLDER experiment=NAME.",
    "train -m optimizer.lr=range(0.1,0.01)": "write them, as optimizer.lr=1,2, or range(START,STOP",
    "train -m optimizer.lr=interval(1e-4,1e-2)": "write the values, as optimizer.lr=1e-4,1e-3.",
    "train -m hydra/sweeper=optuna seed=0,1": ("as by pip install hydra-optuna-sweeper; there are"),
}


@pytest.mark.parametrize("line", REFUSED_LINES)
def test_a_command_line_is_refused_with_the_remedy(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["retina-dist", *line.split()])
    with pytest.raises(SystemExit):
        main()
    assert REFUSED_LINES[line] in capsys.readouterr().err


def test_a_hook_that_nothing_calls_is_an_error() -> None:
    with pytest.raises(
        ConfigError,
        match=r"C\.on_epoch_end is never called; .* on_validation, which comes by default",
    ):

        class C(Callback):
            def on_epoch_end(self) -> None: ...


def test_a_copy_of_settings_is_no_wrong_call() -> None:
    data = TorchDatasetConfig(train=[1], categories=["a"])  # type: ignore[arg-type]
    assert copy.copy(data).datasets is data.datasets


@pytest.mark.parametrize(
    ("key", "made"),
    [
        ("data", "DetectionData(root='a')"),
        ("model", "ModelConfig(backbone='a')"),
        ("optimizer", "OptimizerConfig(name='a')"),
    ],
)
def test_python_asks_for_the_class_of_a_section(key: str, made: str) -> None:
    sections = {"data": DetectionData(root="a"), "optimizer": OptimizerConfig(lr=0.1)}
    with pytest.raises(ConfigError, match=rf"{key}=a is not a section; give rd\.{re.escape(made)}"):
        Trainer(**{**sections, key: "a"}, max_duration="2steps")  # type: ignore[arg-type]


def test_python_names_data_of_another_task_by_its_class() -> None:
    with pytest.raises(
        ConfigError, match="data=ClassificationData is .*; give it to rd.ClassifierTr"
    ):
        Trainer(
            data=ClassificationData(root="a"),  # type: ignore[arg-type]
            optimizer=OptimizerConfig(lr=0.1),
            max_duration="2steps",
        )


def test_the_plan_says_that_random_weights_are_frozen() -> None:
    frozen = "model.trainable_layers keeps random ones"
    assert frozen in ModelConfig(trainable_layers=0).describe()
    assert frozen not in ModelConfig(trainable_layers=0, backbone_weights="DEFAULT").describe()
    assert frozen not in ModelConfig().describe()


@pytest.mark.parametrize(
    ("overrides", "norm", "said"),
    [
        ("", "sync_bn", False),  # the small models, from scratch
        ("model=retinanet_r50", "bn", False),
        ("model=retinanet_r50 model.backbone_weights=DEFAULT", "frozen_bn", True),
        ("model.backbone=mobilenet_v2 model.backbone_weights=DEFAULT", "frozen_bn", True),
        ("model=retinanet_r18 model.weights=start.pt", "frozen_bn", True),
        ("model.weights=start.pt model.norm=sync_bn", "sync_bn", False),
        ("experiment=torchvision_v2", "sync_bn", False),
        ("task=classification", "sync_bn", False),
        ("task=classification model.weights=start.pt", "frozen_bn", True),
        ("task=classification model.weights=start.pt model.norm=bn", "bn", False),
        ("experiment=finetune_classifier data.root=/data", "bn", False),
    ],
)
def test_pretrained_weights_freeze_the_norms_unless_told(
    overrides: str, norm: str, said: bool
) -> None:
    model = load_config("train", overrides.split()).model
    assert model.norm == norm
    assert ("any batch norms frozen" in model.describe()) is said


def test_a_resume_keeps_the_norm_of_its_run_without_the_weights(tmp_path: Path) -> None:
    """A run from before this default has its norm in its settings."""
    for given, norm in (([], "frozen_bn"), (["model.norm=sync_bn"], "sync_bn")):
        run = tmp_path / norm
        run.mkdir()
        config = load_config("train", ["model.weights=start.pt", *given])
        (run / "config.yaml").write_text(OmegaConf.to_yaml(as_dict(config)))
        resumed = load_config("train", [f"resume={run}", "model.weights=null"])
        assert resumed.model.norm == norm


def test_an_export_spares_the_checkpoints_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").touch()
    with pytest.raises(ConfigError, match=r"best\.pt is among a run's checkpoints"):
        check_ending(tmp_path / "best.pt")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a.engine", "give .onnx, which trtexec"),
        ("a.pth", "give .pt2, or .pt"),
        ("a.onx", "use one of"),
    ],
)
def test_an_export_in_the_form_of_another_tool_names_the_ending(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"output={name} has no known ending; {said}"):
        check_ending(Path(name))


def test_help_of_a_word_is_the_page(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pages = []
    for words in ((), ("schedule",)):
        monkeypatch.setattr("sys.argv", ["train", "--help", *words, "schedule=constant"])
        start_training()
        pages.append(capsys.readouterr().out)
    assert pages[0] == pages[1]


def test_a_folder_whose_name_is_an_unset_variable_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("out/", "out//1", "/"):
        assert "has no name behind a slash, as of an unset" in repeated([f"output_dir={folder}"])
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "config.yaml").touch()
    assert "has no name" in repeated([f"output_dir={tmp_path}/runs/"])
    completed = f"{tmp_path}/runs/mine/"  # by the shell
    for folder in ("out/1", "s3://bucket/out", "file:///out/1", "runs/new/", completed):
        assert not repeated([f"output_dir={folder}", "data.root=/data/"])
    monkeypatch.chdir(tmp_path / "runs")
    assert not repeated(["output_dir=mine/"])


def test_the_files_of_a_run_name_the_run(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoints" / "best.pt"
    checkpoint.parent.mkdir()
    checkpoint.touch()
    for read in (read_digests, lambda path: compare(path, path, None, None)):
        with pytest.raises(DataError, match=f"; give its run, {tmp_path}."):
            read(checkpoint)
    assert run_in(checkpoint.with_name("bset.pt"), "") == f"use {checkpoint}"


def test_published_weights_of_another_network_are_refused_in_the_plan() -> None:
    said = "is no RetinaNet of model.backbone=resnet50; .* model.backbone_weights=DEFAULT for a"
    settings = ModelConfig(weights="ResNet50_Weights.IMAGENET1K_V2")
    with pytest.raises(ConfigError, match=said):
        weights_of(settings)
    assert weights_of(ModelConfig(weights="COCO_V1")) == "RetinaNet_ResNet50_FPN_Weights.COCO_V1"


def test_an_import_names_what_is_meant() -> None:
    with pytest.raises(ImportError, match=r"RetinaNet; call rd\.build_retinanet"):
        from retina_dist import RetinaNet  # type: ignore[attr-defined]  # noqa: F401
    script = "import retina_dist; from retina_dist import train; print(hasattr(retina_dist, 'x'))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


def test_a_file_above_the_limit_of_the_shell_names_the_limit(tmp_path: Path) -> None:
    def write(path: Path) -> None:
        raise OSError(errno.EFBIG, "File too large")

    with pytest.raises(
        UserError, match=r"are untouched: make room in .*, or .* \(see also ulimit -f"
    ):
        write_atomically(tmp_path / "a.pt", write)


def test_a_detector_is_not_compared_with_a_classifier(tmp_path: Path) -> None:
    for task in ("detection", "classification"):
        (tmp_path / task).mkdir()
        (tmp_path / task / "config.yaml").write_text(f"task: {{name: {task}}}")
    with pytest.raises(DataError, match=r"are of two tasks; compare runs of one\."):
        tell_apart(RunFiles(tmp_path / "detection"), RunFiles(tmp_path / "classification"))


def test_a_command_on_a_checkpoint_names_no_setting_of_a_training(tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(b"onnx")
    with pytest.raises(CheckpointError) as caught:
        Detector.from_checkpoint(tmp_path / "a.pt")
    assert "model.weights=FILE" in str(caught.value)
    assert "model.weights" not in in_settings_of(EvaluateConfig, str(caught.value))


def test_a_command_on_a_detector_names_the_training_for_class_folders(tmp_path: Path) -> None:
    folder = tmp_path / "train" / "cat"
    folder.mkdir(parents=True)
    (folder / "a.jpg").touch()
    with pytest.raises(DataError) as caught:
        recognise(Tree(tmp_path))
    for command in (EvaluateConfig, ConvertConfig):
        assert in_settings_of(command, str(caught.value)).endswith(
            "for a classifier; train one with experiment=finetune_classifier, "
            "or task=classification data=folders."
        )


def test_convert_names_its_own_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.csv").write_text("a,b\n")
    arguments = ["convert", f"root={tmp_path}", f"output={tmp_path}/a.json"]
    monkeypatch.setattr("sys.argv", arguments)
    with pytest.raises(SystemExit):
        convert.main()
    answer = capsys.readouterr().err
    assert "name a file with annotations=FILE, its images with images=FOLDER;" in answer
    assert "data." not in answer.replace("docs/data.md", "")


def test_a_folder_with_a_space_is_quoted(tmp_path: Path) -> None:
    (tmp_path / "my photos").mkdir()
    with pytest.raises(ConfigError, match=r"write 'data\.root=\".*/my photos\"'"):
        load_config("train", [f"data.root={tmp_path}/my", "photos"])


def test_a_launcher_starts_no_command_of_one_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["predict", "checkpoint=best.pt", "input=photos"]
    monkeypatch.setattr("sys.argv", arguments)
    for key, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(key, value)
    with pytest.raises(SystemExit):
        predict.main()
    assert "predict is for one process; leave out the launcher." in capsys.readouterr().err


def test_a_resume_of_a_checkpoint_beside_its_folder_names_the_folder(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last.pt").touch()
    with pytest.raises(CheckpointError, match=r"write .*checkpoints/last\.pt"):
        check_resume(tmp_path / "last.pt", None)


def test_a_dry_run_says_what_resume_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    train(load_config("train", ["data=synthetic", "resume=auto", "dry_run=true"]))
    assert "a fresh start (or give resume=RUN)" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_refuses_the_checkpoint_that_the_run_would_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job = ["data=synthetic", "data.synthetic.canvas=[64,64]", "model=retinanet_nano"]
    job += ["data.batch_size=1", "logging=quiet", "trainer.max_duration=1steps"]
    job += ["schedule=constant", "output_dir=run"]
    train(load_config("train", job))
    files = sorted(Path("run").rglob("*"))
    again = [*job, "resume=run", "dry_run=true", "trainer.max_duration=2steps"]
    for given, said in {
        "data.synthetic.num_classes=3": "was trained on other classes than data=synthetic has",
        "model.fpn_channels=128": "differs from the 64 that .* or start a new run without resume=",
        "seed=1": "seed=1 differs from the 0 .* or start a new run with model.weights=",
        "model=retinanet_r18": r"leave out what sets .* model\.backbone, .*, such as model=…, or start",
    }.items():
        with pytest.raises(UserError, match=said):
            train(load_config("train", [*again, given]))
    assert train(load_config("train", again)) == {}
    assert sorted(Path("run").rglob("*")) == files


def test_a_resume_of_another_file_of_a_run_names_the_run(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "config.yaml").touch()
    with pytest.raises(CheckpointError, match="cannot be read as a file of tensors"):
        check_resume(tmp_path / "config.yaml", None)
    (tmp_path / "checkpoints" / "last.pt").touch()
    with pytest.raises(CheckpointError, match=f"no checkpoint; write resume={tmp_path}."):
        check_resume(tmp_path / "config.yaml", None)


@pytest.mark.parametrize(
    ("of_run", "given", "name"),
    [
        ("{name: old, root: a/old}", "data.root=b/new", "new"),
        ("{name: mine, root: a/old}", "data.root=b/new", "mine"),
        ("{name: old, root: a/old}", "data.hflip=0", "old"),
        ("{name: old, root: a/old}", "data.name=own", "own"),
    ],
)
def test_other_data_of_a_resume_have_their_own_name(
    of_run: str, given: str, name: str, tmp_path: Path
) -> None:
    (tmp_path / "config.yaml").write_text(f"data: {of_run}\n")
    composed = {"resume": str(tmp_path), "data": {"root": "b/new", "name": "own"}}
    run = settings_of_run(composed, RunConfig, {given.partition("=")[0]})
    assert run["data"]["name"] == name


def test_data_of_a_resume_outside_of_a_run_are_read_as_those_of_a_start(tmp_path: Path) -> None:
    overrides = [f"data.root={tmp_path}", f"resume={tmp_path}/other.pt"]
    assert data_entry("train", overrides) == ["data=auto"]


def test_a_command_line_without_an_entry_is_the_default_job() -> None:
    for given in ([], ["optimizer.lr=1e-4", "strategy=ddp", "logging=quiet", "resume=auto"]):
        assert data_entry("train", given) == data_entry("doctor", given) == ["experiment=shapes"]
    job, named = load_config("train"), load_config("train", ["experiment=shapes"])
    assert job == named
    assert (job.data.min_sizes, job.model.backbone) == ([96], "resnet10_half")
    assert load_config("train", ["optimizer.lr=1e-4"]).optimizer.lr == 1e-4


@pytest.mark.parametrize(
    "chosen",
    ["task=detection", "data=shapes", "data.shapes.seed=1", "model=retinanet_tiny"]
    + ["optimizer=sgd", "schedule=cosine", "trainer=debug"],
)
def test_an_entry_is_not_changed_by_the_recipe_of_the_default_job(chosen: str) -> None:
    assert data_entry("train", [chosen]) == []
    config = load_config("train", [chosen])
    assert (config.data.min_sizes, config.model.backbone) == ([128], "resnet18")
    assert config.optimizer.lr == {"optimizer=sgd": 0.01}.get(chosen, 1e-3)


def test_shards_are_not_made_of_the_default_job() -> None:
    assert data_entry("shards", []) == []


def test_a_dry_run_refuses_the_weights_of_another_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"model": torch.nn.Linear(2, 2)}, "theirs.pt")
    overrides = ["data=synthetic", "dry_run=true", "model.weights=theirs.pt"]
    with pytest.raises(CheckpointError, match=r"theirs\.pt cannot be read .*model\.state_dict"):
        train(load_config("train", overrides))


FILES = {
    "- data.root=a": "holds a list; write KEY: VALUE lines, without - before.",
    "data.root: a": "data.root is written with a point in a file; write the part after it below",
    "data:\n\troot: a": "correct it, with spaces in place of tabs.",
    "data: root: a": "begin a new line below, or put the text in quotes.",
    "seed: 1\nseed: 2": "write the key once, with all that is below it.",
    'data: {root: "C:\\data"}': "write the text in single quotes, or with slashes.",
    "model: retinanet_r50": "in a file's defaults - override /model: NAME.",
    "defaults:\n  - optimizer: sgd": (
        "in the defaults of its file, write - override /optimizer: sgd."
    ),
    "defaults:\n  - experiment/small": "in the defaults of its file, write - small.",
    "defaults:\n  - override optimizer: sgd": "own: write - override /optimizer: NAME, with the",
}


@pytest.mark.parametrize("text", FILES)
def test_a_fault_of_an_own_file_is_answered_with_what_to_write(text: str, tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "own.yaml").write_text(f"# @package _global_\n{text}\n")
    with pytest.raises(ConfigError) as caught:
        described("train", ["experiment=own"], [f"hydra.searchpath=[file://{tmp_path}]"])
    assert FILES[text] in str(caught.value)


def test_a_recipe_without_its_first_line_is_told_it(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    own = tmp_path / "experiment" / "own.yaml"
    own.write_text("defaults:\n  - override /optimizer: sgd\n")
    also = [f"hydra.searchpath=[file://{tmp_path}]"]
    with pytest.raises(ConfigError, match="begins with the line # @package _global_; add it"):
        described("train", ["experiment=own"], also)
    own.write_text(f"# @package _global_\n{own.read_text()}")
    assert described("train", ["experiment=own"], also)[1]["optimizer.name"] == "sgd"


def test_recipes_may_be_put_together() -> None:
    values = described("train", ["experiment=[bccd,overfit]"])[1]
    assert values["trainer.overfit_batches"] != "0"
    assert values["schedule.warmup"] == "100steps or auto"


def test_a_folder_of_the_shell_is_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELLS", "/nowhere/cells")
    with pytest.raises(DataError, match=r"\$CELLS/a is not a folder; write /nowhere/cells/a\."):
        tree_of("$CELLS/a")


def test_a_recipe_that_sweeps_says_that_a_run_alone_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "experiment").mkdir()
    text = "# @package _global_\nhydra: {sweeper: {params: {seed: '1,2'}}}\n"
    (tmp_path / "experiment" / "own.yaml").write_text(text)
    line = f"train --config-dir {tmp_path} experiment=own data=synthetic dry_run=true"
    monkeypatch.setattr("sys.argv", ["retina-dist", *line.split()])
    main()
    assert "hydra.sweeper.params have no effect without --multirun" in capsys.readouterr().err


def test_a_folder_of_one_file_is_taken_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").touch()
    assert parse("train", ["--config-dir", str(tmp_path), "--config-name", "own"]).config_name


def test_a_file_in_place_of_the_commands_is_to_be_a_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.yaml").write_text("data: {root: cells}\n")
    line = ["train", "--config-dir", str(tmp_path), "--config-name", "own", "dry_run=true"]
    monkeypatch.setattr("sys.argv", ["retina-dist", *line])
    with pytest.raises(SystemExit):
        main()
    assert "give --config-dir FOLDER experiment=…." in capsys.readouterr().err


def test_a_setting_of_a_group_that_a_file_gives_a_name_names_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "own.yaml").write_text("# @package _global_\ndata: coco\n")
    also = [f"hydra.searchpath=[file://{tmp_path}]"]
    with pytest.raises(ConfigError, match=r"data\.root: a file .* write - override /GROUP: NAME"):
        described("train", ["experiment=own", "data.root=a"], also)


def test_a_key_that_stands_twice_is_named_with_the_value_that_counts() -> None:
    said = repeated(["seed=1", "optimizer.lr=1", "+seed=2"])
    assert said == "seed=1 and +seed=2 are both given; +seed=2 counts: leave one out."
    assert not repeated(["seed=1", "optimizer.lr=1", "seed=1", "~data.hflip"])


def test_settings_that_keep_what_is_not_theirs_are_named(tmp_path: Path) -> None:
    assert "keeps the other's lr and weight_decay; give optimizer=sgd." in repeated(
        ["optimizer.name=sgd"]
    )
    assert not repeated(["optimizer=adamw", "optimizer.name=sgd"])
    said = "optimizer=sgd keeps the recipe's lr=5e-4, for adamw; give optimizer.lr too."
    assert repeated(["experiment=finetune_cpu", "optimizer=sgd"]) == said
    for kept in (
        ["experiment=finetune_cpu", "optimizer=sgd", "optimizer.lr=0.01"],
        ["experiment=finetune_cpu", "optimizer=adamw"],
        ["experiment=shapes", "optimizer=adamw"],  # of train.yaml
        ["experiment=finetune", "optimizer=adamw"],  # without an lr
    ):
        assert not repeated(kept)
    resume = f"resume={tmp_path}"
    assert not repeated([resume, "experiment=small"])  # no run
    (tmp_path / "config.yaml").touch()
    assert "experiment takes the place of all settings of the run" in repeated(
        [resume, "experiment=small"]
    )


def test_a_name_that_is_nearly_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for name, said in {"mien": f"use {tmp_path}/mine.", "x": "give the one"}.items():
        with pytest.raises(DataError, match=said):
            tree_of(str(tmp_path / name))
    with pytest.raises(CheckpointError, match=f"no checkpoint .*mien; use {tmp_path}/mine"):
        load_checkpoint(tmp_path / "mien")


@pytest.mark.parametrize(
    ("uri", "is_accepted"),
    [
        ("localhost", False),
        ("mlflow.example.com", False),
        ("databricks", True),
        ("databricks://work", True),
        ("file:2026", True),
        ("mlruns", True),
        ("./runs.old", True),
        ("runs.old", True),  # a folder that is there
        ("C:\\mlruns", True),
        ("sqlite:///mlflow.db", True),
    ],
)
def test_a_server_of_mlflow_has_a_scheme(
    uri: str, is_accepted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs.old").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    for said in ("false", "auto"):
        if is_accepted or said == "false":
            LoggingConfig(mlflow=said).check()
            continue
        with pytest.raises(ConfigError, match=f"{uri} .* has no scheme; write http://{uri}"):
            LoggingConfig(mlflow=said).check()


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("imagenet", "give model.backbone_weights=DEFAULT, or to a classifier"),
        ("coco", "give model.weights=COCO_V1."),
        ("DEFAULT", "give the name of the network too, as ResNet50_Weights.IMAGENET1K_V1."),
        ("absent.pt", "give one, or a name such as RetinaNet_"),
    ],
)
def test_weights_that_are_no_file_name_what_loads_them(word: str, said: str) -> None:
    with pytest.raises(CheckpointError, match=f"{word} is neither a file nor a URL; {said}"):
        find_weights(word)


@pytest.mark.parametrize("given", [torch.rand(1, 3, 64, 64), [torch.rand(3, 64, 64)]])
def test_a_network_called_with_images_names_what_takes_them(given: Any) -> None:
    model = build_retinanet(num_classes=1, backbone="mobilenet_v3_small")
    with pytest.raises(ConfigError, match=r"takes a Batch, not a .*; call rd\.Detector\(model, ca"):
        model(given)


def test_a_detector_is_called_as_its_predict() -> None:
    assert Detector.__call__ is Detector.predict
    assert TrainedClassifier.__call__ is TrainedClassifier.predict


def test_python_names_the_choice_of_a_number() -> None:
    with pytest.raises(ConfigError, match=r"precision=16 is not one of .*; did you mean fp16\?"):
        Trainer(**REQUIRED, precision=16)  # type: ignore[arg-type]


def test_a_monitor_names_the_nearest_metric() -> None:
    for word, meant in {"mAP": "coco/AP", "val_loss": "val/loss"}.items():
        with pytest.raises(ConfigError, match=rf"did you mean {meant}\?"):
            check_metric(word, ["coco/AP", "coco/AP50", "val/loss"])


def test_a_callback_that_asks_for_another_metric_is_told_those_there_are() -> None:
    class C(Callback):
        def on_validation(self, metrics: Any, step: int) -> None:
            print(metrics["mAP"])

    callbacks = CallbackList([C()])
    with pytest.raises(CallbackError, match=r"KeyError: 'mAP'; there are coco/AP, val/loss\."):
        callbacks.on_validation({"coco/AP": 0.1, "val/loss": 1.0}, 1)


def test_fewer_labels_than_classes_are_refused_in_the_plan(tmp_path: Path) -> None:
    drawn = [f"data.root={tmp_path}/drawn", "data.shapes.num_train=2", "data.shapes.num_val=1"]
    settings = ["data=shapes", *drawn, "dry_run=true", "model.num_classes=2"]
    with pytest.raises(ConfigError, match="is less than the 6 of the data; leave it out"):
        train(load_config("train", settings))


@pytest.mark.parametrize(
    "read",
    [
        load_checkpoint,
        lambda folder: read_state(str(folder)),
        RunFiles,
        read_digests,
        lambda folder: check_resume(folder, None),
    ],
)
def test_a_folder_of_runs_names_the_newest_with_a_checkpoint(
    read: Callable[[Any], Any], tmp_path: Path
) -> None:
    for seconds, name in enumerate(["new", "old"]):
        file = tmp_path / name / "checkpoints" / "last.pt"
        file.parent.mkdir(parents=True)
        file.touch()
        os.utime(file, (1000 - seconds, 1000 - seconds))
    (tmp_path / "stopped" / "checkpoints").mkdir(parents=True)
    with pytest.raises(UserError, match=f"; give a run in it, such as {tmp_path}/new."):
        read(tmp_path)


def test_a_checkpoint_beside_its_folder_is_named_within(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "best.pt").touch()
    for read in (load_checkpoint, find_weights):
        with pytest.raises(CheckpointError, match=f"; write {tmp_path}/checkpoints/best.pt."):
            read(str(tmp_path / "best.pt"))


def test_a_url_of_weights_is_one_of_a_file() -> None:
    with pytest.raises(CheckpointError, match=r"such as memory://me/model\.safetensors"):
        read_state("memory://me/absent")


def test_python_names_what_is_meant_by_a_name_that_is_not_there() -> None:
    trainer = Trainer(**REQUIRED)  # type: ignore[arg-type]
    meant = {
        "Model": (retina_dist, r"retina_dist has no attribute Model; call rd\.build_retinanet"),
        "compare": (retina_dist, r"no attribute compare; use retina-dist compare RUN RUN\."),
        "Classifier": (
            retina_dist,
            r"call rd\.TrainedClassifier\.from_checkpoint\(RUN\), or train",
        ),
        "fut": (retina_dist, r"retina_dist has no attribute fut; it has "),
        "Callbck": (retina_dist, r"retina_dist has no attribute Callbck; use Callback\."),
        "train": (trainer, r"Trainer has no attribute train; call fit\(\)"),
        "evaluat": (trainer, "Trainer has no attribute evaluat; use evaluate"),
        "x": (trainer, "Trainer has no attribute x; it has "),
    }
    for name, (owner, said) in meant.items():
        with pytest.raises(AttributeError, match=said):
            getattr(owner, name)
    assert not hasattr(trainer, "train")


def test_a_command_starts_as_a_script_too(tmp_path: Path) -> None:
    """Its folder is the package's, whose bisect must not hide Python's."""
    script = Path(retina_dist.__file__).with_name("convert.py")
    done = subprocess.run(
        [sys.executable, script, "root=absent", "output=a.json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(script.parents[1])},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr[:21]) == (2, "error: root=absent is"), done.stderr


def test_a_key_that_is_not_there_names_the_one_that_is_meant() -> None:
    metrics = Numbers({"coco/AP": 0.5, "val/loss": 1.0})
    assert metrics == {"coco/AP": 0.5, "val/loss": 1.0}
    for key, said in {"mAP": r'write \["coco/AP"\]', "x": "there are coco/AP, val/loss"}.items():
        with pytest.raises(KeyError, match=f"there is no {key}; {said}"):
            metrics[key]
    found = Results([Numbers(boxes=1, scores=2, labels=3)])
    assert (found[0]["boxes"], found[:1], copy.copy(found)) == (1, found, found)
    with pytest.raises(AttributeError, match=r'write \["boxes"\]'):
        found[0].boxes  # noqa: B018
    with pytest.raises(KeyError, match=r'write \["labels"\]'):
        found[0]["classes"]
    with pytest.raises(
        AttributeError, match=r"has no boxes; take the result of one .* results\[0\]"
    ):
        found.boxes  # type: ignore[attr-defined]  # noqa: B018


def test_an_import_of_what_is_not_there_names_what_is_meant() -> None:
    meant = {"trainer": "use Trainer", "val": r"use python -m retina_dist\.evaluate", "q": "it has"}
    for name, said in meant.items():
        with pytest.raises(ModuleNotFoundError, match=f"retina_dist has no .*{name}; {said}"):
            exec(f"from retina_dist import {name}")
    assert not hasattr(retina_dist, "trainer")
    exec("from retina_dist import bisect, Trainer")


def test_a_callback_takes_what_it_is_called_with() -> None:
    with pytest.raises(ConfigError, match=r"C\.on_step is called as on_step\(step, values\); give"):
        type("C", (Callback,), {"on_step": lambda self, trainer, batch, outputs: None})
    type("C", (Callback,), {"on_step": lambda self, *arguments: None, "on_end": lambda self: None})


@pytest.mark.parametrize(
    ("image", "said"),
    [
        (np.zeros((3, 8, 9)), r"image\.transpose\(1, 2, 0\)"),
        (torch.zeros(8, 9, 3), r"image\.permute\(2, 0, 1\)"),
        (torch.zeros(2, 3, 8, 9), r"list\(images\)"),
        (np.zeros((8, 9, 4)), r"image\[\.\.\., :3\]"),
        (torch.zeros(4, 8, 9), r"image\[:3\]"),
        ("https://a/b.jpg", "https://a/b.jpg is not a local file"),
    ],
)
def test_an_image_of_another_form_is_told_how_to_be_given(image: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        pixels_of(image)


def test_items_that_differ_each_time_are_refused() -> None:
    class Changing(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, number: int) -> Any:
            boxes = torch.rand(1, 4).sort().values * 8
            return torch.zeros(3, 8, 8), boxes[:, [0, 1, 2, 3]], [0]

    class Constant(Changing):
        def __getitem__(self, number: int) -> Any:
            return torch.zeros(3, 8, 8), torch.tensor([[torch.nan, 0, 4, 4]]), [0]

    settings = TorchDatasetConfig(train=Changing(), val=Constant(), categories=["a"])
    with pytest.raises(DataError, match=r"\[0\] differs each time .* its augmentation"):
        settings.datasets["train"].coco("xyxy")
    assert len(settings.datasets["val"].coco("xyxy")["annotations"]) == 8


def test_commands_refuse_what_would_pass_silently(tmp_path: Path) -> None:
    (tmp_path / "list.txt").touch()
    (tmp_path / "image").touch()
    (tmp_path / "config.yaml").write_text("{}")
    (tmp_path / "x").mkdir()
    with pytest.raises(ConfigError, match=r"has no ending \.json; .*format=… is that of the"):
        convert.convert(ConvertConfig(root=str(tmp_path), output=str(tmp_path / "yolo")))
    with pytest.raises(ConfigError, match="is the run itself; give another"):
        compare(tmp_path, tmp_path / "x" / "..", None, None)
    with pytest.raises(DataError, match="is not an image; give their folder"):
        find_images(str(tmp_path / "list.txt"))
    assert find_images(str(tmp_path / "image")) == [tmp_path / "image"]
    for host, said in {"localhost:81": "localhost port=81", "http://a": "a port=8080"}.items():
        with pytest.raises(ConfigError, match=f"write host={said}"):
            listen(host, 8080)
    with pytest.raises(ConfigError, match=r"input=\[a,b\] is not a text; give one file, a folder"):
        load_config("predict", ["checkpoint=a.pt", "input=[a,b]"])
    doubled = "give data.train_images=FOLDER or data.val_images=FOLDER."
    assert in_settings_of(EvaluateConfig, doubled) == "give images=FOLDER."


def test_a_run_is_no_data_set_and_a_checkpoint_no_state_dict(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    for name in ("config.yaml", "checkpoints/manifest.json"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(DataError, match="is the folder of a run; give that of its data"):
        recognise(Tree(tmp_path))
    model = build_retinanet(num_classes=1, backbone="resnet10_half", fpn_channels=64)
    with pytest.raises(ConfigError, match=r"was given a checkpoint; write rd\.Detector"):
        model.load_state_dict({"model": {}, "model_arguments": {}})
    model.load_state_dict(model.state_dict())
    with pytest.raises(ConfigError, match="start by torchrun --nproc-per-node N -m"):
        parse("train", ["--local-rank=0"])
    with pytest.raises(ConfigError, match="of a script is resumed by that script"):
        read_split(DetectionData(name="data"), "train")


@pytest.mark.parametrize(
    ("section", "given", "said"),
    [
        (DetectionData, {"root": Path("a")}, r"data\.root is of type .*Path; write str\(VALUE\)"),
        (
            DetectionData,
            {"root": "a", "min_sizes": (64,)},
            r"tuple; write list\(VALUE\), .* \[64\]",
        ),
        (DetectionData, {"root": "a", "batch_size": np.int64(8)}, r"write int\(VALUE\), .* 8\."),
        (OptimizerConfig, {"lr": np.float32(0.5)}, r"lr is of type float32; write float\(VALUE\)"),
    ],
)
def test_a_value_of_another_library_names_the_plain_type(
    section: type, given: dict[str, Any], said: str
) -> None:
    name = "data" if section is DetectionData else "optimizer"
    sections = {"data": DetectionData(root="a"), "optimizer": OptimizerConfig(lr=np.float64(0.1))}
    with pytest.raises(ConfigError, match=said):
        Trainer(**{**sections, name: section(**given)}, max_duration="2steps")  # type: ignore[arg-type]


ROOT = Path(retina_dist.__file__).parents[1]
MAKE = {
    "train data.root=/data/mine": 'write settings into ARGS: make train ARGS="data.root=/data/',
    "train args=seed=1": 'write settings into ARGS: make train ARGS="seed=1"',
    "evaluate": "there is no target evaluate; make help lists them",
}


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize("line", MAKE)
def test_make_refuses_what_it_would_not_pass_on(line: str) -> None:
    words = ["make", "-C", str(ROOT), *line.split()]
    made = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert made.returncode == 2
    assert MAKE[line] in made.stdout + made.stderr


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize("space", [" ", "\n", "\t"])
def test_make_takes_settings_and_variables(space: str) -> None:
    words = [
        *("make", "-n", "-B", "-C", str(ROOT), "--no-print-directory", "train"),
        *(f"ARGS=seed=1{space}data.root=a", "OMP_NUM_THREADS=2", "http_proxy=b"),
    ]
    made = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert made.stdout.rstrip().endswith(f"retina_dist.train seed=1{space}data.root=a")


def test_a_job_file_started_by_bash_names_sbatch() -> None:
    line = ["bash", str(ROOT / "scripts/slurm/train.sbatch")]
    made = subprocess.run(line, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True)
    assert made.returncode == 2
    assert "error: this is not a job of Slurm; start it by sbatch" in made.stderr


OF_CLASSIFIERS = {
    "names": (TrainedClassifier, "read classes"),
    "export": (TrainedClassifier, "use python -m retina_dist.export checkpoint=RUN output=FILE."),
    "predict_proba": (TrainedClassifier, "call predict(PATHS), which gives the probability of"),
    "detector": (retina_dist.ClassifierTrainer, "a classifier is trained; call classifier()"),
    "fit_one_cycle": (retina_dist.ClassifierTrainer, "call fit()."),
}


@pytest.mark.parametrize("name", OF_CLASSIFIERS)
def test_what_a_classifier_lacks_names_what_it_has(name: str) -> None:
    owner, said = OF_CLASSIFIERS[name]
    with pytest.raises(AttributeError, match=re.escape(said)):
        getattr(object.__new__(owner), name)


def test_a_metric_of_a_classifier_by_another_name() -> None:
    rows = torch.zeros(2, 7, dtype=torch.float64).numpy()
    result = evaluate_rows(rows, ["cat", "dog"])
    with pytest.raises(KeyError, match=r'write \["val/top1"\]'):
        result.metrics["accuracy"]


@pytest.mark.parametrize("line", [["-m", "retina_dist.train"], ["-c", "import retina_dist"]])
def test_a_python_without_the_packages_names_the_environment(line: list[str]) -> None:
    made = subprocess.run(
        [sys.executable, "-S", *line], cwd=ROOT, env={}, capture_output=True, text=True
    )
    assert made.stderr.endswith(
        "lazy_loader; first write source .venv/bin/activate, or pip install . in the clone.\n"
    )
    assert ("Traceback" in made.stderr) == (line[0] == "-c")


@pytest.mark.parametrize(
    ("duration", "is_of_time"),
    [("2hours", True), ("90 min", True), ("2h", True), ("00:12:00:00", True), ("12epoch5", False)],
)
def test_a_duration_in_time_names_what_stops_a_run(duration: str, is_of_time: bool) -> None:
    with pytest.raises(ConfigError, match="is not a duration; write it as 12epochs") as caught:
        to_steps(duration, key="trainer.max_duration", num_images=8, batch_size=4)
    assert ("write timeout 2h before the command" in str(caught.value)) == is_of_time


def test_milestones_are_checked_before_the_warm_up() -> None:
    def steps(key: str, duration: str) -> int:
        return to_steps(duration, key=key, num_images=4, batch_size=4)

    late = MultiStepSettings(warmup="1000steps", milestones=["16epochs"])
    with pytest.raises(ConfigError, match="must be between 0 and the end at step 12"):
        build_schedule(late, 12, steps)
    early = replace(late, milestones=["8epochs"])
    with pytest.raises(ConfigError, match="fills all 12 steps; give schedule.warmup=auto, or at"):
        build_schedule(early, 12, steps)
    assert build_schedule(replace(early, warmup="auto"), 12, steps).warmup == 1
