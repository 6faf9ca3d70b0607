"""What a rank does when another one dies, hangs or cannot be reached.

Whatever ends a rank, the others notice it in a collective, and each of them ends with a `PeerLost`
that names the ranks that are missing:

1. The collective fails: Gloo breaks the connection or times out (`errors.lost_connection`), NCCL
   raises DistBackendError, Horovod HorovodInternalError. MPI waits forever, so `HorovodStrategy`
   watches its own waits and ends the process after `timeout_s`.
2. The strategy's `__exit__` asks who is there by `missing_ranks`, over a channel that the failed
   collective does not touch: DDP's store, or horovodrun's rendezvous server.
3. The command prints the `PeerLost` and ends with exit code 1, so that the launcher ends the rest.

A `UserError` on one rank alone is another case: `DistributedStrategy.run_collectively` tells the
others of it, and all leave in order.
"""

import re
import time
from collections.abc import Callable

from retina_dist.base.errors import PeerLost, activity, first_line
from retina_dist.base.text import format_ranks

WAIT_S = 5.0  # for the other ranks to notice that a collective failed


def missing_ranks(
    rank: int, world_size: int, put: Callable[[str, str], None], has: Callable[[str], bool]
) -> list[int]:
    """The ranks that put no key within `WAIT_S` into a store that a failed collective does not
    touch.

    Each rank that asks puts its key first; one that hangs, is stopped, or has ended does not.

    Args:
        rank: this process's number.
        world_size: how many processes the job has.
        put: stores a value by a key.
        has: whether a key is stored.

    Returns:
        Their numbers; [] if all are there, or if the store cannot be reached.
    """
    try:
        put(f"here/{rank}", "1")
        until = time.monotonic() + WAIT_S
        missing = [other for other in range(world_size) if other != rank]
        while missing and time.monotonic() < until:
            time.sleep(0.1)
            missing = [other for other in missing if not has(f"here/{other}")]
    except (OSError, RuntimeError):
        return []
    return missing


def peer_lost(rank: int, missing: list[int], error: BaseException) -> PeerLost:
    """The error that names the lost ranks, and what the job did."""
    where = f"({activity()[0]}: {plain_reason(error)})"
    if not missing:
        return PeerLost(f"rank {rank} lost another process {where}.")
    names = format_ranks(missing)
    return PeerLost(f"rank {rank} waited for {names} {where}; see the last output of {names}.")


def plain_reason(error: BaseException) -> str:
    """The first line of a communication library's error, without its source file and brackets.

    >>> plain_reason(RuntimeError("[gloo/pair.cc:537] Connection closed by peer [10.0.0.1]:4711"))
    'Connection closed by peer 10.0.0.1:4711'
    """
    text = re.sub(r"\[[^\]\s]*\.(?:cc|cpp|h):\d+\]\s*", "", first_line(error))
    return re.sub(r"\[([\da-fA-F.:]+)\]:(\d+)", r"\1:\2", text)
