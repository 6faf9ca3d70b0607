"""torch's DistributedDataParallel: NCCL between GPUs, Gloo between CPUs; the only file that imports `torch.distributed`."""

import gc
import inspect
import os
import time
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from retina_dist.base.errors import (
    ConfigError,
    PeerLost,
    activity,
    first_line,
    is_collective,
    lost_connection,
)
from retina_dist.base.text import format_ranks
from retina_dist.strategies.base import (
    DistributedStrategy,
    ReduceOp,
    from_wire,
    missing_ranks,
    peer_lost_message,
    take_fp16,
    to_wire,
)
from retina_dist.strategies.devices import check_devices, device_identity, resolve_device
from retina_dist.strategies.launch_environment import Launch
from retina_dist.strategies.launchers import DEFAULT_PORT, launcher_named
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
# NCCL's collectives are recorded, and the record is written where `FLIGHT_FILE` says when one of them times out.
FLIGHT_RECORDER = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
FLIGHT_FILE, FORMER_NAME = "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
GRACE_S = 5.0  # for which the others wait longer than rank 0, whose error names who is late

_shared_store: dist.Store | None = None
_jobs = 0
_flight_file: str | None = None  # that an earlier job of this process set


class DDPStrategy(DistributedStrategy):
    """One of the processes of torchrun, srun, mpirun, Azure ML or any launcher that gives rank 0's address.

    Gradients are averaged in buckets during the backward pass. A collective that takes longer than `timeout_s` ends the process.
    `deterministic` keeps the buckets of the first step, which torch would rearrange after it: a sum over three or more ranks then
    has the same order in a run that was resumed. Raises ConfigError on entering when the processes cannot find each other or two
    have one GPU.
    """

    settings = DDPSettings

    def __init__(self, settings: DDPSettings, launch: Launch) -> None:
        self.launch, self.timeout_s = launch, settings.timeout_s
        self.compression, self.bucket_mb = settings.compression, settings.bucket_mb
        self.device = resolve_device(settings.device, launch)
        self.backend = f"DDP over {'NCCL' if self.device.type == 'cuda' else 'Gloo'}"
        self._sent: list[
            tuple[Tensor, Tensor]
        ] = []  # fp16: each bucket's own gradients, and all ranks' sum

    @classmethod
    def refusal(cls, launch: Launch) -> str:
        if "ddp" not in launcher_named(launch.launcher).strategies:
            return f"cannot run under {launch}; start it by torchrun, or use strategy=horovod"
        return super().refusal(launch)

    def __enter__(self) -> "DDPStrategy":
        transport = "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo"
        timeout = timedelta(seconds=self.timeout_s)
        if (
            self.device.type == "cuda" and "TORCH_NCCL_TRACE_BUFFER_SIZE" not in os.environ
        ):  # its former name
            for name, value in FLIGHT_RECORDER.items():
                os.environ.setdefault(name, value)
        if (
            dist.is_initialized()
        ):  # Ray Train makes a process group, without the rest of what is needed here
            dist.destroy_process_group()
        store = self._job = self._store()
        store.set(f"device{self.rank}", device_identity(self.device))
        try:
            # before NCCL starts, which would only say "invalid usage" of a GPU that two processes have
            devices = store.multi_get([f"device{rank}" for rank in range(self.world_size)])
            check_devices([device.decode() for device in devices])
            # no device_id: NCCL then connects at the first collective on GPUs, after all that needs no network between them
            dist.init_process_group(
                transport, store=store, rank=self.rank, world_size=self.world_size, timeout=timeout
            )
        except (dist.DistError, RuntimeError) as error:
            raise self._not_joined(error) from error
        return self

    def _store(self) -> dist.Store:
        """The rendezvous store; a prefix for each job of this process, or a fast rank would read the previous job's addresses."""
        global _shared_store, _jobs
        _jobs += 1
        if self.world_size == 1:  # no rendezvous, so no address is needed
            return dist.HashStore()
        if _shared_store is None:
            address, port = self._rendezvous_endpoint()
            waiting = timedelta(seconds=self.timeout_s)
            try:
                if (
                    self.launch.launcher == "torchrun"
                ):  # its agents hold the store, and the environment says how
                    store, _, _ = next(
                        dist.rendezvous("env://", self.rank, self.world_size, timeout=waiting)
                    )
                else:  # `_with_fresh_prefix` waits for the others, since it can tell which do not come
                    options = {"wait_for_workers": False, "multi_tenant": True}
                    store = dist.TCPStore(
                        address, port, self.world_size, self.rank == 0, waiting, **options
                    )
                _shared_store = self._with_fresh_prefix(store)
            except (dist.DistError, RuntimeError, ValueError) as error:
                raise self._not_joined(error) from error
        return dist.PrefixStore(f"job{_jobs}", _shared_store)

    def _with_fresh_prefix(self, store: dist.Store) -> dist.Store:
        """`store` under a prefix that only the present processes know.

        torchrun keeps the store when it restarts processes, and with it the addresses of those that died. No number of the
        environment identifies the restart on all hosts, so rank 0 chooses a prefix and gives it to each rank that answers.
        """
        own, until = uuid.uuid4().hex, time.monotonic() + self.timeout_s
        until += GRACE_S * bool(self.rank)  # rank 0, which knows who is late, speaks first

        def wait_for(
            condition: Callable[[], bool], late: Callable[[], str] = lambda: "all ranks"
        ) -> None:
            while not condition():
                if time.monotonic() > until:
                    raise RuntimeError(f"Timed out waiting {self.timeout_s:g} s for {late()}")
                time.sleep(0.02)

        def answered() -> bool:
            if store.check(["question"]):
                store.set(f"answer{self.rank}", store.get("question").decode() + own)
            return store.check([f"name{self.rank}/{own}"])

        def has_answered(other: int) -> bool:
            key = f"answer{other}"
            return store.check([key]) and store.get(key).decode().startswith(own)

        others = range(1, self.world_size)
        if self.rank:
            wait_for(answered)
            return dist.PrefixStore(store.get(f"name{self.rank}/{own}").decode(), store)
        store.set("question", own)
        for other in others:
            wait_for(
                partial(has_answered, other),
                lambda: format_ranks(r for r in others if not has_answered(r)),
            )
        for other in others:
            store.set(f"name{other}/{store.get(f'answer{other}').decode().removeprefix(own)}", own)
        return dist.PrefixStore(own, store)

    def _not_joined(self, error: Exception) -> ConfigError:
        address, port = self._rendezvous_endpoint()
        return ConfigError(
            f"rank {self.rank} of {self.world_size} could not join the others at {address}:{port} ({first_line(error)}); check "
            "that every host was started, MASTER_ADDR is rank 0's, its port is open, and GLOO_SOCKET_IFNAME names its network."
        )

    def _rendezvous_endpoint(self) -> tuple[str, int]:
        """Where rank 0 listens, as the launcher says it; processes of one host find each other anyway."""
        launch = self.launch
        address = launch.master_address or (
            "127.0.0.1" if launch.local_world_size == launch.world_size else None
        )
        if address is None:
            raise ConfigError(
                f"strategy=ddp under {launch.launcher} on several hosts needs MASTER_ADDR of rank 0."
            )
        return address, launch.master_port or DEFAULT_PORT

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self._sent.clear()
        if error is None or is_collective(error):
            # The wrapper sits in a reference cycle; if it outlives the group, Gloo aborts the process at its end.
            gc.collect()
            dist.destroy_process_group()
        elif lost_connection(error):
            missing = missing_ranks(
                self.rank, self.world_size, self._job.set, lambda key: self._job.check([key])
            )
            raise PeerLost(peer_lost_message(self.rank, missing, error)) from error
        elif isinstance(error, dist.DistBackendError):
            where = f"({activity()[0]}: {first_line(error)})"
            raise PeerLost(
                f"rank {self.rank}: NCCL failed {where}; NCCL_DEBUG=INFO says more."
            ) from error
        # After another error the group stays: the other ranks are inside collectives, and leaving in order would wait for them.

    # training

    def prepare(self, model: nn.Module, accumulate: int = 1) -> nn.Module:
        if (
            self.world_size == 1
        ):  # nothing to average, and DDP would copy each gradient into its bucket
            return model
        net = DistributedDataParallel(
            model,
            device_ids=[self.device.index] if self.device.type == "cuda" else None,
            init_sync=False,  # `run` makes the whole state equal
            **NO_BUFFERS,
            bucket_cap_mb=self.bucket_mb,
            gradient_as_bucket_view=True,
            find_unused_parameters=self.deterministic,  # what keeps torch from rearranging
        )
        if self.compression != "none":
            net.register_comm_hook(None, self._send_compressed)
        return net

    def gradient_sync(self, net: nn.Module, enabled: bool) -> AbstractContextManager[None]:
        return (
            net.no_sync()
            if isinstance(net, DistributedDataParallel) and not enabled
            else nullcontext()
        )

    def reduce_gradients(self) -> None:
        """The backward pass has reduced them, all but fp16's: take its sums, or send the step again."""
        sent, self._sent = self._sent, []
        self.fp16_overflows += take_fp16(sent, self.fp16_scale, self.all_reduce)

    def _send_compressed(
        self, state: None, bucket: dist.GradBucket
    ) -> torch.futures.Future[Tensor]:
        local = bucket.buffer()
        wire = to_wire(local, self.compression, self.fp16_scale, self.world_size)
        work = dist.all_reduce(wire, async_op=True)
        if self.compression == "fp16":
            self._sent.append((local, wire))

        def back(done: torch.futures.Future[Any]) -> Tensor:
            if (
                self.compression == "fp16"
            ):  # `reduce_gradients` sees first whether all of the step was in range
                return local
            return local.copy_(from_wire(wire, self.compression, self.fp16_scale, local.dtype))

        return work.get_future().then(back)

    # collectives

    def all_reduce(self, x: Tensor, op: ReduceOp = "mean") -> Tensor:
        x = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(x, OPS[op])
        return x / self.world_size if op == "mean" else x

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
        counts = [int(size) for size in sizes]
        padded = rows.new_zeros((max(counts), *rows.shape[1:]))
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    def broadcast(self, x: Tensor, src: int = 0) -> Tensor:
        dist.broadcast(x, src)
        return x


def write_flight_records(folder: Path) -> None:
    """Let torch's Flight Recorder write into `folder`, unless the user said where."""
    global _flight_file
    if os.environ.get(FLIGHT_FILE) == _flight_file and FORMER_NAME not in os.environ:
        os.environ[FLIGHT_FILE] = _flight_file = f"{folder.resolve()}/flight_recorder_rank_"
