"""Whatever a user hands in ends in success or in one named error: no other traceback, no hang, no
memory without bound.
"""

from __future__ import annotations

import json
import os
import random
import resource
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from retina_dist.base.errors import DataError
from retina_dist.data.file_checks import check_image
from retina_dist.data.images import image_sizes, read_image
from retina_dist.detection.data.dataset import CocoDataModule
from retina_dist.detection.doctor import box_findings, category_findings
from retina_dist.detection.readers.annotations import Annotations
from retina_dist.detection.readers.load import load_annotations
from retina_dist.detection.settings import DetectionData
from retina_dist.serving.scoring import read_images
from tests.unit import mutations
from tests.unit.detection import test_coco
from tests.unit.mutations import (
    is_read,
    mutated_bytes,
    mutated_json,
    mutated_lines,
    with_claimed_size,
)
from tests.unit.serving import server

MAX_PIXELS = 1_000_000
MAX_GROWTH = 500  # MiB

IMAGES = mutations.drawn_images()
PLAIN = {"id": 7, "file_name": "plain.png", "width": 24, "height": 16}
COCO = {**test_coco.COCO, "images": [PLAIN, {"id": 3, "file_name": "turned.jpg"}]}
ROWS = (
    "plain.png,1,2,11,12,cow\nturned.jpg,0.5,0,2.5,4,cat\nplain.png,3,3,9,9,cat\nplain.bmp,,,,,\n"
)
XML = """<?xml version="1.0" encoding="utf-8"?>
<annotation><filename>plain.png</filename>
<size><width>24</width><height>16</height></size>
<object><name>dog</name><difficult>0</difficult>
<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>9</xmax><ymax>12</ymax></bndbox></object>
</annotation>
"""


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    for name, content in IMAGES.items():
        (folder / name).write_bytes(content)
    (folder / "cut.jpg").write_bytes(IMAGES["plain.jpg"][:200])
    return folder


def train_on(found: Annotations) -> None:
    """What a training and the doctor do with annotations: every box, name and image is used."""
    for record, boxes, labels in zip(found.records, found.boxes, found.labels, strict=True):
        record.file_name.encode()
        assert len(boxes) == len(labels)
        assert (boxes >= 0).all()
        assert (boxes[:, :2] < boxes[:, 2:]).all()
        assert (boxes <= np.tile((record.width or np.inf, record.height or np.inf), 2)).all()
        assert ((labels >= 0) & (labels < found.categories.num_classes)).all()
    if not all(record.width and record.height for record in found.records):
        box_findings(found, "train")
        category_findings(found, None)
        return
    json.dumps(found.coco)
    settings = DetectionData(
        name="x",
        batch_size=2,
        val_batch_size=2,
        min_sizes=[32],
        max_size=64,
        num_workers=0,
        bad_images="skip",
        max_pixels=MAX_PIXELS,
    )
    data = CocoDataModule(settings, train=found, val=found)
    for batch in [
        *data.val_batches(),
        *(batch for step in data.train_steps(0, 1) for batch in step),
    ]:
        assert max(batch.images.shape[2:]) <= 64


def load_and_train(draw: random.Random, annotations: Path, images: Path, **options: Any) -> None:
    found = load_annotations(
        annotations,
        images,
        missing_images=draw.choice(("error", "skip", "ignore")),
        bad_images=draw.choice(("error", "skip")),
        max_pixels=MAX_PIXELS,
        **options,
    )
    train_on(found)


def coco_case(folder: Path, images: Path, draw: random.Random) -> None:
    (folder / "a.json").write_bytes(mutated_json(COCO, draw))
    load_and_train(draw, folder / "a.json", images)


def csv_case(folder: Path, images: Path, draw: random.Random) -> None:
    rows, classes = ROWS, "cow,1\ncat,0\n"
    if draw.random() < 0.8:
        (folder / "a.csv").write_bytes(mutated_lines(rows, ",", draw))
        (folder / "classes.csv").write_text(classes)
    else:
        (folder / "a.csv").write_text(rows)
        (folder / "classes.csv").write_bytes(mutated_lines(classes, ",", draw))
    load_and_train(draw, folder / "a.csv", images, format="csv")


def voc_case(folder: Path, images: Path, draw: random.Random) -> None:
    for part in ("Annotations", "ImageSets/Main"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    if not (folder / "JPEGImages").exists():
        (folder / "JPEGImages").symlink_to(images)
    (folder / "Annotations" / "b.xml").write_text(XML.replace("plain.png", "turned.jpg"))
    names, content = b"a\nb  1\n", XML.encode()
    if draw.random() < 0.8:
        content = mutated_lines(XML, '<> "=', draw)
        for old, new in (
            (b"<object>", b"<object>" * 20_000),
            (b"utf-8", draw.choice((b"utf-9", b"big5", b"utf-16"))),
        ):
            content = content.replace(old, new) if draw.random() < 0.1 else content
    else:
        names = mutated_lines(names.decode(), " ", draw)
    (folder / "Annotations" / "a.xml").write_bytes(content)
    (folder / "ImageSets" / "Main" / "train.txt").write_bytes(names)
    load_and_train(draw, folder, folder, format="voc")


def image_case(folder: Path, _: Path, draw: random.Random) -> None:
    name = draw.choice(sorted(IMAGES))
    content = IMAGES[name]
    if draw.random() < 0.4:
        content = with_claimed_size(content, draw)
    if draw.random() < 0.7 or content == IMAGES[name]:
        content = mutated_bytes(content, draw, head=draw.choice((32, 200)))
    path = folder / name
    path.write_bytes(content)
    checked = check_image((name, path, None), decode=True, max_pixels=MAX_PIXELS)
    assert checked.problem in (None, "unreadable")
    size, _ = image_sizes(path, MAX_PIXELS)
    annotated = draw.choice((None, size, size[::-1], (24, 16)))
    pixels = read_image(path, annotated, MAX_PIXELS)
    assert pixels.shape[0] == 3
    assert 0 < pixels[0].numel() <= MAX_PIXELS
    assert tuple(pixels.shape[:0:-1]) == (annotated or size)
    assert checked.problem is None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Image.open(path).load()  # what Pillow by itself finds damaged must not be read


def request_case(_: Path, __: Path, draw: random.Random) -> None:
    """A request's body and content type."""
    image = IMAGES[draw.choice(("plain.jpg", "turned.png", "lossy.webp", "moving.gif"))]
    kind, body = draw.choice(
        (
            ("image/jpeg", image),
            ("application/json", server.as_json(image)),
            server.as_multipart(image, image),
        )
    )
    if kind == "application/json" and draw.random() < 0.5:
        body = mutated_json(json.loads(body), draw)
    else:
        body = mutated_bytes(body, draw, head=draw.choice((64, 300)))
    if draw.random() < 0.2:
        kind = mutated_bytes(kind.encode(), draw).decode(errors="replace")
    read_images(kind, body)


CASES = {coco_case: 100, csv_case: 50, voc_case: 50, image_case: 150, request_case: 30}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("case", "count"), CASES.items())
def test_mutated_inputs_are_read_or_refused(
    case: Callable[..., None], count: int, tmp_path: Path, images: Path
) -> None:
    outcomes, kind = set(), case.__name__.removesuffix("_case")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for seed in range(count):
        print(f"{kind} {seed}")  # the last one printed is the one that failed
        run = partial(case, tmp_path, images, random.Random(f"{kind} {seed}"))
        outcomes.add(is_read(run, one_line=case is not request_case))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MAX_GROWTH * 1024
    assert outcomes == {True, False}, "neither all sound nor all hopeless"


PARTS = st.lists(
    st.sampled_from(["..", ".", "", "a", "b.png", "images", "C:", "~"]), min_size=1, max_size=6
)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(
    parts=PARTS,
    separator=st.sampled_from("/\\"),
    root=st.sampled_from(["", "/", "\\", "C:\\", "//server/", "HERE/"]),
)
def test_a_file_name_stays_in_its_folder(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str], separator: str, root: str
) -> None:
    folder = tmp_path_factory.getbasetemp() / "images"
    folder.mkdir(exist_ok=True)
    name = root.replace("HERE", str(folder)) + separator.join(parts) or "a"
    source = folder / "a.json"
    source.write_text(
        json.dumps({**COCO, "images": [{"id": 7, "file_name": name}], "annotations": []})
    )
    try:
        found = load_annotations(source, folder, missing_images="ignore")
    except DataError as error:
        assert "image 7 has file_name" in str(error)  # noqa: PT017
        assert root or not parts[0] or ".." in parts or "C:" in parts
        return
    path = os.path.normpath(found.records[0].path)
    assert path == str(folder) or path.startswith(f"{folder}/")
