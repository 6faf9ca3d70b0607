"""How many images a second does a job train on, if nothing is read?

    python -m retina_dist.benchmark synthetic                                              one process
    torchrun --nproc-per-node 2 -m retina_dist.benchmark synthetic                         this job, by torch DDP
    horovodrun -np 2 python -m retina_dist.benchmark synthetic model=retinanet_r50 data.synthetic.canvas=[800,1088]
    python -m retina_dist.benchmark synthetic task=classification model=classifier data.image_size=224

As Horovod's pytorch_synthetic_benchmark.py (https://github.com/horovod/horovod/tree/master/examples/pytorch): random
batches on the device, made once; warm-up, then `num_iters` rounds of `num_batches_per_iter` steps; the mean over the rounds, and
1.96 standard deviations, for a process and for all. The machine's speed drifts: what is compared takes turns in `benchmark scaling
data=synthetic`. --baseline of one process gives a larger job's efficiency.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from retina_dist.benchmark.report import finish
from retina_dist.benchmark.settings import SyntheticBenchmarkConfig
from retina_dist.benchmark.throughput import Throughput, measure
from retina_dist.config.entry_point import entry_point
from retina_dist.reporting.console import print_redacted
from retina_dist.text import pluralize


def mean_and_deviation(values: Sequence[float]) -> dict[str, float]:
    """The mean, and 1.96 standard deviations of the population, between which 95 % of normally distributed values lie.

    >>> mean_and_deviation([9.0, 11.0])
    {'mean': 10.0, 'deviation': 1.96}
    """
    return {"mean": round(statistics.fmean(values), 3), "deviation": round(1.96 * statistics.pstdev(values), 3)}


def benchmark(config: SyntheticBenchmarkConfig) -> dict[str, Any] | None:
    """Measure the job that this process is of; its main rank prints, writes and returns the figures."""
    found = measure(
        config,
        warmup=config.num_warmup_batches,
        steps=config.num_batches_per_iter,
        rounds=config.num_iters,
        predict=config.memory,
        report=print_redacted,
    )
    if found.rank:
        return None
    return finish(config, "synthetic", **summary(found))


def summary(found: Throughput) -> dict[str, Any]:
    """Print the two lines of Horovod's benchmark and return the figures; the ratio is what an earlier file is compared by."""
    each = [value / found.world_size for value in found.images_per_s]
    one, all_ = mean_and_deviation(each), mean_and_deviation(found.images_per_s)
    print_redacted(f"img/s a process: {one['mean']:.1f} +-{one['deviation']:.1f}")
    print_redacted(f"img/s of {pluralize(found.world_size, 'process')}: {all_['mean']:.1f} +-{all_['deviation']:.1f}")
    predicted, peak = (size and round(size / 2**30, 4) for size in (found.predicted_bytes, found.peak_bytes))
    if predicted:
        print_redacted(
            f"peak memory: predicted {predicted:.2f} GiB, measured {f'{peak:.2f} GiB' if peak else 'on GPUs only'}"
        )
    return {
        "ratios": {"images_per_s_per_process": one["mean"]},
        "job": found.job,
        "backend": found.backend,
        "processes": found.world_size,
        "batch_size": found.batch_size,
        "images_per_s_per_process": one,
        "images_per_s": all_,
        "memory": {"predicted_gib": predicted, "measured_gib": peak},
        "rounds": [round(value, 3) for value in found.images_per_s],
    }


@entry_point("benchmark_synthetic")
def main(config: SyntheticBenchmarkConfig) -> Any:
    """The figures of this job."""
    benchmark(config)


if __name__ == "__main__":
    main()
