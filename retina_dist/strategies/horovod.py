"""Horovod's allreduce over NCCL, MPI or Gloo.

The only file that imports `horovod`, and only when this strategy is chosen.

Hooks send each gradient as soon as it is complete. `hvd.DistributedOptimizer` would refuse weights
that are channels last, and `hvd.broadcast_optimizer_state` moves the weights
(https://github.com/horovod/horovod/issues/2805).
"""

from __future__ import annotations

import copy
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim.optimizer import StateDict
from torch.utils.hooks import RemovableHandle

from retina_dist.base.errors import ConfigError, activity, first_line, is_collective
from retina_dist.strategies.base import DistributedStrategy, ReduceOp, in_memory_order
from retina_dist.strategies.compression import take_fp16, to_wire
from retina_dist.strategies.devices import check_devices, device_identity, resolve_device
from retina_dist.strategies.launch_environment import Launch
from retina_dist.strategies.launchers import launcher_named
from retina_dist.strategies.lost_peers import missing_ranks, peer_lost
from retina_dist.strategies.settings import HorovodSettings

T = TypeVar("T")

GRACE_S = 5.0  # after which Horovod's own stall check, which knows more, has had its turn
POLL_S = 50e-6  # between two polls of a collective
RENDEZVOUS = "HOROVOD_GLOO_RENDEZVOUS_ADDR"  # horovodrun's rendezvous server

# the settings of ours that Horovod was started with last
_running_with: dict[str, str] = {}


class HorovodStrategy(DistributedStrategy):
    """One of the processes that horovodrun or mpirun started.

    Horovod's own `fusion_mb` of 128 is nearly RetinaNet's whole gradient, so nothing would overlap
    with the backward pass. Settings of the launcher (horovodrun --fusion-threshold-mb ...) win.
    `deterministic` sends each gradient alone, because which ones share a message, and so the order
    of a sum over three or more ranks, depends on the clock.

    Under horovodrun with --min-np or a host discovery script the job is elastic: when processes are
    lost or join, all go back to what they kept in memory, every `commit_every` steps, and continue.

    Raises ConfigError when Horovod is missing or built without what this job needs, or two
    processes have one GPU.
    """

    settings = HorovodSettings

    def __init__(self, settings: HorovodSettings, launch: Launch) -> None:
        self.launch = launch
        self.compression = settings.compression
        self.timeout_s = settings.timeout_s
        self.elastic = os.environ.get("HOROVOD_ELASTIC") == "1"
        self._membership = HorovodMembership(self, settings.commit_every)
        self.hvd = _import_horovod()
        self.device = resolve_device(settings.device, launch)
        self._fusion_bytes = int(settings.fusion_mb * 2**20)
        self._parameters: list[tuple[str, nn.Parameter]] = []
        self._hooks: list[RemovableHandle] = []
        # by name: Horovod's handle, and the tensor summed in place
        self._sent: dict[str, tuple[object, Tensor]] = {}
        # in the order in which all ranks met them
        self._sums: dict[tuple[str, torch.dtype, torch.Size], int] = {}
        self._sending = True
        self._waiting_since: float | None = None
        self._left = threading.Event()

    @classmethod
    def refusal(cls, launch: Launch) -> str:
        if "horovod" not in launcher_named(launch.launcher).strategies:
            return f"cannot run under {launch}; use horovodrun, mpirun or strategy=ddp"
        return super().refusal(launch)

    @property
    def variables(self) -> dict[str, str]:
        """Horovod's environment for these settings."""
        variables = {
            "HOROVOD_FUSION_THRESHOLD": "0" if self.deterministic else str(self._fusion_bytes),
            "HOROVOD_STALL_CHECK_TIME_SECONDS": str(max(1, int(min(60.0, self.timeout_s / 2)))),
            "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": str(int(self.timeout_s)),
        }
        if self.device.type == "cpu":  # or Open MPI's waiting takes the core from the training
            variables["OMPI_MCA_mpi_yield_when_idle"] = "1"
        return variables

    @property
    def rank(self) -> int:
        return int(self.hvd.rank())

    @property
    def local_rank(self) -> int:
        return int(self.hvd.local_rank())

    @property
    def world_size(self) -> int:
        return int(self.hvd.size())

    @property
    def backend(self) -> str:  # type: ignore[override]
        if self.device.type == "cuda" and self.hvd.nccl_built():
            return "Horovod over NCCL"
        return f"Horovod over {'MPI' if self.hvd.mpi_enabled() else 'Gloo'}"

    def __enter__(self) -> HorovodStrategy:
        self._start()
        self._check()
        if self.hvd.mpi_enabled() and self.world_size > 1:
            self._left = threading.Event()
            threading.Thread(target=self._watch, args=(self._left,), daemon=True).start()
        if (
            not self.elastic
        ):  # elastic jobs may not communicate before they are within `run_elastic`
            self._check_devices()
        return self

    def _start(self) -> None:
        """Start Horovod with our settings, except for what the launcher set."""
        global _running_with
        earlier = _running_with  # set by an earlier job of this process, not by the launcher
        ours = self.variables
        if self.hvd.is_initialized():
            if any(ours.get(name) != value for name, value in earlier.items()):
                raise ConfigError(
                    "strategy.fusion_mb, timeout_s and device cannot change in a process where "
                    "Horovod starts only once (over MPI or with a cycle time); "
                    "start a sweep for each value."
                )
            return
        for name in os.environ.keys() & ours.keys() - earlier.keys():
            del ours[name]
        _running_with = ours
        os.environ.update(ours)
        self.hvd.init()

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        rank = self.launch.rank
        world_size = self.launch.world_size
        if self.hvd.is_initialized():  # not after an elastic start that failed
            rank = self.rank
            world_size = self.world_size
        self._forget()
        in_order = error is None or is_collective(error)
        # MPI cannot be started twice in a process, nor can Horovod 0.28 once both of these are
        # given (it crashes)
        given = {"HOROVOD_FUSION_THRESHOLD", "HOROVOD_CYCLE_TIME"} <= os.environ.keys()
        if not in_order or not (given or self.hvd.mpi_enabled()):
            # the other ranks' collectives end with an error, so that they stop too
            with self._waiting():
                self.hvd.shutdown()
        self._left.set()
        if error is not None and type(error).__name__ == "HorovodInternalError":
            missing: list[int] = []
            if RENDEZVOUS in os.environ:
                missing = missing_ranks(rank, world_size, put_note, has_note)
            raise peer_lost(rank, missing, error) from error

    def _check(self) -> None:
        hvd = self.hvd
        if hvd.size() != self.launch.world_size and not self.elastic:
            raise ConfigError(
                f"{self.launch}: Horovod was built without MPI and sees only {hvd.size()}; "
                "start by horovodrun --gloo, or run scripts/install_horovod.py "
                "where mpicxx is installed."
            )
        has_network = hvd.nccl_built() or hvd.mpi_built()
        if self.device.type == "cuda" and hvd.size() > 1 and not has_network:
            raise ConfigError(
                "Horovod has no NCCL; run scripts/install_horovod.py --gpu yes, "
                "or give strategy=ddp."
            )

    def _check_devices(self) -> None:
        # by the CPU, before NCCL starts
        check_devices(self.gather_objects(device_identity(self.device), torch.device("cpu")))

    # membership

    def run_elastic(self, work: Callable[[], T]) -> T:
        if not self.elastic:
            return super().run_elastic(work)
        import horovod.torch.elastic as elastic

        def attempt(membership: HorovodMembership) -> T:
            self._check_devices()
            self._sums.clear()  # a process that joined has met none
            result = work()
            membership.answer()  # no question is left under way
            return result

        return elastic.run(attempt)(self._membership)

    def commit(self, content: Callable[[], StateDict]) -> None:
        if self.elastic:
            self._membership.commit(content)

    # training

    def prepare(self, model: nn.Module, accumulate: int = 1) -> nn.Module:
        self._forget()
        self._parameters = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        if self.compression != "bf16" and self.world_size > 1:
            for name, p in self._parameters:
                send = partial(self._send_if_last, name)
                self._hooks.append(p.register_post_accumulate_grad_hook(send))
        return model

    def _forget(self) -> None:
        """Drop the hooks and pending sums of the model that was prepared last."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._sent.clear()

    def gradient_sync(self, net: nn.Module, enabled: bool) -> AbstractContextManager[None]:
        self._sending = enabled
        return nullcontext()

    def _send_if_last(self, name: str, parameter: Tensor) -> None:
        if self._sending and parameter.grad is not None:
            self._send(name, parameter.grad)

    def _send(self, name: str, gradient: Tensor) -> None:
        wire = in_memory_order(gradient)
        op = self.hvd.Average
        if self.compression == "fp16":
            wire = to_wire(wire, "fp16", self.fp16_scale, self.world_size)
            op = self.hvd.Sum
        handle = self.hvd.allreduce_async_(wire, name=f"gradient.{name}", op=op)
        self._sent[name] = (handle, wire)

    def reduce_gradients(self) -> None:
        if self.world_size == 1:
            return
        gradients = {name: p.grad for name, p in self._parameters if p.grad is not None}
        if self.compression == "bf16":
            self._average_bf16(list(gradients.values()))
            return
        for name, gradient in gradients.items():
            if name not in self._sent:  # the last micro-batch did not reach the parameter
                self._send(name, gradient)
        sent = self._sent
        self._sent = {}
        for handle, _ in sent.values():
            self._synchronize(handle)
        if self.compression == "fp16":
            pairs = [(in_memory_order(own), sent[name][1]) for name, own in gradients.items()]
            self.fp16_overflows += take_fp16(pairs, self.fp16_scale, self.all_reduce)

    def _average_bf16(self, gradients: Sequence[Tensor]) -> None:
        """Put the means into the gradients.

        Horovod cannot add bf16 up, so each rank adds up its piece in float32; as many bytes travel
        as in a ring.
        """
        sizes = list(map(torch.numel, gradients))
        flat = [to_wire(gradient.flatten(), "bf16", 1.0, self.world_size) for gradient in gradients]
        shares = torch.cat(flat)
        padded = nn.functional.pad(shares, (0, -len(shares) % self.world_size))
        rows = padded.view(torch.uint8).view(self.world_size, -1)
        pieces = self.all_to_all(rows).view(torch.bfloat16)  # mine, as each rank has it
        piece = pieces.float().sum(0).to(torch.bfloat16)
        means = self.all_gather(piece.view(torch.uint8)).view(torch.bfloat16)[: len(shares)]
        for gradient, mean in zip(gradients, means.split(sizes), strict=True):
            gradient.copy_(mean.view_as(gradient))

    # collectives

    def all_reduce(self, x: Tensor, op: ReduceOp = "mean") -> Tensor:
        hvd = self.hvd
        if self.world_size == 1:  # or it would wait for Horovod's next cycle
            return x.clone()
        ops = {"sum": hvd.Sum, "mean": hvd.Sum, "min": hvd.Min, "max": hvd.Max}
        # Horovod caches what it negotiated by name and shape; without a name, rank 0 would collect
        # a request from each rank for every sum. A number in place of the shape lets Horovod refuse
        # a new sum whose shapes differ between ranks at once.
        number = self._sums.setdefault((op, x.dtype, x.shape), len(self._sums))
        handle = hvd.allreduce_async(x.contiguous(), name=f"sum.{number}", op=ops[op])
        total = self._synchronize(handle)
        if op == "mean":
            return total / self.world_size
        return total

    def all_reduce_max_async(self, level: int, question: str = "stop") -> Callable[[], int]:
        if self.world_size == 1:
            return super().all_reduce_max_async(level)
        highest = torch.tensor([level])  # on the CPU, so that no GPU is waited for
        handle = self.hvd.allreduce_async_(highest, name=f"max.{question}", op=self.hvd.Max)
        return lambda: int(self._synchronize(handle))

    def all_gather(self, rows: Tensor) -> Tensor:
        return self._synchronize(self.hvd.allgather_async(rows.contiguous()))

    def all_to_all(self, rows: Tensor) -> Tensor:
        handle = self.hvd.alltoall_async(rows.contiguous(), name=f"exchange.{rows.dtype}")
        received, _ = self._synchronize(handle)  # of an exchange with the numbers of rows
        return received

    def broadcast(self, x: Tensor, src: int = 0) -> Tensor:
        return self._synchronize(self.hvd.broadcast_async_(x, src))

    def _synchronize(self, handle: object) -> Tensor:
        """The result of an asynchronous operation.

        Polled for, since Horovod's own wait sleeps at least a millisecond at a time.
        """
        with self._waiting():
            while not self.hvd.poll(handle):
                time.sleep(POLL_S)
            return self.hvd.synchronize(handle)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Around what may wait for other ranks."""
        self._waiting_since = time.monotonic()
        try:
            yield
        finally:
            self._waiting_since = None

    def _watch(self, left: threading.Event) -> None:
        """End this process when it has waited for longer than `timeout_s`.

        MPI waits forever for a stopped one, in Horovod's thread that looks for stalls.
        """
        while not left.wait(1.0):
            since = self._waiting_since
            if since is not None and time.monotonic() - since > self.timeout_s + GRACE_S:
                message = (
                    f"error: rank {self.rank} waited {self.timeout_s:g} s for another rank "
                    f"({activity()[0]}); see what the others printed last, "
                    "or raise strategy.timeout_s.\n"
                )
                os.write(2, message.encode())
                os._exit(1)  # mpirun then ends the others


def put_note(key: str, value: str) -> None:
    """Store a value by a key that every process can read."""
    request = urllib.request.Request(_note_url(key), data=value.encode(), method="PUT")
    urllib.request.urlopen(request, timeout=5).close()


def has_note(key: str) -> bool:
    """Whether some process stored that key."""
    try:
        urllib.request.urlopen(_note_url(key), timeout=5).close()
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return False
        raise
    return True


def _note_url(key: str) -> str:
    address = os.environ[RENDEZVOUS]
    port = os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"]
    return f"http://{address}:{port}/retina_dist/{key.replace('/', '_')}"


@dataclass(eq=False)  # Horovod keeps it in a set
class HorovodMembership:
    """The state that Horovod's elastic loop asks for.

    The trainer's state is shared by `broadcast_state`, as at any start.
    """

    strategy: HorovodStrategy
    commit_every: int
    changed: bool = False
    steps: int = 0
    asked: Callable[[], int] | None = None

    def commit(self, content: Callable[[], StateDict]) -> None:
        changed = self.answer()
        if changed or (self.steps and self.steps % self.commit_every == 0):
            self.strategy.committed = copy.deepcopy(content())
        self.steps += 1
        if changed:
            from horovod.common.exceptions import HostsUpdatedInterrupt

            raise HostsUpdatedInterrupt(False)
        self.asked = self.strategy.all_reduce_max_async(int(self.changed), "membership")

    def answer(self) -> bool:
        """Whether any rank had seen a change one commit ago.

        Asked then, so that no rank waits for it, and known to all now.
        """
        asked = self.asked
        self.asked = None
        return asked is not None and bool(asked())

    def on_hosts_updated(self, timestamp: float, result: object) -> None:
        self.changed = True  # by a thread of Horovod's

    def on_reset(self) -> None:
        self.changed = False
        self.steps = 0
        self.asked = None
        self.strategy._forget()

    def sync(self) -> None: ...

    def restore(self) -> None: ...


def _import_horovod() -> Any:
    try:
        import horovod.torch as hvd
    except Exception as error:  # a build for another torch or MPI fails in many ways
        reason = f"cannot be loaded ({first_line(error)})"
        if isinstance(error, ModuleNotFoundError) and (error.name or "").startswith("horovod"):
            reason = "is not installed"
        raise ConfigError(
            f"strategy=horovod: Horovod {reason}; "
            "build it by python -m retina_dist.scripts.install_horovod "
            "(in a checkout by make horovod), or use strategy=ddp with torchrun."
        ) from error
    return hvd
