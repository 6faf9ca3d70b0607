"""The device of each process, and what is refused; GPUs, drivers and other ranks are fakes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from retina_dist.base.errors import ConfigError
from retina_dist.strategies import ddp, devices
from retina_dist.strategies.ddp import DDPStrategy
from retina_dist.strategies.devices import check_devices, resolve_device
from retina_dist.strategies.launch_environment import Launch
from retina_dist.strategies.settings import StrategyConfig


class Host:
    """A host with some GPUs that torch can use, and device files.

    Keeps which GPU was made current.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, folder: Path, gpus: int, files: int = 0
    ) -> None:
        self.current: torch.device | None = None
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(
            torch.cuda, "set_device", lambda device: setattr(self, "current", device)
        )
        if gpus:
            monkeypatch.setattr(devices.torch, "empty", lambda *size, device: None)
        monkeypatch.setattr(devices, "DEV", folder)
        monkeypatch.setattr(devices, "DRIVER_VERSION", folder / "version")
        for name in (
            ["nvidiactl", "nvidia-uvm", *(f"nvidia{i}" for i in range(files))] if files else []
        ):
            (folder / name).touch()


@pytest.mark.parametrize("name", ["auto", "cuda"])
@pytest.mark.parametrize(
    ("gpus", "launch", "device"),
    [
        (2, Launch("torchrun", 3, 4, 1, 2), "cuda:1"),
        (
            1,
            Launch("srun", 7, 8, 3, 4),
            "cuda:0",
        ),  # srun --gpus-per-task=1 shows each process its GPU as number 0
        (0, Launch("torchrun", 7, 8, 7, 8), "cpu"),
    ],
)
def test_each_process_gets_the_gpu_of_its_local_rank_or_the_only_one(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
    gpus: int,
    launch: Launch,
    device: str,
) -> None:
    host = Host(monkeypatch, tmp_path, gpus)
    if (name, device) != ("cuda", "cpu"):
        assert resolve_device(name, launch) == torch.device(device)
    assert host.current == (torch.device(device) if gpus else None)


def test_more_processes_than_gpus_are_refused_before_they_share_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    host = Host(monkeypatch, tmp_path, gpus=2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    with pytest.raises(ConfigError) as caught:
        resolve_device("auto", Launch("torchrun", 2, 3, 2, 3))
    assert str(caught.value) == (
        "local rank 2 has no GPU: this host shows 2 (CUDA_VISIBLE_DEVICES: 4,5); start at most 2 a host, or give "
        "strategy.device=cpu."
    )
    assert host.current is None


@pytest.mark.parametrize("name", ["auto", "cuda", "cuda:99"])
@pytest.mark.parametrize(("cuda", "built"), [("13.2", "CUDA 13.2"), (None, "CUDA (none)")])
def test_gpus_that_torch_cannot_use_are_not_replaced_by_the_cpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, cuda: str | None, built: str
) -> None:
    Host(monkeypatch, tmp_path, gpus=0, files=2)
    (tmp_path / "version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 2023\n"
    )
    monkeypatch.setattr(torch.version, "cuda", cuda)
    with pytest.raises(ConfigError) as caught:
        resolve_device(name)
    begin, _, end = str(caught.value).partition(
        f", torch {torch.__version__} is built for {built}: "
    )
    assert begin == f"device={name} cannot be used ({tmp_path}/nvidia0 has driver 535.104.05"
    assert end.endswith(
        "; update the driver, install a torch for its CUDA (https://pytorch.org), or give strategy.device=cpu."
    )
    assert resolve_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("visible", ["", "-1", "NoDevFiles"])
def test_gpus_that_are_hidden_on_purpose_leave_the_cpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, visible: str
) -> None:
    Host(monkeypatch, tmp_path, gpus=0, files=1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert resolve_device("auto") == torch.device("cpu")


def test_gpus_that_a_scheduler_has_not_given_leave_the_cpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The files are there, but Slurm's cgroup refuses to open them."""

    def refuse(path: Any, flags: int) -> int:
        raise PermissionError(path)

    Host(monkeypatch, tmp_path, gpus=0, files=1)
    monkeypatch.setattr(os, "open", refuse)
    assert resolve_device("auto") == torch.device("cpu")


def test_one_gpu_for_each_rank_or_none_for_all() -> None:
    for sound in (
        ["GPU-1 on a", "GPU-2 on a", "GPU-3 on b"],
        ["MIG-1 on a", "MIG-2 on a"],
        ["cpu on a", "cpu on a"],
    ):
        check_devices(sound)
    with pytest.raises(
        ConfigError,
        match="^ranks 0, 2 all have the GPU GPU-1 on a; start at most one .* give strategy=ddp",
    ) as caught:
        check_devices(["GPU-1 on a", "GPU-2 on a", "GPU-1 on a"])
    assert caught.value.collective
    check_devices(["GPU-1 on a", "GPU-2 on a", "GPU-1 on a"], shared=True)
    with pytest.raises(
        ConfigError, match="^rank 1 works on the cpu on b, others on a GPU; give strategy"
    ) as caught:
        check_devices(["GPU-1 on a", "cpu on b"])
    assert caught.value.collective


def test_ddp_refuses_a_gpu_that_two_ranks_have_before_nccl_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = dist.HashStore()
    dist.PrefixStore("job1", store).set("device1", "GPU-7 on a")
    monkeypatch.setattr(ddp, "_jobs", 0)
    monkeypatch.setattr(ddp, "_shared_store", store)
    monkeypatch.setattr(ddp, "device_identity", lambda device: "GPU-7 on a")
    with pytest.raises(ConfigError, match="ranks 0, 1 all have the GPU GPU-7 on a; "):
        DDPStrategy(StrategyConfig(device="cpu"), Launch("srun", 0, 2, 0, 2)).__enter__()
    assert not dist.is_initialized()
