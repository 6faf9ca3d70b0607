"""Reading the data: how long cold and warm epochs take, and what Blob storage costs. Within a region nothing is paid for egress."""

from __future__ import annotations

import math

from retina_dist.benchmark.settings import StorageConfig


def missing_share(epoch: int, machines: int, cached: float) -> float:
    """The share of a machine's images that it must read from storage in epoch 0, 1, ... of a training.

    Each epoch gives a machine a random 1/machines of the images, of which it has seen 1 - (1 - 1/machines)^epoch; `cached` is the
    share of all images that it can keep.

    >>> [missing_share(epoch, 2, 1.0) for epoch in range(3)]
    [1.0, 0.5, 0.25]
    """
    return 1 - min(cached, 1 - (1 - 1 / machines) ** epoch)


def epoch_hours(epoch: int, compute_h: float, num_images: int, machines: int, storage: StorageConfig) -> float:
    """An epoch that takes `compute_h` when reading keeps up: reading goes beside computing, so the longer of the two."""
    if storage.image_kb is None or storage.gb_s is None:
        return compute_h
    data_gb = num_images * storage.image_kb / 1e6
    cached = min(1.0, storage.cache_gb / data_gb)
    return max(compute_h, data_gb / machines * missing_share(epoch, machines, cached) / storage.gb_s / 3600)


def training_hours(epochs: float, compute_h: float, num_images: int, machines: int, storage: StorageConfig) -> float:
    """All epochs, the last in part where `epochs` is no whole number."""
    each = [epoch_hours(epoch, compute_h, num_images, machines, storage) for epoch in range(math.ceil(epochs))]
    return sum(each) - each[-1] * (len(each) - epochs)


def blob_in_words(num_images: int, epochs: float, storage: StorageConfig) -> str | None:
    """What keeping and reading the data in Blob storage costs; None without prices.

    A batch fetches each image by itself, from an image file or from its place in a shard, so both read one image an operation.
    Copies to the machines before the training read shards in far fewer.
    """
    if storage.image_kb is None or (storage.price_gb_month is None and storage.price_10k_reads is None):
        return None
    data_gb = num_images * storage.image_kb / 1e6
    parts = []
    if storage.price_gb_month is not None:
        kept = data_gb * storage.price_gb_month * storage.months
        parts.append(f"{data_gb:.4g} GB for {storage.months:g} months {kept:,.2f}")
    if storage.price_10k_reads is not None:
        an_epoch = num_images / 1e4 * storage.price_10k_reads
        parts.append(f"{num_images:,} reads an epoch {an_epoch:,.2f}, {epochs:.4g} epochs {epochs * an_epoch:,.2f}")
        shards = math.ceil(data_gb * 1e9 / (256 * 2**20))
        copied = shards * 64 / 1e4 * storage.price_10k_reads
        parts.append(f"or copied, for each machine, as {shards:,} shards in requests of 4 MiB, {copied:,.2f}")
    return "Blob storage: " + "; ".join(parts)
