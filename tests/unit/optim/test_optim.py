"""Parameter groups, optimizers, clipping and the moving average."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from retina_dist.base.errors import CheckpointError, ConfigError
from retina_dist.classification.model import build_classifier
from retina_dist.engine.state import ExponentialMovingAverage, TrainState
from retina_dist.optim.clipping import clip_gradients
from retina_dist.optim.optimizer import (
    build_optimizer,
    check_layouts,
    load_optimizer,
    parameter_groups,
)
from retina_dist.optim.settings import OptimizerConfig


def settings(name: str = "sgd", **others: Any) -> OptimizerConfig:
    return OptimizerConfig(name=name, lr=0.1, **others)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.ModuleDict(
            {"body": nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))}
        )
        self.head = nn.Sequential(nn.Conv2d(4, 2, 1), nn.GroupNorm(1, 2))

    def backbone_parameters(self) -> Iterator[nn.Parameter]:
        return self.backbone.parameters()


def names_by_group(model: nn.Module, groups: list[dict]) -> dict[tuple[float, float], set[str]]:
    names = {id(p): n for n, p in model.named_parameters()}
    return {(g["weight_decay"], g["lr_scale"]): {names[id(p)] for p in g["params"]} for g in groups}


def test_norms_and_biases_and_backbone_apart() -> None:
    model = Net()
    groups = parameter_groups(
        model,
        settings(
            weight_decay=0.1, norm_weight_decay=0.0, bias_weight_decay=0.2, backbone_lr_scale=0.5
        ),
    )
    assert names_by_group(model, groups) == {
        (0.1, 0.5): {"backbone.body.0.weight"},
        (0.2, 0.5): {"backbone.body.0.bias"},
        (0.0, 0.5): {"backbone.body.1.weight", "backbone.body.1.bias"},
        (0.1, 1.0): {"head.0.weight"},
        (0.2, 1.0): {"head.0.bias"},
        (0.0, 1.0): {"head.1.weight", "head.1.bias"},
    }


def test_a_scale_for_a_backbone_reaches_it_or_is_refused() -> None:
    scaled = settings(backbone_lr_scale=0.1)
    model = build_classifier("vit_b_16", 3)
    body = names_by_group(model, parameter_groups(model, scaled))[0.0, 0.1]
    assert {n for n, _ in model.named_parameters()} - body == {
        "model.heads.head.weight",
        "model.heads.head.bias",
    }
    with pytest.raises(
        ConfigError, match=r"optimizer\.backbone_lr_scale=0\.1 needs a method Linear\.backbone_"
    ):
        parameter_groups(nn.Linear(2, 2), scaled)


def test_clipping_by_hand() -> None:
    def clipped(kind: str, limit: float | None) -> tuple[float, list[list[float]]]:
        parameters = [nn.Parameter(torch.zeros(2)) for _ in range(2)]
        parameters[0].grad, parameters[1].grad = (
            torch.tensor([3.0, 4.0]),
            torch.tensor([0.0, 12.0]),
        )  # norms 5 and 12
        norm = clip_gradients(parameters, limit, kind)  # type: ignore[arg-type]
        return float(norm), [p.grad.tolist() for p in parameters]

    assert clipped("global_norm", None) == (13.0, [[3.0, 4.0], [0.0, 12.0]])
    norm, gradients = clipped("global_norm", 1.3)
    assert norm == pytest.approx(13.0)
    assert sum(gradients, []) == pytest.approx([0.3, 0.4, 0.0, 1.2], rel=1e-5)
    assert sum(clipped("tensor_norm", 10.0)[1], []) == pytest.approx(
        [3.0, 4.0, 0.0, 10.0], rel=1e-5
    )
    assert clipped("value", 3.5)[1] == [[3.0, 3.5], [0.0, 3.5]]


def test_average_follows_by_hand() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 1.0)
    ema = ExponentialMovingAverage(model, decay=0.5)
    nn.init.constant_(model.weight, 2.0)
    ema.update(model)  # decay min(0.5, 1/10)
    assert ema.model.weight.item() == pytest.approx(0.1 * 1 + 0.9 * 2)
    for _ in range(20):
        ema.update(model)
    before = ema.model.weight.item()
    nn.init.constant_(model.weight, 0.0)
    ema.update(model)  # the decay has reached its limit
    assert ema.model.weight.item() == pytest.approx(before / 2)


@pytest.mark.parametrize("name", ["sgd", "adamw", "adam"])
def test_the_fused_step_is_the_plain_one(name: str) -> None:
    torch.manual_seed(0)
    weights = torch.randn(8, 16, 3, 3, dtype=torch.float64).to(memory_format=torch.channels_last)
    a, b = (nn.Parameter(weights.clone()) for _ in range(2))
    fused = build_optimizer([{"params": [a], "weight_decay": 0.01}], settings(name))
    plain = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW, "adam": torch.optim.Adam}[name]
    options = {"momentum": 0.9} if name == "sgd" else {}
    reference = plain([b], lr=0.1, weight_decay=0.01, fused=False, foreach=False, **options)
    for _ in range(3):
        gradient = torch.randn_like(weights)
        for p, optimizer in ((a, fused), (b, reference)):
            p.grad = gradient.clone()
            check_layouts(optimizer)
            optimizer.step()
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def test_a_gradient_of_another_layout_is_refused() -> None:
    p = nn.Parameter(torch.zeros(2, 4, 3, 3).to(memory_format=torch.channels_last))
    optimizer = build_optimizer([{"params": [p], "weight_decay": 0.0}], settings("sgd"))
    p.grad = torch.zeros(2, 4, 3, 3)
    with pytest.raises(RuntimeError, match=r"shape \(2, 4, 3, 3\) has strides"):
        check_layouts(optimizer)
    one = nn.Parameter(torch.zeros(2, 4, 1, 1).to(memory_format=torch.channels_last))
    one.grad = torch.zeros(2, 4, 1, 1)
    check_layouts(build_optimizer([{"params": [one], "weight_decay": 0.0}], settings("sgd")))


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_state_of_another_layout_or_an_unfused_optimizer_is_taken_over(name: str) -> None:
    torch.manual_seed(0)
    weights = torch.randn(8, 16, 3, 3)
    contiguous, last = (
        nn.Parameter(weights.clone()),
        nn.Parameter(weights.to(memory_format=torch.channels_last)),
    )
    kind = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[name]
    options = {"momentum": 0.9} if name == "sgd" else {}
    before = kind([contiguous], lr=0.1, weight_decay=0.01, fused=False, foreach=False, **options)
    contiguous.grad = torch.randn_like(weights)
    before.step()
    after = build_optimizer([{"params": [last], "weight_decay": 0.01}], settings(name))
    last.data.copy_(contiguous.data)
    load_optimizer(
        after, before.state_dict(), [{"names": ["weight"], "fused": True}], [{"names": ["weight"]}]
    )
    assert after.param_groups[0]["fused"] is True
    gradient = torch.randn_like(weights)
    contiguous.grad, last.grad = gradient.clone(), torch.empty_like(last).copy_(gradient)
    check_layouts(after)
    before.step(), after.step()
    torch.testing.assert_close(contiguous, last, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("name", "before", "now"),
    [
        (
            "sgd",
            {"weight_decay": 0.1},
            {"weight_decay": 0.5, "norm_weight_decay": 0.0, "bias_weight_decay": 0.2},
        ),
        ("sgd", {"momentum": 0.0}, {"momentum": 0.9, "nesterov": True}),
        (
            "adamw",
            {"bias_weight_decay": 0.2},
            {"betas": [0.5, 0.6], "eps": 1e-3, "weight_decay": 0.5},
        ),
    ],
)
def test_a_resume_takes_the_settings_of_this_run_and_the_state_of_the_file(
    name: str, before: dict[str, Any], now: dict[str, Any]
) -> None:
    def made(changes: dict[str, Any]) -> TrainState:
        torch.manual_seed(0)
        model = Net()
        chosen = settings(name, **changes)
        optimizer = build_optimizer(parameter_groups(model, chosen), chosen)
        return TrainState(model, optimizer, torch.amp.GradScaler("cpu", enabled=False))

    def step(state: TrainState) -> None:
        x = torch.linspace(-1, 1, 48).reshape(1, 3, 4, 4)
        state.model.head(state.model.backbone["body"](x)).square().mean().backward()
        for group in state.optimizer.param_groups:
            group["lr"] = 0.1 * group["lr_scale"]  # as TrainStep does
        state.optimizer.step()
        state.optimizer.zero_grad()

    first, second, expected = made(before), made(now), made(now)
    step(first), step(first)
    content = first.state_dict()
    second.load_state_dict(content)
    expected.model.load_state_dict(content["model"])
    for parameter, theirs in zip(
        expected.model.parameters(), first.model.parameters(), strict=True
    ):
        kept = first.optimizer.state.get(theirs, {})
        expected.optimizer.state[parameter] = {
            k: v.clone() if torch.is_tensor(v) else v for k, v in kept.items()
        }
    for state in (first, second, expected):
        step(state)
    found, wanted, unchanged = (
        [p.detach() for p in s.model.parameters()] for s in (second, expected, first)
    )
    assert all(map(torch.equal, found, wanted))
    assert not all(map(torch.equal, found, unchanged))


class Prodigious(torch.optim.SGD):
    """Keeps an estimate of its own in the group, as Prodigy and schedule-free optimizers do."""

    def step(self, closure: Any = None) -> None:
        super().step()
        self.param_groups[0]["estimate"] *= 2


def test_what_an_optimizer_keeps_in_its_groups_is_loaded_unless_its_setting_changed() -> None:
    def made(**options: Any) -> TrainState:
        model = nn.Linear(2, 2)
        groups = [{"params": list(model.parameters()), "estimate": 1.0, **options}]
        return TrainState(
            model, Prodigious(groups, lr=0.1), torch.amp.GradScaler("cpu", enabled=False)
        )

    first = made()
    first.optimizer.step()
    for options, estimate in (({}, 2.0), ({"weight_decay": 0.5}, 2.0), ({"estimate": 3.0}, 3.0)):
        resumed = made(**options)
        resumed.load_state_dict(first.state_dict())
        assert resumed.optimizer.param_groups[0]["estimate"] == estimate
        assert resumed.optimizer.param_groups[0]["weight_decay"] == options.get("weight_decay", 0)


def test_an_optimizer_of_other_parameters_is_refused() -> None:
    def made(frozen: int, **options: Any) -> TrainState:
        model = Net()
        model.head[frozen].requires_grad_(False)
        optimizer = build_optimizer(
            parameter_groups(model, settings(**options)), settings(**options)
        )
        return TrainState(model, optimizer, torch.amp.GradScaler("cpu", enabled=False))

    content = made(0).state_dict()
    with pytest.raises(
        CheckpointError, match="optimizer has 6 parameters in other groups than the 6 of this run"
    ):
        made(1).load_state_dict(content)
