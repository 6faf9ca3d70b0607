"""One table a family: what is added to it can be chosen, documented and trained with at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from typing import Any

import pytest
import torch

from retina_dist.base import registry
from retina_dist.base.errors import ConfigError
from retina_dist.base.registry import FAMILIES, as_dict, class_of, lookup, names, register
from retina_dist.base.settings import setting
from retina_dist.config.compose import load_config
from retina_dist.config.help import help_page
from retina_dist.config.run_config import RunConfig
from retina_dist.optim.learning_rate import Decay
from retina_dist.optim.optimizer import build_optimizer
from retina_dist.optim.settings import OptimizerConfig, OptimizerSettings, ScheduleSettings
from retina_dist.run.build import build_plan
from retina_dist.strategies.launch_environment import Launch
from retina_dist.strategies.launchers import ALONE, LAUNCHERS
from retina_dist.strategies.select import make_strategy, strategy_of
from retina_dist.strategies.settings import AutoSettings, StrategyConfig, StrategySettings
from retina_dist.strategies.single_device import SingleDeviceStrategy

NAMED = [family for family, kind in FAMILIES.items() if kind.key == "name" and kind.settings]
ENTRIES = [(family, name) for family in FAMILIES for name in names(family)]


@dataclass
class TriangleSettings(ScheduleSettings):
    peak: float = setting(0.5, "share of the training at which the rate is highest", fraction=True)


class Triangle(Decay):
    settings = TriangleSettings

    def __call__(self, step: int) -> float:
        done = (step + 1) / self.total
        return min(done / self.settings.peak, (1 - done) / (1 - self.settings.peak))


@dataclass
class SignSettings(OptimizerSettings):
    damping: float = setting(0.0, "of the momentum", at_least=0)


class Sign(torch.optim.SGD):
    settings = SignSettings

    def __init__(self, groups: list[dict[str, Any]], settings: SignSettings) -> None:
        super().__init__(groups, lr=settings.lr, dampening=settings.damping)


@dataclass
class EchoSettings(StrategySettings):
    delay_s: float = setting(0.0, "before each collective", at_least=0)


class Echo(SingleDeviceStrategy):
    settings = EchoSettings


ADDED = {"schedule": Triangle, "optimizer": Sign, "strategy": Echo}


@pytest.fixture
def added() -> Iterator[None]:
    """Each class of `ADDED` as the entry "added" of its family."""
    for family, kind in ADDED.items():
        register(family, kind, "added")
    yield
    for family, kind in ADDED.items():
        del registry._named[family]["added"]
        del registry._from_outside[kind.settings]


@pytest.mark.parametrize(("family", "name"), ENTRIES)
def test_each_entry_keeps_its_familys_contract(family: str, name: str) -> None:
    found = lookup(family, name)
    kind = FAMILIES[family]
    if (family, name) not in {("strategy", "auto")}:  # which makes one of the others
        assert issubclass(found, registry._loaded(kind.contract))
    assert is_dataclass(found.settings)
    if kind.settings:
        base = registry._loaded(kind.settings)
        # the settings of the package's loggers are all in one section
        assert issubclass(found.settings, base) or issubclass(base, found.settings)


@pytest.mark.parametrize("family", NAMED)
def test_each_name_makes_its_own_settings(family: str) -> None:
    base = registry._loaded(FAMILIES[family].settings)
    for name in names(family):
        settings = base(name=name)
        assert type(settings) is lookup(family, name).settings
        assert class_of(settings) is lookup(family, name)


@pytest.mark.usefixtures("added")
@pytest.mark.parametrize("family", ADDED)
def test_an_added_entry_can_be_chosen(family: str) -> None:
    """By its name alone: no file of conf/ and no other table has it."""
    config = load_config("train", [f"{family}=added", "optimizer.lr=0.1"])
    chosen = getattr(config, family)
    assert type(chosen) is ADDED[family].settings
    assert class_of(chosen) is ADDED[family]
    assert as_dict(config)[family]["_target_"].endswith(ADDED[family].__name__)


@pytest.mark.usefixtures("added")
def test_added_entries_are_made_as_the_packages_own() -> None:
    overrides = ["schedule=added", "schedule.peak=0.25", "optimizer=added", "optimizer.lr=0.1"]
    config = load_config("train", [*overrides, "strategy=added", "strategy.device=cpu"])
    plan = build_plan(config, 800, 1)
    assert plan.schedule(plan.total_steps // 4 - 1) == pytest.approx(1.0)
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))]}]
    assert type(build_optimizer(groups, config.optimizer)) is Sign
    assert type(strategy_of(config.strategy)) is Echo


@pytest.mark.usefixtures("added")
def test_help_lists_added_entries() -> None:
    from retina_dist.config.compose import config_dir

    page = help_page("train", RunConfig, "", config_dir(), {})
    for family in ADDED:
        (line,) = [line for line in page.splitlines() if line.startswith(f"  {family}=")]
        assert "added" in line


def test_a_key_of_another_entry_says_whose_it_is() -> None:
    with pytest.raises(
        ConfigError, match=r"fusion_mb=3 has no effect with strategy=ddp; .* strategy=horovod\."
    ):
        load_config("train", ["strategy=ddp", "strategy.fusion_mb=3"])
    with pytest.raises(
        ConfigError, match=r"\(name='adamw'\) has no argument momentum; it is of sgd"
    ):
        OptimizerConfig(name="adamw", momentum=0.5)


def test_auto_has_the_settings_of_every_strategy_that_a_launcher_chooses() -> None:
    for launcher in (*LAUNCHERS, ALONE):
        for name in launcher.strategies:
            settings = lookup("strategy", name).settings
            assert set(settings.__dataclass_fields__) <= set(AutoSettings.__dataclass_fields__)
    assert type(make_strategy(launch=Launch(), device="cpu")) is SingleDeviceStrategy
    assert StrategyConfig().name == "auto"


def test_a_class_from_outside_has_a_name_and_settings_of_its_own() -> None:
    class Shared(Triangle):
        pass

    with pytest.raises(ConfigError, match="is named cosine, as one of the package; give it"):
        register("schedule", Triangle, "cosine")
    with pytest.raises(ConfigError, match="has no settings of its own; give it a dataclass below"):
        register("schedule", Shared, "shared")
