"""What a training takes on N GPUs: the tables, the point of 2018, what is refused."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest
import torch
from PIL import Image

from retina_dist.benchmark.communication import MACHINES
from retina_dist.benchmark.forecast import StepOfOne, benchmark, forecast
from retina_dist.benchmark.gradient_timeline import timeline
from retina_dist.benchmark.recipe import recipe_of
from retina_dist.benchmark.reference_2018 import Reference2018, seed_speedup
from retina_dist.config.compose import load_config
from retina_dist.detection.data.shapes import make_shapes
from retina_dist.detection.model.retinanet import build_retinanet
from retina_dist.errors import ConfigError

GIVEN = ["step_ms=[100]", "batch_size=10", "gpus=[1,8,16]"]
CUSTOM = ["sku=[custom]", "custom.gpus=4", "custom.inside=10", "custom.inside_us=5", "custom.outside=1"]


def on_meta() -> object:
    with torch.device("meta"):
        return build_retinanet(num_classes=91)


def test_the_point_of_2018_is_met_without_overlap() -> None:
    without, with_overlap = seed_speedup(overlap=False), seed_speedup(overlap=True)
    assert without == pytest.approx(7.2, abs=0.15)
    assert 7.7 < with_overlap < 8
    assert Reference2018.step_ms == pytest.approx(1206)
    # by hand: a ring of 8 over 1.7 GB/s for the 38 M parameters of keras-retinanet
    by_hand = 8 * 1206 / (1206 + 2 * 7 / 8 * 37.9e6 * 4 / 1.7e9 * 1e3)
    assert without == pytest.approx(by_hand, abs=0.02)


def test_the_table_says_how_long_how_efficient_and_how_many_gpu_hours(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    names = {name: str(tmp_path / f"model.{name}") for name in ("csv", "png", "json")}
    files = [f"table={names['csv']}", f"plot={names['png']}", f"output={names['json']}"]
    config = load_config(
        "benchmark_forecast",
        [
            *GIVEN,
            "sku=[Standard_ND96isr_H100_v5]",
            "price=[80]",
            "epochs=10",
            "num_images=36000",
            *files,
            "straggler_cv=0",
            "leaving_ms=0",
        ],
    )
    benchmark(config)
    printed = capsys.readouterr().out
    assert "7.20x measured (Microsoft) | " in printed
    assert "published: error on MLPerf 2.0 to 4.1, as many images on each of more GPUs" in printed
    assert all(f"written to {name}" in printed for name in names.values())
    with open(names["csv"], newline="") as file:
        one, eight, sixteen = csv.DictReader(file)
    # 100 images a second: 6 minutes an epoch, an hour in all, for which a machine of eight is paid
    assert [float(one[key]) for key in ("images_per_s", "epoch_min", "hours", "gpu_hours", "cost")] == [
        100,
        6,
        1,
        8,
        80,
    ]
    for row, gpus in ((eight, 8), (sixteen, 16)):
        assert 0.99 < float(row["efficiency"]) < 1
        assert float(row["speedup"]) == pytest.approx(gpus * float(row["efficiency"]), abs=1e-3)
        assert float(row["gpu_hours"]) == pytest.approx(1 / float(row["efficiency"]), rel=1e-4)
        assert float(row["cost"]) == pytest.approx(10 * float(row["gpu_hours"]), abs=0.01)
    found = json.loads(Path(names["json"]).read_text())
    assert "13.2%" not in found["published_error"]["Standard_ND96isr_H100_v5"][0]  # that is with the fitted constants
    assert found["ratios"].keys() == {*(f"Standard_ND96isr_H100_v5 {n}" for n in (1, 8, 16)), "2018 without overlap"}
    assert found["rows"][1]["gpus"] == 8
    assert Image.open(names["png"]).width > 1000


def test_nothing_costs_anything_without_a_price(tmp_path: Path) -> None:
    table = tmp_path / "model.csv"
    found = benchmark(load_config("benchmark_forecast", [*GIVEN, f"table={table}"]))
    assert [row["cost"] for row in found["rows"]] == [None] * 3
    assert "cost" not in table.read_text()


def test_a_recipe_is_priced_by_whole_machines(capsys: pytest.CaptureFixture) -> None:
    """3 GPUs of one machine of four, by hand: 26 epochs of 36,000 images at 100 images a second are 2.6 hours on one GPU."""
    given = ["experiment=torchvision_v1", "num_images=36000", "step_ms=[100]", "batch_size=10", "gpus=[1,3]"]
    money = ["sku=[Standard_NC96ads_A100_v4]", "price=[5]", "low_priority_price=[1]"]
    found = benchmark(load_config("benchmark_forecast", [*given, *money]))
    one, three = found["rows"]
    assert (one["hours"], one["machine_hours"], one["gpu_hours"], one["idle_gpus"]) == (2.6, 2.6, 10.4, 3)
    assert (one["cost"], one["low_priority_cost"]) == (13.0, 2.6)
    assert three["idle_gpus"] == 1
    assert three["gpu_hours"] == pytest.approx(4 * three["machine_hours"], abs=1e-5)
    assert three["machine_hours"] == pytest.approx(2.6 / 3 / three["efficiency"], abs=1e-4)
    assert found["recipe"]["epochs"] == 26
    said = " ".join(capsys.readouterr().out.split())
    for words in (
        "26 epochs (trainer.max_duration=26epochs) of 36,000 images (num_images=36000)",
        "machines are rented whole: 3 GPUs of a machine of 4 cost as much as 4",
        "of a whole machine for an hour, as given by price and low_priority_price; the cost is in the same currency",
        "100 ms a step of 10 images, as given by step_ms and batch_size",
        "data.batch_size=16",
        "costs less until interruptions make the job run 5 times as long",
        "1, 3 idle",
        "left out reading of data",
    ):
        assert words in said
    assert "default" not in said


def test_what_was_not_given_is_said(capsys: pytest.CaptureFixture) -> None:
    benchmark(load_config("benchmark_forecast", GIVEN))
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "12 epochs (trainer.max_duration=12epochs) of 118,287 images (those of COCO's train2017, since neither" in said
    )
    assert "Standard_ND96amsr_A100_v4 (sku's default; sku=[NAME] chooses another)" in said
    assert "price none given" in said
    assert "low priority" not in said


@pytest.mark.parametrize(
    ("overrides", "num_images", "epochs"),
    [
        (["experiment=torchvision_v1"], 118_287, 26),
        (["experiment=torchvision_v1", "data.keep_empty_images=false"], 117_266, 26),
        (["experiment=detectron2_1x", "num_images=16000"], 16_000, 90),  # 90,000 steps of 16
        (["experiment=detectron2_1x", "num_images=16000", "data.batch_size=32"], 16_000, 180),
        (["experiment=torchvision_v1", "epochs=3"], 118_287, 3),
        (["experiment=shapes"], 800, 12),
        (["trainer.max_duration=500images", "num_images=1000", "data.batch_size=10"], 1000, 0.5),
    ],
)
def test_the_length_is_the_recipe_s_own(overrides: list[str], num_images: int, epochs: float) -> None:
    found = recipe_of(load_config("benchmark_forecast", overrides))
    assert (found.num_images, found.epochs) == (num_images, epochs)


def test_images_are_counted_where_the_data_is(tmp_path: Path) -> None:
    make_shapes(tmp_path / "data", num_train=5, num_val=1, image_size=32)
    found = recipe_of(load_config("benchmark_forecast", [f"data.root={tmp_path / 'data'}"]))
    assert (found.num_images, found.images_from) == (5, f"counted in {tmp_path / 'data'}")


def test_more_overlap_compression_and_bandwidth_help_and_stragglers_hurt() -> None:
    def efficiency(*overrides: str, sku: str = "Standard_NC96ads_A100_v4") -> float:
        config = load_config("benchmark_forecast", ["gpus=[32]", *overrides])
        found = timeline(on_meta(), 256, 256)  # type: ignore[arg-type]
        return forecast(config, MACHINES[sku], found, StepOfOne(100.0, 8, "given"), recipe_of(config))[0]["efficiency"]

    usual = efficiency()
    assert efficiency("overlap=false") < usual < efficiency("compression=bf16")
    assert usual < efficiency(sku="Standard_ND96amsr_A100_v4")
    assert efficiency("straggler_cv=0.05") < usual
    assert efficiency("allreduce=hierarchical") < usual == efficiency("allreduce=ring")
    few = {"sku": "Standard_NC24"}  # two machines halve what goes between them if each sums first
    assert efficiency("allreduce=ring", "gpus=[8]", **few) < efficiency("gpus=[8]", **few)
    assert efficiency("allreduce=hierarchical", "gpus=[8]", **few) == efficiency("gpus=[8]", **few)


def test_interruptions_and_storage_are_part_of_the_forecast(capsys: pytest.CaptureFixture) -> None:
    """An hour of 10 epochs on one machine of 8, by hand: its checkpoint an epoch, 6 min, its data 10 GB at 0.01 GB/s."""
    given = ["step_ms=[100]", "batch_size=10", "gpus=[8]", "epochs=10", "num_images=288000", "straggler_cv=0"]
    spot = ["mtbi_hours=2", "checkpoint_s=36", "restart_minutes=6", "price=[10]", "low_priority_price=[2]"]
    found = benchmark(load_config("benchmark_forecast", [*given, *spot, "gradient_mb=1e-6"]))["rows"][0]
    assert found["checkpoint_min"] == pytest.approx(6, rel=5e-3)
    assert found["young_checkpoint_min"] == pytest.approx(60 * math.sqrt(2 * 0.01 * 2), abs=1e-3)
    by_hand = 2 * math.exp(0.1 / 2) * (math.exp((0.1 + 0.01) / 2) - 1) * 1 / 0.1
    assert found["expected_h"] == pytest.approx(by_hand, rel=5e-3)
    assert found["best_expected_h"] < found["expected_h"]
    assert f"{found['low_priority_cost'] * found['expected_h'] / found['hours']:.2f}" in capsys.readouterr().out
    stored = ["storage.image_kb=250", "storage.gb_s=0.05", "storage.cache_gb=100", "storage.price_gb_month=0.02"]
    found = benchmark(load_config("benchmark_forecast", [*given, *stored, "gradient_mb=1e-6"]))["rows"][0]
    assert found["cold_epoch_min"] == pytest.approx(72 / 0.05 / 60, rel=1e-3)  # 72 GB
    assert found["hours"] == pytest.approx(0.9 + 0.4, rel=5e-3)  # the other nine from the cache
    assert "Blob storage: 72 GB for 1 months 1.44" in capsys.readouterr().out


def test_a_checkpoint_in_steps_takes_the_waits_for_storage_too() -> None:
    """500 of 1000 steps are half of the hours, however long the reading takes; by hand, 1000 s of which are 100 s of steps."""
    given = [
        "step_ms=[100]",
        "batch_size=10",
        "gpus=[1]",
        "epochs=1",
        "num_images=10000",
        "straggler_cv=0",
        "mtbi_hours=9",
    ]
    slow = ["storage.image_kb=1000", "storage.gb_s=0.01", "trainer.checkpoint_every=500steps"]
    (row,) = benchmark(load_config("benchmark_forecast", [*given, *slow]))["rows"]
    assert row["hours"] == pytest.approx(1000 / 3600, abs=1e-5)
    assert row["checkpoint_min"] == pytest.approx(500 / 60, abs=1e-2)


def test_a_training_that_never_ends_says_so(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    given = [*GIVEN, "mtbi_hours=0.001", "price=[1]", f"output={tmp_path / 'found.json'}"]
    benchmark(load_config("benchmark_forecast", given))
    row = json.loads((tmp_path / "found.json").read_text())["rows"][-1]
    assert (row["expected_h"], row["best_expected_h"]) == (None, None)
    last = [line for line in capsys.readouterr().out.splitlines() if " never " in line][-1]
    assert last.split()[-1] == "-"


def test_a_machine_can_be_described() -> None:
    found = benchmark(load_config("benchmark_forecast", [*GIVEN, *CUSTOM, "custom.outside_us=50"]))
    assert found["machines"][0]["outside"] == 1
    assert found["rows"][2]["machines"] == 4


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], "step_ms and batch_size of one GPU must be given; run python -m retina_dist.benchmark step"),
        (["step_ms=[1]"], "batch_size of one GPU must be given"),
        ([*GIVEN, "sku=[ND96asr_v4]"], "sku=ND96asr_v4 is not known; did you mean Standard_ND96asr_v4?"),
        ([*GIVEN, "sku=[Standard_NC24,custom]"], "sku=custom needs custom.gpus, custom.inside, "),
        ([*GIVEN, *CUSTOM], "sku=custom needs custom.outside_us;"),
        ([*GIVEN, *CUSTOM, "custom.outside_us=1", "custom.inside=0"], "custom.inside=0.0 is too small"),
        ([*GIVEN, "sku=[Standard_NC24,Standard_NC24]"], "step_ms has 1 values for 2 of sku"),
        (
            [*GIVEN, "gpus=[12]"],
            r"gpus=12 do not fill machines of 8 GPUs \(Standard_ND96amsr_A100_v4\); use 16, or up to",
        ),
        ([*GIVEN, "gpus=[0]"], "gpus=0 do not fill"),
        ([*GIVEN, "gpus=[]"], "gpus=.. is empty"),
        ([*GIVEN, "step_ms=[0]"], "step_ms=0.0 is too small"),
        ([*GIVEN, "measured=[a]"], "leave these out"),
        ([*GIVEN, "price=[1,2]"], "price has 2 values for 1 of sku"),
        ([*GIVEN, "low_priority_price=[-1]"], r"low_priority_price=.-1.0. is below 0"),
        (
            [*GIVEN, "data=bccd"],
            "data=bccd does not say how many images there are; give num_images=N or data.root=FOLDER",
        ),
        ([*GIVEN, "trainer.max_duration=0steps"], "trainer.max_duration=0steps is no step at all"),
        ([*GIVEN, "bucket_mb=0"], "bucket_mb=0.0 is too small"),
        ([*GIVEN, "global_batch=12"], "global_batch=12 cannot be shared by 8 GPUs; use a multiple of 8"),
        ([*GIVEN, "global_batch=16", "fixed_ms=[100]"], "fixed_ms=100 is not between 0 and the step's 100 ms"),
        ([*GIVEN, "fixed_ms=[10]"], "fixed_ms changes nothing without global_batch"),
        ([*GIVEN, "newer=nowhere"], "newer=nowhere is read with published=true only"),
        (["published=true", "newer=nowhere"], "nowhere/retinanet.csv does not hold results"),
        ([*GIVEN, "gradient_mb=0"], "gradient_mb=0.0 is too small"),
        ([*GIVEN, "canvas=[800]"], "canvas=.800. is not a height and a width"),
        ([*GIVEN, "backward_share=2"], "backward_share=2.0 is not within 0 and 1"),
        ([*GIVEN, "allreduce=rings"], "did you mean ring"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        benchmark(load_config("benchmark_forecast", overrides))


def test_gradients_and_the_backward_pass_can_be_given() -> None:
    given = ["gradient_mb=1000", "backward_share=0.5", "overlap=false", "bucket_mb=1e5"]
    found = benchmark(load_config("benchmark_forecast", [*GIVEN, *given, "sku=[Standard_NC24]", "gpus=[4]"]))
    # a first bucket of at least 1 MiB, then the rest: 2 * 3/4 * 1 GB / 12 GB/s, and twice 6 hops of 5.7 us
    assert found["rows"][0]["exposed_ms"] == pytest.approx(125 + 2 * 6 * 0.0057, abs=1e-3)
