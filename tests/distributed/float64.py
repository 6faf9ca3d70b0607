"""`python -m tests.distributed.float64 KEY=VALUE ...`: a training in float64, so that rounding
cannot hide what else differs.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from retina_dist import train
from retina_dist.classification.task import ClassificationTask
from retina_dist.detection.task import DetectionTask


def main() -> None:
    for task in (DetectionTask, ClassificationTask):
        task.build_model = _in_double(task.build_model)  # type: ignore[method-assign]
    train.main()


def _in_double(build: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    return lambda *given: build(*given).double()


if __name__ == "__main__":
    main()
