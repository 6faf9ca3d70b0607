"""conf/schema.json, by which an editor completes an experiment's YAML."""

from __future__ import annotations

import json
from typing import Any

import pytest

from retina_dist.base.yaml_files import load_yaml
from retina_dist.config.compose import config_dir
from scripts.settings_reference import yaml_schema

CONF = config_dir()
EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))


def errors_of(content: Any) -> list[str]:
    jsonschema = pytest.importorskip("jsonschema")
    found = jsonschema.Draft7Validator(yaml_schema()).iter_errors(content)
    return [".".join(map(str, each.absolute_path)) for each in found]


def test_it_is_up_to_date() -> None:
    written = json.loads((CONF / "schema.json").read_text())
    remedy = "run python scripts/settings_reference.py --schema > conf/schema.json"
    assert written == json.loads(json.dumps(yaml_schema())), remedy


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_experiments_keep_to_it(name: str) -> None:
    assert errors_of(load_yaml(CONF / "experiment" / f"{name}.yaml")) == []


@pytest.mark.parametrize(
    "content",
    [
        {"data": {"batch_size": 0}},
        {"optimizer": {"lr": "fast"}},
        {"trainer": {"precision": "bf61"}},
        {"schedule": {"name": "cosin"}},
    ],
)
def test_wrong_values_are_errors(content: dict[str, Any]) -> None:
    (section, values), *_ = content.items()
    assert errors_of(content) == [f"{section}.{next(iter(values))}"]


def test_wrong_keys_are_errors() -> None:
    assert errors_of({"optimizer": {"lrr": 1}}) == ["optimizer"]
    assert errors_of({"epochs": 3}) == [""]
