from __future__ import annotations

import itertools
import json

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from retina_dist.data.buckets import make_buckets, resized_size

SIZES = st.lists(st.tuples(st.integers(1, 700), st.integers(1, 700)), min_size=1, max_size=30)


def padded_area(sizes, buckets, min_size: int) -> int:
    return sum(int(np.prod(buckets.padded_shape([i], min_size))) for i in range(len(sizes)))


def test_canvases_by_hand():
    # 480 x 640 -> 800 x 1066 -> 800 x 1088; 500 x 500 -> 800 x 800; 640 x 480 -> 1088 x 800
    buckets = make_buckets(
        [(480, 640), (500, 500), (640, 480), (480, 640)], min_sizes=[800], max_size=1333
    )
    assert len(buckets) == 3
    assert buckets.num_images == 4
    assert [buckets.padded_shape([i], 800) for i in range(4)] == [
        (800, 1088),
        (800, 800),
        (1088, 800),
        (800, 1088),
    ]
    assert buckets.of_image[0] == buckets.of_image[3]
    assert buckets.of_image[1] == 0  # the smallest canvas comes first


@settings(max_examples=60, deadline=None)
@given(sizes=SIZES, num_buckets=st.integers(1, 6), divisor=st.sampled_from([1, 8, 32]))
def test_every_image_fits_its_canvas(sizes, num_buckets, divisor):
    min_sizes = (48, 96)
    buckets = make_buckets(
        sizes, min_sizes=min_sizes, max_size=160, num_buckets=num_buckets, divisor=divisor
    )
    assert 1 <= len(buckets) <= num_buckets
    assert set(buckets.of_image) == set(range(len(buckets)))  # none is empty
    for i, (height, width) in enumerate(sizes):
        for min_size in min_sizes:
            canvas = buckets.padded_shape([i], min_size)
            resized = resized_size(height, width, min_size, 160)
            assert all(c % divisor == 0 and c >= r for c, r in zip(canvas, resized, strict=True))
    for bucket in range(len(buckets)):
        larger = buckets.next_larger(bucket)
        if larger is not None:
            assert larger > bucket
            assert (buckets.padded_shapes[:, larger] >= buckets.padded_shapes[:, bucket]).all()


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(
        st.sampled_from([(h, w) for h in (3, 5, 8) for w in (4, 5, 9)]), min_size=1, max_size=12
    )
)
def test_cuts_are_the_best_there_are(sizes):
    """Against trying every way to cut the images, sorted by aspect ratio, into three runs."""
    found = make_buckets(sizes, min_sizes=[64], max_size=100, num_buckets=3, divisor=8)
    resized = sorted(
        (resized_size(h, w, 64, 100) for h, w in sizes), key=lambda size: size[1] / size[0]
    )
    padded = -(-np.array(resized) // 8) * 8
    best = min(
        sum(
            len(run) * int(run.max(axis=0).prod())
            for run in (padded[:a], padded[a:b], padded[b:])
            if len(run)
        )
        for a, b in itertools.combinations_with_replacement(range(len(sizes) + 1), 2)
    )
    assert padded_area(sizes, found, 64) == best


def test_padding_on_real_coco_sizes_is_small(real_data):
    file = next((real_data / "coco-mini").rglob("instances_train2017.json"))
    sizes = [(image["height"], image["width"]) for image in json.loads(file.read_text())["images"]]
    buckets = make_buckets(sizes, min_sizes=[800], max_size=1333)
    alone = sum(
        int(np.prod(-(-np.array(resized_size(h, w, 800, 1333)) // 32) * 32)) for h, w in sizes
    )
    assert padded_area(sizes, buckets, 800) < 1.04 * alone  # alone: each image padded by itself
