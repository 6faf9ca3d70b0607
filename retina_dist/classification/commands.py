"""Classification's commands; a training imports none of them."""

from functools import partial
from itertools import starmap
from pathlib import Path
from typing import cast

from PIL import Image
from torch import Tensor
from torchvision.transforms.v2.functional import to_pil_image

from retina_dist.base.console import heartbeat, print_redacted
from retina_dist.base.files import write_csv
from retina_dist.base.text import pluralize
from retina_dist.classification.certificate import certify as certify
from retina_dist.classification.doctor import examine as examine
from retina_dist.classification.evaluation import evaluate as evaluate
from retina_dist.classification.evaluation import predictor_of as predictor_of
from retina_dist.classification.export import export as export
from retina_dist.classification.samples import Samples
from retina_dist.classification.settings import ClassificationData
from retina_dist.classification.task import read_splits
from retina_dist.data.shards import Member, ShardSplit, write_splits
from retina_dist.reporting.pictures import enlarged, titled
from retina_dist.task.predict_files import plan_predictions, predict_files
from retina_dist.task.settings import PredictConfig, ShardsConfig


def predict(config: PredictConfig) -> Path:
    """Write NAME.jpg of each image, and predictions.csv with the probability of each class.

    Returns their folder.
    """
    plan = plan_predictions(config.input, config.output_dir)
    classifier = predictor_of(config, config.device)

    def draw(pixels: Tensor, output: Tensor) -> tuple[Image.Image, str]:
        best = int(output.argmax())
        words = f"{classifier.classes[best]} {float(output[best]):.3f}"
        return to_pil_image(titled(enlarged(pixels), words)), words

    outputs = predict_files(classifier, plan, draw, config.max_pixels)
    rows = [["file", "class", "probability", *classifier.classes]]
    for file, output in outputs.values():
        best = int(output.argmax())
        shares = list(map("{:.6f}".format, output.tolist()))
        rows.append([str(file), classifier.classes[best], shares[best], *shares])
    write_csv(plan.folder / "predictions.csv", rows)
    print(f"{pluralize(len(outputs), 'image')} and predictions.csv in {plan.folder}")
    return plan.folder


@heartbeat()
def write_shards(config: ShardsConfig) -> None:
    """Write both splits to `output`."""
    parts = read_splits(cast(ClassificationData, config.data))
    splits = {}
    for name, part in zip(("train", "val"), parts, strict=True):
        if part is not None:
            splits[name] = _split(part)
    write_splits(config.output, splits, config.shard_mb, print_redacted)


def _split(part: Samples) -> ShardSplit:
    images = []
    for i, (name, label) in enumerate(zip(part.names, part.labels.tolist(), strict=True)):
        images.append({"id": i, "file_name": name, "label": part.classes[label]})
    members = list(starmap(Member, enumerate(part.sources)))
    return ShardSplit(members, partial(dict, images=images), part.warnings)
