"""An attack on every file, setting and request that a user hands in; `make long` tries twenty times as many cases as `make test`.

Each case ends in success or in one UserError of one sentence within ten seconds. `test_mutations.py` has the generators of
annotations, images and training settings.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from retina_dist.config.compose import config_dir, load_config
from retina_dist.data.shards import annotations_of, index_of
from retina_dist.detection.commands import write_shards
from retina_dist.detection.model.weights import load_weights
from retina_dist.engine.checkpoint.store import CheckpointStore, load_checkpoint
from retina_dist.errors import CheckpointError, ConfigError
from retina_dist.serving.scoring import Scorer, read_images
from tests.unit import test_mutations
from tests.unit.mutations import mutated_bytes, mutated_json
from tests.unit.serving import server
from tests.unit.test_mutations import COCO, IMAGES, OVERRIDES, keys_of, load_and_train, tally
from tests.unit.test_mutations import images as images  # the fixture

COMMANDS = sorted(path.stem for path in Path(config_dir()).glob("*.yaml"))
FACTS = {"step": 5, "best": None, "metric": 0.5, "ema": None, "scaler": {}, "categories": {"ids": [1], "names": ["a"]}}


@cache
def checkpoint() -> dict[str, Any]:
    torch.manual_seed(0)
    return {"model": torch.nn.Linear(3, 2).state_dict(), **FACTS}


def sealed(folder: Path) -> Path:
    store = CheckpointStore(folder / "checkpoints", keep_last=2)
    for step in (1, 2):
        store.save({**checkpoint(), "step": step}, step, step / 10)
    store.wait()
    return folder / "checkpoints"


def checkpoint_case(folder: Path, _: Path, draw: random.Random) -> None:
    """A damaged checkpoint is refused, whoever reads it; one with other values, and a seal, is read or refused."""
    store = sealed(folder)
    path = store / "step_00000002.pt"
    whole = path.read_bytes()
    changed = mutated_bytes(whole, draw, head=draw.choice((64, len(whole))))
    if draw.random() < 0.5:
        tail = mutated_bytes(whole[-400:], draw)
        changed = whole[:-400] + tail
    (folder / "other.pt").write_bytes(changed)
    try:
        if draw.random() < 0.5:
            load_checkpoint(folder / "other.pt")
        else:
            load_weights(torch.nn.Linear(3, 2), str(folder / "other.pt"))
    except CheckpointError:
        assert changed != whole
        raise
    assert changed == whole


@cache
def written_shards(images: Path) -> Path:
    """Shards of the images of COCO, and their index as it was written."""
    source, folder = images.parent / "coco", images.parent / "shards"
    (source / "annotations").mkdir(parents=True)
    (source / "images").symlink_to(images)
    (source / "annotations.json").write_text(json.dumps(COCO))
    line = ["data=coco", f"data.train_annotations={source}/annotations.json", f"data.train_images={source}/images"]
    write_shards(load_config("shards", [*line, f"output={folder}"]))
    return folder


def shards_case(_: Path, images: Path, draw: random.Random) -> None:
    folder = written_shards(images)
    index = folder / index_of("train")
    whole = index.read_bytes()
    index.write_bytes(mutated_json(json.loads(whole), draw))
    try:
        load_and_train(draw, folder / annotations_of("train"), folder, format="shards")
    finally:
        index.write_bytes(whole)


@cache
def scorer() -> Scorer:
    return Scorer(server.small_detector(), max_pixels=server.MAX_PIXELS)


def request_case(_: Path, __: Path, draw: random.Random) -> None:
    """A request's body and content type; every fourth is scored to the end."""
    image = IMAGES[draw.choice(("plain.jpg", "turned.png", "lossy.webp", "moving.gif"))]
    kind, body = draw.choice(
        (("image/jpeg", image), ("application/json", server.as_json(image)), server.as_multipart(image, image))
    )
    if kind == "application/json" and draw.random() < 0.5:
        body = mutated_json(json.loads(body), draw)
    else:
        body = mutated_bytes(body, draw, head=draw.choice((64, 300)))
    if draw.random() < 0.2:
        kind = mutated_bytes(kind.encode(), draw).decode(errors="replace")
    server.score(scorer(), kind, body) if draw.random() < 0.25 else read_images(kind, body)


REQUIRED = ["checkpoint=a.pt", "input=a", "output=o.json", "event=e.json", "annotations=a.json", "format=csv"]


@cache
def keys(command: str) -> list[str]:
    """Every dotted key of a command's settings."""
    wanted: list[str] = []
    for _ in REQUIRED:
        try:
            return keys_of(load_config(command, wanted))
        except ConfigError as error:  # KEY is not set; give KEY=…
            wanted += [text for text in REQUIRED if text.split("=")[0] == str(error).split()[0]]
    raise AssertionError(f"{command} wants more than {REQUIRED}")


def command_case(_: Path, __: Path, draw: random.Random) -> None:
    """One setting of any command."""
    command = draw.choice(COMMANDS)
    key = draw.choice(keys(command))
    override = f"{draw.choice(('', '', '', '++', '~'))}{key}={draw.choice(OVERRIDES)}"
    if draw.random() < 0.2:
        override = mutated_bytes(override.encode(errors="replace"), draw).decode(errors="replace")
    load_config(command, [override])


RUNS: dict[str, Callable[..., None]] = {
    "checkpoint": checkpoint_case,
    "shards": shards_case,
    "request": request_case,
    "command": command_case,
}
CASES = dict.fromkeys(RUNS, 30)
TIMES_LONG = 20


@pytest.fixture(autouse=True, scope="module")
def more_kinds() -> Iterator[None]:
    with patch.dict(test_mutations.RUNS, RUNS):
        yield


@pytest.mark.parametrize("kind", RUNS)
def test_attacked_inputs_are_read_or_refused(kind: str, tmp_path: Path, images: Path) -> None:
    found = tally(kind, CASES[kind], tmp_path, images)
    assert found.refused


@pytest.mark.long
@pytest.mark.parametrize("kind", [*RUNS, *test_mutations.CASES])
def test_twenty_times_as_many(kind: str, tmp_path: Path, images: Path) -> None:
    cases = {**CASES, **test_mutations.CASES}[kind]
    tally(kind, TIMES_LONG * cases, tmp_path, images)
