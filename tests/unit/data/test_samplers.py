"""What a whole job sees, put together from what each rank is told."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from retina_dist.base.seeding import derived_seed
from retina_dist.data.buckets import Buckets, make_buckets
from retina_dist.data.samplers import (
    BatchSpec,
    EvalSampler,
    TrainSampler,
    draw_repeats,
    images_per_epoch,
    plan_epoch,
    repeat_factors,
)

WORLD_SIZES = (1, 2, 3, 8)
SHAPES = [(480, 640), (640, 480), (500, 500), (300, 640), (640, 300), (427, 640)]

data_sets = st.lists(st.sampled_from(SHAPES), min_size=1, max_size=60)


def buckets_of(sizes, min_sizes=(64, 96)) -> Buckets:
    return make_buckets(sizes, min_sizes=min_sizes, max_size=160)


def job(step: int, world_size: int, buckets: Buckets, **settings) -> list[list[BatchSpec]]:
    """The specs of a step, [rank][micro-batch]."""
    return [
        TrainSampler(buckets=buckets, rank=rank, world_size=world_size, **settings).step(step)
        for rank in range(world_size)
    ]


def images_of(ranks: list[list[BatchSpec]]) -> list[int]:
    return [i for specs in ranks for spec in specs if spec.weight > 0 for i in spec.indices]


FACTORS = st.sampled_from([1.0, 1.0, 1.25, 1.5, 2.0, 3.75, 1.1])


@settings(max_examples=80, deadline=None)
@given(
    sizes=data_sets,
    batch_size=st.integers(1, 20),
    accumulate=st.integers(1, 3),
    shuffle=st.booleans(),
    epoch=st.integers(0, 3),
    data=st.data(),
)
def test_a_job_of_any_size_sees_the_images_of_an_epoch(
    sizes, batch_size, accumulate, shuffle, epoch, data
):
    """Each image once, or as often as its repeats say."""
    buckets = buckets_of(sizes)
    times = st.lists(FACTORS, min_size=len(sizes), max_size=len(sizes)).map(np.array)
    repeats = data.draw(st.none() | times)
    drawn = (
        range(len(sizes))
        if repeats is None
        else draw_repeats(repeats, derived_seed(5, "repeats", epoch)).tolist()
    )
    kwargs = {
        "batch_size": batch_size,
        "accumulate": accumulate,
        "shuffle": shuffle,
        "seed": 5,
        "repeats": repeats,
    }
    steps = -(-len(drawn) // batch_size)
    reference: dict[int, set[int]] = {}
    for world_size in WORLD_SIZES:
        samplers = [
            TrainSampler(buckets=buckets, rank=rank, world_size=world_size, **kwargs)
            for rank in range(world_size)
        ]
        assert samplers[0].steps_per_epoch == steps
        assert samplers[0].position(steps) == (1, 0)
        seen: Counter[int] = Counter()
        for step in range(epoch * steps, (epoch + 1) * steps):
            ranks = [sampler.step(step) for sampler in samplers]
            assert {len(specs) for specs in ranks} == {samplers[0].num_micro_batches(step)}
            assert (
                len(
                    {
                        (spec.padded_shape, spec.min_size, spec.epoch)
                        for specs in ranks
                        for spec in specs
                    }
                )
                == 1
            )
            assert sum(spec.weight for specs in ranks for spec in specs) == pytest.approx(
                world_size
            )
            images = images_of(ranks)
            seen.update(images)
            # the same images in the same step at every world size, all steps full but the last
            assert set(images) == reference.setdefault(step, set(images))
            last = step == (epoch + 1) * steps - 1
            assert len(images) == (len(drawn) - (steps - 1) * batch_size if last else batch_size)
            spec = ranks[0][0]
            own = [buckets.padded_shape([i % len(sizes)], spec.min_size) for i in images]
            assert all(
                spec.padded_shape[0] >= height and spec.padded_shape[1] >= width
                for height, width in own
            )
        assert seen == Counter(drawn)


@settings(max_examples=60, deadline=None)
@given(sizes=data_sets, batch_size=st.integers(1, 20), accumulate=st.integers(1, 3), data=st.data())
def test_a_step_is_the_same_on_any_number_of_ranks(sizes, batch_size, accumulate, data):
    """Weighted means add up to its mean.

    What is processed together, which batch norm over all ranks sees, is the same.

    Every slot of every step has one size.
    """
    buckets = buckets_of(sizes)
    step = data.draw(st.integers(0, 3 * len(sizes)))
    losses = np.random.default_rng(0).normal(size=len(sizes))
    together = []
    for world_size in (*WORLD_SIZES, 7):
        ranks = job(step, world_size, buckets, batch_size=batch_size, accumulate=accumulate)
        of_rank = [
            sum(s.weight * losses[list(s.indices)].mean() for s in specs if s.indices)
            for specs in ranks
        ]
        assert np.mean(of_rank) == pytest.approx(losses[images_of(ranks)].mean(), abs=1e-12)
        lengths = [len(spec.indices) for specs in ranks for spec in specs]
        assert max(lengths) - min(lengths) <= 1
        assert all((spec.weight > 0) == bool(spec.indices) for specs in ranks for spec in specs)
        together.append(
            [[i for spec in specs for i in spec.indices] for specs in zip(*ranks, strict=True)]
        )
        found = {spec.size for specs in ranks for spec in specs}
        assert found == {-(-min(batch_size, len(sizes)) // (world_size * accumulate))}
        assert all(len(spec.indices) <= spec.size for specs in ranks for spec in specs)
    assert all(groups == together[0] for groups in together)


def test_slots_by_hand():
    buckets = buckets_of([(10, 10)] * 7)
    ranks = job(0, 2, buckets, batch_size=7, accumulate=2, shuffle=False)
    assert [[spec.indices for spec in specs] for specs in ranks] == [
        [(0, 1), (4, 5)],
        [(2, 3), (6,)],
    ]
    assert [[spec.weight for spec in specs] for specs in ranks] == [[4 / 7, 4 / 7], [4 / 7, 2 / 7]]
    ranks = job(
        0, 3, buckets, batch_size=7, accumulate=2, shuffle=False
    )  # groups of 4 and 3 images
    assert [[spec.indices for spec in specs] for specs in ranks] == [
        [(0, 1), (4,)],
        [(2,), (5,)],
        [(3,), (6,)],
    ]


def test_left_over_images_fill_as_few_micro_batches_as_hold_them():
    """Batch norms would see them one by one in as many micro-batches as a full step has."""
    groups = job(1, 1, buckets_of([(10, 10)] * 21), batch_size=16, accumulate=4, shuffle=False)[0]
    assert [spec.indices for spec in groups] == [(16, 17, 18), (19, 20)]
    assert [
        len(spec.indices)
        for spec in job(0, 1, buckets_of([(10, 10)] * 21), batch_size=16, accumulate=4)[0]
    ] == [4] * 4


def test_leftovers_cost_little_padding_and_few_new_canvases():
    rng = np.random.default_rng(0)
    sizes = [SHAPES[i] for i in rng.integers(0, len(SHAPES), 500)]
    buckets = buckets_of(sizes)
    steps = plan_epoch(buckets, 8, np.random.default_rng(1), np.arange(500))
    own = [tuple(canvas) for canvas in buckets.padded_shapes[-1]]
    canvases = [buckets.padded_shape(step, 96) for step in steps]
    assert sum(canvas not in own for canvas in canvases) <= 2  # tall and wide leftovers at the end
    paid = sum(np.prod(canvas) * len(step) for canvas, step in zip(canvases, steps, strict=True))
    assert paid < 1.05 * sum(np.prod(buckets.padded_shape([i], 96)) for i in range(500))
    assert [len(step) for step in steps] == [8] * 62 + [4]


def test_epochs_differ_and_seeds_differ_and_both_repeat():
    def epoch(number: int, seed: int) -> list[int]:
        sampler = TrainSampler(buckets=buckets_of([(10, 10)] * 40), batch_size=8, seed=seed)
        return [
            i for step in range(number * 5, number * 5 + 5) for i in sampler.step(step)[0].indices
        ]

    assert epoch(0, 0) == epoch(0, 0)
    assert epoch(3, 7) == epoch(3, 7)
    assert epoch(0, 0) != epoch(1, 0)
    assert epoch(0, 0) != epoch(0, 1)


@settings(max_examples=40, deadline=None)
@given(sizes=data_sets, batch_size=st.integers(1, 20))
def test_evaluation_sees_every_image_once_on_the_same_canvas(sizes, batch_size):
    buckets = buckets_of(sizes)
    own = [buckets.padded_shape([i], 96) for i in range(len(sizes))]
    for world_size in WORLD_SIZES:
        shares = [
            list(
                EvalSampler(
                    buckets=buckets, batch_size=batch_size, rank=rank, world_size=world_size
                )
            )
            for rank in range(world_size)
        ]
        specs = [spec for share in shares for spec in share]
        assert sorted(i for spec in specs for i in spec.indices) == list(range(len(sizes)))
        assert all(own[i] == spec.padded_shape for spec in specs for i in spec.indices)
        assert {spec.min_size for spec in specs} == {96}
        assert max(len(spec.indices) for spec in specs) <= batch_size
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


@settings(deadline=None, max_examples=30)
@given(shapes=data_sets, batch_size=st.integers(1, 7), seed=st.integers(0, 3))
@example(shapes=[(480, 640), (480, 640), (640, 480), (640, 300)], batch_size=3, seed=0)
def test_every_canvas_is_known_beforehand(shapes, batch_size: int, seed: int) -> None:
    buckets = buckets_of(shapes)
    sampler = TrainSampler(buckets=buckets, batch_size=batch_size, seed=seed)
    met = {
        spec.padded_shape
        for step in range(2 * sampler.steps_per_epoch)
        for spec in sampler.step(step)
    }
    assert met <= buckets.all_padded_shapes()


# repeats


def test_repeat_factors_by_hand() -> None:
    """Class 0 in 4 of 8 images, class 1 in two, class 2 in one.

    Several boxes of a class count once.
    """
    labels = [
        np.array(each, np.int64) for each in ([0], [0, 0, 0], [0], [0, 1], [1, 1], [2], [], [])
    ]
    assert repeat_factors(labels, 0.25).tolist() == pytest.approx([1, 1, 1, 1, 1, 2**0.5, 1, 1])
    assert repeat_factors(labels, 1.0).tolist() == pytest.approx(
        [2**0.5] * 3 + [2.0, 2.0, 8**0.5, 1, 1]
    )
    assert repeat_factors(labels, 0.1).tolist() == [1.0] * 8


@settings(max_examples=60, deadline=None)
@given(repeats=st.lists(FACTORS, min_size=1, max_size=40).map(np.array), seed=st.integers(0, 99))
def test_every_epoch_has_as_many_images_each_as_often_as_its_factor(repeats, seed) -> None:
    count = len(repeats)
    drawn = draw_repeats(repeats, seed)
    assert len(drawn) == images_per_epoch(repeats)
    assert repeats.sum() - 1 < len(drawn) <= repeats.sum() + 1e-9
    assert len(set(drawn.tolist())) == len(drawn)  # a repetition has an index of its own
    times = np.bincount(drawn % count, minlength=count)
    assert ((np.floor(repeats) <= times) & (times <= np.ceil(repeats))).all()
    for image in range(count):
        again = sorted((drawn[drawn % count == image] // count).tolist())
        assert again == list(range(times[image]))
    assert np.array_equal(drawn, draw_repeats(repeats, seed))


def test_fractions_are_rounded_up_in_their_share_of_the_epochs() -> None:
    repeats = np.array([1.5, 2.25, 1.0, 1.75, 1.5, 1.0])
    times = (
        sum(np.bincount(draw_repeats(repeats, seed) % 6, minlength=6) for seed in range(4000))
        / 4000
    )
    assert times == pytest.approx(repeats, abs=0.035)  # four standard deviations


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("step", [0, 1, 2])
def test_virtual_ranks_are_the_ranks_of_a_job_of_so_many_processes(
    world_size: int, step: int
) -> None:
    """Runs of them, in order; the last step has fewer images than virtual ranks."""
    buckets = buckets_of(SHAPES * 4)
    settings = {"batch_size": 11, "seed": 3}
    every = [specs[0] for specs in job(step, 4, buckets, **settings)]
    ranks = job(step, world_size, buckets, virtual_ranks=4, **settings)
    assert [spec for specs in ranks for spec in specs] == every
    assert {len(specs) for specs in ranks} == {4 // world_size}
