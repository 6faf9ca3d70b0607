"""One process on one device: every collective is the identity."""

from torch import Tensor, nn

from retina_dist.strategies.base import DistributedStrategy, ReduceOp
from retina_dist.strategies.devices import resolve_device
from retina_dist.strategies.launch_environment import Launch
from retina_dist.strategies.settings import SingleSettings, StrategySettings


class SingleDeviceStrategy(DistributedStrategy):
    """Trains in this process alone, on the `device` of its settings, or that is named.

    Raises ConfigError for an impossible one.
    """

    settings = SingleSettings
    backend = "one process"

    def __init__(
        self, settings: StrategySettings | str = "auto", launch: Launch | None = None
    ) -> None:
        self.device = resolve_device(settings if isinstance(settings, str) else settings.device)

    @classmethod
    def refusal(cls, launch: Launch) -> str:
        if launch.world_size > 1:
            return f"under {launch} would train the same model in each; use strategy=auto"
        return super().refusal(launch)

    def prepare(self, model: nn.Module, accumulate: int = 1) -> nn.Module:
        return model

    def all_reduce(self, x: Tensor, op: ReduceOp = "mean") -> Tensor:
        return x.clone()

    def all_gather(self, rows: Tensor) -> Tensor:
        return rows

    def broadcast(self, x: Tensor, src: int = 0) -> Tensor:
        return x
