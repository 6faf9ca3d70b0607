"""What the batches of every task share."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self


class TensorBatch:
    """For a frozen dataclass whose tensors have one row for each image; `real` says which rows are no fillers.

    Fillers keep the shape of a batch that lacks images; they are in no loss, no gradient and no statistic.
    """

    images: Tensor
    real: Tensor | None  # [B] bool, False for a filler; None: there is no filler

    def __len__(self) -> int:
        return self.images.shape[0]

    def real_rows(self) -> list[int]:
        """The numbers of the images that are no fillers; on a GPU the host waits for them."""
        return list(range(len(self))) if self.real is None else self.real.nonzero().flatten().tolist()

    def image(self, i: int) -> Self:
        """Its image `i` alone."""
        return self._map(lambda tensor: tensor[i : i + 1])

    def losses_of_each(self, model: nn.Module) -> list[tuple[int, dict[str, float]]]:
        """(row, the losses that the image has on its own) of each image that is no filler."""
        return [(i, {k: float(v) for k, v in model(self.image(i)).items()}) for i in self.real_rows()]

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Any:
        """The same batch with every tensor on `device`."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        """The same batch in page-locked memory; `DataLoader(pin_memory=True)` calls it."""
        return self._map(lambda tensor: tensor.pin_memory())

    def _map(self, function: Any) -> Self:
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        changed = {k: function(v) for k, v in values.items() if isinstance(v, Tensor)}
        return replace(self, **changed)  # type: ignore[type-var]
