"""The temperature of a checkpoint's scores, which `evaluate calibrate=true` writes into it."""

from collections.abc import Iterator, Mapping
from typing import Any

from retina_dist.base.errors import UserError
from retina_dist.engine.checkpoint.store import amend
from retina_dist.task.predictor import Predictor


def calibrate(
    predictor: Predictor, analysis: Mapping[str, Any], images: str, split: str, write: bool
) -> Iterator[str]:
    """Lines on the temperature: with `write` the one that fits is written, then all apply it.

    Where it was fitted to the `images` that were evaluated, which their digest tells, a line warns.
    Raises UserError where none fits, or the checkpoint was replaced since it was read.
    """
    record = predictor.record
    if record.get("calibration", {}).get("images") == images:
        yield "the checkpoint's temperature was fitted to these images: no independent measure"
    if not write:
        return
    found = analysis["calibration"]
    if found is None:
        raise UserError('calibrate=true needs hotcoco; pip install "retina-dist[analysis]".')
    if found["temperature"] is None:
        raise UserError(
            "no temperature fits these scores: nearly all are right, or wrong, or the wrong way "
            "round; evaluate more images, or train for longer."
        )
    temperature = predictor.temperature * found["temperature"]
    fitted = {"temperature": temperature, "split": split, "images": images}
    path = amend(str(predictor.source), record, calibration=fitted)
    yield (
        f"temperature {temperature:.4f}, fitted to {analysis['images']} images of {split}, "
        f"is in {path}: measure its calibration on other images"
    )
