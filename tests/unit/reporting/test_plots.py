import math

import pytest
from PIL import Image

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


def test_curves_of_a_run(tmp_path, figures):
    logger = CsvLogger(tmp_path / "metrics.csv")
    for step in range(300):
        wild = 1000.0 if step == 3 else 1.0
        logger.log({"train/loss": wild, "train/loss_bbox_regression": 0.5, "train/loss_classification": 0.5}, step)
        logger.log({"train/lr": 0.01, "train/grad_norm": 1.0, "time/images_per_s": 50.0}, step)
    logger.log({"val/loss": 1.0, "coco/AP": 0.4, "coco/AP50": 0.6, "coco/AP75": 0.4}, 299)
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
    assert [len(line.get_xdata()) for line in (raw, smooth, validation)] == [300, 300, 1]
    assert panels["Loss"].get_ylim() == pytest.approx((0, 1.08)), "one wild value does not flatten the rest"
    assert texts(panels["Loss"]) == ["training", "validation"]
    assert texts(panels["Parts of the training loss"]) == ["bbox regression", "classification"]
    assert texts(panels["Validation"]) == ["AP 0.400", "AP50 0.600", "AP75 0.400"]


def test_a_sweep_has_a_bar_for_each_job_and_measure(tmp_path, figures):
    settings = [{"optimizer.lr": str(i), "seed": "0", "name": "$"} for i in range(3)]
    measures = {"AP": [0.25, None, 0.5], "loss": [1.0, 2.0, math.nan]}
    plots.plot_sweep(settings, measures, tmp_path / "sweep.png", failed=[False, True, False], best=2)
    ap, loss = figures[0].axes
    assert [label.get_text() for label in ap.get_yticklabels()] == ["0  lr=0", "1  lr=1", "2  lr=2"]
    assert [text.get_text() for text in ap.texts] == ["0.25", "failed", "0.5"]
    assert [text.get_text() for text in loss.texts] == ["1", "failed", "-"]
    assert len({bar.get_facecolor() for bar in ap.patches}) == 2
