"""Collect the pages of the documentation site, with links that hold there as they do on GitHub.

README.md is the front page. The reference of the Python names follows from
`retina_dist/__init__.pyi`. A link to a file that is no page of the site goes to the repository
(GITHUB_REPOSITORY, set by the workflow); without one it becomes plain text.

    python scripts/docs_site.py build/site && zensical build --strict -f build/site/mkdocs.yml
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
PAGES |= {
    f"scripts/{readme.parent.name}/README.md": f"scripts/{readme.parent.name}.md"
    for readme in (ROOT / "scripts").glob("*/README.md")
}
PAGES |= {f"docs/{page.name}": page.name for page in (ROOT / "docs").glob("*.md")}
IMAGES = ("benchmarks/scaling_2_cores.png",)

LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s:]+)\)")

# Headings of the reference, and the modules below retina_dist whose public names stand there.
SECTIONS = {
    "Train": ("api", "config"),
    "Settings": ("detection.settings", "detection.readers", "classification.settings", "optim"),
    "Settings of the run": ("strategies", "tracking"),
    "Predict": ("detection.detector", "classification.classifier", "detection.model"),
    "Errors": ("base",),
}
# Classes whose arguments are settings, and the section of the settings.
OF_SETTINGS = {
    "Trainer": "trainer",
    "ClassifierTrainer": "trainer",
    "DetectionData": "data",
    "TorchDatasetConfig": "data",
    "ClassificationData": "data",
    "ModelConfig": "model",
    "ClassifierConfig": "model",
    "ShapesConfig": "data.shapes",
    "DrawnClassesConfig": "data.drawn",
    "OptimizerConfig": "optimizer",
    "ScheduleConfig": "schedule",
    "StrategyConfig": "strategy",
    "LoggingConfig": "logging",
}
METHODS = {
    "Trainer": ("TrainerBase.fit", "Trainer.evaluate", "Trainer.detector"),
    "ClassifierTrainer": ("ClassifierTrainer.evaluate", "ClassifierTrainer.classifier"),
}
CONTRACTS = (
    "engine.task.Task",
    "detection.readers.formats.AnnotationReader",
    "detection.model.build.DetectionModel",
    "strategies.base.DistributedStrategy",
    "optim.learning_rate.Decay",
)


def write(folder: Path) -> None:
    """Write mkdocs.yml into `folder`, and the pages and images into `folder`/pages; what was there
    is removed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    put(folder / "mkdocs.yml", (ROOT / "docs" / "mkdocs.yml").read_bytes())
    folder = folder / "pages"
    for source, target in PAGES.items():
        put(folder / target, rewritten(source, target).encode())
    for image in [*(ROOT / "docs").glob("*.png"), *(ROOT / "docs").glob("*.svg")]:
        put(folder / image.name, image.read_bytes())
    for name in IMAGES:
        put(folder / name, (ROOT / name).read_bytes())
    put(folder / "reference.md", reference().encode())


def put(path: Path, content: bytes) -> None:
    """Write a file and the folders that it is in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def rewritten(source: str, target: str) -> str:
    """The page `source` with each relative link, written for GitHub, as it is on the site."""
    parts = re.split(r"(^```.*?^```)", (ROOT / source).read_text(), flags=re.M | re.S)
    for number in range(0, len(parts), 2):  # the others are blocks of code
        for found in LINK.finditer(parts[number]):
            parts[number] = parts[number].replace(
                found[0], linked(source, target, found[1], found[2], found[3])
            )
    return "".join(parts)


def linked(source: str, target: str, image: str, text: str, link: str) -> str:
    """The link of the page `source` as it is written on the site, where the page is `target`."""
    path, hash_sign, anchor = link.partition("#")
    if not path:
        return f"{image}[{text}]({link})"
    wanted = os.path.normpath(os.path.join(os.path.dirname(source), path))
    if wanted in PAGES:
        place = os.path.relpath(PAGES[wanted], os.path.dirname(target))
        return f"{image}[{text}]({place}{hash_sign}{anchor})"
    if image:
        inside = wanted.removeprefix("docs/")
        return f"![{text}]({os.path.relpath(inside, os.path.dirname(target))})"
    repository = os.environ.get("GITHUB_REPOSITORY")
    if not repository:
        return text
    return f"[{text}](https://github.com/{repository}/blob/main/{wanted})"


def public_names() -> Iterator[tuple[str, str]]:
    """(module below retina_dist, name) of each public name."""
    stub = ast.parse((ROOT / "retina_dist" / "__init__.pyi").read_text())
    for node in stub.body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield str(node.module), alias.name


def directive(module: str, name: str) -> list[str]:
    """The lines that make mkdocstrings describe a name; the arguments of settings are in the page
    of all settings.
    """
    lines = [f"::: retina_dist.{module}.{name}"]
    section = OF_SETTINGS.get(name)
    if section:
        lines += ["    options:", "      show_signature: false", "      members: []", ""]
        lines += [f"Arguments: the keys of `{section}` in [Settings](settings.md), with limits."]
    for method in METHODS.get(name, ()):
        lines += [
            "",
            f"::: retina_dist.{module}.{method}",
            "    options:",
            "      heading_level: 4",
        ]
    return [*lines, ""]


def reference() -> str:
    """The page of the Python names, in Markdown with the directives of mkdocstrings."""
    lines = ["# Python reference", "", "`import retina_dist as rd` offers these names.", ""]
    names = list(public_names())
    listed = []
    for heading, modules in SECTIONS.items():
        lines += [f"## {heading}", ""]
        for module, name in names:
            if module.startswith(modules):
                listed.append(name)
                lines += directive(module, name)
    missing = sorted({name for _, name in names} - set(listed))
    if missing:
        raise ValueError(
            f"{', '.join(missing)} belong to no section; add their module to SECTIONS."
        )
    lines += [
        "## Contracts of extensions",
        "",
        "[Extending](extending.md) shows how each is used.",
        "",
    ]
    for contract in CONTRACTS:
        lines += [f"::: retina_dist.{contract}", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
