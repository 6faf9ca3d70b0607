"""What a device reaches at most: in matrix products and convolutions, and in copies."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from retina_dist.engine.precision import AUTOCAST, Precision, autocast


def peak_tflops(device: torch.device, precision: Precision) -> float:
    """What a large matrix product or 3x3 convolution of this type reaches here: the better one, the best of five."""
    gpu, dtype = device.type == "cuda", AUTOCAST.get(precision, torch.float32)
    size = 8192 if gpu else 1024
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    with autocast(device, precision)():
        product = 2 * size**3 / _best(device, lambda: a @ b)
    images, side, channels = (16, 128, 256) if gpu else (2, 40, 256)
    x = torch.randn(images, channels, side, side, device=device, dtype=dtype).to(memory_format=torch.channels_last)
    w = torch.randn(channels, channels, 3, 3, device=device, dtype=dtype).to(memory_format=torch.channels_last)
    flops = 2 * images * side**2 * channels**2 * 9
    with autocast(device, precision)():
        convolved = flops / _best(device, lambda: torch.nn.functional.conv2d(x, w, padding=1))
    return max(product, convolved) / 1e12


def copy_gb_per_s(device: torch.device) -> float:
    """Bytes read and written a second by a large copy, the best of five."""
    source = torch.empty(2**28 if device.type == "cuda" else 2**26, device=device, dtype=torch.uint8)
    target = torch.empty_like(source)
    return 2 * source.numel() / _best(device, lambda: target.copy_(source)) / 1e9


def device_name(device: torch.device) -> str:
    """Of a GPU, or the number of threads on a CPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"


def _best(device: torch.device, function: Callable[[], Any]) -> float:
    times = []
    for _ in range(6):
        wait(device)
        started = time.perf_counter()
        function()
        wait(device)
        times.append(time.perf_counter() - started)
    return min(times[1:])


def wait(device: torch.device) -> None:
    """Until a GPU has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
