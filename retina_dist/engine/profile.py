"""`trainer.profile`: torch.profiler's trace of some training steps, one file for each rank."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.profiler import ProfilerActivity, profile, schedule

from retina_dist.base.files import write_text
from retina_dist.engine.plan import Plan
from retina_dist.engine.task import MicroBatches, Scalars, TakeStep
from retina_dist.strategies.base import DistributedStrategy

logger = logging.getLogger(__name__)

SKIPPED = 2  # steps before the trace, in which memory is allocated and the profiler warms up
ROWS = 30  # operators in the table


@contextmanager
def profiled(
    take_step: TakeStep, plan: Plan, done: int, folder: Path, strategy: DistributedStrategy
) -> Iterator[TakeStep]:
    """`take_step`, or one that traces `plan.profile_steps` of the steps after `done`.

    It leaves out the first two, and traces fewer where the run ends.

    The trace, with the time between the steps, goes to `folder`/rank_N.json.gz, which
    https://ui.perfetto.dev opens, and a table of the operators with the most time to rank_N.txt
    beside it.
    """
    if not plan.profile_steps:
        yield take_step
        return
    left = plan.stop_step - done
    steps = max(1, min(plan.profile_steps, left - SKIPPED))
    skipped = max(0, min(SKIPPED, left - steps))
    rank = strategy.rank
    device = strategy.device.type
    activities = [ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(ProfilerActivity.CUDA)

    def write(profiler: profile) -> None:
        path = folder / f"rank_{rank}.json.gz"
        table = profiler.key_averages().table(sort_by=f"self_{device}_time_total", row_limit=ROWS)
        write_text(folder / f"rank_{rank}.txt", table)
        profiler.export_chrome_trace(str(path))
        logger.info(f"profile: {path}, for https://ui.perfetto.dev, and rank_{rank}.txt beside it")

    chosen = schedule(wait=0, warmup=skipped, active=steps, repeat=1)
    with profile(
        activities=activities, schedule=chosen, on_trace_ready=write, record_shapes=True
    ) as profiler:

        def step(micro_batches: MicroBatches) -> Scalars:
            values = take_step(micro_batches)
            profiler.step()
            return values

        yield step
