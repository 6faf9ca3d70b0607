"""A short step of computation that each rank times on its own: who is slow?

Nothing is sent, since in a training step the others wait for the slow one and all seem equally slow.
"""

from __future__ import annotations

import statistics
import time

import torch
from torchvision.models import resnet18

SECONDS = 2.0  # of measurement, enough to show a power cap; heat shows after minutes only
FEWEST = 3  # steps


def time_step(device: torch.device) -> float:
    """Milliseconds, median, of a forward and a backward pass of an untrained ResNet-18 on noise."""
    torch.manual_seed(0)
    model = resnet18(weights=None).to(device)
    size, side = (16, 512) if device.type == "cuda" else (1, 112)
    images = torch.rand(size, 3, side, side, device=device)

    def one_step() -> float:
        started = time.perf_counter()
        model.zero_grad()
        model(images).sum().backward()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (time.perf_counter() - started) * 1e3

    one_step()  # allocates, and chooses kernels
    times: list[float] = []
    until = time.monotonic() + SECONDS
    while len(times) < FEWEST or time.monotonic() < until:
        times.append(one_step())
    return statistics.median(times)
