"""How much each class counts in the loss of a training."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches

import numpy as np
import numpy.typing as npt

from retina_dist.base.errors import ConfigError
from retina_dist.base.text import truncate

MAX_BALANCED = 10.0  # a class with few examples would else outweigh all others


def balanced_weights(counts: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """[K] weights by inverse frequency, from the examples of each class.

    The weight of a class with n of N examples is N / (C n), for C classes with examples, as
    scikit-learn's "balanced" says, but at most `MAX_BALANCED`; then all are scaled, so that the
    mean over the examples is 1. A class without examples has 1.

    >>> balanced_weights([6, 2, 0]).round(3).tolist()
    [0.667, 2.0, 1.0]
    """
    examples = np.asarray(counts, np.float64)
    present = examples > 0
    weights = np.ones(len(examples))
    if not present.any():
        return weights
    found = examples[present]
    balanced = np.minimum(found.sum() / (len(found) * found), MAX_BALANCED)
    weights[present] = balanced / np.average(balanced, weights=found)
    return weights


def class_weights(
    given: Mapping[str, float] | str, names: Sequence[str], counts: npt.ArrayLike
) -> npt.NDArray[np.float64]:
    """[K] the weight of each class, as `data.class_weights` gives it.

    Args:
        given: "auto" for `balanced_weights`, or weights by name; a class that is not named has 1.
        names: the name of each class, "" for a label without one.
        counts: [K] the examples of each class.

    Raises ConfigError for the name of no class.
    """
    if isinstance(given, str):
        return balanced_weights(counts)
    weights = np.ones(len(names))
    known = list(filter(None, names))
    for name, weight in given.items():
        if name not in known:
            hint = "name one of them."
            for near in get_close_matches(name, known, 1):
                hint = f"did you mean {near}?"
            raise ConfigError(
                f"data.class_weights.{name}={weight:g} is for none of the classes "
                f"{truncate(known, 20)}; {hint}"
            )
        weights[np.array(names) == name] = weight
    return weights
