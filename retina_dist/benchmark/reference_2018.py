"""The one measured point that the model of a cluster is compared with."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from retina_dist.benchmark.communication import MACHINES, expected_maximum, step_time
from retina_dist.benchmark.gradient_timeline import Timeline, timeline
from retina_dist.detection.model.retinanet import build_retinanet


class Reference2018:
    """What was measured in 2018 with keras-retinanet, Horovod and two NC24 of four K80 each.

    670 s an epoch, 7.2 times as fast as one GPU:
    https://learn.microsoft.com/archive/blogs/machinelearning/how-to-do-distributed-deep-learning-for-object-detection-using-horovod-on-azure
    Machines, 500 steps on each of 8 processes, no NCCL and batches of one image (keras-retinanet's default):
    https://github.com/Azure/batchai_retinanet_horovod_coco (cluster.json, training_job.json, train.py).
    """

    machine, gpus = MACHINES["Standard_NC24"], 8
    epoch_s, speedup = 670.0, 7.2
    num_images = 8 * 500
    step_ms = 1e3 * epoch_s * speedup / num_images  # of one GPU and one image: arithmetic, not measured
    fusion_mb = 64.0  # Horovod's threshold of the time
    variation = (gpus / speedup - 1) / expected_maximum(gpus)  # that alone would give the speed-up


@cache
def _seed_timeline() -> Timeline:
    with torch.device("meta"):  # keras-retinanet: P6 from C5 as v2 has it, all but batch norm trained, 80 classes
        model = build_retinanet(num_classes=80, variant="v2", norm="frozen_bn")
    return timeline(model, 800, 1088)


def seed_speedup(overlap: bool) -> float:
    """The model's answer to 2018: a ring, as Horovod's without its hierarchical option, nobody slower than the others."""
    gradients, share = _seed_timeline()
    bucket_mb = 25.0 if overlap else Reference2018.fusion_mb
    arguments: Any = {"bucket_mb": bucket_mb, "algorithm": "ring", "overlap": overlap}
    step = step_time(Reference2018.step_ms, share, gradients, Reference2018.gpus, Reference2018.machine, **arguments)
    return Reference2018.gpus * Reference2018.step_ms / step.total_ms


def seed_in_words(without: float, with_overlap: float) -> str:
    """The measured speed-up beside the two modelled ones, and what is assumed."""
    old = Reference2018
    arithmetic = f"{old.epoch_s:g} s x {old.speedup} / {old.num_images} images, one at a time"
    return (
        f"\n2018, {old.gpus} K80 in two NC24, RetinaNet by keras-retinanet and Horovod:\n"
        f"  {old.speedup:.2f}x measured (Microsoft) | {without:.2f}x modelled without overlap | {with_overlap:.2f}x with overlap\n"
        f"  Assumed: a step of one K80 takes {old.step_ms:.0f} ms ({arithmetic}); no stragglers; {old.machine.outside:.1f} GB/s\n"
        "  between machines, which NCCL reached by TCP between two later Azure machines of four GPUs, for that of an NC24 was not\n"
        "  published. One number does not tell causes apart: with all communication hidden, step times that vary by "
        f"{old.variation:.0%}\n  between GPUs would give {old.speedup}x as well."
    )
