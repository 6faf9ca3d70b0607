"""A run folder from elsewhere: files of another shape, links, long curves."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from retina_dist.base.errors import DataError
from retina_dist.reporting.intervals import Resampled
from retina_dist.reporting.run_files import MAX_POINTS, RunFiles, read_series
from retina_dist.reporting.run_report import write_comparison, write_report
from tests.unit.reporting.test_report import write_run

pytest.importorskip("plotly", reason='needs pip install "retina-dist[analysis]"')

JSON_FILES = ("command", "result", "timings", "analysis", "details")
# Valid JSON of other types, lengths, depths and sizes.
ODD = [
    "null",
    "true",
    "-1",
    "0",
    "1e999",
    "NaN",
    "-1e308",
    "9" * 400,
    '"x"',
    '""',
    '"\\ud800"',
    "[]",
    "[null]",
    "[[1, 2], [3]]",
    "{}",
    '{"a": null}',
    '{"a": {"value": 1, "low": null, "high": 2}}',
]
# Contents that hold for any file.
WHOLE = [
    b"",
    b" ",
    b"{",
    b"\xff\xfe\x00",
    b"\x00",
    b"[" * 50_000,
    b'{"a": ' * 50_000,
    b"\xef\xbb\xbf{}",
    b"<html></html>",
    b"- &a [*a]\n",
    b"1" * 5000,
    b"a" * 200_000,
    b"step\n\xff\n",
    b"step,a,a\n1,2,3\n",
    b"step,a\n1,x\n",
    b"step,a\n" + b"9" * 400 + b",1\n",
    b"step,a\n1,1e999\n2,nan\n3,\n",
    b'step,"a\nb"\n1,"2\n',
    b"a,step\n1,2\n",
]


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places in a JSON value; of a list or of alike entries the first alone."""
    yield path
    if isinstance(value, dict):
        alike = len(value) > 3 and len({type(inner) for inner in value.values()}) == 1
        for key in list(value)[: 1 if alike else None]:
            yield from paths_of(value[key], (*path, key))
    elif isinstance(value, list) and value:
        yield from paths_of(value[0], (*path, 0))


def with_value(content: Any, path: tuple[Any, ...], text: str) -> str:
    """The JSON text of `content` with `text` at a place."""
    content = json.loads(json.dumps(content))
    if not path:
        return text
    inner = content
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = "PLACE"
    return json.dumps(content).replace('"PLACE"', text)


def reports_or_says_why(folder: Path, file: Path, other: Path | None = None) -> bool:
    """Whether there is a report; else there is one sentence that names the file."""
    sentence = ""
    try:
        if other:
            write_comparison(RunFiles(folder), RunFiles(other))
        else:
            write_report(folder)
    except DataError as error:
        sentence = str(error)
    assert sentence == "" or (str(file) in sentence and sentence.endswith("."))
    assert "\n" not in sentence
    return sentence == ""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_run(tmp_path_factory.mktemp("runs") / "run")
    (folder / "metrics.csv").write_text("step,train/loss,coco/AP\n1,0.5,\n2,0.4,0.1\n")
    return folder


@pytest.mark.parametrize("name", JSON_FILES)
def test_json_of_another_shape_is_one_sentence(run: Path, name: str) -> None:
    file = run / f"{name}.json"
    before = file.read_text()
    content = json.loads(before)
    tried = refused = 0
    started = time.process_time()
    for path in paths_of(content):
        for text in ODD:
            file.write_text(with_value(content, path, text))
            refused += not reports_or_says_why(run, file)
            tried += 1
    file.write_text(before)
    assert tried >= 17 * 6
    assert refused > tried / 4
    assert time.process_time() - started < 10 + tried * 0.3


@pytest.mark.parametrize(
    "name", [*(f"{name}.json" for name in JSON_FILES), "config.yaml", "metrics.csv", "metrics.json"]
)
def test_any_content_is_read_or_is_one_sentence(run: Path, name: str) -> None:
    file = run / name
    before = file.read_bytes() if file.exists() else None
    for content in WHOLE:
        file.write_bytes(content)
        started = time.process_time()
        reports_or_says_why(run, file)
        assert time.process_time() - started < 3, content[:20]
    file.unlink()
    if before is not None:
        file.write_bytes(before)


def test_two_runs_of_other_shapes_are_compared(run: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "other", task="classification")
    for name in ("analysis", "details", "timings", "result"):
        for content in ("{}", "[]", "null"):
            (other / f"{name}.json").write_text(content)
            reports_or_says_why(run, other / f"{name}.json", other)
        (other / f"{name}.json").unlink()
    assert write_comparison(RunFiles(run), RunFiles(other)).is_file()


def test_a_link_out_of_the_folder_discloses_nothing(tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text(json.dumps({"status": "SECRET"}))
    folder = write_run(tmp_path / "run")
    (folder / "images" / "x.jpg").unlink()
    (folder / "images" / "x.jpg").symlink_to(secret)
    assert "data:image/jpeg" not in write_report(folder).read_text()
    (folder / "result.json").unlink()
    (folder / "result.json").symlink_to(secret)
    with pytest.raises(DataError, match=r"result.json is a link out of its folder"):
        write_report(folder)


@pytest.mark.parametrize("kind", ["text", "png", "link to a jpeg", "folder", "pipe", "large"])
def test_only_a_jpeg_of_its_own_is_shown(kind: str, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    file = folder / "images" / "x.jpg"
    assert "data:image/jpeg" in write_report(folder).read_text()
    file.rename(tmp_path / "x.jpg")
    if kind == "text":
        file.write_text("root:x:0:0")
    elif kind == "png":
        Image.new("RGB", (3, 3)).save(file, format="PNG")
    elif kind == "link to a jpeg":
        file.symlink_to(tmp_path / "x.jpg")
    elif kind == "folder":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    else:
        file.write_bytes((tmp_path / "x.jpg").read_bytes() + b"\0" * 9_000_000)
    assert "data:image/jpeg" not in write_report(folder).read_text()


def test_a_link_to_the_folder_of_images_is_not_followed(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    (folder / "images").rename(tmp_path / "elsewhere")
    (folder / "images").symlink_to(tmp_path / "elsewhere")
    assert "data:image/jpeg" not in write_report(folder).read_text()


def test_millions_of_rows_are_thinned_while_they_are_read(tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    with file.open("w") as text:
        text.write("step,train/loss,coco/AP\n")
        for step in range(1, 500_001):
            text.write(f"{step},{step}.5,\n")
            if step % 100_000 == 0:
                text.write(f"{step},,0.{step // 100_000}\n")
        text.write("500001,0.5")  # cut by a killed run
    series = read_series(file)
    assert len(write_report(tmp_path).read_bytes()) < 3_000_000
    loss = series["train/loss"]
    assert MAX_POINTS / 2 < len(loss.steps) <= MAX_POINTS + 1
    assert (loss.steps[0], loss.steps[-1], loss.values[-1]) == (1, 500_000, 500_000.5)
    assert series["coco/AP"].values == [0.1, 0.2, 0.3, 0.4, 0.5], "the few are all there"


def test_intervals_of_another_shape_are_one_sentence(run: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "other")
    samples = {"coco/AP": np.zeros(10)}
    Resampled("same", {"coco/AP": 0.5}, samples).save(run)
    arrays: dict[str, Any] = {"images": "same", "names": ["coco/AP"], "values": [0.5]}
    for odd in (["a"], [[1.0] * 7], [[1j] * 10], [[[1.0]]], [], 3.0, [[None]], [["x"] * 10]):
        np.savez(other / "resamples.npz", **arrays, samples=np.array(odd))
        reports_or_says_why(run, other / "resamples.npz", other)
    (run / "resamples.npz").unlink()


# what a resumed run says of itself


def start(**more: Any) -> dict[str, Any]:
    return {"time": "2026-11-23T04:11:15+00:00", "plan": "a plan", **more}


def test_a_resumed_run_has_the_settings_of_its_whole_life(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    starts = [
        start(overrides=["optimizer.lr=7"]),  # another run, which this folder had before
        start(
            overrides=["experiment=bccd", "seed=7", "optimizer.lr=1"], recipe=["experiment=bccd"]
        ),
        start(overrides=["resume=runs/a", "optimizer.lr=2"], resumed_at=50),
    ]
    (folder / "command.json").write_text(json.dumps(starts))
    run = RunFiles(folder)
    assert (run.recipe, run.differs) == (["experiment=bccd"], ["seed=7", "optimizer.lr=2"])
    html = write_report(folder).read_text()
    assert "resume=runs/a</code>" not in html.split('<h2 id="environment-title">')[0]
    assert "of all 2 starts of the run" in html


def test_numbers_say_what_they_belong_to(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    result = json.loads((folder / "result.json").read_text())
    result |= {"status": "failed", "step": 60, "planned_steps": 200}
    (folder / "result.json").write_text(json.dumps(result))
    analysis = json.loads((folder / "analysis.json").read_text())
    analysis["metrics"]["AP"]["value"] = 0.4
    (folder / "analysis.json").write_text(json.dumps(analysis))
    (folder / "metrics.csv").write_text("step,train/loss,coco/AP\n50,1,0.4\n60,1,0.3\n")
    html = write_report(folder).read_text()
    assert "60 of 200" in html
    assert "of step 50" in html
    assert "run failed, at step 60 of 200; its numbers are not those of a whole training." in html


def test_a_comparison_has_a_file_of_its_own(tmp_path: Path) -> None:
    first = RunFiles(write_run(tmp_path / "a"))
    for folder, name in (("b", "compared_b.html"), ("sweep/3", "compared_sweep-3.html")):
        file = write_comparison(first, RunFiles(write_run(tmp_path / folder)))
        assert file == tmp_path / "a" / name
