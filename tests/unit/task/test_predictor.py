"""What a predictor says of itself."""

from __future__ import annotations

import torch

from retina_dist.classification.classifier import TrainedClassifier
from retina_dist.classification.model import build_classifier
from tests.unit.serving.server import small_detector


def test_a_detector_says_what_it_is() -> None:
    detector = small_detector()
    detector.source = "https://me:secret@host/best.pt?sig=abcdef"
    assert repr(detector) == (
        "Detector(2 classes: cat, dog, min_size=64, max_size=96, score_threshold=0.05, "
        "nms_threshold=0.5, detections_per_image=300, temperature=1, device=cpu, precision=fp32, "
        "checkpoint=https://host/best.pt?sig=***)"
    )


def test_a_classifier_says_what_it_is() -> None:
    names = [f"class {i}" for i in range(9)]
    with torch.device("meta"):
        model = build_classifier("resnet18", 9)
    classifier = TrainedClassifier(
        model.to_empty(device="cpu"), names, image_size=64, short_side=73, arguments={}
    )
    assert repr(classifier) == (
        "TrainedClassifier(9 classes: class 0, class 1, class 2, class 3, class 4, …, "
        "image_size=64, short_side=73, temperature=1, device=cpu, precision=fp32)"
    )
