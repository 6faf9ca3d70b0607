"""Random batches of any task: made once, shared by the ranks of any world size."""

from __future__ import annotations

import pytest

from retina_dist.data.synthetic import SyntheticData


def data(**changes: int) -> SyntheticData[tuple[list[int], float]]:
    return SyntheticData(
        lambda images, weight: (list(images), weight),
        **{"num_images": 20, "batch_size": 7, **changes},
    )


def test_every_step_gives_the_same_batches() -> None:
    one = data(accumulate=2)
    first, second = one.train_steps(5, 7)
    assert first is second
    assert [images for images, _ in first] == [[0, 1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_ranks_share_the_images_and_their_weights(accumulate: int) -> None:
    """The mean over ranks of the sum of weight * mean is the mean over the step."""
    for world_size in (1, 2, 3):
        ranks = [
            data(rank=rank, world_size=world_size, accumulate=accumulate)
            for rank in range(world_size)
        ]
        batches = [batch for rank in ranks for batch in rank.batches]
        assert sorted(i for images, _ in batches for i in images) == list(range(7))
        mean = sum(weight * sum(images) / len(images) for images, weight in batches) / world_size
        assert mean == pytest.approx(3.0)


def test_virtual_ranks_are_shared_out_in_runs() -> None:
    expected = data(virtual_ranks=4).batches
    assert [images for images, _ in expected] == [[0, 1], [2, 3], [4, 5], [6]]
    shares = [data(virtual_ranks=4, rank=rank, world_size=2).batches for rank in range(2)]
    assert shares[0] + shares[1] == expected
    assert sum(weight for _, weight in expected) == pytest.approx(4)
