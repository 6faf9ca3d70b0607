"""What `pip install` gives: the whole package with its configurations, and a command that runs from
any folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from importlib.util import find_spec
from pathlib import Path

import pytest

import retina_dist

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("retina_dist", "conf", "scripts", "setup.cfg", "pyproject.toml", "README.md", "LICENSE")

pytestmark = pytest.mark.wheel


def run(*command: str, cwd: Path, **environment: str) -> str:
    result = subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As for a release, from a copy: `build/` of the checkout may hold files since deleted."""
    if not all(map(find_spec, ("build", "pip", "setuptools"))):
        pytest.skip(
            "building needs build, pip and setuptools in this environment (make test has them)"
        )
    folder = tmp_path_factory.mktemp("wheel")
    sources = folder / "sources"
    sources.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, sources / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / name, sources / name)
    run("-m", "build", "--no-isolation", "--outdir", str(folder), cwd=sources)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel in it, for PYTHONPATH: it comes before an editable install of the
    checkout.
    """
    target = tmp_path_factory.mktemp("installed")
    run(
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--no-index",
        "--target",
        str(target),
        str(wheel),
        cwd=target,
    )
    return target


def test_the_wheel_holds_the_package_and_every_configuration(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "retina_dist").rglob("*.py*")
        if path.suffix != ".pyc"
    }
    settings = {
        f"retina_dist/{path.relative_to(ROOT).as_posix()}"
        for path in (ROOT / "conf").rglob("*.yaml")
    }
    assert "retina_dist/conf/train.yaml" in settings
    info = f"retina_dist-{retina_dist.__version__}.dist-info"
    package = {name for name in names if not name.startswith(info)}
    kept = [path for path in (ROOT / "scripts").iterdir() if path.suffix in (".py", ".patch")]
    scripts = {f"retina_dist/{path.relative_to(ROOT).as_posix()}" for path in kept}
    assert package == modules | scripts | settings | {
        "retina_dist/conf/__init__.py",
        "retina_dist/conf/schema.json",
        "retina_dist/py.typed",
        "retina_dist/reporting/page.html",
        "retina_dist/serving/page.html",
    }
    assert any(name.startswith(info) and name.endswith("/LICENSE") for name in names)


def test_the_metadata_names_version_python_and_license(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"retina_dist-{retina_dist.__version__}.dist-info/METADATA").decode()
    metadata = Parser().parsestr(text)
    assert metadata["Version"] == retina_dist.__version__
    assert set(metadata["Requires-Python"].split(",")) == {">=3.10", "<3.14"}
    assert "Apache-2.0" in (metadata["License-Expression"], metadata["License"])
    assert metadata.get_payload().startswith("# retina_dist")
    assert f"\nversion: {retina_dist.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {retina_dist.__version__} (" in (ROOT / "CHANGELOG.md").read_text()


SHORT = (
    "data.shapes={num_train: 8, num_val: 2, image_size: 64}",
    "data.num_workers=0",
    "data.batch_size=2",
)
SHORT += ("trainer.max_duration=2steps", "schedule.warmup=0steps", "strategy.device=cpu")


def test_it_trains_and_evaluates_from_any_folder(installed: Path, tmp_path: Path) -> None:
    """The job of `make train`, shortened, by the installed files alone."""
    where = run(
        "-c",
        "import retina_dist; print(retina_dist.__file__)",
        cwd=tmp_path,
        PYTHONPATH=str(installed),
    )
    assert Path(where.strip()) == installed / "retina_dist" / "__init__.py"
    run("-m", "retina_dist.train", *SHORT, cwd=tmp_path, PYTHONPATH=str(installed))
    best = tmp_path / "runs" / "shapes" / "checkpoints" / "best.pt"
    table = run(
        "-m", "retina_dist.evaluate", f"checkpoint={best}", cwd=tmp_path, PYTHONPATH=str(installed)
    )
    assert "\nAP " in f"\n{table}", "below a line that says how long a slow machine took"


@pytest.mark.long
def test_it_trains_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    """With what pip installs for it, 7 GB, and with nothing of this environment."""
    run("-m", "venv", str(tmp_path / "empty"), cwd=tmp_path)
    command = [str(tmp_path / "empty" / "bin" / "python"), "-m"]
    done = subprocess.run(
        [*command, "pip", "install", "-q", str(wheel)], capture_output=True, text=True
    )
    if (
        "No matching distribution" in done.stderr
        or "Temporary failure in name resolution" in done.stderr
    ):
        pytest.skip("the registry cannot be reached")
    assert done.returncode == 0, done.stderr
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([*command, "retina_dist.train", *SHORT], cwd=tmp_path, env=environment)
    assert done.returncode == 0
    assert (tmp_path / "runs" / "shapes" / "checkpoints" / "best.pt").is_file()
