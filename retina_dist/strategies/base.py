"""The contract between the trainer and a communication backend.

A strategy does communication and nothing else: no learning rate, no clipping, no files, no seeds. The trainer and
the evaluator know this class only; each backend is one file beside it.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, ClassVar, Literal, Protocol, TypeVar

import torch
from torch import Tensor, nn
from typing_extensions import Self

from retina_dist.errors import PeerLost, UserError
from retina_dist.strategies.launch_environment import Launch
from retina_dist.strategies.settings import StrategySettings

T = TypeVar("T")
ReduceOp = Literal["mean", "sum", "min", "max"]


class Stateful(Protocol):
    """State that ranks share and checkpoints hold."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class DistributedStrategy(ABC):
    """How one process takes part in a job of `world_size` equal processes.

    Used as a context manager around everything that communicates. Collectives must be called by every rank in the same
    order. The properties are read live, because elastic jobs change them.
    """

    # of a strategy that a configuration names by its class
    settings: ClassVar[type[StrategySettings]] = StrategySettings
    launch: Launch = Launch()  # by default one process
    device: torch.device
    backend: str  # who communicates, in words
    phase: str = "the start"  # what the job does now, for the error when another process is lost
    join_s: float | None = None  # how long to wait for ranks that have not started; None: as long as for a collective
    connects_at_once: bool = True  # False: leave the network between GPUs alone until the first collective there

    @classmethod
    def supports(cls, launch: Launch) -> bool:
        """Whether the strategy can run in processes that were started so."""
        return True

    @property
    def rank(self) -> int:
        """This process's number, 0..world_size-1."""
        return self.launch.rank

    @property
    def local_rank(self) -> int:
        """This process's number on its host; it picks the GPU."""
        return self.launch.local_rank

    @property
    def world_size(self) -> int:
        """How many processes the job has."""
        return self.launch.world_size

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and speaks to the user."""
        return self.rank == 0

    # lifetime

    def __enter__(self) -> Self:
        """Join the job and pin the device."""
        return self

    def __exit__(  # noqa: B027 - one process leaves no job
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leave the job; after an exception without waiting for the others."""

    # training

    @abstractmethod
    def prepare(self, model: nn.Module, accumulate: int = 1) -> nn.Module:
        """The module to call in training, whose gradients may be sent during the backward pass.

        Called by every rank; nothing of the module needs to be equal yet, `run` sees to that.
        """

    def gradient_sync(self, net: nn.Module, enabled: bool) -> AbstractContextManager[None]:
        """Around one micro-batch's forward and backward; disabled for all but the last of a step."""
        return nullcontext()

    def reduce_gradients(self) -> None:  # noqa: B027 - one process has nothing to reduce
        """Return when every `p.grad` is the mean over ranks."""

    def sending_bytes(self, gradients: int) -> int:
        """Memory that sending gradients of so many bytes takes beside them, at most."""
        return 0

    @property
    def keeps_gradients(self) -> bool:
        """Whether gradients stay allocated from step to step, as `prepare` may arrange."""
        return False

    def versions(self) -> dict[str, str]:
        """Versions of the packages that the backend communicates with beside torch, by name."""
        return {}

    def counters(self) -> dict[str, float]:
        """What happened on the wire since the start, by name, for the log; equal on all ranks."""
        return {}

    # collectives

    @abstractmethod
    def all_reduce(self, x: Tensor, op: ReduceOp = "mean") -> Tensor:
        """[*] -> a new [*], equal on all ranks; `x` is on `device` or on the CPU."""

    @abstractmethod
    def all_gather(self, rows: Tensor) -> Tensor:
        """[n_r, *] -> [sum of n_r, *] in rank order; n_r may differ and may be 0. On `device` or on the CPU."""

    @abstractmethod
    def broadcast(self, x: Tensor, src: int = 0) -> Tensor:
        """[*] -> the same tensor, overwritten with `src`'s values."""

    def all_reduce_max_async(self, level: int, question: str = "stop") -> Callable[[], int]:
        """Start asking for the highest level of any rank; the answer is fetched later, by every rank before it asks this again."""
        highest = level
        if self.world_size > 1:
            highest = int(self.all_reduce(torch.tensor([level], device=self.device), "max"))
        return lambda: highest

    def broadcast_object(self, obj: T, src: int = 0) -> T:
        """`src`'s object on every rank, its tensors on the CPU on the others; plain Python values and tensors only."""
        if self.world_size == 1:
            return obj
        payload = torch.empty(0, dtype=torch.uint8)
        if self.rank == src:
            buffer = io.BytesIO()
            torch.save(obj, buffer)
            payload = torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)
        size = self.broadcast(torch.tensor([payload.numel()], device=self.device), src)
        if self.rank != src:
            payload = torch.empty(int(size), dtype=torch.uint8)
        payload = self.broadcast(payload.to(self.device), src).cpu()
        if self.rank == src:
            return obj
        # onto the CPU: a tensor of `src`'s GPU would come to the same number here, which may be another process's
        received: T = torch.load(io.BytesIO(payload.numpy().tobytes()), map_location="cpu", weights_only=True)
        return received

    def barrier(self) -> None:
        """Return when every rank has called it."""
        self.all_reduce(torch.zeros(1, device=self.device), "sum")

    def on_main(self, function: Callable[[], T]) -> T:
        """What `function()` returns on the main rank, on every rank (tensors and plain Python values).

        A UserError of it ends all ranks.
        """
        result = self.run_collectively(lambda: function() if self.is_main else None)
        return self.broadcast_object(result)  # type: ignore[return-value]

    def run_collectively(self, function: Callable[[], T], device: torch.device | None = None) -> T:
        """`function()` on every rank; it must not communicate. A UserError of it on any rank ends all ranks.

        The lowest rank that failed raises its error, the others PeerLost, so that no rank waits for one that is gone. The ranks
        exchange this in a tensor on `device`, by default the strategy's.
        """
        result: T | None = None
        failure: UserError | None = None
        try:
            result = function()
        except UserError as error:
            failure = error
        self._raise_collectively(failure, device or self.device)
        return result  # type: ignore[return-value]

    def _raise_collectively(self, failure: UserError | None, device: torch.device) -> None:
        if self.world_size > 1:
            failed = self.world_size if failure is None else self.rank
            first = int(self.all_reduce(torch.tensor([failed], device=device), "min"))
            if first < self.world_size and first != self.rank:
                raise PeerLost(f"rank {first} stopped; its message says why.", collective=True, reporter=None)
            if failure:
                failure.collective, failure.reporter = True, self.rank
        if failure:
            raise failure

    # membership

    def run_elastic(self, work: Callable[[dict[str, Any] | None], T]) -> T:
        """`work(None)`. An elastic backend calls it again when processes are lost or join, on all of them.

        It is then given what `commit` kept last on this rank, or None on a new one; rank 0 is one that has been there, if any
        is left.
        """
        return work(None)

    def run(self, fit: Callable[[], T], state: Stateful) -> T:
        """Make `state` equal to rank 0's on every rank, then return `fit()`; an elastic backend repeats both."""
        if self.world_size > 1:
            state.load_state_dict(self.broadcast_object(state.state_dict()))
        return fit()

    def commit(self, content: Callable[[], dict[str, Any]]) -> None:  # noqa: B027 - only elastic backends fall back
        """Called after each step: a point that an elastic job can fall back to, and where it lets new processes in."""
