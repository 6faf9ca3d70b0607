"""The report of a run folder: what is read from its files, the charts, and the page in
a browser.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from retina_dist import __main__
from retina_dist.base.errors import ConfigError, DataError
from retina_dist.detection.commands import evaluate
from retina_dist.reporting import page, run_report
from retina_dist.reporting.charts import (
    confusion,
    curves,
    results,
    running_median,
)
from retina_dist.reporting.intervals import Interval, Resampled
from retina_dist.reporting.run_files import Analysis, RunFiles
from retina_dist.reporting.run_report import conclude, differences, write_comparison, write_report
from retina_dist.task.settings import EvaluateConfig
from retina_dist.tracking.loggers import CsvLogger
from retina_dist.tracking.settings import LoggerSettings
from tests import browser

pytest.importorskip("plotly", reason='needs pip install "retina-dist[analysis]"')

SAMPLES = Path(__file__).resolve().parents[2] / "samples"
PHASES = ("data", "copy", "forward", "backward", "communication", "optimizer")
PHASES += ("evaluation", "checkpoint", "first_batch", "other")
NASTY = '</script><img src=x onerror="window.broken=1">'  # a class, a file and a setting may be called so


def write_run(folder: Path, task: str = "detection", lr: float = 0.01) -> Path:
    """A run folder with everything that a report reads."""
    logger = CsvLogger(LoggerSettings(), folder)
    for step in range(1, 301):
        wild = 1000.0 if step == 3 else math.inf if step == 4 else 1.0
        logger.log({"train/loss": wild, "train/loss_boxes": 0.5, "train/loss_classes": 0.5}, step)
        logger.log({"train/lr": lr, "train/grad_norm": 1.0, "time/images_per_s": 50.0}, step)
    for step in (150, 300):
        logger.log(
            {"val/loss": 1.0, "coco/AP": 0.4, "coco/AP50": 0.6, "coco/AP75": 0.4, "coco/APs": 0.1},
            step,
        )
    start = {
        "time": "2026-11-23T04:11:15+00:00",
        "command": f"python -m retina_dist.train experiment=bccd seed=7 data.name={NASTY}",
        "overrides": ["experiment=bccd", "seed=7"],
        "recipe": ["experiment=bccd"],
        "changed": [["seed", "7", "0"]],
        "plan": "data: cells\nplan:\n  steps 300",
        "job": "2 processes",
        "versions": {"torch": "2.15"},
        "commit": "abc",
    }
    step_ms = {name: {"p50": 1.0, "p90": 2.0, "p99": 3.0} for name in (*PHASES, "own", "step")}
    rank = {"seconds": dict.fromkeys(PHASES, 2.5), "wall_s": 15.0, "steps": 300, "step_ms": step_ms}
    rank["peak_gib"] = {"process": 1.25, "device": None}
    analysis = json.loads((SAMPLES / f"analysis_{task}.json").read_text())
    analysis["classes"][NASTY] = next(iter(analysis["classes"].values()))
    marks = [{"kind": "object", "place": [20, 20, 60, 40], "text": NASTY}]
    marks += [{"kind": "prediction", "place": [25, 22, 55, 40], "text": "RBC 0.91"}]
    known = {
        "file": "images/x.jpg",
        "width": 320,
        "height": 240,
        "marks": marks if task == "detection" else [],
    }
    ids = {
        str(entry["image_id"]): known
        for kind in ("worst", "best", "confident")
        for entry in analysis[kind]
    }
    curve = [1 - i / 100 for i in range(101)]
    lines = {"IoU .50": {"all classes": curve, "RBC": curve}} if task == "detection" else {}
    files: dict[str, Any] = {
        "command.json": [start],
        "result.json": {
            "status": "ok",
            "step": 300,
            "train/loss": 1.0,
            "seconds": 99.0,
            "images_per_s": 50.0,
        },
        "timings.json": {"slowest": 1, "ranks": [rank, rank]},
        "analysis.json": analysis,
        "details.json": {"precision_recall": lines, "images": ids},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "config.yaml").write_text(
        yaml.safe_dump({"optimizer": {"lr": lr}, "seed": 7, "data": {"name": NASTY}})
    )
    (folder / "images").mkdir(parents=True)
    Image.new("RGB", (320, 240), "teal").save(folder / "images" / "x.jpg")
    return folder


# what is read


def test_curves_show_what_is_usual_and_every_metric(tmp_path: Path) -> None:
    charts = {chart.title: chart for chart in curves([RunFiles(write_run(tmp_path / "run"))])}
    assert (
        ", ".join(charts)
        == "Loss, Parts of the training loss, Validation, Learning rate, Gradient norm, Speed"
    )
    raw, smooth, validation = charts["Loss"].data
    assert (len(raw["x"]), raw["y"][:4], smooth["y"][2:4]) == (
        300,
        [1.0, 1.0, 1000.0, None],
        [1.0, 1.0],
    )
    assert (validation["x"], validation["name"]) == ([150, 300], "validation")
    assert charts["Loss"].layout["yaxis"]["range"] == [0, pytest.approx(1.08)], (
        "one wild value does not flatten the rest"
    )
    assert [trace["visible"] for trace in charts["Validation"].data] == [
        True,
        True,
        True,
        "legendonly",
    ]
    long = [float(i) for i in range(10_000)]
    assert running_median(long, 3)[1:-1].tolist() == long[1:-1]


def test_long_curves_are_thinned_to_their_ends(tmp_path: Path) -> None:
    logger = CsvLogger(LoggerSettings(), tmp_path)
    logger.path.write_text("step,train/loss\n" + "".join(f"{i},{i}\n" for i in range(1, 10_001)))
    chart = next(curves([RunFiles(tmp_path)]))
    assert 1000 < len(chart.data[0]["x"]) == len(chart.data[1]["y"]) < 1600
    assert chart.data[0]["x"][-1] == 10_000


@pytest.mark.parametrize("task", ["detection", "classification"])
def test_every_chart_is_one_of_plotly(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """plotly's own classes refuse what they do not know."""
    import plotly.graph_objects as figures

    drawn: dict[str, list[page.Chart]] = {}
    monkeypatch.setattr(
        "retina_dist.reporting.run_report.write_page", lambda *args, **_: drawn.update(args[2])
    )
    write_comparison(*(RunFiles(write_run(tmp_path / name, task)) for name in ("a", "b")))
    titles = {section for section, charts in drawn.items() if charts}
    only = {"Precision and recall", "Types of errors"} if task == "detection" else set()
    assert titles == {"Curves", "Results", "Confusion matrix", "Calibration", "Time"} | only
    for chart in [chart for charts in drawn.values() for chart in charts]:
        figures.Figure(data=chart.data, layout=chart.layout)
    ap = next(results([RunFiles(tmp_path / "a")])).data[0]
    if task == "detection":
        assert (ap["x"][0], ap["y"][0]) == ("AP", 0.531)
        assert (ap["error_y"]["array"][0], ap["error_y"]["arrayminus"][0]) == pytest.approx(
            (0.022, 0.023)
        )


def test_the_title_of_a_confusion_matrix_says_what_its_cells_show(tmp_path: Path) -> None:
    run = RunFiles(write_run(tmp_path / "run"))
    (chart,) = confusion([run])
    assert chart.title == "In each cell the count, as its color the share of the true class"
    assert run.analysis
    assert run.analysis.confusion
    assert chart.data[0]["text"] == run.analysis.confusion.counts
    assert chart.data[0]["texttemplate"] == "%{text}"
    run.analysis.confusion.labels = [f"c{i}" for i in range(30)]
    run.analysis.confusion.counts = [[1] * 30] * 30
    (chart,) = confusion([run])
    assert chart.title == "Share of each true class", "of many classes the cells have no numbers"
    assert "texttemplate" not in chart.data[0]


def test_whiskers_of_an_interval_without_its_value(tmp_path: Path) -> None:
    """The bias correction moves both ends."""
    folder = write_run(tmp_path / "run")
    path = folder / "analysis.json"
    analysis = json.loads(path.read_text())
    analysis["metrics"] = {
        "AP": {"value": 0.5, "low": 0.52, "high": 0.6},
        "AP50": {"value": 0.5, "low": 0.3, "high": 0.4},
    }
    path.write_text(json.dumps(analysis))
    whiskers = next(results([RunFiles(folder)])).data[0]["error_y"]
    assert whiskers["array"] == pytest.approx([0.1, 0])
    assert whiskers["arrayminus"] == pytest.approx([0, 0.2])


def test_a_metric_without_an_interval_has_a_bar(tmp_path: Path) -> None:
    """Of few images there is a value, and a reason instead of its interval."""
    folder = write_run(tmp_path / "run")
    path = folder / "analysis.json"
    analysis = json.loads(path.read_text())
    reason = "too few images with objects (1 of 10)"
    few = {"value": 0.5, "low": None, "high": None, "reason": reason}
    analysis["metrics"] = {"AP": few, "APs": few | {"value": None}}
    path.write_text(json.dumps(analysis))
    bars = next(results([RunFiles(folder)])).data[0]
    assert (bars["x"], bars["y"]) == (["AP"], [0.5])
    assert bars["error_y"]["array"] == [None]


def test_a_page_of_odd_names_and_without_a_matrix(tmp_path: Path) -> None:
    """A file's name may hold bytes that are not text, and a matrix of very many classes is not
    written.
    """
    folder = write_run(tmp_path / "run")
    path = folder / "analysis.json"
    analysis = json.loads(path.read_text())
    analysis["best"][0] |= {"file_name": "odd\udcff.jpg", "false_alarms": 0, "score": 0.37}
    path.write_text(json.dumps(analysis | {"confusion": None}))
    html = write_report(folder).read_text()
    assert "odd\\udcff.jpg" in html
    assert "most confident error 0.91" in html
    assert "most confident error 0.37" not in html, (
        "it is below the threshold, and no error is counted"
    )
    assert "a matrix of more than 2,000 labels is not written" in html
    path.write_text(json.dumps(analysis | {"confusion": None, "errors": None}))
    assert write_report(folder).read_text().count("nothing was detected") == 2
    path.write_text(json.dumps(analysis | {"confusion": None, "errors": None, "calibration": None}))
    shutil.rmtree(folder / "images")
    html = write_report(folder).read_text()
    assert html.count("it needs <code>pip install") == 3
    assert "Left out: the folder has no images of the best validation." in html


def test_two_runs_stand_beside_each_other_with_what_changed(tmp_path: Path) -> None:
    first, second = write_run(tmp_path / "first"), write_run(tmp_path / "second", lr=0.02)
    path = second / "analysis.json"
    path.write_text(path.read_text().replace("0.531", "0.55"))
    rows = differences(RunFiles(first), RunFiles(second))
    assert astuple(rows[0])[:4] == ("AP", "0.531", "0.550", "+0.019")
    html = write_comparison(RunFiles(first), RunFiles(second)).read_text()
    assert "<td>optimizer.lr</td><td>0.01</td><td>0.02</td>" in html
    assert "first: loss" not in html
    assert '"first: training"' in html
    assert html.count("<td>seed</td>") == 2, "in the lists of all settings, not in that of changes"


def test_the_difference_of_two_runs_has_an_interval_where_their_images_are_the_same(
    tmp_path: Path,
) -> None:
    """It is of pairs: two runs that differ alike in every resample are told apart, however wide
    each one's interval is.
    """
    first, second = write_run(tmp_path / "first"), write_run(tmp_path / "second")
    noise = np.random.default_rng(0).normal(0, 0.1, 1000)
    before = {"coco/AP": 0.5 + noise, "coco/AP75": 0.4 + noise, "coco/APl": noise * math.nan}
    after = {"coco/AP": 0.53 + noise, "coco/AP75": 0.4 + noise[::-1], "coco/APl": noise * math.nan}
    Resampled("same", {"coco/AP": 0.5, "coco/AP75": 0.4, "coco/APl": math.nan}, before).save(first)
    Resampled("same", {"coco/AP": 0.53, "coco/AP75": 0.4, "coco/APl": math.nan}, after).save(second)
    rows = {row.metric: astuple(row)[3:] for row in differences(RunFiles(first), RunFiles(second))}
    assert rows["AP"] == ("+0.030", "0.0300 to 0.0300", "better")
    assert rows["AP75"][2] == "not distinguishable"
    assert rows["AP50"][1:] == rows["APl"][1:] == ("", ""), "not resampled, and undefined"
    assert "not distinguishable" in write_comparison(RunFiles(first), RunFiles(second)).read_text()
    del after["coco/APl"]
    Resampled("other", {"coco/AP": 0.53, "coco/AP75": 0.4}, after).save(second)
    assert {row.interval for row in differences(RunFiles(first), RunFiles(second))} == {""}
    (first / "resamples.npz").write_text("damaged")
    assert write_report(first).is_file(), "a report of one run does not need it"


def test_a_folder_without_files_says_what_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text("{}")
    html = write_report(tmp_path).read_text()
    for name in ("command.json", "metrics.csv", "analysis.json", "timings.json", "config.yaml"):
        assert f"Left out: the folder has no {name}" in html
    assert html.count("the folder has no analysis.json") == 1, "not again in each of its sections"
    assert '<h2 id="calibration-title">' not in html
    assert 'href="#calibration"' not in html
    (tmp_path / "analysis.json").write_text("{")
    with pytest.raises(DataError, match=r"analysis.json cannot be read .*; remove or repair it"):
        write_report(tmp_path)
    with pytest.raises(DataError, match="has none of config.yaml, .*; give a run folder"):
        write_report(tmp_path / "nothing")


def test_without_the_extra_a_run_says_how_to_get_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "find_spec", lambda name: None)
    folder = write_run(tmp_path / "run")
    line = page.page_if_possible(lambda: write_report(folder), folder)
    assert line.startswith(
        'no report, as plotly and jinja2 is not installed: pip install "retina-dist[analysis]", then python'
    )
    with pytest.raises(ConfigError, match="needs plotly and jinja2; run pip install"):
        write_report(folder)
    assert not (folder / "report.html").exists()


def test_compare_is_the_report_of_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "a"), write_run(tmp_path / "b")
    monkeypatch.chdir(tmp_path)
    for more in (["output=both.html"], ["--cfg", "job"]):
        monkeypatch.setattr("sys.argv", ["retina-dist", "compare", "a", "b", *more])
        __main__.main()
    assert "<title>a and b</title>" in (tmp_path / "both.html").read_text()
    assert "run: a\nother: b\n" in capsys.readouterr().out


def compared(tmp_path: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        patch.setattr("sys.argv", ["retina-dist", "compare", *arguments])
        __main__.main()
    return capsys.readouterr().out.splitlines()


def write_hits(file: Path, hits: list[bool]) -> None:
    """COCO results that place one box on each image, right or beside the object."""
    found = []
    for image, hit in enumerate(hits):
        box = [10 if hit else 60, 10, 20, 20]
        found.append(
            {"image_id": image + 1, "category_id": 1, "bbox": box, "score": 0.5 + image / 1000}
        )
    file.write_text(json.dumps(found))


def test_compare_says_which_of_two_results_is_better(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of hand-made COCO results of any tool, also beside a folder, and how many images it takes."""
    images = [{"id": i + 1, "file_name": f"p{i}.jpg", "width": 99, "height": 99} for i in range(80)]
    boxes = [
        {"id": i, "image_id": i, "category_id": 1, "bbox": [10, 10, 20, 20]} for i in range(1, 81)
    ]
    truth = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "cat"}]}
    (tmp_path / "truth.json").write_text(json.dumps(truth))
    write_hits(tmp_path / "half.json", [i % 2 == 0 for i in range(80)])
    write_hits(tmp_path / "near.json", [i % 2 == 0 or i in (5, 51) for i in range(80)])
    write_hits(tmp_path / "most.json", [i % 8 > 0 for i in range(80)])
    of = "annotations=truth.json"

    lines = compared(tmp_path, capsys, "half.json", "most.json", of)
    assert lines[0].split() == [
        "half.json",
        "most.json",
        "difference",
        "95",
        "%",
        "interval",
        "verdict",
    ]
    metric, before, after, difference, *_, verdict = lines[1].split()
    assert (metric, verdict) == ("AP", "better")
    assert float(after) - float(before) == pytest.approx(float(difference), abs=0.0011)
    assert lines[7].split() == ["AP/cat", *lines[1].split()[1:]]
    (sentence,) = (line for line in lines if " is better on these images: " in line)
    assert sentence.startswith("most.json is better on these images: AP +0.")
    assert sentence.split(" from ")[1].startswith("half.json to most.json, 95 % interval 0.")
    assert lines[-1].startswith("report: ")
    html = (tmp_path / "compared_most.json.html").read_text()
    assert ">better</td>" in html
    assert html.index(f"<strong>{sentence}</strong>") < html.index(">verdict</th>")
    swapped = compared(tmp_path, capsys, "most.json", "half.json", of)
    assert any(line.startswith("most.json is better on these images: AP -0.") for line in swapped)

    lines = compared(tmp_path, capsys, "half.json", "near.json", of)
    (sentence,) = (line for line in lines if line.startswith("cannot tell: AP +0."))
    more = int(sentence.split("; about ")[1].split(" more images")[0].replace(",", ""))
    assert 10 < more < 5000

    evaluate(
        EvaluateConfig(
            results=str(tmp_path / "half.json"),
            annotations=str(tmp_path / "truth.json"),
            output_dir=str(tmp_path / "run"),
        )
    )
    named = json.loads((tmp_path / "near.json").read_text())
    for entry in named:
        entry["image_id"] = f"p{entry['image_id'] - 1}"
    (tmp_path / "near.json").write_text(json.dumps(named))
    beside = compared(tmp_path, capsys, "run", "near.json", of)
    assert sentence.replace("half.json", "run") in beside, "a folder beside results that name files"
    shutil.copytree(tmp_path / "run", tmp_path / "same")
    equal = "run and same: no difference in 80 images, in any metric and any part of them."
    lines = compared(tmp_path, capsys, "run", "same")
    assert lines[:2] == [equal, ""]
    assert len(lines) == 3, "the report's path is the last"
    results = (("run", "h"), ("same", "h"), ("other", "i"))
    for name, head in results:
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "result.json").write_text(json.dumps({"digest": head}))
    lines = compared(tmp_path, capsys, "run", "same")
    assert lines[0] == "run and same have the same bits, in each row of digest.csv."
    assert "the same bits" not in "".join(compared(tmp_path, capsys, "run", "other"))
    with pytest.raises(SystemExit):
        compared(tmp_path, capsys, "run", "same", of)
    assert "is for a COCO results json, not for two folders" in capsys.readouterr().err


def test_results_of_other_images_cannot_be_compared(tmp_path: Path) -> None:
    one, two = (RunFiles(write_run(tmp_path / name)) for name in ("one", "two"))
    for run, which in ((one, "one"), (two, "two")):
        assert conclude(one, two).startswith(f"cannot tell: {which} has no intervals; run python")
        Resampled(f"of {which}", {}, {}).save(run.folder)
    assert conclude(one, two).startswith("cannot tell: they share no metric of the same images;")
    noise = np.random.default_rng(0).normal(0, 0.1, 101)
    for run in (one, two):
        why = {"coco/AP": "fewer than 30 objects"}
        Resampled("same", {"coco/AP": 0.5}, {"coco/AP": 0.5 + noise}, why).save(run.folder)
    assert conclude(one, two) == "cannot tell: AP: fewer than 30 objects."
    for run, value in ((one, 0.5), (two, 0.51)):
        noise = np.random.default_rng(int(1000 * value)).normal(0, 0.1, 101)
        Resampled("same", {"coco/AP": value}, {"coco/AP": value + noise}).save(run.folder)
    two.analysis = Analysis()
    assert re.fullmatch(
        r"cannot tell: AP [+]0.0100 from .* interval -?[.\d]+ to [.\d]+[.]", conclude(one, two)
    )


@pytest.mark.parametrize("apart", ["images", "classes", "resamples"])
def test_the_comparison_of_other_data_begins_with_why_it_is_none(
    apart: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the console and on the page; the values are there, and no difference."""
    first, second = write_run(tmp_path / "a"), write_run(tmp_path / "b")
    path = second / "analysis.json"
    content = json.loads(path.read_text().replace("0.531", "0.55"))
    if apart == "images":
        content["images"] += 1
    if apart == "classes":
        content["classes"]["WBC-2"] = content["classes"].pop("WBC")
    path.write_text(json.dumps(content))
    if apart == "resamples":
        for folder in (first, second):
            Resampled(f"of {folder.name}", {}, {}).save(folder)
    lines = compared(tmp_path, capsys, "a", "b")
    why = (
        "cannot compare: a and b are not of the same images and classes; "
        "evaluate both on one data set."
    )
    assert lines[:2] == [why, ""]
    assert [line.split() for line in lines[2:4]] == [["a", "b"], ["AP", "0.531", "0.550"]]
    html = (first / "compared_b.html").read_text()
    assert f"<strong>Note:</strong> {why}</p>" in html
    assert "difference</th>" not in html
    assert "<strong>cannot tell" not in html, "the note is enough"
    assert "difference</th>" in write_comparison(RunFiles(first), RunFiles(first)).read_text()


def test_the_classes_of_both_runs_have_bars(tmp_path: Path) -> None:
    runs = [RunFiles(write_run(tmp_path / name)) for name in ("a", "b")]
    analysis = runs[1].analysis
    assert analysis
    analysis.classes = {"other": analysis.classes["RBC"]}
    _, classes = results(runs)
    one, two = classes.data
    assert one["y"] == two["y"]
    shown = [dict(zip(bars["y"], bars["x"], strict=True)) for bars in (one, two)]
    value = analysis.classes["other"].value
    assert (shown[0]["RBC"], shown[0]["other"]) == (value, None)
    assert (shown[1]["RBC"], shown[1]["other"]) == (None, value)


def test_names_are_no_markup_to_plotly(tmp_path: Path) -> None:
    """It reads some tags, and decodes &lt; but no &quot;. A template of ours has no markup."""
    folder = write_run(tmp_path / "run")
    path = folder / "analysis.json"
    path.write_text(path.read_text().replace('"RBC"', json.dumps('Kreis <b> & "c"')))
    html = write_report(folder).read_text()
    text = html.split('id="figures">')[1].split("</script>")[0]
    figures = [trace for figure in json.loads(text) for trace in figure["data"]]
    name = 'Kreis &lt;b&gt; &amp; "c"'
    (matrix,) = [trace for trace in figures if "z" in trace]
    assert name in matrix["x"]
    assert name in matrix["y"]
    assert any(name in trace["y"] for trace in figures if trace.get("orientation") == "h")
    assert "&" not in matrix["hovertemplate"]
    assert "<" not in text


def test_few_more_images_are_not_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = (RunFiles(write_run(tmp_path / name)) for name in ("one", "two"))
    for run in (one, two):
        run.analysis = Analysis(images=10)
    found = {}
    monkeypatch.setattr(run_report, "paired_differences", lambda *_: found)
    found["AP"] = Interval(0.1, -0.0001, 0.2)
    assert conclude(one, two).endswith("; about 1 more image would.")
    found["AP"] = Interval(0.0, -0.1, 0.1)
    assert conclude(one, two).endswith("; no set of images that is practical would.")


# the page


@pytest.fixture(scope="module")
def tab() -> Iterator[browser.Page]:
    if not browser.PATH:
        pytest.skip(browser.WHY_NOT)
    with browser.chromium() as opened:
        yield opened


def opened(tab: browser.Page, file: Path, **look: Any) -> None:
    tab.errors.clear(), tab.requests.clear()
    tab.look(**{"width": 1280, **look})
    tab.open(f"file://{file.resolve()}", "document.documentElement?.dataset.drawn !== undefined")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(write_run(tmp_path_factory.mktemp("page") / "run"))


@pytest.mark.parametrize("task", ["detection", "classification"])
def test_the_page_draws_everything_and_asks_for_nothing(
    tab: browser.Page, task: str, tmp_path: Path
) -> None:
    runs = [RunFiles(write_run(tmp_path / name, task)) for name in ("run", "other")]
    file = write_comparison(*runs)
    opened(tab, file)
    assert tab.errors == []
    assert [url for url in tab.requests if not url.startswith(("data:", "blob:"))] == [
        f"file://{file}"
    ]
    assert tab.run(
        "[...document.querySelectorAll('[data-chart]')].every(div => div.querySelector('.main-svg'))"
    )
    assert tab.run("document.querySelectorAll('[data-chart]').length") > 10
    shown = tab.run(
        "[...document.querySelectorAll('nav a')].map(a => document.querySelector(a.hash)?.offsetHeight > 50)"
    )
    assert shown == [True] * 12
    assert tab.run("window.broken === undefined && document.querySelector('img[src=x]') === null")
    assert tab.run("document.body.innerText.includes('onerror=')"), "it is text"
    assert file.stat().st_size < 2_500_000


def test_both_themes_and_a_phone(tab: browser.Page, report: Path) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    ink = "getComputedStyle(document.querySelector('.xtick text')).fill"
    found = []
    for scheme in ("light", "dark"):
        opened(tab, report, scheme=scheme)
        found.append((tab.run(paper), tab.run(ink)))
    assert found[0][0] != found[1][0]
    assert found[0][1] != found[1][1], "charts too"
    tab.run("document.getElementById('theme').click()")
    assert (tab.run(paper), tab.run(ink)) == found[0], "the button turns it over"
    opened(tab, report, width=390, height=844, touch=True)
    assert tab.run("document.documentElement.scrollWidth") == 390, "nothing is cut off"
    assert (
        tab.run(
            "Math.max(...[...document.querySelectorAll('figure')].map(f => f.getBoundingClientRect().right))"
        )
        <= 390
    )


BROKEN = """() => {
  const lines = (text, from, to) => {
    const range = document.createRange();
    range.setStart(text, from), range.setEnd(text, to);
    return new Set([...range.getClientRects()].map(place => Math.round(place.top))).size;
  };
  document.querySelectorAll("details").forEach(details => details.open = true);
  const found = [];
  for (const cell of document.querySelectorAll("th, td:not(.long)")) {
    const text = cell.firstChild, words = cell.localName === "th" ? /\\S+/g : /.+/g;
    for (const word of text?.data.matchAll(words) ?? [])
      if (lines(text, word.index, word.index + word[0].length) > 1) found.push(word[0]);
  }
  return found;
}"""


@pytest.mark.parametrize("width", [390, 1280])
def test_tables_and_legends_are_whole_at_any_width(
    tab: browser.Page, width: int, tmp_path: Path
) -> None:
    """A table is moved sideways in its card; no number and no word of its header is broken."""
    runs = [RunFiles(write_run(tmp_path / name)) for name in ("run", "other")]
    opened(tab, write_comparison(*runs), width=width, touch=width < 500)
    assert tab.run(f"({BROKEN})()") == []
    assert tab.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    cut = "[...document.querySelectorAll('nav a')].filter(a => a.getBoundingClientRect().right > innerWidth)"
    assert tab.run(f"{cut}.length") == 0, "all sections are in sight"
    hidden = "[...document.querySelectorAll('.legend')].filter(legend => legend.querySelector('.scrollbox').getBBox().height > legend.querySelector('.bg').getBBox().height)"
    tab.wait(f"{hidden}.length == 0", timeout_s=10)
    assert tab.run("document.querySelectorAll('.legend').length") > 5


def test_an_image_is_enlarged_by_the_keyboard(tab: browser.Page, report: Path) -> None:
    opened(tab, report)
    tab.press("Tab", 9)
    assert tab.run("document.activeElement.className") == "skip"
    tab.run("document.querySelector('.picture').focus()")
    tab.press("Enter", 13, "\r")
    assert tab.run(
        "document.querySelector('dialog').open && document.querySelector('dialog img').complete"
    )
    assert tab.run("document.querySelector('dialog .image').offsetWidth") >= 320
    first = tab.run("document.querySelector('dialog .caption').innerText")
    assert re.search(
        r"BloodImage_00340.jpg\s+9 right, 6 wrong, 7 missed, most confident error 0.91", first
    )
    tab.press("ArrowRight", 39)
    assert tab.run("document.querySelector('dialog .caption').innerText") != first
    tab.press("Escape", 27)
    assert not tab.run("document.querySelector('dialog').open")
    assert tab.run("document.activeElement.className") == "picture"
    assert tab.errors == []
