"""`python -m tests.distributed.float64 KEY=VALUE ...`: a training in float64, so that rounding cannot hide what else differs."""

from __future__ import annotations

from retina_dist import train
from retina_dist.detection.task import DetectionTask


def main() -> None:
    build = DetectionTask.build_model
    DetectionTask.build_model = lambda *given: build(*given).double()  # type: ignore[method-assign]
    train.main()


if __name__ == "__main__":
    main()
