"""Extensions that live outside the package: chosen on the command line, held to the built-in ones'
contracts.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from hydra.core.config_store import ConfigStore

from retina_dist.base.errors import ConfigError
from retina_dist.base.registry import class_of
from retina_dist.config import plugins
from retina_dist.config.compose import load_config
from retina_dist.config.run_config import data_settings_of
from retina_dist.detection.settings import DetectionData
from retina_dist.strategies.start_processes import command, why_missing
from tests.commands import run_process
from tests.plugins.mpi_strategy import MPISettings, MPIStrategy

HERE = Path(__file__).parent
FOUND = f"hydra.searchpath=[file://{HERE / 'conf'}]"


def documented(
    imports: str, entry: str, content: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Write the code of docs/extending.md with these imports as the module my_package, and its
    entry.
    """
    page = (HERE.parents[1] / "docs" / "extending.md").read_text()
    code = re.search(rf"```python\n([^`]*?import {imports}.*?)```", page, re.DOTALL)
    assert code
    (folder / "my_package.py").write_text(code[1])
    (folder / entry).parent.mkdir()
    (folder / entry).write_text(content)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "my_package", raising=False)


def under_mpirun(*arguments: str) -> list[str]:
    """Two processes of a module; one that fails ends the other."""
    if reason := why_missing("mpirun"):
        pytest.skip(f"mpirun: {reason}")
    # or a waiting rank takes the core of a working one
    return [
        "env",
        "OMPI_MCA_mpi_yield_when_idle=1",
        *command("mpirun", 2, "mpi4py", ["-m", *arguments]),
    ]


def test_the_mpi_strategy_keeps_the_contract(tmp_path: Path) -> None:
    assert (
        run_process(under_mpirun("tests.plugins.contract"), cwd=tmp_path).count("contract kept")
        == 2
    )


def test_wrong_settings_of_a_class_from_outside_are_named() -> None:
    with pytest.raises(
        ConfigError, match=r"strategy\.chunk is not a setting; did you mean strategy\.chunk_mb\?"
    ):
        load_config("train", [FOUND, "strategy=mpi4py", "strategy.chunk=2"])
    assert load_config("train", []).strategy.name == "auto", (
        "what was chosen before leaves nothing behind"
    )


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("subprocess.Popen", "is not a class of the kind DistributedStrategy"),
        ("nowhere.Strategy", "cannot be imported .*; put its folder on PYTHONPATH"),
    ],
)
def test_an_entry_names_a_strategy_and_nothing_else(
    tmp_path: Path, target: str, message: str
) -> None:
    (tmp_path / "strategy").mkdir()
    (tmp_path / "strategy" / "mine.yaml").write_text(f"_target_: {target}\nname: mine\n")
    with pytest.raises(ConfigError, match=rf"strategy\._target_={target} {message}"):
        load_config("train", [f"hydra.searchpath=[file://{tmp_path}]", "strategy=mine"])


def test_an_installed_package_adds_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a function under the entry point `retina_dist.plugins`, which stores them in Hydra's
    ConfigStore.
    """
    target = "tests.plugins.mpi_strategy.MPIStrategy"

    class Installed:
        def load(self) -> Callable[[], None]:
            node = {"_target_": target, "name": "installed"}
            return lambda: ConfigStore.instance().store(
                group="strategy", name="installed", node=node
            )

    monkeypatch.setattr(
        plugins,
        "entry_points",
        lambda group: [Installed()] if group == "retina_dist.plugins" else [],
    )
    plugins.load_plugins.cache_clear()
    try:
        config = load_config("train", ["strategy=installed", "strategy.chunk_mb=3"])
    finally:
        plugins.load_plugins.cache_clear()
        ConfigStore.instance().repo.get("strategy", {}).pop("installed.yaml", None)
    assert isinstance(config.strategy, MPISettings)
    assert (config.strategy.name, config.strategy.chunk_mb) == ("installed", 3.0)
    assert class_of(config.strategy) is MPIStrategy


def test_a_checkpoint_names_no_class() -> None:
    """Its settings are read back without an import of what they name, and without the keys that
    only that class knows.
    """
    content = asdict(load_config("train"))
    content["data"] |= {"_target_": "no.such.module.Reader", "own": 1}
    found = data_settings_of({"config": content}, DetectionData, "a.pt")
    assert (type(found), found.name) == (DetectionData, "shapes")
