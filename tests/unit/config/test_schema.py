"""No setting passes with a value that nobody can mean; numbers and texts of every key, one
by one.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

import pytest

from retina_dist.base.errors import ConfigError
from retina_dist.base.settings import validate
from retina_dist.config.compose import load_config
from retina_dist.detection.settings import DetectionRunConfig
from retina_dist.run.build import best_metric, build_plan

# What 0 means, where it means something.
ZERO = {
    "seed": "a seed",
    "data.shapes.seed": "a seed",
    "data.voc_offset": "corners that count from 0",
    "data.num_workers": "read in the main process",
    "data.hflip": "never",
    "data.vflip": "never",
    "data.photometric": "never",
    "model.trainable_layers": "a frozen body",
    "model.norm_eps": "torchvision's COCO weights",
    "model.score_threshold": "all scores",
    "model.nms_threshold": "no overlap at all",
    "model.background_iou": "no anchor is ignored",
    "model.focal_gamma": "a plain cross entropy",
    "model.smooth_l1_beta": "an L1 loss",
    "optimizer.momentum": "none",
    "optimizer.weight_decay": "none",
    "optimizer.norm_weight_decay": "none",
    "optimizer.bias_weight_decay": "none",
    "optimizer.backbone_lr_scale": "a body that stays",
    "schedule.warmup_factor": "from a rate of 0",
    "schedule.final_factor": "down to a rate of 0",
    "trainer.max_nonfinite_steps": "stop at the first",
    "trainer.save_top_k": "none",
    "trainer.overfit_batches": "off",
    "strategy.fusion_mb": "Horovod sends each gradient alone",
    "logging.mlflow_wait_s": "no wait at the end",
}
# Whole numbers that may be of any size, because nothing is made of that size.
ANY_SIZE = (
    "seed",
    "data.shapes.seed",
    "data.max_pixels",
    "trainer.log_every",
    "trainer.patience",
    "trainer.keep_last",
)
ANY_SIZE += ("trainer.save_top_k", "trainer.max_nonfinite_steps", "strategy.commit_every")


@pytest.fixture(scope="module")
def config() -> DetectionRunConfig:
    return load_config("train", ["optimizer=sgd"])


def keys(section: Any, kind: str, prefix: str = "") -> Iterator[str]:
    """Dotted keys of the settings of a type, by what their annotations begin with."""
    hints = get_type_hints(type(section))
    for field in fields(section):
        hint = hints[field.name]
        written = hint.__name__ if isinstance(hint, type) else str(hint)
        value = getattr(section, field.name)
        if is_dataclass(value):
            yield from keys(value, kind, f"{prefix}{field.name}.")
        elif written.removesuffix(" | None") in kind.split():
            yield prefix + field.name


def refuses(
    config: DetectionRunConfig,
    key: str,
    value: object,
    check: Callable[[DetectionRunConfig], object] = validate,
) -> bool:
    changed = copy.deepcopy(config)
    *path, name = key.split(".")
    section = changed
    for part in path:
        section = getattr(section, part)
    setattr(section, name, value)
    try:
        check(changed)
    except ConfigError as error:
        return name in str(error)
    return False


@pytest.mark.parametrize("value", [-1, math.inf, -math.inf, math.nan, 2**62, 1e300])
def test_numbers_far_off_are_refused(config: DetectionRunConfig, value: float) -> None:
    for key in keys(config, "int float"):
        if value != 2**62 or key not in (
            *ANY_SIZE,
            "optimizer.lr",
        ):  # tests of divergence train with 1e30
            assert refuses(config, key, value) or (value == 1e300 and key in ANY_SIZE), key


def test_zero_is_refused_where_it_means_nothing(config: DetectionRunConfig) -> None:
    assert {key for key in keys(config, "int float") if not refuses(config, key, 0)} == set(ZERO)


FREE = (
    "name",
    "root",
    "annotations",
    "images",
    "classes",
    "weights",
    "topo_file",
    "ifname",
    "_dir",
    "_uri",
)
FREE += (
    "_parent",
    "experiment",
    "_events",
    "resume",
    "launcher",
    "backbone",
    "device",
    "gpu",
    "license",
    "data.source",
)  # tried when used


def test_a_text_without_meaning_is_refused_before_the_first_step(
    config: DetectionRunConfig,
) -> None:
    def before_the_first_step(changed: DetectionRunConfig) -> None:
        validate(changed)
        best_metric(changed, validates=True)
        build_plan(changed, 800, 1)

    texts = [
        key
        for key in keys(config, "str")
        if not key.endswith(FREE) or key in ("optimizer.name", "strategy.name")
    ]
    assert "trainer.checkpoint_every" in texts
    for key in texts:
        assert refuses(config, key, "banana", before_the_first_step), key


def test_patience_without_validations_is_refused(config: DetectionRunConfig) -> None:
    config = copy.deepcopy(config)
    config.trainer.patience = 3
    assert best_metric(config, validates=True).patience == 3
    with pytest.raises(ConfigError, match=r"patience=3 counts validations, but the run has none"):
        best_metric(config, validates=False)


def test_a_monitor_that_no_validation_gives_is_refused(config: DetectionRunConfig) -> None:
    config = copy.deepcopy(config)
    config.trainer.monitor = "coco/ap"
    with pytest.raises(ConfigError, match=r"monitor=coco/ap is not one of coco/AP, "):
        best_metric(config, validates=True)
    config.trainer.monitor = "val/loss"
    assert str(best_metric(config, validates=True)) == "lowest val/loss"
