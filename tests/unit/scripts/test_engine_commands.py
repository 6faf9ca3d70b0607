"""Every training command in scripts/ is one that this version understands, and its batch fits its processes."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from retina_dist.config.compose import load_config
from retina_dist.errors import ConfigError
from retina_dist.run.build import build_plan

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"
COCO_IMAGES = 117_266
# 4 GPUs a node on two nodes; pytorchjob.yaml also continues with one
PROCESSES = {"pytorchjob.yaml": (4, 8)}


def from_text(text: str) -> Iterator[list[str]]:
    """The settings of each training command in a shell script or a page: what follows retina_dist.train, or Ray's "--"."""
    for line in text.replace("\\\n", " ").splitlines():
        if found := re.search(r"(?:-m retina_dist\.train|scripts/ray/train\.py [^`]*?--) +([^`&|;>]*)", line):
            words = [re.sub(r"\$\{\{.*\}\}", "/filled/in", word) for word in shlex.split(found[1], comments=True)]
            yield [word for word in words if word != "…"]


def from_lists(node: Any) -> Iterator[list[str]]:
    """The same of Kubernetes' containers, whose `command` and `args` are lists."""
    if isinstance(node, dict):
        words = [*(node.get("command") or []), *(node.get("args") or [])]
        if "retina_dist.train" in words:
            yield words[words.index("retina_dist.train") + 1 :]
    for value in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from from_lists(value)


def commands() -> list[Any]:
    found = []
    for path in sorted(
        p for folder in ("kubernetes", "skypilot", "ray") for p in (SCRIPTS / folder).iterdir() if p.is_file()
    ):
        text = path.read_text()
        settings = (
            list(from_lists(list(yaml.safe_load_all(text))))
            if path.parent.name == "kubernetes" and path.suffix == ".yaml"
            else []
        )
        settings += from_text(text) if path.suffix in (".yaml", ".py", ".md") else []
        name = str(path.relative_to(SCRIPTS))
        found += [pytest.param(path.name, words, id=f"{name}-{i}") for i, words in enumerate(settings)]
    return found


@pytest.mark.parametrize(("file", "settings"), commands())
def test_the_command_is_understood(file: str, settings: list[str]) -> None:
    config = load_config("train", settings)
    if file.endswith(".yaml"):  # where GPUs are paid for, none may be left idle in silence
        assert config.strategy.device == "cuda"
    if config.output_dir and Path(config.output_dir).is_absolute():
        for world_size in PROCESSES.get(file, (8,)):
            plan = build_plan(config, COCO_IMAGES, world_size)
            assert len(plan.micro_batches) == 1, "some GPUs wait for others"


@pytest.mark.parametrize("name", ["train_ddp.sbatch", "train_horovod.sbatch"])
def test_slurm_jobs_train_on_gpus_unless_the_user_says_otherwise(name: str) -> None:
    [words] = from_text((SCRIPTS / "slurm" / name).read_text())
    assert words.index("strategy.device=cuda") < words.index("$@")


@pytest.mark.parametrize("name", ["train_ddp.sbatch", "train_horovod.sbatch"])
def test_slurm_jobs_measure_the_machines_before_the_training_where_asked(name: str) -> None:
    text = (SCRIPTS / "slurm" / name).read_text()
    found = re.search(r"-m retina_dist\.benchmark synthetic (.*)", text)
    assert found
    assert found.start() < text.index("-m retina_dist.train strategy=")
    given = re.search(r'such as "(.*?)"', text[text.index("BENCHMARK=") :])
    assert given
    words = found[1].replace('"output=$RUN-synthetic.json" "${benchmark[@]}"', f"output=x.json {given[1]}").split()
    config = load_config("benchmark_synthetic", words)
    assert (config.strategy.device, config.data.batch_size, config.output) == ("cuda", 2, "x.json")


@pytest.mark.parametrize(("gpu", "device"), [(True, "cuda"), (False, "auto")])
def test_rays_workers_train_on_gpus_when_they_are_given_some(gpu: bool, device: str) -> None:
    from scripts.ray.train import settings_of

    given = ["strategy.bucket_mb=3"]
    config = load_config("train", settings_of(argparse.Namespace(gpu=gpu, settings=given)))
    assert (config.strategy.device, config.strategy.bucket_mb, config.resume) == (device, 3, "auto")


def test_every_file_has_its_commands() -> None:
    with_commands = {case.id.rpartition("-")[0] for case in commands()}
    assert with_commands >= {
        "kubernetes/mpijob.yaml",
        "kubernetes/trainjob.yaml",
        "kubernetes/pytorchjob.yaml",
        "skypilot/task.yaml",
        "ray/train.py",
        "ray/README.md",
    }


def test_what_is_found_and_refused() -> None:
    [words] = from_text("torchrun --nnodes 2 \\\n  -m retina_dist.train data.root=/d \\\n  resume=auto  # again\n")
    assert words == ["data.root=/d", "resume=auto"]
    [words] = from_text("python scripts/ray/train.py --workers 2 -- data.root=${{inputs.coco}} output_dir=/r` uses it")
    assert words == ["data.root=/filled/in", "output_dir=/r"]
    with pytest.raises(ConfigError, match="did you mean data.root"):
        load_config("train", ["data.rot=/d"])
    assert build_plan(load_config("train", ["experiment=torchvision_v1"]), COCO_IMAGES, 6).micro_batches == (2, 3)
