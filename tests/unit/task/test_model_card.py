"""A model card is read where Markdown is drawn: the names in it are text."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from retina_dist.task.model_card import as_markdown, model_card
from retina_dist.task.predictor import Predictor


def test_names_of_others_are_text() -> None:
    nasty = '<img src=x onerror="alert(1)">|a\nb'
    card = {"Model": {"name": nasty, "classes": nasty}}
    text = as_markdown(card)
    assert "<img" not in text
    assert '| classes | &lt;img src=x onerror="alert(1)"&gt;\\|a b |' in text


class Model(Predictor):
    """What a card asks of a model."""

    kind = "detector"
    prepare = run = to_dict = _read = None  # type: ignore[assignment]

    def __init__(self, **record: Any) -> None:
        self.record = {"step": 1, "versions": {"torch": "2"}, **record}
        self.model = torch.nn.Linear(1, 1)


SWAG = "https://github.com/facebookresearch/SWAG/blob/main/LICENSE"
HOST = "https://download.pytorch.org/models/"


@pytest.mark.parametrize(
    ("weights", "license", "source"),
    [
        ("weights/mobilenet_v2-b0353104.pth", "unknown", f"{HOST}mobilenet_v2-b0353104.pth"),
        (
            "RegNet_Y_16GF_Weights.IMAGENET1K_SWAG_LINEAR_V1",
            SWAG,
            f"{HOST}regnet_y_16gf_lc_swag-f3ec0043.pth",
        ),
        ("runs/mine/checkpoints/best.pt", "unknown", "unknown"),
    ],
)
def test_the_weights_of_a_start_have_a_license_and_a_source(
    weights: str, license: str, source: str
) -> None:
    """Of torchvision's by their name, or by that of their file; else it says unknown."""
    model = Model(config={"model": {"weights": weights}})
    found = {"weights": weights, "license": license, "source": source}
    assert model_card(model, "best.pt")["Starting weights"] == found


def test_a_card_says_where_data_and_weights_are_from() -> None:
    card = model_card(
        Model(config={"model": {"backbone": "resnet18"}, "data": {"hflip": 0}}), "best.pt"
    )
    assert card["Starting weights"] == {"weights": "none, random numbers"}
    assert {card["Training data"][name] for name in ("license", "source")} == {"unknown"}
    before = Model(config={"model": {"weights": None, "backbone_weights": "runs/a"}})
    found = model_card(before, "best.pt")["Starting weights"]
    assert found["weights"] == "runs/a", "of a run that wrote no origin"
    stated = {"license": "CC0", "source": "https://me:key@host/pets"}
    model = Model(config={"data": stated}, origin={"license": "MIT", "source": "a file"})
    card = model_card(model, "best.pt")
    assert (card["Training data"]["license"], card["Training data"]["source"]) == (
        "CC0",
        "https://host/pets",
    ), "a setting overrules what the files say, and no password is shown"
    one = {"world_size": 1, "step": 2}
    card = model_card(Model(config={"data": {"batch_size": 1}}, **one), "best.pt")
    assert card["Training data"]["length"] == "2 steps of 1 image over 1 process"
    name = "RetinaNet_ResNet50_FPN_Weights.COCO_V1"
    card = model_card(Model(config=None), name)
    assert card["Starting weights"]["source"] == f"{HOST}retinanet_resnet50_fpn_coco-eeacb38b.pth"
    assert "Starting weights" not in model_card(Model(config=None), "mine.pt")
