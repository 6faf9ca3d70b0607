"""Commands and links of the README and docs/: every command composes, every link resolves."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from retina_dist.__main__ import COMMANDS
from retina_dist.benchmark.__main__ import KINDS
from retina_dist.config.compose import config_dir, load_config
from retina_dist.detection.model import added_classes
from scripts.settings_reference import key_reference

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(
    (ROOT / "docs").glob("*.md")
)
LAUNCHERS = ("torchrun", "horovodrun", "mpirun")


def commands_of(text: str) -> Iterator[tuple[str, list[str]]]:
    """(configuration, overrides) of each of the package's commands in shell blocks and in inline
    code.
    """
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S)
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    for line in [*lines, *inline]:
        try:
            words = shlex.split(line, comments=True)
        except ValueError:  # an apostrophe in prose
            continue
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):  # MLFLOW_TRACKING_URI=… python
            words = words[1:]
        if words and (found := command_of(words)):
            yield found


def command_of(words: list[str]) -> tuple[str, list[str]] | None:
    if words[0] == "retina-dist" and len(words) > 1 and words[1].isalpha():
        name, rest = words[1], words[2:]
    elif words[0] in ("python", *LAUNCHERS) and "-m" in words:
        if "--config-dir" in words:  # entries of the reader's own
            return None
        module, *rest = words[words.index("-m") + 1 :]
        if module == "retina_dist" and rest:
            module, rest = f"retina_dist.{rest[0]}", rest[1:]
        if not module.startswith("retina_dist."):
            return None
        name = module.removeprefix("retina_dist.")
    else:
        return None
    if name == "benchmark" and rest:
        name, rest = f"benchmark_{rest[0]}", rest[1:]
    if name == "compare":  # of two folders, by the command line's own names
        return "report", [f"{key}={folder}" for key, folder in zip(("run", "other"), rest)]
    return name, rest


def overrides_of(words: list[str]) -> list[tuple[str, ...]]:
    """The overrides of a command, those of each job of a sweep; without Hydra's flags and
    placeholders.
    """
    sweep = "-m" in words or "--multirun" in words
    settings = [word for word in words if "=" in word and not word.startswith("-")]
    settings = [setting.replace("...", "") for setting in settings]
    if not sweep:
        return [tuple(settings)]
    pairs = [setting.partition("=") for setting in settings]
    return [
        tuple(f"{key}={value.split(',')[at]}" for key, _, value in pairs if key != "launcher")
        for at in (0, -1)
    ]  # the first and the last value of each


def cases() -> list[Any]:
    found = {
        (name, tuple(words)): page.name
        for page in PAGES
        if page.name
        not in (
            "CHANGELOG.md",
            "settings.md",
        )  # headings of the generated reference are not whole commands
        for name, words in commands_of(page.read_text())
    }
    return [
        pytest.param(name, list(words), id=f"{page}-{name}-{i}")
        for i, ((name, words), page) in enumerate(found.items())
    ]


@pytest.mark.parametrize(("name", "words"), cases())
def test_a_command_composes(name: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    network = {"known_classes": [["cat"]]}  # of runs that pages name
    monkeypatch.setattr(added_classes, "known_network", lambda weights: network)
    if not (
        config_dir() / f"{name}.yaml"
    ).exists():  # retina_dist.strategies.start_processes: a module without settings
        assert find_spec(f"retina_dist.{name}") is not None
        assert not words
        return
    assert name in COMMANDS or name in {f"benchmark_{kind}" for kind in KINDS}
    for overrides in overrides_of(words):
        load_config(name, list(overrides))


def test_the_reference_of_settings_is_up_to_date() -> None:
    written = (ROOT / "docs" / "settings.md").read_text()
    assert written == key_reference(), "run python scripts/settings_reference.py > docs/settings.md"


def links_of(page: Path) -> Iterator[tuple[Path, str]]:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            yield (page.parent / path).resolve() if path else page, anchor


def anchors_of(page: Path) -> set[str]:
    """GitHub's anchors of a page's headings."""
    headings = re.findall(
        r"^#+ (.*)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S), re.M
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


SCRIPT_PAGES = sorted((ROOT / "scripts").glob("*/README.md"))


@pytest.mark.parametrize(
    "page", [*PAGES, *SCRIPT_PAGES], ids=lambda page: str(page.relative_to(ROOT))
)
def test_relative_links_resolve(page: Path) -> None:
    for path, anchor in links_of(page):
        assert path.exists(), f"{page.name} links to {path}"
        assert not anchor or anchor in anchors_of(path), (
            f"{page.name} links to {path.name}#{anchor}"
        )


def test_every_page_is_in_the_readme() -> None:
    linked = {path for path, _ in links_of(ROOT / "README.md")} | {
        path for path, _ in links_of(ROOT / "docs/training.md")
    }
    assert set((ROOT / "docs").glob("*.md")) <= linked


def test_files_that_the_pages_name_exist() -> None:
    """`engine/plan.py` and the like, below the package or the repository."""
    for page in PAGES:
        if page.name == "CHANGELOG.md":
            continue
        for name in re.findall(r"`((?:[\w.-]+/)+[\w-]+\.(?:py|yaml|sh|ipynb))`", page.read_text()):
            if name.startswith("my_"):  # the reader's own
                continue
            found = [
                root / name
                for root in (ROOT, ROOT / "retina_dist", ROOT / "retina_dist" / "detection")
            ]
            assert any(path.exists() for path in found), f"{page.name} names {name}"


def test_a_release_has_absolute_links(tmp_path: Path) -> None:
    """PyPI shows the README without the other files; only the release knows where the repository
    is.
    """
    steps = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"][
        "build"
    ]["steps"]
    (script,) = (step["run"] for step in steps if "README" in step.get("name", ""))
    for name in ("README.md", "setup.cfg"):
        shutil.copy(ROOT / name, tmp_path)
    names = {
        "GITHUB_SERVER_URL": "https://github.com",
        "GITHUB_REPOSITORY": "a/b",
        "GITHUB_REF_NAME": "v1",
    }
    subprocess.run(["bash", "-ec", script], cwd=tmp_path, env={**os.environ, **names}, check=True)
    links = re.findall(r"\]\(([^)]*)\)", (tmp_path / "README.md").read_text())
    assert all(link.startswith("https://") for link in links)
    assert "https://github.com/a/b/blob/v1/docs/data.md" in links
    assert "https://raw.githubusercontent.com/a/b/v1/docs/overview.svg" in links
    assert "\nurl = https://github.com/a/b\n" in (tmp_path / "setup.cfg").read_text()
