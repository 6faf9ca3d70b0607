"""A logger from outside the package: what it writes is what metrics.csv holds, over a
resume too.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from retina_dist.config.compose import load_config
from retina_dist.run.assemble import train
from tests.metric_files import read_metrics
from tests.plugins.test_plugins import FOUND, HERE, documented

CHOSEN = [FOUND, "task=discs", "logging=jsonl", "logging.digits=3"]


def test_it_logs_what_the_table_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = [
        *CHOSEN,
        "output_dir=run",
        "trainer.max_duration=6steps",
        "trainer.log_every=1",
        "schedule=constant",
    ]
    train(load_config("train", [*run, "trainer.stop_after=3steps"]))
    path = Path("run/metrics.jsonl")
    path.write_text(
        path.read_text() + '{"step": 4}\n'
    )  # of a run that was killed after its checkpoint
    train(load_config("train", [*run, "resume=auto"]))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    steps, values = read_metrics(Path("run/metrics.csv"))["train/loss"]
    found = [(row["step"], row["train/loss"]) for row in rows if "train/loss" in row]
    assert found == [
        (step, float(f"{value:.3g}")) for step, value in zip(steps, values, strict=True)
    ]
    assert steps == [1, 2, 3, 4, 5, 6]


def test_weights_and_biases_as_documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's code with a library that records its calls; by hand it was run against wandb's
    offline mode.
    """
    entry = "_target_: my_package.WandbLogger\ntensorboard: false\nplots: false\n"
    documented("wandb\n", "logging/wandb.yaml", entry, tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)
    wandb = MagicMock()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    found = f"hydra.searchpath=[file://{HERE / 'conf'},file://{tmp_path}]"
    chosen = [found, "task=discs", "logging=wandb"]
    chosen += ["logging.mode=offline", "output_dir=run", "schedule=constant"]
    chosen += ["trainer.max_duration=4steps", "trainer.log_every=1"]
    train(load_config("train", [*chosen, "trainer.stop_after=2steps"]))
    train(load_config("train", [*chosen, "resume=auto"]))
    first, resumed = (call.kwargs for call in wandb.init.call_args_list)
    assert first["id"] == resumed["id"]
    assert (first["mode"], first["name"], first["config"]["task"]["name"]) == (
        "offline",
        "run",
        "discs",
    )
    logged = [call.args[0] for call in wandb.init.return_value.log.call_args_list]
    steps, values = read_metrics(Path("run/metrics.csv"))["train/loss"]
    assert [(row["step"], row["train/loss"]) for row in logged if "train/loss" in row] == list(
        zip(steps, values, strict=True)
    )
    assert wandb.init.return_value.finish.call_count == 2
