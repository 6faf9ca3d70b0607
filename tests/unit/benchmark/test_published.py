"""The step model against MLPerf: what it holds, how wrong it is, and that the fit finds its constants again."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from retina_dist.benchmark.communication import MACHINES, expected_maximum
from retina_dist.benchmark.forecast import benchmark
from retina_dist.benchmark.published import (
    BEFORE,
    DATA,
    FITTED,
    HELD_OUT,
    NETWORKS,
    Constants,
    Point,
    clusters,
    fit,
    forecast,
    kind_of,
    points_of,
    same_images,
    step_ms,
    within_machines,
)
from retina_dist.benchmark.published_error import KINDS, errors, published_error
from retina_dist.config.compose import load_config


def find(points: list[Point], round_: float, submitter: str, nodes: int, kind: str = "A100") -> Point:
    (found,) = [p for p in points if (p.round, p.submitter, p.nodes, p.kind) == (round_, submitter, nodes, kind)]
    return found


def test_the_results_are_those_that_were_published() -> None:
    points = points_of("retinanet")
    azure = find(points, 2.0, "Azure", 8)
    assert (azure.gpus, azure.images, azure.step_ms, azure.machine.gpus) == (64, 4, 43.49, 8)
    assert azure.machine.outside == pytest.approx(8 * 200 / 8 * 0.94)
    for network, images in (("retinanet", 1_170_301), ("resnet50", 1_281_167)):
        for point in points_of(network):
            assert point.gpus == point.nodes * point.machine.gpus
        rows = np.genfromtxt(DATA / f"{network}.csv", delimiter=",", names=True, usecols=(7, 8, 9))
        by_hand = 1e3 * rows["median_epoch_s"] * rows["global_batch"] / images
        long = rows["median_epoch_s"] > 5
        assert rows["step_ms"][long] == pytest.approx(by_hand[long], rel=2e-3)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA A100-PCIE-80GB", "A100-PCIe"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("H100 NVL Tensor Core GPU (PCIe)", "H100-NVL"),
        ("NVIDIA A30-PCIE-24GB", "A30"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("Graphcore Bow IPU", None),
        ("AMD Radeon RX 7900 XTX", None),
        ("N/A", None),
    ],
)
def test_accelerators_have_one_name_each(name: str, kind: str | None) -> None:
    assert kind_of(name) == kind


def test_a_base_is_one_machine_of_the_submitter_and_never_of_a_later_round() -> None:
    points = points_of("retinanet")
    for point, base in clusters(points):
        assert (base.kind, base.nodes) == (point.kind, 1)
        assert base.round <= point.round
        assert base.gpus < point.gpus
    azure = find(points, 2.0, "Azure", 8)
    assert (azure, find(points, 2.0, "Azure", 1)) in clusters(points)
    pairs = [(p.submitter, base.nodes, p.nodes) for p, base in same_images(points)]
    assert {("HPE", 1, 2), ("NVIDIA", 160, 256), ("Dell", 2, 4)} <= set(pairs)
    assert all(p.nodes == base.nodes == 1 and p.submitter == base.submitter for p, base in within_machines(points))


def test_a_forecast_by_hand() -> None:
    """Azure's 8 machines from its one: 267 ms of 32 images are 8 ms an image; 4 of them and one more of fixed cost."""
    points = points_of("retinanet")
    point, base = find(points, 2.0, "Azure", 8), find(points, 2.0, "Azure", 1)
    constants = Constants(retinanet=1.0, resnet50=0.0, leaving_ms=3.0, variation=0.02)
    image_ms = base.step_ms / (1 + 0.02 * expected_maximum(8)) / 33  # within the machine, nearly all is hidden
    alone = image_ms * 5
    found = forecast(point, base, constants).step_ms
    assert found == pytest.approx(alone * (1 + 0.02 * expected_maximum(64)) + 3.0, rel=0.02)
    assert found == pytest.approx(step_ms(point, alone, constants), rel=0.005)
    before = forecast(point, base, BEFORE).step_ms
    assert before == pytest.approx(base.step_ms * 4 / 32, rel=0.02)


DOCUMENT = Path(__file__).parents[3] / "docs" / "planning.md"


def documented_errors() -> dict[tuple[str, str, str], tuple[int, list[float], list[float]]]:
    """By network, kind and rounds: points, and median and worst before and after, in percent."""
    row = re.compile(r"\| (R\S+), ([\w ]+), (\S+), \w[\w ]+ \| (\d+) \| (\S+), \S+, (\S+) % \| (\S+), \S+, (\S+) % \|")
    found = {}
    for network, kind, rounds, number, *values in row.findall(DOCUMENT.read_text()):
        before, after = [float(v) for v in values[:2]], [float(v) for v in values[2:]]
        found[network, kind, rounds] = int(number), before, after
    return found


def test_the_documented_errors_are_those_of_the_model() -> None:
    documented = documented_errors()
    assert len(documented) == 10
    for (network, kind, rounds), (number, *sizes) in documented.items():
        (name,) = (name for name, title in NETWORKS.items() if title == network)
        pairs = [pair for pair in KINDS[kind](points_of(name)) if (pair[0].round >= HELD_OUT) == (rounds == "4.0-4.1")]
        for constants, size in zip((BEFORE, FITTED), sizes, strict=True):
            found = errors([forecast(*pair, constants).error for pair in pairs])
            assert (found.number, 100 * found.median, 100 * found.worst) == (
                number,
                pytest.approx(size[0], abs=0.1),
                pytest.approx(size[1], abs=0.1),
            ), (network, kind, rounds)
    assert errors([-0.1, 0.2, 0.3]) == (3, pytest.approx(0.2), None, pytest.approx(0.3), pytest.approx(0.2))


def test_the_error_beside_a_forecast_is_of_the_same_kind() -> None:
    def said(*overrides: str, sku: str = "Standard_ND96isr_H100_v5") -> str:
        return "; ".join(published_error(load_config("benchmark_forecast", list(overrides)), MACHINES[sku]))

    weak, strong = said("compression=bf16"), said("compression=bf16", "global_batch=128")
    assert (
        "RetinaNet median 7.0%, worst 13.2% (2 points, held out); ResNet-50 median 7.0%, worst 16.1% (6 points, fitted)"
        in weak
    )
    assert (
        "RetinaNet median 4.3%, worst 9.3% (9 points, held out); ResNet-50 median 2.4%, worst 10.6% (6 points, h"
        in strong
    )
    for usual in (weak, strong):
        assert "settings differ" not in usual
        assert "larger" not in usual
    assert "the error may be larger" in said(sku="Standard_NC96ads_A100_v4")
    assert "RetinaNet median 0.8%, 90th percentile 8.8%, worst 12.2% (15 points, fitted)" in said("gpus=[8]")
    other = said("overlap=false", "leaving_ms=0", "straggler_cv=0")
    assert (
        "differ from the validated ones: overlap=false, compression=none, leaving_ms=0.0, straggler_cv=0.0 (g" in other
    )
    assert "median 7.0%, worst 13.2%" not in other


def test_the_fit_finds_the_constants_again_and_sees_no_held_out_round(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_held_out(network: str) -> list[Point]:
        return [point for point in points_of(network) if point.round < HELD_OUT]

    monkeypatch.setattr("retina_dist.benchmark.published.points_of", without_held_out)
    found = fit(Constants(retinanet=2.0, resnet50=10.0, leaving_ms=1.0, variation=0.02))
    assert tuple(found) == pytest.approx(tuple(FITTED), rel=0.05)


def test_newer_results_are_judged_beside(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Two made-up results of round 5.1 without the column `gbit`, of which the second is 10 % slower than the forecast."""
    columns = "round,submitter,system,accelerator,nodes,gpus_per_node,gpus,global_batch,median_epoch_s,step_ms"
    one = "5.1,Me,one,NVIDIA B200,1,8,8,256,300,68"
    for network in NETWORKS:
        (tmp_path / f"{network}.csv").write_text(f"{columns}\n{one}\n5.1,Me,two,NVIDIA B200,2,8,16,512,150,99\n")
    (point, base) = next((p, b) for p, b in clusters(points_of("retinanet", str(tmp_path))) if p.round == 5.1)
    slow = 1.1 * forecast(point, base).step_ms
    (tmp_path / "retinanet.csv").write_text(f"{columns}\n{one}\n5.1,Me,two,NVIDIA B200,2,8,16,512,150,{slow}\n")
    files = {name: tmp_path / f"published.{name}" for name in ("csv", "png", "json")}
    settings = [f"table={files['csv']}", f"plot={files['png']}", f"output={files['json']}"]
    found = benchmark(load_config("benchmark_forecast", ["published=true", f"newer={tmp_path}", *settings]))
    assert found["ratios"]["median, RetinaNet, clusters, newer"] == pytest.approx(1 / 1.1, abs=1e-3)
    printed = capsys.readouterr().out
    for words in (
        "RetinaNet, clusters, 4.0-4.1, held out",
        "+3.6%",
        "1 -> 2         0.9%",
        "160 -> 256       7.0%",
        "5.1 Me, 16 B200",
    ):
        assert words in printed
    assert Image.open(files["png"]).width > 1000
    assert files["csv"].read_text().startswith("network,kind,round")
