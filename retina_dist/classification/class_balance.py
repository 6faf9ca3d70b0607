"""Classes drawn equally often (`data.balanced`), in place of class weights in the loss."""

from __future__ import annotations

import math

import numpy as np

from retina_dist.base.seeding import derived_seed


def class_balanced_order(labels: np.ndarray, seed: int, epoch: int) -> np.ndarray:
    """[N] the image at each place of an epoch, for `labels` [N].

    The classes take turns, and the images of each class come in shuffled rounds.
    """
    images = np.empty(len(labels), np.int64)
    present = np.unique(labels).tolist()
    for turn, label in enumerate(present):
        members = np.flatnonzero(labels == label)
        places = np.arange(turn, len(labels), len(present))
        rng = np.random.default_rng(derived_seed(seed, "balanced", epoch, label))
        num_rounds = math.ceil(len(places) / len(members))
        rounds = [rng.permutation(members) for _ in range(num_rounds)]
        images[places] = np.concatenate(rounds)[: len(places)]
    return images
