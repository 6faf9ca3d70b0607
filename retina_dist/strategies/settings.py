"""Settings of the strategies: what all of them have, then each one's own."""

from dataclasses import dataclass
from typing import ClassVar

from retina_dist.base.registry import Entry
from retina_dist.base.settings import MISSING, entry_name, setting


@dataclass
class StrategyConfig(Entry):
    """Settings of every strategy.

    Calling it with a `name` makes those of that entry, which are below it.
    """

    family: ClassVar[str] = "strategy"
    default_entry: ClassVar[str] = "auto"

    name: str = setting(MISSING, "the group entry's name")
    device: str = setting(
        "auto",
        "auto | cpu | cuda (the GPU of the local rank) | cuda:N",
        remedy="give cpu, cuda or cuda:0, and several GPUs to torchrun --nproc-per-node N",
    )
    compression: str = setting("none", "gradients on the wire", choices=("none", "bf16", "fp16"))
    timeout_s: float = setting(
        600.0,
        "a collective that lasts longer ends the job",
        at_least=1,
        at_most=10**7,
        remedy="write seconds, such as 1800",
    )


StrategySettings = StrategyConfig  # the name that a class from outside extends


@dataclass
class SingleSettings(StrategySettings):
    """One process."""

    name: str = entry_name("single")


@dataclass
class DDPSettings(StrategySettings):
    """torch's DistributedDataParallel."""

    name: str = entry_name("ddp")
    bucket_mb: float = setting(
        25.0, "ddp: MiB of gradients in one all-reduce", above=0, at_most=10**6
    )
    process_group_backend: str = setting(
        "auto",
        "ddp: auto (NCCL between GPUs, Gloo between CPUs) | gloo (slow; processes can share a GPU)",
        choices=("auto", "gloo"),
    )


@dataclass
class HorovodSettings(StrategySettings):
    """Horovod."""

    name: str = entry_name("horovod")
    fusion_mb: float = setting(
        32.0, "horovod: MiB of gradients in one all-reduce, at most", at_least=0, at_most=10**6
    )
    commit_every: int = setting(
        10, "horovod elastic: steps between the states that processes return to", at_least=1
    )


@dataclass
class AutoSettings(DDPSettings, HorovodSettings):
    """The settings of all strategies that a launcher can choose."""

    name: str = setting("auto", "auto: by the launcher", choices=("auto",))
