"""Settings of the strategies."""

from __future__ import annotations

from dataclasses import dataclass

from retina_dist.base.settings import MISSING, KnownArguments, setting


@dataclass
class StrategySettings(KnownArguments):
    """Settings of every strategy; a class from outside the package extends them."""

    contract = "retina_dist.strategies.base.DistributedStrategy"

    name: str = setting(MISSING, "the group entry's name")
    device: str = setting("auto", "auto | cpu | cuda (the GPU of the local rank) | cuda:N")
    compression: str = setting("none", "gradients on the wire", choices=("none", "bf16", "fp16"))
    timeout_s: float = setting(
        600.0, "a collective that lasts longer ends the job", at_least=1, at_most=10**7
    )


@dataclass
class StrategyConfig(StrategySettings):
    """How processes work together: the settings of the built-in strategies; `auto` takes one by the launcher."""

    name: str = setting(
        "auto", "auto: by the launcher", choices=("auto", "single", "ddp", "horovod")
    )
    bucket_mb: float = setting(
        25.0, "ddp: MiB of gradients in one all-reduce", above=0, at_most=10**6
    )
    fusion_mb: float = setting(
        32.0, "horovod: MiB of gradients in one all-reduce, at most", at_least=0, at_most=10**6
    )
    commit_every: int = setting(
        10, "horovod elastic: steps between the states that processes return to", at_least=1
    )
