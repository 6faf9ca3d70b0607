import math
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from retina_dist.errors import DataError
from retina_dist.reporting import plots
from retina_dist.reporting.loggers import CsvLogger

pytest.importorskip("matplotlib")

AP = ("coco/AP", "coco/AP50", "coco/AP75")


@pytest.fixture
def figures(monkeypatch):
    """The figures that are drawn in the test."""
    from matplotlib.figure import Figure

    drawn = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *args: (drawn.append(self), save(self, *args))[1])
    return drawn


def texts(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def write_metrics(path, *, train=500, validations=10):
    logger = CsvLogger(path)
    logger.log({"train/loss": 2.0, "coco/AP": -1.0}, 0)
    rng = np.random.default_rng(0)
    for i in range(1, train + 1):
        value = 2 * math.exp(-i / 100) + 0.05 * rng.standard_normal() + 0.5
        logger.log(
            {
                "train/loss": value,
                "train/loss_classification": value * 0.6,
                "train/loss_bbox_regression": value * 0.4,
                "train/lr": 0.01,
                "train/grad_norm": 1.0,
                "time/images_per_s": 50.0,
            },
            i * 20,
        )
        if validations and i % (train // validations) == 0:
            logger.log({"val/loss": value, "coco/AP": 0.4, "coco/AP50": 0.6, "coco/AP75": 0.4}, i * 20)


def test_curves_of_a_run(tmp_path, figures):
    write_metrics(tmp_path / "metrics.csv")
    plots.plot_curves(tmp_path / "metrics.csv", tmp_path / "plots" / "curves.png", AP)
    assert Image.open(tmp_path / "plots" / "curves.png").width > 1000
    panels = {axes.get_title(loc="left"): axes for axes in figures[0].axes}
    assert list(panels) == [
        "Loss",
        "Parts of the training loss",
        "Validation",
        "Learning rate",
        "Gradient norm",
        "Throughput",
    ]
    assert all(axes.get_xlabel() and axes.get_ylabel() for axes in panels.values())
    raw, smooth, validation = panels["Loss"].lines
    assert len(raw.get_xdata()) == len(smooth.get_xdata()) == 501
    assert len(validation.get_xdata()) == 10
    assert texts(panels["Loss"]) == ["training", "validation"]
    assert texts(panels["Validation"]) == ["AP 0.400", "AP50 0.600", "AP75 0.400"]
    assert np.isnan(panels["Validation"].lines[0].get_ydata()[0])  # -1 is no AP
    assert texts(panels["Throughput"]) == ["median 50.0"]


def test_curves_show_only_what_was_logged(tmp_path, figures):
    logger = CsvLogger(tmp_path / "metrics.csv")
    logger.log({"val/loss": 1.0, "custom/thing": 2.0}, 5)
    plots.plot_curves(tmp_path / "metrics.csv", tmp_path / "curves.png")
    assert [axes.get_title(loc="left") for axes in figures[0].axes] == ["Loss"]


def test_curves_of_an_empty_file_and_of_a_run_that_diverged(tmp_path):
    logger = CsvLogger(tmp_path / "metrics.csv")
    plots.plot_curves(tmp_path / "metrics.csv", tmp_path / "empty.png")
    for step, loss in enumerate((1.0, math.inf, math.nan)):
        logger.log({"train/loss": loss, "coco/AP": math.nan, "time/images_per_s": math.nan}, step)
    plots.plot_curves(tmp_path / "metrics.csv", tmp_path / "diverged.png", AP)
    assert (tmp_path / "empty.png").exists()
    assert (tmp_path / "diverged.png").exists()


def test_curves_without_a_file(tmp_path):
    with pytest.raises(DataError, match="cannot read the metrics"):
        plots.plot_curves(tmp_path / "metrics.csv", tmp_path / "curves.png")


def test_one_wild_value_does_not_flatten_the_loss(tmp_path, figures):
    logger = CsvLogger(tmp_path / "metrics.csv")
    for step in range(300):
        logger.log({"train/loss": 1000.0 if step == 3 else 1.0}, step)
    plots.plot_curves(tmp_path / "metrics.csv", tmp_path / "curves.png")
    assert figures[0].axes[0].get_ylim() == pytest.approx((0, 1.08))


def test_running_median_does_not_follow_wild_or_missing_values():
    values = [1.0, 9.0, 3.0, math.nan, 5.0, 7.0, 6.0]
    # windows of three: [1] [1 9 3] [9 3] [3 5] [5 7] [5 7 6] [6]
    assert plots.running_median(values, 3).tolist() == [1.0, 3.0, 6.0, 4.0, 6.0, 6.0, 6.0]
    assert np.isnan(plots.running_median([math.nan], 3)).all()
    assert plots.running_median([], 3).tolist() == []


def test_matplotlib_is_loaded_late_and_its_settings_are_left_alone(tmp_path):
    code = """
import sys
from pathlib import Path
from retina_dist.detection import pictures
from retina_dist.reporting import loggers
from retina_dist.detection import plots as metric_plots
from retina_dist.reporting import plots, progress
assert "matplotlib" not in sys.modules and "tensorboard" not in sys.modules
import matplotlib
before = {name: matplotlib.rcParams[name] for name in plots.STYLE}
metric_plots.plot_per_class({"a": 0.5}, Path(sys.argv[1]))
assert {name: matplotlib.rcParams[name] for name in plots.STYLE} == before
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "a.png")], check=True)
