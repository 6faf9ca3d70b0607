"""torch's DistributedDataParallel, over NCCL between GPUs and Gloo between CPUs.

The only file that imports `torch.distributed`.
"""

import gc
import inspect
import os
import time
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from retina_dist.base.errors import (
    STARTING,
    ConfigError,
    PeerLost,
    activity,
    first_line,
    is_collective,
    lost_connection,
    set_status,
)
from retina_dist.base.text import format_ranks
from retina_dist.strategies.base import DistributedStrategy, ReduceOp
from retina_dist.strategies.compression import take_fp16, to_wire
from retina_dist.strategies.devices import check_devices, device_identity, resolve_device
from retina_dist.strategies.launch_environment import Launch
from retina_dist.strategies.launchers import DEFAULT_PORT, launcher_named
from retina_dist.strategies.lost_peers import missing_ranks, peer_lost
from retina_dist.strategies.settings import DDPSettings

OPS = {
    "sum": dist.ReduceOp.SUM,
    "mean": dist.ReduceOp.SUM,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
}
# No exchange of buffers in each forward pass, by the name that this torch has for it.
OPTIONS = {"forward_sync_buffers", "broadcast_buffers"} & set(
    inspect.signature(DistributedDataParallel).parameters
)
NO_BUFFERS: dict[str, Any] = {max(OPTIONS): False}
# NCCL's collectives are recorded, and the record is written where `FLIGHT_FILE` says when one of
# them times out.
FLIGHT_RECORDER = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
FLIGHT_FILE = "TORCH_FR_DUMP_TEMP_FILE"
GRACE_S = 5.0  # for which the others wait longer than rank 0, whose error names who is late
POLL_S = 0.02  # between two looks into the store

_shared_store: dist.Store | None = None
_jobs = 0
_flight_file: str | None = None  # that an earlier job of this process set


class DDPStrategy(DistributedStrategy):
    """One of the processes of torchrun, srun, mpirun, Azure ML or any launcher that gives rank 0's
    address.

    Gradients are averaged in buckets during the backward pass. A collective that takes longer than
    `timeout_s` ends the process. `deterministic` keeps the buckets of the first step, which torch
    would rearrange after it: a sum over three or more ranks then has the same order in a run that
    was resumed. Raises ConfigError on entering when the processes cannot find each other or two
    have one GPU, which only Gloo can share.
    """

    settings = DDPSettings

    def __init__(self, settings: DDPSettings, launch: Launch) -> None:
        self.launch = launch
        self.timeout_s = settings.timeout_s
        self.compression = settings.compression
        self.bucket_mb = settings.bucket_mb
        self.device = resolve_device(settings.device, launch)
        self.gloo_only = settings.process_group_backend == "gloo"
        self.nccl = self.device.type == "cuda" and not self.gloo_only
        self.backend = f"DDP over {'NCCL' if self.nccl else 'Gloo'}"
        # compressed: each bucket's own gradients, and all ranks' sum
        self._sent: list[tuple[Tensor, Tensor]] = []

    @classmethod
    def refusal(cls, launch: Launch) -> str:
        if "ddp" not in launcher_named(launch.launcher).strategies:
            return f"cannot run under {launch}; start it by torchrun, or use strategy=horovod"
        return super().refusal(launch)

    def __enter__(self) -> "DDPStrategy":
        transport = "gloo"
        if self.nccl:
            transport = "cpu:gloo,cuda:nccl"
            for name, value in FLIGHT_RECORDER.items():
                os.environ.setdefault(name, value)
        if dist.is_initialized():
            # Ray Train makes a process group, without the rest of what is needed here
            dist.destroy_process_group()
        try:
            store = self._job = self._store()
            store.set(f"device{self.rank}", device_identity(self.device))
            # before NCCL starts, which would only say "invalid usage" of a GPU that two processes
            # have
            devices = store.multi_get([f"device{rank}" for rank in range(self.world_size)])
            check_devices(list(map(bytes.decode, devices)), shared=self.gloo_only)
            # no device_id: NCCL then connects at the first collective on GPUs, after all that needs
            # no network between them
            dist.init_process_group(
                transport,
                store=store,
                rank=self.rank,
                world_size=self.world_size,
                timeout=timedelta(seconds=self.timeout_s),
            )
            set_status(STARTING)  # no longer waiting for the others
        except ConfigError:
            raise
        except (dist.DistError, RuntimeError, ValueError) as error:
            address, port = self._rendezvous_endpoint()
            raise ConfigError(
                f"rank {self.rank} of {self.world_size} could not join the others at "
                f"{address}:{port} ({first_line(error)}); check that every host was started, "
                "MASTER_ADDR is rank 0's, its port is open, and GLOO_SOCKET_IFNAME names its "
                "network."
            ) from error
        return self

    def _store(self) -> dist.Store:
        """This job's rendezvous store.

        It has a prefix for each job of this process, or a fast rank would read the previous job's
        addresses.
        """
        global _shared_store, _jobs
        _jobs += 1
        if self.world_size == 1:  # no rendezvous, so no address is needed
            return dist.HashStore()
        if _shared_store is None:
            store = self._connect()
            fresh = FreshPrefix(store, self.rank, self.world_size, self.timeout_s)
            _shared_store = dist.PrefixStore(fresh.agree(), store)
        return dist.PrefixStore(f"job{_jobs}", _shared_store)

    def _connect(self) -> dist.Store:
        address, port = self._rendezvous_endpoint()
        waiting = timedelta(seconds=self.timeout_s)
        set_status(f"waiting for {self.world_size} processes at {address}:{port}")
        if self.launch.launcher == "torchrun":
            # its agents hold the store, and the environment says how
            meeting = dist.rendezvous("env://", self.rank, self.world_size, timeout=waiting)
            store, _, _ = next(meeting)
            return store
        return dist.TCPStore(
            address,
            port,
            self.world_size,
            is_master=self.rank == 0,
            timeout=waiting,
            wait_for_workers=False,  # `FreshPrefix` waits, since it can tell which do not come
            multi_tenant=True,
        )

    def _rendezvous_endpoint(self) -> tuple[str, int]:
        """Where rank 0 listens, as the launcher says it.

        Processes of one host find each other anyway.
        """
        launch = self.launch
        address = launch.master_address
        if address is None and launch.local_world_size == launch.world_size:
            address = "127.0.0.1"
        if address is None:
            raise ConfigError(
                f"strategy=ddp under {launch.launcher} on several hosts "
                "needs MASTER_ADDR of rank 0; unset RANK and WORLD_SIZE for one process."
            )
        return address, launch.master_port or DEFAULT_PORT

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._sent.clear()
        if error is None or is_collective(error):
            # The wrapper sits in a reference cycle; if it outlives the group, Gloo aborts the
            # process at its end.
            gc.collect()
            dist.destroy_process_group()
        elif lost_connection(error):
            missing = missing_ranks(
                self.rank, self.world_size, self._job.set, lambda key: self._job.check([key])
            )
            raise peer_lost(self.rank, missing, error) from error
        elif isinstance(error, dist.DistBackendError):
            raise PeerLost(
                f"rank {self.rank}: NCCL failed ({activity()[0]}: {first_line(error)}); "
                "NCCL_DEBUG=INFO says more."
            ) from error
        # After another error the group stays: the other ranks are inside collectives, and leaving
        # in order would wait for them.

    # training

    def prepare(self, model: nn.Module, accumulate: int = 1) -> nn.Module:
        if self.world_size == 1:
            # nothing to average, and DDP would copy each gradient into its bucket
            return model
        net = DistributedDataParallel(
            model,
            device_ids=[self.device.index] if self.device.type == "cuda" else None,
            init_sync=False,  # `broadcast_state` makes the whole state equal
            bucket_cap_mb=self.bucket_mb,
            gradient_as_bucket_view=True,
            find_unused_parameters=self.deterministic,  # what keeps torch from rearranging
            **NO_BUFFERS,
        )
        if self.compression != "none":
            net.register_comm_hook(None, self._send_compressed)
        return net

    def gradient_sync(self, net: nn.Module, enabled: bool) -> AbstractContextManager[None]:
        if isinstance(net, DistributedDataParallel) and not enabled:
            return net.no_sync()
        return nullcontext()

    def reduce_gradients(self) -> None:
        """The backward pass has reduced them, all but compressed ones: take their sums."""
        sent = self._sent
        self._sent = []
        if self.compression == "fp16":
            self.fp16_overflows += take_fp16(sent, self.fp16_scale, self.all_reduce)
            return
        for own, wire in sent:
            own.copy_(wire)

    def _send_compressed(
        self, state: None, bucket: dist.GradBucket
    ) -> torch.futures.Future[Tensor]:
        local = bucket.buffer()
        wire = to_wire(local, self.compression, self.fp16_scale, self.world_size)
        self._sent.append((local, wire))
        work = dist.all_reduce(wire, async_op=True)
        # `reduce_gradients` takes the sums: first it sees whether all of the step was in range
        return work.get_future().then(lambda _: local)

    # collectives

    def all_reduce(self, x: Tensor, op: ReduceOp = "mean") -> Tensor:
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, OPS[op])
        if op == "mean":
            return total / self.world_size
        return total

    def all_reduce_max_async(self, level: int, question: str = "stop") -> Callable[[], int]:
        highest = torch.tensor([level])  # on the CPU, so that no GPU is waited for
        work = dist.all_reduce(highest, dist.ReduceOp.MAX, async_op=True)

        def answer() -> int:
            work.wait()
            return int(highest)

        return answer

    def all_gather(self, rows: Tensor) -> Tensor:
        own = torch.tensor([len(rows)], device=rows.device)
        sizes = [torch.empty_like(own) for _ in range(self.world_size)]
        dist.all_gather(sizes, own)
        counts = list(map(int, sizes))
        padded = rows.new_zeros((max(counts), *rows.shape[1:]))
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    def all_to_all(self, rows: Tensor) -> Tensor:
        received = torch.empty_like(rows)
        dist.all_to_all_single(received, rows.contiguous())
        return received

    def broadcast(self, x: Tensor, src: int = 0) -> Tensor:
        dist.broadcast(x, src)
        return x


@dataclass
class FreshPrefix:
    """How the ranks of a start agree on a prefix of the store that no earlier start has used.

    torchrun keeps the store when it restarts processes, and with it the addresses of those that
    died. No number of the environment identifies the restart on all hosts, so rank 0 chooses a
    prefix and gives it to each rank that answers its question. Every rank has a `token` of its own,
    drawn anew at each start, so that an answer of a process that died is told from one of this
    start:

        rank 0                        store                        rank r
        set question = Q  ---------->  question = Q
                                                  <--------------  reads Q
                                       answer/r = Q R  <---------  set answer/r = Q + its token R
        reads answer/r, begins with Q
        set name/r/R = Q  ---------->  name/r/R = Q
                                                  <--------------  finds the name for its own R

    All use the prefix Q. A rank that meets the question of an earlier start answers again, until
    its name is there.
    """

    store: dist.Store
    rank: int
    world_size: int
    timeout_s: float

    def __post_init__(self) -> None:
        self.token = uuid.uuid4().hex

    def agree(self) -> str:
        """The prefix.

        Raises RuntimeError after `timeout_s`; rank 0 names who is late.
        """
        return self._take() if self.rank else self._give()

    def _give(self) -> str:
        """Rank 0: ask all others, and name the prefix to each that answers."""
        until = time.monotonic() + self.timeout_s
        self.store.set("question", self.token)
        others = range(1, self.world_size)
        late = list(others)
        while late:
            late = [rank for rank in late if not self._has_answered(rank)]
            if late and time.monotonic() > until:
                raise RuntimeError(
                    f"Timed out waiting {self.timeout_s:g} s for {format_ranks(late)}"
                )
            if late:
                time.sleep(POLL_S)
        for rank in others:
            their_token = self.store.get(f"answer{rank}").decode().removeprefix(self.token)
            self.store.set(f"name{rank}/{their_token}", self.token)
        return self.token

    def _has_answered(self, rank: int) -> bool:
        key = f"answer{rank}"
        return self.store.check([key]) and self.store.get(key).decode().startswith(self.token)

    def _take(self) -> str:
        """Another rank: answer until the prefix is named for this start's token."""
        # rank 0, which knows who is late, speaks first
        until = time.monotonic() + self.timeout_s + GRACE_S
        name = f"name{self.rank}/{self.token}"
        while not self.store.check([name]):
            if time.monotonic() > until:
                raise RuntimeError(f"Timed out waiting {self.timeout_s:g} s for all ranks")
            if self.store.check(["question"]):
                question = self.store.get("question").decode()
                self.store.set(f"answer{self.rank}", question + self.token)
            time.sleep(POLL_S)
        return self.store.get(name).decode()


def write_flight_records(folder: Path) -> None:
    """Let torch's Flight Recorder write into `folder`, unless the user said where."""
    global _flight_file
    if os.environ.get(FLIGHT_FILE) == _flight_file:
        _flight_file = f"{folder.resolve()}/flight_recorder_rank_"
        os.environ[FLIGHT_FILE] = _flight_file
