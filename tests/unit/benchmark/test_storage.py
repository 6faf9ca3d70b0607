"""Cold and warm epochs and the price of the data, against numbers by hand and a simulated cache."""

from __future__ import annotations

import random

import pytest

from retina_dist.benchmark.settings import StorageConfig
from retina_dist.benchmark.storage import blob_in_words, epoch_hours, missing_share, training_hours

COCO = StorageConfig(image_kb=163, gb_s=0.5, cache_gb=64)


def test_what_a_machine_lacks_is_what_it_has_not_drawn_before() -> None:
    rng, images, machines = random.Random(0), 4000, 4
    seen: set[int] = set()
    for epoch in range(4):
        own = rng.sample(range(images), images // machines)
        assert len(set(own) - seen) / len(own) == pytest.approx(missing_share(epoch, machines, 1.0), abs=0.04)
        seen |= set(own)
    assert missing_share(100, 4, 0.3) == pytest.approx(0.7)  # what does not fit is read in every epoch


def test_an_epoch_waits_for_the_slower_of_reading_and_computing() -> None:
    assert epoch_hours(0, 1.0, 1_000_000, 2, COCO) == 1.0  # 81.5 GB for each machine at 0.5 GB/s: 163 s
    assert epoch_hours(0, 0.01, 1_000_000, 2, COCO) == pytest.approx(163 / 3600)
    assert epoch_hours(5, 0.01, 1_000_000, 2, COCO) == pytest.approx(163 / 3600 * (1 - 64 / 163))
    assert epoch_hours(0, 0.01, 1_000_000, 2, StorageConfig(image_kb=163)) == 0.01
    # 2.5 epochs on one machine whose cache holds everything: the first waits for 16.3 GB
    assert training_hours(2.5, 0.005, 100_000, 1, COCO) == pytest.approx(16.3 / 0.5 / 3600 + 0.0075)


def test_blob_storage_costs_what_its_prices_say() -> None:
    priced = StorageConfig(image_kb=200, months=2, price_gb_month=0.02, price_10k_reads=0.005)
    found = blob_in_words(1_000_000, 10, priced)
    assert found is not None
    assert "200 GB for 2 months 8.00" in found
    assert "1,000,000 reads an epoch 0.50, 10 epochs 5.00" in found
    assert (
        "or copied, for each machine, as 746 shards in requests of 4 MiB, 0.02" in found
    )  # 200e9 / 2**28 shards x 64 requests
    assert blob_in_words(1_000_000, 10, StorageConfig(image_kb=200)) is None
