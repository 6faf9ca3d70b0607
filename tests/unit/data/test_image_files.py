"""Images of a list of files: which are read, and the names of what is written of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from retina_dist.data.image_files import read_images
from retina_dist.errors import DataError


def test_each_readable_image_has_a_name_that_no_other_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / name for name in ("x/a_3.png", "x/bad.png", "x/a.png", "y/a.png", "y/bad.png")]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        Image.new("RGB", (4, 3)).save(file)
    files[1].write_bytes(b"no image")
    found = list(read_images(files, "*", 100))
    assert [(image.number, image.file, image.name) for image in found] == [
        (0, files[0], "a_3"),
        (2, files[2], "a"),
        (3, files[3], "a_3_3"),
        (4, files[4], "bad"),
    ]
    assert found[0].pixels.shape == (3, 3, 4)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: ")
    assert line.endswith("; left out")
    with pytest.raises(DataError, match=r"none of the 1 files of input=x/\* is a readable image"):
        list(read_images(files[1:2], "x/*", 100))
