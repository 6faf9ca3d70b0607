"""The certificate of a classifier's exported files: how far probabilities are apart, and top-1."""

from functools import partial

import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

from retina_dist.classification.analysis import resample
from retina_dist.classification.classifier import TrainedClassifier
from retina_dist.classification.evaluation import opened
from retina_dist.classification.export import exporter_of
from retina_dist.classification.metrics import evaluate_rows, rows_of
from retina_dist.task import certificate
from retina_dist.task.certificate import Entry
from retina_dist.task.export_formats import Runner
from retina_dist.task.predictor import Predictor, changed
from retina_dist.task.settings import EvaluateConfig

PROBABILITY = 1e-4  # the tolerance


class Certifier(certificate.Certifier):
    """Probabilities of the best classes, and top-1 accuracy."""

    metric = "top1"
    tolerances = {"probability": PROBABILITY}

    def __init__(self, config: EvaluateConfig) -> None:
        super().__init__(config, opened, exporter_of)
        self.sources = self.val.sources[: config.num_images]
        self.truth = self.val.digest()

    def exported(self, predictor: Predictor, run: Runner, pixels: Tensor) -> Tensor:
        return run(predictor.prepare(pixels))[0][0]

    def judge(self, answers: list[Entry]) -> Entry:
        shares = torch.zeros(len(answers), len(self.val.classes))
        for row, answer in zip(shares, answers, strict=True):
            for each in answer["classes"]:
                row[self.val.classes.index(each["name"])] = each["score"]
        numbers = torch.tensor(self.seen)
        labels = torch.from_numpy(self.val.labels)[numbers]
        rows = rows_of(shares, torch.zeros(len(answers)), labels, numbers)
        result = evaluate_rows(rows.numpy(), self.val.classes)
        return resample(result, self.val.names).interval("val/top1").to_dict()

    def differences(self, expected: list[Entry], others: list[Entry]) -> dict[str, float]:
        """`probability`, of the best classes; 1 where it is NaN.

        A class that is not among the best ones on the other side counts there as the last of them.
        """
        apart = []
        for one, other in zip(expected, others, strict=True):
            shares = {each["name"]: each["score"] for each in one["classes"]}
            last = one["classes"][-1]["score"]
            for each in other["classes"]:
                apart.append(abs(each["score"] - shares.get(each["name"], last)))
        return {"probability": torch.tensor(apart).nan_to_num(nan=1).max().item()}

    def faults(self) -> dict[str, Predictor]:
        sound = self.predictor
        return {
            **super().faults(),
            "resized to 110 %": changed(sound, short_side=round(1.1 * sound.short_side)),
            "bicubic resize": changed(sound, prepare=partial(_prepare_bicubic, sound)),
            "classes in another order": changed(sound, classes=sound.classes[::-1]),
        }


def _prepare_bicubic(classifier: TrainedClassifier, pixels: Tensor) -> Tensor:
    size = [classifier.short_side]
    return classifier.prepare(F.resize_image(pixels, size, InterpolationMode.BICUBIC))


certify = partial(certificate.certify, Certifier)
