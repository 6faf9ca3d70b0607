"""The plan of a job whose processes change."""

from __future__ import annotations

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
