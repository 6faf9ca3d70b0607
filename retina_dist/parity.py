"""Do all backends train the same model? The same steps on one process and under each launcher.

    python -m retina_dist.parity                              installed launchers, 2 processes
    python -m retina_dist.parity processes=[1,2,4] steps=3    what make parity does
    python -m retina_dist.parity data=coco data.root=/data/mine      your own images
    python -m retina_dist.parity task=classification_parity   the other task, with mixup and cutmix
    python -m retina_dist.parity processes=[2,8] launchers=[torchrun] model=retinanet_r50
    python -m retina_dist.parity --config-dir my_conf task=mine strategy=mine launchers=[torchrun]
    python -m retina_dist.parity bits=true processes=[2,4] steps=50    fp32, with virtual ranks

Every cell of the table is the largest difference from one process: of the losses, the applied
gradients, the momentum and the weights of each step, and of the final batch norm statistics and
weight average, each relative to the largest magnitude of its kind, in float64, where rounding
cannot hide what else differs. Exit code 1 past the tolerance. With `bits=true` it is whole runs in
fp32 with `trainer.virtual_ranks`, by default 4 or as many as there are processes: one SHA-256 for
all, or exit code 1.

Each launcher starts once for each number of processes and runs all cases; the first job computes
what one process gives. The output of the jobs goes to stderr.
"""

import sys
from pathlib import Path

from retina_dist.config.entry_point import entry_point
from retina_dist.testing.parity import ParityConfig, parity, work


@entry_point("parity", ParityConfig)
def main(config: ParityConfig) -> None:
    """The table, or in a launched process its part."""
    if config.worker:
        work(config, Path(config.worker))
    elif not parity(config):
        sys.exit(1)


if __name__ == "__main__":
    main()
