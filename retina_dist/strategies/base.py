"""The contract between the trainer and a communication backend, which only communicates: no
clipping, no files, no seeds.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.optim.optimizer import StateDict

from retina_dist.base.errors import PeerLost, UserError
from retina_dist.strategies.launch_environment import Launch
from retina_dist.strategies.settings import StrategySettings

if TYPE_CHECKING:
    from torch.distributed.checkpoint.stateful import Stateful

T = TypeVar("T")
ReduceOp = Literal["mean", "sum", "min", "max"]


class DistributedStrategy(ABC):
    """One of `world_size` equal processes, as a context manager around everything that
    communicates.

    Every rank must call collectives in the same order. Read the properties each time, because
    elastic jobs change them.
    """

    settings: ClassVar[type[StrategySettings]] = StrategySettings
    launch: Launch = Launch()  # by default one process
    device: torch.device
    backend: str  # for messages
    # on gradients before fp16: 6e-8 .. 64 keep their precision; 1 where the loss is scaled
    fp16_scale: float = 1024.0
    # set before entering: sums keep their order in a run that is resumed
    deterministic: bool = False
    fp16_overflows: int = 0  # steps whose gradients left fp16's range and were sent again in full
    # What an elastic job goes back to when processes are lost or join; None in a new process.
    committed: StateDict | None = None

    @classmethod
    def supports(cls, launch: Launch) -> bool:
        """Whether the strategy can run in processes that were started so."""
        return True

    @classmethod
    def refusal(cls, launch: Launch) -> str:
        """Why the strategy cannot run in processes that were started so, and the remedy; "" where
        it can.
        """
        if cls.supports(launch):
            return ""
        return f"cannot run under {launch}; use another, or strategy=auto"

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

    def __enter__(self) -> DistributedStrategy:
        """Join the job and pin the device."""
        return self

    def __exit__(  # noqa: B027 - one leaves no job
        self, kind: object, error: BaseException | None, traceback: object
    ) -> None:
        """Leave the job; after an exception without waiting for the others."""

    # training

    @abstractmethod
    def prepare(self, model: nn.Module, accumulate: int = 1) -> nn.Module:
        """The module to call in training, whose gradients may be sent during the backward pass.

        Called by every rank; nothing of the module needs to be equal yet, `broadcast_state` makes
        it so.
        """

    def gradient_sync(self, net: nn.Module, enabled: bool) -> AbstractContextManager[None]:
        """Around one micro-batch's forward and backward.

        Disabled for all but the last of a step.
        """
        return nullcontext()

    def reduce_gradients(self) -> None:  # noqa: B027 - one process has nothing to reduce
        """Return when every `p.grad` is the mean over ranks."""

    # collectives

    @abstractmethod
    def all_reduce(self, x: Tensor, op: ReduceOp = "mean") -> Tensor:
        """[*] -> a new [*], equal on all ranks; `x` is on `device` or on the CPU."""

    @abstractmethod
    def all_gather(self, rows: Tensor) -> Tensor:
        """[n_r, *] -> [sum of n_r, *] in rank order; n_r may differ and may be 0.

        On `device` or on the CPU.
        """

    @abstractmethod
    def broadcast(self, x: Tensor, src: int = 0) -> Tensor:
        """[*] -> the same tensor, overwritten with `src`'s values."""

    def all_to_all(self, rows: Tensor) -> Tensor:
        """[world_size, *] -> [world_size, *]: row r is what rank r has for this rank, in the row of
        its number.

        By default a gather of everything, which sends `world_size` times as much.
        """
        return self.all_gather(rows[None])[:, self.rank]

    def all_reduce_max_async(self, level: int, question: str = "stop") -> Callable[[], int]:
        """Start an async MAX all-reduce.

        Call the result, which returns the maximum, before starting the next of this name.
        """
        highest = torch.tensor([level])
        if self.world_size > 1:
            highest = self.all_reduce(highest.to(self.device), "max")
        return partial(int, highest)

    def broadcast_object(self, obj: T) -> T:
        """The main rank's object on every rank, its tensors on the CPU on the others.

        Plain Python values and tensors only.
        """
        if self.world_size == 1:
            return obj
        payload = torch.empty(0, dtype=torch.uint8)
        if self.is_main:
            payload = _packed(obj)
        size = self.broadcast(torch.tensor([payload.numel()], device=self.device))
        payload = self.broadcast(payload.resize_(int(size)).to(self.device))
        return obj if self.is_main else _unpacked(payload)

    def gather_objects(self, obj: T, device: torch.device | None = None) -> list[T]:
        """Every rank's object, plain values and tensors, in rank order, its tensors on the CPU.

        The ranks exchange them by tensors on `device`, by default the strategy's.
        """
        if self.world_size == 1:
            return [obj]
        payload = _packed(obj).to(device or self.device)
        sizes = self.all_gather(torch.tensor([len(payload)], device=payload.device))
        return list(map(_unpacked, self.all_gather(payload).split(sizes.tolist())))

    def broadcast_state(self, state: Stateful) -> None:
        """Make `state`, which is tensors and plain values, equal to rank 0's on every rank."""
        if self.world_size > 1:
            state.load_state_dict(self.broadcast_object(state.state_dict()))

    def on_main(self, function: Callable[[], T]) -> T:
        """The main rank's `function()`, tensors and plain values, on every rank.

        A UserError of it ends all ranks.
        """
        result: Any = self.run_collectively(lambda: function() if self.is_main else None)
        return self.broadcast_object(result)

    def run_collectively(self, function: Callable[[], T], device: torch.device | None = None) -> T:
        """`function()` on every rank; it must not communicate.

        A UserError of it on any rank ends all ranks.

        The lowest rank that failed raises its error, the others raise PeerLost. The ranks exchange
        this in a tensor on `device`, by default the strategy's.
        """
        if self.world_size == 1:
            return function()
        failure: UserError | None = None
        failed = self.world_size  # no rank
        try:
            result = function()
        except UserError as error:
            failure = error
            failed = self.rank
        own = torch.tensor([failed], device=device or self.device)
        first = int(self.all_reduce(own, "min"))
        if first not in (self.rank, self.world_size):
            raise PeerLost(
                f"rank {first} stopped; its message says why.", collective=True, reporter=None
            )
        if failure:
            failure.collective = True
            failure.reporter = self.rank
            raise failure
        return result

    # elastic jobs

    def run_elastic(self, work: Callable[[], T]) -> T:
        """`work()`; an elastic backend repeats it on all processes when some are lost or join.

        Rank 0 of a repetition is a process that has been there before, if any is left.
        """
        return work()

    def commit(  # noqa: B027 - one is not elastic
        self, content: Callable[[], StateDict]
    ) -> None:
        """Between two steps: an elastic backend keeps `content()` as `committed` now and then.

        Here it lets new processes in.
        """


def _packed(obj: object) -> Tensor:
    """The bytes of plain values and tensors, [N] uint8 on the CPU."""
    buffer = io.BytesIO()
    torch.save(obj, buffer)
    return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)


def _unpacked(payload: Tensor) -> Any:
    # onto the CPU: the number of the sender's GPU may belong to another process's GPU here
    buffer = io.BytesIO(payload.cpu().numpy().tobytes())
    return torch.load(buffer, map_location="cpu", weights_only=True)


def in_memory_order(x: Tensor) -> Tensor:
    """The elements of a dense tensor as a contiguous vector over the same memory."""
    return x.as_strided((x.numel(),), (1,))
