"""The images that written names mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from retina_dist.base.errors import DataError
from retina_dist.data import tree
from retina_dist.data.tree import Tree

VIDEOS = 60


def test_frames_of_many_videos_are_found_by_their_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a look at the same frame of each video: that took minutes for some 10,000 frames."""
    files = [f"data/video{video}/{frame}.jpg" for video in range(VIDEOS) for frame in range(9)]
    frames = Tree(Path("/data"), [*files, "val/video1/1.jpg"])
    compared = []
    shared_end = tree._shared_end
    monkeypatch.setattr(
        tree, "_shared_end", lambda *names: compared.append(names) or shared_end(*names)
    )
    for video in range(VIDEOS):
        found = frames.find(f"/their/disk/video{video}/1.jpg", "train.json", "train")
        assert found == f"data/video{video}/1.jpg"
    assert len(compared) <= 3 * VIDEOS
    assert frames.find("/their/disk/video1/1.jpg", "val.json", "val") == "val/video1/1.jpg"
    assert frames.find("/their/disk/video1/1.png", "train.json", "train") == "data/video1/1.jpg"
    with pytest.raises(DataError, match=r"may be data/video\d+/1.jpg or data/video\d+/1.jpg"):
        frames.find("/their/disk/1.jpg", "train.json", "train")
