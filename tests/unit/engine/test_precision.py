"""trainer.precision=auto chooses by the hardware, alike on all ranks; an emulated bf16 is warned
of.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from retina_dist.config.compose import load_config
from retina_dist.engine import precision as module
from retina_dist.engine.precision import (
    agreed_precision,
    describe_precision,
    resolve_precision,
    warn_of_emulation,
)
from retina_dist.run.assemble import train
from retina_dist.strategies.base import ReduceOp
from retina_dist.strategies.single_device import SingleDeviceStrategy

CPU = torch.device("cpu")
GPU = torch.device("cuda", 0)
RECIPES = sorted((Path(__file__).parents[3] / "conf" / "experiment").glob("*.yaml"))


@pytest.fixture(params=[False, True], ids=["avx2", "avx512_bf16"])
def cpu_has_bf16(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(module.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: request.param)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    return bool(request.param)


def test_auto_on_a_cpu_is_bf16_only_with_instructions_for_it(cpu_has_bf16: bool) -> None:
    assert resolve_precision(CPU, "auto") == ("bf16" if cpu_has_bf16 else "fp32")


@pytest.mark.parametrize(
    ("capability", "choice"), [((7, 5), "fp16"), ((8, 0), "bf16"), ((9, 0), "bf16")]
)
def test_auto_on_a_gpu_is_bf16_from_ampere_on_and_fp16_before(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], choice: str
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert resolve_precision(GPU, "auto") == choice


def test_a_given_precision_is_kept(cpu_has_bf16: bool) -> None:
    for given in ("fp32", "tf32", "bf16", "fp16"):
        assert resolve_precision(CPU, given) == given


def test_an_emulated_bf16_is_warned_of_with_the_factor(cpu_has_bf16: bool) -> None:
    warning = warn_of_emulation(CPU, "bf16")
    assert ("25 times" in warning) is not cpu_has_bf16
    assert warn_of_emulation(CPU, "fp32") == ""
    assert "100 times" in warn_of_emulation(CPU, "fp16")


def test_the_start_says_what_auto_chose_and_why(cpu_has_bf16: bool) -> None:
    line = describe_precision(CPU, resolve_precision(CPU, "auto"), "auto")
    chosen, has = ("bf16", "") if cpu_has_bf16 else ("fp32", "no ")
    expected = f"precision: {chosen}, chosen by trainer.precision=auto: "
    assert line == f"{expected}this CPU has {has}bf16 instructions"


class BesideAnOlderCpu(SingleDeviceStrategy):
    """A rank whose neighbour has no bf16 instructions."""

    def all_reduce(self, x: Tensor, op: ReduceOp = "mean") -> Tensor:
        assert op == "min"
        return torch.zeros_like(x)


def test_ranks_on_different_cpus_agree_on_what_all_have(cpu_has_bf16: bool) -> None:
    assert agreed_precision("auto", BesideAnOlderCpu("cpu")) == "fp32"


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_no_recipe_forces_bf16(recipe: Path) -> None:
    assert "precision: bf16" not in recipe.read_text()


def test_a_training_warns_of_an_emulated_bf16_before_its_first_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "has_fast_bf16", lambda device: False)
    train(load_config("train", ["data=synthetic", "dry_run=true", "trainer.precision=bf16"]))
    assert "25 times" in capsys.readouterr().out
