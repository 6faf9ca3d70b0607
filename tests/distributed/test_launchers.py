"""What each launcher that is here tells the processes it starts; srun has its own file, test_slurm.py."""

from __future__ import annotations

import pytest

from retina_dist.strategies.start_processes import executable, started


@pytest.mark.parametrize("launcher", ["torchrun", "horovodrun", "mpirun"])
def test_a_real_start_of_two_processes_is_understood(launcher: str) -> None:
    said, reason = started(launcher)
    if said is None and executable(launcher) is None:
        pytest.skip(reason)
    assert said, reason
    strategy = "ddp" if launcher == "torchrun" else "horovod"
    assert said.startswith("rank 1 of 2, local rank 1 of 2 on node 0, ")
    assert said.endswith(f"strategy {strategy}: {launcher} with 2 processes")
