"""Plots of COCO metrics."""

import numpy as np
import pytest

from retina_dist.detection import plots

pytest.importorskip("matplotlib")


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


def precision_of(*areas):
    """[10, 101, K]: precision 1 up to the recall `area` at IoU .50 to .70, half of it above; -1 for None."""
    recalls = np.arange(101)
    result = np.full((10, 101, len(areas)), -1.0)
    for k, area in enumerate(areas):
        if area is not None:
            result[:5, :, k] = recalls < round(101 * area)
            result[5:, :, k] = recalls < round(101 * area / 2)
    return result


def test_pr_of_a_few_classes(tmp_path, figures):
    precision = precision_of(20 / 101, None, 80 / 101)
    plots.plot_pr(precision, ["_RBC$x$", "nothing", "WBC"], tmp_path / "pr.png")
    at_50, at_75, mean = figures[0].axes
    # areas under the curves, best first: 80, 20 and their mean 50 of 101 recall points; at .75 half of them
    assert texts(at_50) == ["0.792  WBC", "0.198  _RBC$x$", "0.495  mean of 2 classes"]
    assert texts(at_75) == ["0.396  WBC", "0.099  _RBC$x$", "0.248  mean of 2 classes"]
    assert texts(mean) == ["0.594  WBC", "0.149  _RBC$x$", "0.371  mean of 2 classes"]
    assert figures[0].get_supxlabel() == "1 class without ground truth left out"
    assert at_50.lines[0].get_xdata()[-1] == pytest.approx(0.80)  # ends where precision falls to zero
