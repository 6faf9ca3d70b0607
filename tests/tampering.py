"""Runs that did not happen as they are logged, each in one place; `random` draws which one."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from retina_dist.base.files import write_csv, write_json
from retina_dist.base.yaml_files import load_yaml
from retina_dist.config.compose import load_config
from retina_dist.engine.checkpoint.store import amend, load_checkpoint
from retina_dist.run.assemble import train
from retina_dist.run.digest_recorder import settings_digest, state_digests
from retina_dist.tracking.digest import COLUMNS, FILE, DigestRow, read_digests

SMALL = (
    "task=classification",
    "data.drawn={num_train:14,num_val:6,image_size:16,seed:0}",
    *("data.image_size=16", "data.val_resize=16", "data.batch_size=4", "data.num_workers=0"),
    *("model.architecture=shufflenet_v2_x0_5", "model.norm=frozen_bn", "logging=quiet"),
    *("schedule.warmup=0steps", "trainer.num_threads=1", "data.mixup=0.2"),
    *("trainer.max_duration=8steps", "trainer.log_every=3", "trainer.virtual_ranks=4"),
    *("trainer.ema_decay=0.9", "trainer.validate_every=4steps", "trainer.keep_last=5"),
)
STEP_4 = "checkpoints/step_00000004.pt"


@dataclass
class Case:
    """A copy of a run and of its data, to be tampered with."""

    run: Path
    data: Path
    draws: random.Random = field(default_factory=random.Random)

    def copied(self, folder: Path, seed: int) -> Case:
        shutil.copytree(self.run, folder / "run")
        shutil.copytree(self.data, folder / "data")
        return Case(folder / "run", folder / "data", random.Random(seed))


def trained(folder: Path, *overrides: str) -> Case:
    """A run of eight steps, with checkpoints of steps 4 and 8."""
    case = Case(folder / "run", folder / "data")
    place = (f"data.root={case.data}", f"output_dir={case.run}")
    train(load_config("train", [*SMALL, *place, *overrides]))
    return case


def forge(case: Case, change: Callable[[DigestRow], DigestRow]) -> None:
    """Change rows, and make the chain and every copy of its head fit again."""
    chain = ""
    rows: list[DigestRow] = []
    heads: dict[object, str] = {}
    for row in read_digests(case.run, check=False):
        rows.append(change(row).chained(chain))
        chain = rows[-1].chain
        heads[row.chain] = chain
    write_csv(case.run / FILE, [COLUMNS, *map(astuple, rows)])
    for path in case.run.glob("checkpoints/*.pt"):
        amend(str(path), {}, digest=heads[load_checkpoint(path)["digest"]])
    result = json.loads((case.run / "result.json").read_text())
    write_json(case.run / "result.json", {**result, "digest": chain})


def change_tensor(case: Case, part: str) -> None:
    """The last bit of one number of the checkpoint of step 4."""
    content = load_checkpoint(case.run / STEP_4)
    tensors: list[torch.Tensor] = []
    if part == "model":
        tensors = list(content["model"].values())
    else:
        for kept in content["optimizer"]["state"].values():
            tensors += [value for value in kept.values() if torch.is_tensor(value)]
    tensor = case.draws.choice([t for t in tensors if t.dtype == torch.float32 and t.dim()])
    tensor.view(-1).view(torch.int32)[case.draws.randrange(tensor.numel())] ^= 1
    amend(str(case.run / STEP_4), {}, **{part: content[part]})


def weights(case: Case) -> None:
    change_tensor(case, "model")


def weights_and_digests(case: Case) -> None:
    change_tensor(case, "model")
    found, _ = state_digests(load_checkpoint(case.run / STEP_4))
    forge(case, lambda row: replace(row, weights=found) if row.step == 4 else row)


def optimizer(case: Case) -> None:
    change_tensor(case, "optimizer")


def a_label(case: Case) -> None:
    image = case.draws.choice(sorted(case.data.rglob("*.png")))
    folders = [each for each in image.parent.parent.iterdir() if each != image.parent]
    image.rename(case.draws.choice(sorted(folders)) / image.name)


def a_pixel(case: Case) -> None:
    path = case.draws.choice(sorted(case.data.rglob("*.png")))
    image = Image.open(path).convert("RGB")
    place = (case.draws.randrange(image.width), case.draws.randrange(image.height))
    red, *others = image.getpixel(place)
    image.putpixel(place, (red ^ 1, *others))
    image.save(path)


CHANGED = {
    "optimizer": {"lr": 0.0123, "weight_decay": 0.0321, "no_decay_of_norms": True},
    "data": {"mixup": 0.3, "hflip": 0.1},
    "trainer": {"gradient_clip": 3.0, "ema_decay": 0.91},
}


def changed(case: Case, settings: dict[str, Any]) -> dict[str, Any]:
    """One other setting, of those that a run has."""
    known = [(s, k) for s, values in CHANGED.items() for k in values if k in settings[s]]
    section, key = case.draws.choice(known)
    return {**settings, section: {**settings[section], key: CHANGED[section][key]}}


def write_settings(case: Case, settings: dict[str, Any]) -> None:
    write_json(case.run / "config.yaml", settings)  # which is YAML too


def config_yaml(case: Case) -> None:
    write_settings(case, changed(case, load_yaml(case.run / "config.yaml")))


def settings_of_a_checkpoint(case: Case) -> None:
    content = load_checkpoint(case.run / STEP_4)
    amend(str(case.run / STEP_4), {}, config=changed(case, content["config"]))


def metrics(case: Case) -> None:
    path = case.run / "metrics.csv"
    header, *lines = path.read_text().splitlines(keepends=True)
    number = case.draws.randrange(len(lines))
    cells = lines[number].split(",")
    names = header.strip().split(",")
    filled = []
    for i, (name, cell) in enumerate(zip(names, cells, strict=True)):
        if cell.strip() and i and not name.startswith("time/"):
            filled.append(i)
    place = case.draws.choice(filled)
    end = "\n" if place == len(cells) - 1 else ""
    cells[place] = repr(float(cells[place]) * 1.01 + 1e-9) + end
    lines[number] = ",".join(cells)
    path.write_text("".join([header, *lines]))


def a_row(case: Case) -> None:
    """One cell of digest.csv."""
    lines = (case.run / FILE).read_text().splitlines(keepends=True)
    number = case.draws.randrange(1, len(lines))
    cells = lines[number].split(",")
    place = case.draws.choice([i for i in range(1, 7) if cells[i]])
    cells[place] = "0" * 64
    lines[number] = ",".join(cells)
    (case.run / FILE).write_text("".join(lines))


def the_seed_and_digests(case: Case) -> None:
    """With all that a forger can compute without training."""
    settings = load_yaml(case.run / "config.yaml")
    settings["seed"] = case.draws.randrange(1, 1000)
    write_settings(case, settings)
    for path in case.run.glob("checkpoints/*.pt"):
        content = load_checkpoint(path)
        amend(str(path), {}, config={**content["config"], "seed": settings["seed"]})
    found = settings_digest(settings)
    forge(case, lambda row: replace(row, metrics=found) if row.is_start else row)


def a_forged_row(case: Case) -> None:
    """A step that gave something else, in a chain that fits."""
    step = case.draws.randrange(1, 9)
    column = case.draws.choice(["images", "loss", "gradients"])
    forge(case, lambda row: replace(row, **{column: "0" * 64}) if row.step == step else row)


def code(case: Case) -> None:
    """Trained by optimizers that were patched."""
    factor = 1 + case.draws.choice([1e-3, 1e-5])
    shutil.rmtree(case.run)
    with pytest.MonkeyPatch.context() as patch:
        for kind in (torch.optim.SGD, torch.optim.AdamW, torch.optim.Adam):
            patch.setattr(kind, "__init__", decaying(kind.__init__, factor))
        train(load_config("train", [*SMALL, f"data.root={case.data}", f"output_dir={case.run}"]))


def decaying(make: Callable[..., None], factor: float) -> Callable[..., None]:
    """An optimizer's constructor with slightly more weight decay."""

    def init(self: Any, *arguments: Any, **keys: Any) -> None:
        make(self, *arguments, **keys)
        for group in self.param_groups:
            group["weight_decay"] = group["weight_decay"] + factor - 1

    return init


def a_checkpoint_of_another_run(case: Case) -> None:
    other = case.run.with_name("other")
    seed = case.draws.randrange(1, 1000)
    place = (f"data.root={case.data}", f"output_dir={other}", f"seed={seed}")
    train(load_config("train", [*SMALL, *place, "trainer.stop_after=4steps"]))
    (case.run / STEP_4).unlink()
    shutil.copy(other / STEP_4, case.run / STEP_4)


TAMPERINGS = (
    weights,
    weights_and_digests,
    optimizer,
    a_label,
    a_pixel,
    config_yaml,
    settings_of_a_checkpoint,
    metrics,
    a_row,
    the_seed_and_digests,
    a_forged_row,
    code,
    a_checkpoint_of_another_run,
)
