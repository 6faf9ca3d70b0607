"""The plan of a job whose processes change, and of one that does not validate."""

from __future__ import annotations

import pytest

from retina_dist.config.compose import load_config
from retina_dist.run.planning import plan_run
from retina_dist.testing.thread_ranks import ThreadRank, on_ranks


def test_a_process_that_joins_plans_with_those_that_go_on() -> None:
    """It starts for the first time, and the others again: all must take the same collectives."""
    chosen = ["data=synthetic", "trainer.max_duration=2steps", "output_dir=run"]
    config = load_config("train", chosen)

    def on_rank(strategy: ThreadRank) -> list[str]:
        plan_run(config, strategy, is_restart=strategy.is_main)
        return strategy.calls

    calls, others_calls = on_ranks(2, on_rank)
    assert calls == others_calls


@pytest.mark.parametrize(
    "data", [["data=synthetic"], ["task=classification", "data.synthetic={num_images: 8}"]]
)
def test_random_images_are_not_validated(data: list[str]) -> None:
    """No step is named for it, and no setting, since there are no images to hold out."""
    config = load_config("train", [*data, "trainer.max_duration=2steps", "output_dir=run"])
    plan, *_ = on_ranks(1, lambda rank: plan_run(config, rank, is_restart=False))
    assert "  val      none: no metric, no best checkpoint\n" in plan.description
    assert "validate" not in plan.description


def test_the_plan_says_when_it_validates() -> None:
    """Which the drawn shapes do."""
    for duration, words in (("2steps", "every 2 steps"), ("0steps", "at the end")):
        config = load_config("train", [f"trainer.validate_every={duration}", "output_dir=run"])
        plan, *_ = on_ranks(1, lambda rank: plan_run(config, rank, is_restart=False))  # noqa: B023
        assert f"\n  validate {words}\n  best " in plan.description
