"""The documentation site: every page is on it and found by its search, and a dead link stops the
build.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.docs_site import PAGES, public_names, write

ROOT = Path(__file__).resolve().parents[2]


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "zensical", "build", "--strict", "-f", str(folder / "mkdocs.yml")]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `make docs` fills, built here."""
    pytest.importorskip("zensical")
    pytest.importorskip("mkdocstrings")
    folder = tmp_path_factory.mktemp("site")
    write(folder)
    settings = folder / "mkdocs.yml"
    settings.write_text(settings.read_text().replace("paths: [../..]", f"paths: [{ROOT}]"))
    done = build(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_built_and_found_by_the_search(site: Path) -> None:
    pages = {target.replace(".md", ".html") for target in [*PAGES.values(), "reference.md"]}
    found = json.loads((site / "html" / "search.json").read_text())["items"]
    assert {entry["location"].partition("#")[0] for entry in found} == pages
    assert all((site / "html" / page).is_file() for page in pages)


def test_every_page_is_in_the_navigation(site: Path) -> None:
    listed = set(re.findall(r"- (\S+\.md)$", (site / "mkdocs.yml").read_text(), re.M))
    assert listed == {*PAGES.values(), "reference.md"}


def test_the_reference_has_every_public_name(site: Path) -> None:
    page = (site / "html" / "reference.html").read_text()
    for module, name in public_names():
        assert f'id="retina_dist.{module}.{name}"' in page


def test_nothing_is_loaded_from_another_host(site: Path) -> None:
    for page in (site / "html").rglob("*.html"):
        loaded = re.findall(
            r'<(?:script|link|img)[^>]*(?:src|href)="(https?://[^"]+)"', page.read_text()
        )
        assert not loaded, f"{page.name} loads {loaded[0]}"


def test_a_dead_link_stops_the_build(site: Path) -> None:
    page = site / "pages" / "clusters.md"
    page.write_text(f"{page.read_text()}\n[gone](data.md#no-such-heading)\n")
    done = build(site)
    assert done.returncode != 0
    assert "anchor does not exist" in done.stdout + done.stderr
