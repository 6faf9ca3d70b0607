"""A data format is one class and one row: what lists, chooses and names formats follows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from retina_dist.base import registry
from retina_dist.base.errors import ConfigError, DataError
from retina_dist.base.registry import lookup, names
from retina_dist.base.settings import limits_of
from retina_dist.data.tree import Tree
from retina_dist.detection.readers.formats import AnnotationReader, FolderReader, Scan
from retina_dist.detection.readers.items import Box, Item
from retina_dist.detection.readers.recognition import recognise
from retina_dist.detection.settings import FILE_SETTINGS, DetectionData
from retina_dist.detection.splits import read_split

DOCS = Path(__file__).resolve().parents[4] / "docs" / "data.md"


class PointsReader(FolderReader):
    """points.json: image -> [class, x, y], boxes of 10 px around a point."""

    title = "points"
    endings = ("points.json",)

    def items_of(self, tree: Tree, file: str, scan: Scan) -> Iterator[Item]:
        content = json.loads((Path(str(tree.root)) / file).read_text())
        for name, (label, x, y) in content.items():
            yield Item(name, [Box(label, (x - 5, y - 5, x + 5, y + 5))])


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The format's one row, and a folder in it."""
    monkeypatch.setitem(registry._named["reader"], "points", PointsReader)
    Image.new("RGB", (40, 20)).save(tmp_path / "a.png")
    (tmp_path / "points.json").write_text('{"a.png": ["dot", 20, 10]}')
    return tmp_path


@pytest.mark.parametrize("format", ["auto", "points"])
def test_a_format_is_one_class_and_one_row(points: Path, format: str) -> None:
    data = DetectionData(name="mine", root=str(points), format=format)
    data.check()
    part = read_split(data, "train")
    assert part is not None
    assert part.boxes[0].tolist() == [[15, 5, 25, 15]]
    assert part.describe().endswith("points, as recognised") == (format == "auto")
    assert read_split(data, "val") is None


def test_messages_and_settings_follow_from_the_row(points: Path) -> None:
    assert "points" in limits_of(DetectionData, "format").options
    (points / "points.json").unlink()
    with pytest.raises(DataError, match="it holds 1 .png file, such as a.png.*docs/data.md"):
        recognise(Tree(points))
    with pytest.raises(
        ConfigError, match="data.format=point is not one of .*; did you mean points"
    ):
        read_split(DetectionData(name="mine", root=str(points), format="point"), "train")
    data = DetectionData(name="mine", root=str(points), format="points", classes="x.csv")
    with pytest.raises(
        ConfigError, match=r"data\.classes=x\.csv has no effect on data\.format=points"
    ):
        data.check()


@pytest.mark.parametrize("name", names("reader"))
def test_every_row_is_a_reader(name: str) -> None:
    reader = lookup("reader", name)
    assert issubclass(reader, AnnotationReader)
    assert issubclass(reader.settings, DetectionData)
    assert set(reader.file_settings) <= set(FILE_SETTINGS)
    if name != "auto":
        assert reader.title
        assert f"| `{name}` |" in DOCS.read_text(), "docs/data.md has a row for each format"


def test_a_reader_claims_nothing_of_an_empty_folder(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    assert not [name for name in names("reader") if lookup("reader", name).claims(tree)]
