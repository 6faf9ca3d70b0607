"""The layers, stated: who may import whom, and what may not be named where."""

from __future__ import annotations

import ast
import configparser
import functools
import re
from pathlib import Path

import pytest

from retina_dist.__main__ import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "retina_dist"
FILES = sorted(PACKAGE.rglob("*.py"))

# What each room may import beside itself and base/; a module is named where the whole room would be
# too much. The floors, from the lowest: base; what knows no other room; engine; config; data, task,
# run; the two tasks; the commands.
RUN_CONFIG = "config.run_config"  # the settings of a run, as types
OF_TASKS = {
    RUN_CONFIG,
    "data",
    "engine.checkpoint.store",
    "model",
    "reporting",
    "strategies",
    "task",
}
ALLOWED: dict[str, set[str]] = {
    "base": set(),
    "model": set(),
    "optim": set(),
    "strategies": set(),
    "tracking": set(),
    "reporting": {"tracking.loggers", "tracking.progress"},
    "engine": {"optim", "strategies.base", "tracking.callbacks"},
    "config": {
        "engine.plan",
        "engine.task",
        "optim.settings",
        "strategies",
        "tracking.settings",
    },
    "data": {RUN_CONFIG, "reporting.findings"},
    "task": {"data", "engine", "model.weights", "strategies", RUN_CONFIG},
    "serving": {"data.images", "strategies.single_device", "task"},
    "run": {"config", "engine", "model", "optim", "reporting", "strategies", "tracking"},
    "detection": OF_TASKS,
    "classification": OF_TASKS,
    "testing": {
        "benchmark.report",  # LaunchedConfig
        "config",
        "engine",
        "optim.settings",
        "reporting",
        "run",
        "strategies",
        "tracking",
    },
    "benchmark": {
        "config",
        "data",
        "detection",
        "engine",
        "optim.settings",
        "reporting.page",
        "run",
        "strategies",
    },
}
WITH_HYDRA = {
    "config.compose",
    "config.entry_point",
    "config.hydra_errors",
    "run.records",
    "run.sweep",
}
# Files that import each other, be it inside a function or for types; none may be added.
CIRCLES: set[tuple[str, ...]] = set()


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


def room_of(module: str) -> str:
    """The folder of a module; "" of the commands and of api.py, which stand above all rooms."""
    return module.split(".")[0] if "." in module or module in ROOMS else ""


MODULES = {module_of(path): path for path in FILES}
ROOMS = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(tree_of(path)))


def type_only(tree: ast.AST) -> set[ast.AST]:
    """The nodes below `if TYPE_CHECKING:`, which no process runs."""
    found: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            found |= set(ast.walk(node))
    return found


def names_of(tree: ast.AST, *, types: bool = True) -> set[str]:
    """What a file imports, in functions too; without `types` not what only types need."""
    left_out = set() if types else type_only(tree)
    found = set()
    for node in ast.walk(tree):
        if node in left_out:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@functools.cache
def imports_of(path: Path, *, types: bool = True) -> set[str]:
    return names_of(tree_of(path), types=types)


def modules_of(path: Path, *, types: bool = True) -> set[str]:
    """The package's own modules that a file imports, without `retina_dist.`."""
    found = set()
    for name in imports_of(path, types=types):
        if not name.startswith("retina_dist."):
            continue
        target = name.removeprefix("retina_dist.")
        found.add(target if target in MODULES else target.rpartition(".")[0])
    return found - {"", module_of(path)}


def is_below(target: str, allowed: set[str]) -> bool:
    return any(target == name or target.startswith(f"{name}.") for name in allowed)


@pytest.mark.parametrize("room", sorted(ROOMS - {"conf", "scripts"}))
def test_a_room_imports_the_floors_below_it(room: str) -> None:
    allowed = {room, "base", *ALLOWED[room]}
    for path in (PACKAGE / room).rglob("*.py"):
        for target in modules_of(path):
            assert is_below(target, allowed), f"{module_of(path)} imports {target}"


@pytest.mark.parametrize("command", sorted({*COMMANDS} - {"benchmark", "compare"}))
def test_a_command_is_its_usage_and_main(command: str) -> None:
    """What it does stands in a room, and so do its settings."""
    path = PACKAGE / f"{command}.py"
    assert not [node for node in nodes_of(path) if isinstance(node, ast.ClassDef)]
    assert len({room_of(target) for target in modules_of(path)}) <= 4
    assert len(path.read_text().splitlines()) <= 80


def test_no_two_rooms_import_each_other() -> None:
    pairs = set()
    for module, path in MODULES.items():
        pairs |= {(room_of(module), room_of(target)) for target in modules_of(path, types=False)}
    assert not {(a, b) for a, b in pairs if a < b and (b, a) in pairs}


MAX_ARROWS = 104  # pairs of rooms of which one imports the other, a command being its own room


def test_few_rooms_import_one_another() -> None:
    pairs = set()
    for module, path in MODULES.items():
        for target in modules_of(path):
            pairs.add((room_of(module) or module, room_of(target) or target))
    between = {(a, b) for a, b in pairs if a != b}
    assert len(between) <= MAX_ARROWS, sorted(between)


def reached_from(start: str, graph: dict[str, set[str]]) -> set[str]:
    """The modules that are imported by `start` and by what it imports."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = graph[waiting.pop()] - found
        found |= new
        waiting.extend(new)
    return found


def test_no_files_import_each_other_in_a_circle() -> None:
    graph = {m: modules_of(path) & MODULES.keys() for m, path in MODULES.items()}
    reached = {module: reached_from(module, graph) for module in graph}
    circles = set()
    for module in graph:
        if module in reached[module]:
            circles.add(tuple(sorted(m for m in reached[module] if module in reached[m])))
    assert circles <= CIRCLES


def annotations_of(tree: ast.AST, names: set[str]) -> list[ast.expr]:
    """The types of the arguments of these names."""
    arguments = [node for node in ast.walk(tree) if isinstance(node, ast.arg)]
    return [a.annotation for a in arguments if a.arg in names and a.annotation is not None]


def test_any_is_no_way_around_the_floors() -> None:
    """A configuration that is typed `Any` may be one of a room above, which the imports do not
    show.
    """
    untyped = 0
    for path in FILES:
        types = annotations_of(tree_of(path), {"config", "settings"})
        untyped += sum(ast.unparse(each) == "Any" for each in types)
    assert untyped <= MAX_UNTYPED_CONFIGS


MAX_UNTYPED_CONFIGS = 9
MAX_ANY = 233
MAX_BY_STRING = 40


def test_few_types_are_any() -> None:
    names = (node for path in FILES for node in nodes_of(path))
    assert sum(isinstance(node, ast.Name) and node.id == "Any" for node in names) <= MAX_ANY


def test_few_attributes_are_found_by_a_string() -> None:
    calls = (node for path in FILES for node in nodes_of(path))
    found = [node for node in calls if isinstance(node, ast.Call)]
    by_string = [call for call in found if ast.unparse(call.func) in ("getattr", "hasattr")]
    assert len(by_string) <= MAX_BY_STRING


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
                loader = [ast.unparse(a) for a in node.args[1:]]
                unsafe = loader not in (["_Loader"], ["_TextLoader"])
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
    packages = {".".join(folder.parts) for folder in folders}
    groups = {path.parent.name for path in (ROOT / "conf").glob("*/*.yaml")}
    configurations = {f"retina_dist.conf.{group}" for group in groups}
    assert listed == packages | configurations | {"retina_dist.conf", "retina_dist.scripts"}
