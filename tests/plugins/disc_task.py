"""A task from outside the package: regression of the centre of a drawn disc."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from retina_dist.base.seeding import derived_seed
from retina_dist.base.settings import setting
from retina_dist.config.run_config import DataSettings, ModelSettings
from retina_dist.data.buckets import make_buckets
from retina_dist.data.samplers import TrainSampler
from retina_dist.engine.task import Task, Validator
from retina_dist.reporting.findings import DoctorReport, Finding

SIZE = 32  # px


@dataclass
class DiscData(DataSettings):
    name: str = "discs"
    num_train: int = setting(256, "drawn discs", at_least=1)


@dataclass
class DiscModel(ModelSettings):
    width: int = setting(8, "channels", at_least=1)


@dataclass
class DiscSettings:
    data: DiscData = field(default_factory=DiscData)
    model: DiscModel = field(default_factory=DiscModel)


class DiscBatch(NamedTuple):
    images: Tensor  # [n, 1, 32, 32], from 0 to 1
    centres: Tensor  # [n, 2], x and y from 0 to 1
    weight: float = 1.0

    def to(self, device: torch.device, non_blocking: bool = False) -> DiscBatch:
        return self._replace(images=self.images.to(device), centres=self.centres.to(device))


def draw(indices: Sequence[int], weight: float = 1.0) -> DiscBatch:
    draws = [torch.Generator().manual_seed(derived_seed(0, "disc", i)) for i in indices]
    centres = torch.stack([torch.rand(2, generator=d) for d in draws])
    x, y = ((torch.arange(SIZE) / SIZE - c[:, None]) ** 2 for c in centres.unbind(1))
    return DiscBatch((x[:, None, None] + y[:, None, :, None] < 0.02).float(), centres, weight)


class DiscBatches:
    def __init__(self, sampler: TrainSampler) -> None:
        self.sampler, self.position = sampler, sampler.position

    def train_steps(self, start: int, stop: int) -> Iterator[list[DiscBatch]]:
        for step in range(
            start, stop
        ):  # a rank without an image takes the first one, with weight 0
            yield [draw(spec.indices or (0,), spec.weight) for spec in self.sampler.step(step)]


class DiscNet(nn.Sequential):
    def forward(self, batch: DiscBatch) -> Any:
        centres = super().forward(batch.images.to(self[-1].weight.dtype))  # type: ignore[arg-type]
        return {"centre": (centres - batch.centres).square().mean()} if self.training else centres


class DiscTask(Task):
    settings = DiscSettings
    locked_settings = frozenset(("data.num_train", "model.width"))

    @property
    def num_images(self) -> int:
        return int(self.config.data.num_train)

    def build_data(self) -> DiscBatches:
        buckets = make_buckets([[SIZE, SIZE]] * self.num_images, min_sizes=[SIZE], max_size=SIZE)
        options = {
            "batch_size": self.config.data.batch_size,
            "accumulate": self.config.trainer.micro_batches,
        }
        options |= {
            "rank": self.strategy.rank,
            "world_size": self.strategy.world_size,
            "seed": self.config.seed,
        }
        return DiscBatches(TrainSampler(buckets=buckets, **options))

    def build_model(
        self, resumed: bool = False, checkpoint: Mapping[str, Any] | None = None
    ) -> nn.Module:
        width = self.config.model.width
        return DiscNet(
            nn.Conv2d(1, width, 3, 2, 1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(width * SIZE**2 // 4, 2),
        )

    def build_evaluator(self, data: DiscBatches) -> Validator:
        batch = draw(range(-16, 0)).to(
            self.strategy.device
        )  # no training image has a number below 0
        return torch.no_grad()(
            lambda model: {"val/loss": float((model.eval()(batch) - batch.centres).square().mean())}
        )

    def fingerprint(self) -> str:
        return f"{self.num_images} discs"


def examine(config: Any) -> DoctorReport:
    few = Finding(
        "error", "train", "discs", "draw at least 100: data.num_train=100", config.data.num_train
    )
    return DoctorReport(["discs"], [few] if config.data.num_train < 100 else [])
