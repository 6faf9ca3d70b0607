"""The layers, stated: who may import whom, and what may not be named where."""

from __future__ import annotations

import ast
import configparser
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "retina_dist"
FILES = sorted(PACKAGE.rglob("*.py"))

# base/ imports nothing above it, and the settings' dataclasses may be named everywhere.
GROUND = {"base", "__init__", "__version__"}
TYPED = "config.run_config"
COMMANDS = {"doctor", "evaluate", "export", "predict", "shards"}  # their settings, as types
OF_TASKS = {
    "config",
    "data",
    "engine",
    "model",
    "reporting",
    "serving",
    "strategies",
    "task",
    "tracking",
}
# What each package may import of retina_dist beside itself and the ground.
ALLOWED = {
    **{room: set() for room in ("base", "model", "optim", "reporting", "strategies", "tracking")},
    "data": {TYPED},
    "engine": {"optim", "strategies"},
    "reporting": {"tracking"},
    "task": {"predict", "data", "engine", "model", "strategies", "tracking", TYPED},
    "detection": OF_TASKS | COMMANDS,
    "classification": OF_TASKS | COMMANDS,
    "serving": {"data.images", "task", "tracking.console", "strategies.single_device", TYPED},
    "config": {"engine.plan", "engine.task", "optim.settings", "strategies", "tracking"},
    "run": {
        "config",
        "data",
        "detection",
        "engine",
        "optim",
        "reporting",
        "strategies",
        "model",
        "tracking",
    },
}
WITH_HYDRA = {"config.compose", "config.entry_point", "run.records", "run.sweep"}


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} imports relatively"
            found |= {
                f"{node.module}.{alias.name}" for alias in node.names
            }  # `from torch import distributed` too
    return found


@pytest.mark.parametrize(
    "path", [p for p in FILES if len(p.relative_to(PACKAGE).parts) > 1], ids=module_of
)
def test_layers_point_one_way(path: Path) -> None:
    package = path.relative_to(PACKAGE).parts[0]
    if package not in ALLOWED:  # benchmark/ is entry points': it may import everything
        return
    for name in imports_of(path):
        if not name.startswith("retina_dist."):
            continue
        target = name.removeprefix("retina_dist.")
        first = target.split(".")[0]
        permitted = (
            first in GROUND
            or first == package
            or any(target == a or target.startswith(f"{a}.") for a in ALLOWED[package])
        )
        assert permitted, f"{module_of(path)} imports {name}"


def test_no_two_folders_import_each_other() -> None:
    folders = {
        p.relative_to(PACKAGE).parts[0] for p in FILES if len(p.relative_to(PACKAGE).parts) > 1
    }
    pairs = set()
    for path in FILES:
        here = path.relative_to(PACKAGE).parts[0]
        pairs |= {
            (here, name.split(".")[1])
            for name in imports_of(path)
            if name.startswith("retina_dist.")
        }
    assert not {(a, b) for a, b in pairs if a < b and {a, b} <= folders and (b, a) in pairs}


def test_hydra_and_omegaconf_stay_in_their_files() -> None:
    users = {
        module_of(p)
        for p in FILES
        for name in imports_of(p)
        if name.split(".")[0] in ("hydra", "omegaconf")
    }
    assert users == WITH_HYDRA


def test_backends_stay_in_strategies() -> None:
    for path in FILES:
        if path.parent.name == "strategies":
            continue
        for name in imports_of(path):
            assert not name.startswith(("horovod", "torch.distributed")), module_of(path)


@pytest.mark.parametrize("room", ["data", "optim", "serving"])
def test_no_backend_is_named_outside_strategies(room: str) -> None:
    for path in (PACKAGE / room).glob("*.py"):
        assert not re.search(r"\b(horovod|ddp)\b", path.read_text(), re.I), path.name


@pytest.mark.parametrize(
    "room", ["engine", "model", "optim", "reporting", "serving", "strategies", "run"]
)
def test_what_tasks_share_says_nothing_of_detection(room: str) -> None:
    words = r"\b(box|boxes|bbox|anchor|categor\w+|coco)\b"
    words += r"|\b(detector|detection)\b" * (room != "run")  # which names the built-in tasks
    for path in (PACKAGE / room).glob("*.py"):
        assert not re.search(words, path.read_text().replace("bbox=PAPER", ""), re.I), path.name


LONG_FUNCTIONS = {"open_run": 63, "load_annotations": 66, "create_app": 92}  # may not grow


def test_modules_and_functions_stay_short() -> None:
    long_modules = {module_of(path) for path in FILES if len(path.read_text().splitlines()) > 600}
    assert not long_modules, "at most 600 lines"
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                assert lines <= LONG_FUNCTIONS.get(node.name, 80), (
                    f"{module_of(path)}.{node.name} has {lines} lines"
                )


UNSAFE = {
    "eval",
    "exec",
    "pickle.load",
    "pickle.loads",
    "pickle.Unpickler",
    "yaml.load",
    "yaml.unsafe_load",
    "yaml.safe_load",
    "OmegaConf.load",
    "np.load",
}


PICKLES = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}


def unsafe_loads(source: str) -> list[str]:
    """Calls that run, or can be made to run, what stands in a file."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            options = {k.arg: getattr(k.value, "value", None) for k in node.keywords}
            name = (
                ast.unparse(node.func)
                .replace("numpy.", "np.")
                .replace("_pickle.", "pickle.")
                .replace("cloud", "")
            )
            unsafe = name in UNSAFE
            if name in (
                "torch.load",
                "load",
            ):  # never code, and never onto the GPU that the file names
                unsafe = (options.get("weights_only"), options.get("map_location")) != (True, "cpu")
            if (
                name == "yaml.load"
            ):  # base/yaml_files.py bounds what its subclass of SafeLoader reads
                unsafe = [ast.unparse(a) for a in node.args[1:]] != ["_Loader"]
            if unsafe and not (name == "np.load" and options.get("allow_pickle", False) is False):
                found.append(f"line {node.lineno}: {ast.unparse(node)}")
        elif isinstance(node, ast.ImportFrom) and node.module in PICKLES:
            found.append(f"line {node.lineno}: {ast.unparse(node)}")
    return found


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_no_file_is_run_by_reading_it(path: Path) -> None:
    assert unsafe_loads(path.read_text()) == []


def test_public_names_exist() -> None:
    import retina_dist

    assert len(retina_dist.__all__) > 20
    for name in retina_dist.__all__:
        assert getattr(retina_dist, name) is not None
    with pytest.raises(AttributeError, match="attribute Nothing"):
        _ = retina_dist.Nothing


def test_setup_lists_every_package() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    listed = set(setup["options"]["packages"].split())
    folders = {p.parent.relative_to(ROOT) for p in FILES if p.name == "__init__.py"}
    assert listed == {".".join(f.parts) for f in folders} | {
        "retina_dist.conf",
        "retina_dist.scripts",
    }
