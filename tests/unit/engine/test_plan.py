"""Durations, schedules and the plan, against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retina_dist.base.errors import ConfigError
from retina_dist.engine.plan import Plan, to_steps
from retina_dist.optim.learning_rate import Schedule
from tests.plans import plan_of


@given(
    digits=st.integers(0, 10**9),
    decimals=st.integers(0, 9),
    unit=st.sampled_from(["", "k", "M"]),
    what=st.sampled_from(["steps", "epochs", "images"]),
    num_images=st.integers(1, 10**6),
    batch_size=st.integers(1, 4096),
)
def test_a_duration_is_the_least_whole_number_of_steps_that_reaches_it(
    digits: int, decimals: int, unit: str, what: str, num_images: int, batch_size: int
) -> None:
    text = f"{digits // 10**decimals}" + (
        f".{digits % 10**decimals:0{decimals}d}" if decimals else ""
    )
    steps = to_steps(
        f"{text}{unit}{what}",
        key="trainer.max_duration",
        num_images=num_images,
        batch_size=batch_size,
    )
    # in whole numbers of 10^-decimals steps, epochs or images
    asked = digits * {"": 1, "k": 1_000, "M": 1_000_000}[unit]
    an_epoch = -(-num_images // batch_size)
    left, right = {"steps": (1, 1), "epochs": (1, an_epoch), "images": (batch_size, 1)}[what]
    assert (steps - 1) * left * 10**decimals < asked * right <= steps * left * 10**decimals


@pytest.mark.parametrize(
    "text", ["12", "epochs", "-3steps", "1e3steps", "١steps", "9" * 400 + "steps"]
)
def test_a_wrong_duration_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match=r"trainer\.max_duration=.*12epochs"):
        to_steps(text, key="trainer.max_duration", num_images=100, batch_size=16)


def schedule(name: str, total: int, **settings: object) -> Schedule:
    options = {"num_images": 1, "batch_size": 1, "max_duration": f"{total}steps", "lr": 1.0}
    return plan_of(**options, schedule=name, **settings).schedule  # type: ignore[arg-type]


def test_warmup_is_linear_and_ends_at_one() -> None:
    factor = schedule("constant", total=100, warmup="4steps", warmup_factor=0.2)
    assert [factor(i) for i in (0, 1, 2, 3, 4, 99)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])


def test_multistep_drops_at_its_milestones() -> None:
    factor = schedule("multistep", total=10, milestones=["4steps", "8steps"], gamma=0.1)
    assert [factor(i) for i in (0, 3, 4, 7, 8, 9)] == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])


@pytest.mark.parametrize(
    ("total", "warmup"), [("5steps", 0), ("12steps", 1), ("499steps", 49), ("9000steps", 50)]
)
def test_an_automatic_warmup_leaves_most_of_a_short_training(total: str, warmup: int) -> None:
    assert plan(max_duration=total, warmup="auto").schedule.warmup == warmup


def test_cosine_halves_halfway_and_ends_at_the_final_factor() -> None:
    factor = schedule("cosine", total=110, warmup="10steps", final_factor=0.1)
    assert [factor(step) for step in (10, 60, 110)] == pytest.approx([1.0, 0.55, 0.1])
    assert factor(35) == pytest.approx(0.1 + 0.9 * (1 + math.cos(math.pi / 4)) / 2)


def plan(**changes: object) -> Plan:
    settings: dict = {"num_images": 100, "batch_size": 16, "max_duration": "4epochs", "lr": 0.01}
    return plan_of(**{**settings, **changes})


@pytest.mark.parametrize(("rule", "lr"), [("none", 0.01), ("linear", 0.04), ("sqrt", 0.02)])
def test_learning_rate_rules(rule: str, lr: float) -> None:
    assert plan(batch_size=64, lr_rule=rule, lr_reference_batch=16).lr == pytest.approx(lr)


@pytest.mark.parametrize(
    ("total", "warmup", "steps"),
    [("101steps", "100steps or auto", 100), ("100steps", "100steps or auto", 10)],
)
def test_a_warmup_may_fall_back_to_the_automatic_one(total: str, warmup: str, steps: int) -> None:
    assert plan(max_duration=total, warmup=warmup).schedule.warmup == steps


def test_a_number_without_a_unit_is_shown_with_one() -> None:
    with pytest.raises(ConfigError, match="write it as 30epochs, .*, or auto"):
        plan(max_duration="30")
    with pytest.raises(ConfigError, match=r"write it as 12epochs, 90ksteps or 500images\.$"):
        plan(profile="1h")
    with pytest.raises(ConfigError, match="or 0steps for never"):
        plan(validate_every="never")


@pytest.mark.parametrize(("batch_size", "lr", "warned"), [(16, 1, 1), (16, 0.9, 0), (8192, 3.2, 0)])
def test_a_rate_that_diverges_is_told_from_one_of_large_batches(
    batch_size: int, lr: float, warned: bool
) -> None:
    text = str(plan(num_images=8192, batch_size=batch_size, lr=lr))
    assert ("lower optimizer.lr" in text) == warned


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"lr": 1e-7}, "raise optimizer.lr"),
        ({"lr": 2e-7}, ""),
        ({"lr": 1e-3, "weight_decay": 1.0}, "optimizer.weight_decay shrinks the weights to 0"),
        ({"lr": 1e-3, "weight_decay": 0.9}, ""),
        ({"lr": 12.8, "weight_decay": 1e-4, "num_images": 2**15, "batch_size": 2**15}, ""),
    ],
)
def test_a_rate_or_a_decay_that_learns_nothing_is_told(settings: dict, said: str) -> None:
    text = str(plan(**settings))
    assert said in text
    assert (": raise" in text or ": lower" in text) == bool(said)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"warmup": "4epochs"}, "at most 27steps"),
        (
            {"schedule": "multistep", "milestones": ["0steps"]},
            "end at step 28; give earlier ones, or raise",
        ),
        ({"schedule": "multistep", "milestones": ["3epochs", "2epochs"]}, "do not rise"),
        ({"max_duration": "0steps"}, "less than one step"),
        ({"stop_after": "0steps"}, "trainer.stop_after=0steps is less than one step"),
        ({"num_images": 0}, "no image"),
    ],
)
def test_impossible_plans_say_what_would_work(changes: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(**changes)


def test_a_run_asked_to_end_logs_what_one_that_is_not_does() -> None:
    due = plan(validate_every="8steps", checkpoint_every="3steps").due(8, stopping=True)
    assert (due.log, due.save, due.validate) == (True, True, False)


def test_the_number_of_processes_changes_nothing_but_the_micro_batch() -> None:
    settings = {"schedule": "multistep", "milestones": ["2epochs", "320images"], "warmup": "3steps"}
    settings |= {"lr_rule": "linear", "lr_reference_batch": 4, "stop_after": "25steps"}
    settings |= {"validate_every": "0.5epochs", "check_replicas_every": "1epoch"}
    plans = {w: plan(world_size=w, **settings) for w in (1, 2, 4, 7, 8, 20)}
    assert [p.micro_batches for p in plans.values()] == [(16,), (8,), (4,), (2, 3), (2,), (0, 1)]
    for world_size, p in plans.items():
        assert (p.steps_per_epoch, p.total_steps, p.stop_step) == (7, 28, 25)
        assert (p.validate_every, p.check_every) == (4, 7)
        assert p.schedule.decay.milestones == (14, 20)
        assert [p.lr_at(step) for step in range(28)] == [plans[1].lr_at(step) for step in range(28)]
        assert p.lr_at(13) == pytest.approx(0.04)  # 0.01 * 16 / 4, whatever the number of processes
        s = "es" if world_size > 1 else ""
        idle = "0 or 1; a process has no image: raise data.batch_size"
        each = {7: "2 or 3", 20: idle}.get(world_size, str(16 // world_size))
        assert f"16 images a step = {world_size} process{s} x {each}" in str(p)
        counted = "; data.batch_size counts the images of all processes\n" in str(p)
        assert counted == (1 < world_size < 20)
    assert "16 images a step = 2 processes x 4 accumulated x 2;" in str(
        plan(world_size=2, accumulate=4)
    )
    few = str(plan_of(num_images=15, batch_size=16, max_duration="1epoch", lr=0.01))
    assert "15 images in 1 step; data.batch_size is larger than the data: lower it\n" in few
