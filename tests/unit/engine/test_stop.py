"""Ranks agree on saving and stopping."""

from __future__ import annotations

from collections.abc import Callable

from retina_dist.engine.preemption import StopAction, StopConsensus
from retina_dist.strategies.single_device import SingleDeviceStrategy


class TwoRanks(SingleDeviceStrategy):
    """This rank never requests a stop; the other does from its third step on."""

    world_size = 2  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__("cpu")
        self.asked = 0
        self.open = 0

    def all_reduce_max_async(self, level: int, question: str = "stop") -> Callable[[], int]:
        self.asked += 1
        self.open += 1
        found = max(level, StopAction.STOP if self.asked >= 3 else StopAction.NONE)

        def answer() -> int:
            self.open -= 1
            return found

        return answer


def test_the_action_is_known_one_step_later_and_no_collective_is_left_in_flight() -> None:
    strategy = TwoRanks()
    consensus = StopConsensus(strategy)
    requests = (StopAction.NONE, StopAction.SAVE, StopAction.SAVE, StopAction.NONE)
    assert [consensus.poll(r) for r in requests] == [StopAction.NONE, StopAction.NONE, StopAction.SAVE, StopAction.STOP]
    assert strategy.open == 1
    consensus.close()
    assert strategy.open == 0


def test_one_process_gets_its_own_request() -> None:
    consensus = StopConsensus(SingleDeviceStrategy("cpu"))
    assert [consensus.poll(request) for request in StopAction] == list(StopAction)
