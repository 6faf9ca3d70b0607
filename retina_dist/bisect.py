"""Where do two runs that should agree part? The first step, and what in it differs first.

    python -m retina_dist.bisect a=runs/a b=runs/b
    python -m retina_dist.bisect a=runs/before b=runs/after b_python=/envs/new/bin/python
    python -m retina_dist.bisect a=runs/a b=runs/b step=120      runs without digest.csv
    python -m retina_dist.bisect a=runs/a b=runs/b --config-dir my_conf task=mine

Both runs need digest.csv (`logging.digest=true`), which tells the first step that differs. This
step of each run is then repeated in new processes and a temporary folder: from its nearest
checkpoint before the step, with its settings, launcher, number of processes and threads. Digests of
all that the step computes are compared in the order in which it happens: ids, pixels and targets of
each micro-batch, outputs of the modules, losses, gradients before and after the reduction and after
clipping, optimizer, buffers, average. Where the state parted in an earlier step, that one is
repeated. Exit code 1 if the runs differ.

`a_python` and `b_python` are other interpreters: another torch, or other code. Such an environment
has this version of retina_dist. Nothing is written into the runs.
"""

import sys
from functools import partial
from pathlib import Path

from retina_dist.config.entry_point import entry_point
from retina_dist.testing.bisect import BisectConfig, bisect, repeat, repeat_in_worker


@entry_point("bisect", BisectConfig)
def main(config: BisectConfig) -> None:
    """Find it, or in a launched process repeat a step."""
    if config.worker:
        repeat_in_worker(config, Path(config.worker))
    elif not bisect(config, partial(repeat, config)):
        sys.exit(1)


if __name__ == "__main__":
    main()
