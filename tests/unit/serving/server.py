"""A small detector and requests to it, for the tests of the servers."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import numpy as np
import torch
from PIL import Image

from retina_dist.data.images import decode_image
from retina_dist.detection.detector import Detector
from retina_dist.detection.model.retinanet import build_retinanet
from retina_dist.detection.readers.categories import Categories
from retina_dist.serving.scoring import Scorer, read_images

SPREAD = 7
ARGUMENTS = {"num_classes": 3, "backbone": "resnet18", "fpn_channels": 32, "score_threshold": 0.05}


def content(**changes: object) -> dict[str, Any]:
    """Of a checkpoint; its detector finds a few dozen objects in noise, some of a label without a
    category.
    """
    torch.manual_seed(0)
    arguments = {**ARGUMENTS, **changes}
    model = build_retinanet(**arguments)  # type: ignore[arg-type]
    for name, weight in model.head.named_parameters():
        if name.endswith("weight"):
            weight.data *= SPREAD  # torchvision's is so small that all scores are alike
    return {
        "model": model.state_dict(),
        "ema": None,
        "model_arguments": arguments,
        "categories": Categories((3, -1, 8), ("cat", "", "dog")).state(),
        "input": {"min_size": 64, "max_size": 96},
    }


def small_detector(**changes: object) -> Detector:
    return Detector.from_content(content(**changes), "a checkpoint")


def make_image(
    seed: int = 0, size: tuple[int, int] = (90, 60), form: str = "PNG", orientation: int = 1
) -> bytes:
    """Noise of (width, height) pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    file, image = io.BytesIO(), Image.fromarray(pixels)
    image.getexif()[0x0112] = orientation
    image.save(file, form, exif=image.getexif())
    return file.getvalue()


def as_json(*images: bytes) -> bytes:
    return json.dumps({"images": [base64.b64encode(image).decode() for image in images]}).encode()


def as_multipart(*images: bytes) -> tuple[str, bytes]:
    """Content type and body."""
    parts = b"".join(
        b'--XX\r\nContent-Disposition: form-data; name="images"; filename="a.png"\r\n'
        b"Content-Type: image/png\r\n\r\n" + image + b"\r\n"
        for image in images
    )
    note = b'--XX\r\nContent-Disposition: form-data; name="note"\r\n\r\nnot an image\r\n'
    return "multipart/form-data; boundary=XX", note + parts + b"--XX--\r\n"


def score(scorer: Scorer, content_type: str, body: bytes) -> list[dict[str, Any]]:
    """The answers to a request, one image at a time."""
    images = [scorer.prepare(data, i) for i, data in enumerate(read_images(content_type, body))]
    return [answer for image in images for answer in scorer.predict([image])]


def expected(detector: Detector, data: bytes) -> list[tuple[int, list[float], float]]:
    """(category id, corners, score) of what `predict` finds, those without a category left out."""
    (found,) = detector.predict([decode_image(data)])
    rows = zip(
        found["labels"].tolist(), found["boxes"].tolist(), found["scores"].tolist(), strict=True
    )
    return [
        (detector.categories.ids[k], box, score)
        for k, box, score in rows
        if detector.categories.ids[k] >= 0
    ]


def found_in(entry: dict[str, Any]) -> list[tuple[int, list[float], float]]:
    """The same of an answer's image; corners are exact, since differences of float32 are exact in
    Python's floats.
    """
    rows = []
    for found in entry["detections"]:
        x, y, w, h = found["bbox"]
        rows.append((found["category_id"], [x, y, x + w, y + h], found["score"]))
    return rows


NONE_OF = "image 0: it is not a readable image (not JPEG, PNG, WEBP)"
# What every server must refuse: content type, body, status, words of the answer.
REFUSALS = [
    ("image/png", b"", 400, "the request has no image"),
    ("image/png", make_image(form="GIF"), 400, NONE_OF),
    (
        "image/png",
        b"P6\n#" + b"a" * 100_000 + b"\n9 9\n255\n" + bytes(243),
        400,
        NONE_OF,
    ),  # read byte by byte
    ("image/png", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", 400, NONE_OF),
    ("image/jpeg", make_image(form="JPEG")[:-300], 400, "image 0: it cannot be decoded"),
    (
        "image/png",
        make_image(size=(200, 101)),
        400,
        "image 0: it has 200 x 101 pixels, more than max_pixels=20000",
    ),
    ("application/json", b"[" * 1000, 400, "the body is not such JSON"),
    (
        "application/json",
        b"[" + b"[]," * 40_000 + b"[]]",
        413,
        "the JSON has more than 1016 values",
    ),
    (
        "application/json",
        as_json(*[b"no"] * 17),
        413,
        "the request has 17 images, more than max_images=16",
    ),
    ("application/json", b'{"images": "abc"}', 400, "images is not a list"),
    ("application/json", b'{"images": ["?"]}', 400, "the body is not such JSON"),
    ("application/json", as_json(make_image(), b"no"), 400, "image 1: it is not a readable image"),
    (as_multipart()[0], as_multipart(*[b""] * 1100)[1], 413, "the form has more than 1016 fields"),
    ("multipart/form-data", b"--XX", 400, "not multipart/form-data"),
    (
        as_multipart()[0],
        as_multipart(make_image(), make_image())[1][:-500],
        400,
        "before its last boundary",
    ),
    (
        "text/plain",
        make_image(),
        415,
        "the content type text/plain is not understood; send an image as image/*",
    ),
    ("", make_image(), 415, "the content type is missing"),
]
MAX_PIXELS = 20_000
