"""Did a run happen as it is logged? An auditor's check of its folder, on one page.

    python -m retina_dist.reproduce run=runs/shapes
    python -m retina_dist.reproduce run=RUN windows=all processes=4 launcher=torchrun
    python -m retina_dist.reproduce run=RUN seed=1234 'overrides=["data.root=/data/mine"]'

The run needs digest.csv (logging.digest=true, or trainer.virtual_ranks). Its rows, checkpoints,
settings and metrics are compared with each other. Then windows of its steps are run again in a
temporary folder, each from the start or from a kept checkpoint, and their rows compared. The last
line is the verdict: "Equal" with exit code 0, "Different" with 1, and "Not decided" with 2, where
no window was run, or on a layout that gives other bits.
"""

import sys
from pathlib import Path

from retina_dist.config.entry_point import entry_point
from retina_dist.run.reproduce import ReproduceConfig, reproduce, work


@entry_point("reproduce", ReproduceConfig)
def main(config: ReproduceConfig) -> None:
    """The page, or in a launched process the windows."""
    if config.worker:
        work(config, Path(config.worker))
    else:
        sys.exit(reproduce(config))


if __name__ == "__main__":
    main()
