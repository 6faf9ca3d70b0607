"""digest.csv: what a run did, as one row of SHA-256 a step, each chained to the row before it.

A row at a start has "start" as its `gradients`. Its `images` are of the training and validation
data, its `metrics` of the settings and its `loss` of the versions. Any other row belongs to an
optimizer step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path

from retina_dist.base.errors import DataError
from retina_dist.base.files import run_in
from retina_dist.tracking.loggers import read_rows

FILE = "digest.csv"
START = "start"


@dataclass(frozen=True)
class DigestRow:
    """A row; "" in a cell without a value.

    Args:
        step: The optimizer steps done.
        images: Of the ids of the step's images, in the order of ranks and micro-batches.
        loss: Of the losses and the gradient norm, without virtual ranks those of each rank.
        gradients: Of the gradients that the optimizer was given; "" where the step was skipped.
        metrics: Of the values that were logged after the step, without times.
        weights: Of the model and its average, where a checkpoint was written.
        optimizer: Of the optimizer's state, where a checkpoint was written.
        chain: Of the chain before and all other cells.
    """

    step: int
    images: str = ""
    loss: str = ""
    gradients: str = ""
    metrics: str = ""
    weights: str = ""
    optimizer: str = ""
    chain: str = ""

    @property
    def is_start(self) -> bool:
        """Whether it tells how a run started, or how a resume differs from the start."""
        return self.gradients == START

    def chained(self, before: str) -> DigestRow:
        """The row behind one whose chain is `before`, "" for none."""
        *cells, _ = astuple(self)
        return replace(self, chain=sha256_of(before, *cells))

    def differing(self, other: DigestRow, always: Sequence[str]) -> list[str]:
        """The columns but `chain` in which two rows differ.

        Those that are not in `always` are compared where both rows have a value.
        """
        found = []
        for column, mine, theirs in zip(COLUMNS[:-1], astuple(self), astuple(other), strict=False):
            if mine != theirs and (column in always or (mine and theirs)):
                found.append(column)
        return found


COLUMNS = [column.name for column in fields(DigestRow)]
OF_EACH_STEP = ("images", "loss", "gradients")  # others depend on how often a run logs and saves


def sha256_of(*values: object) -> str:
    """The SHA-256 of plain values, as Python writes them: all digits of a number."""
    return hashlib.sha256(repr(values).encode(errors="surrogateescape")).hexdigest()


def read_digests(folder: Path, *, check: bool = True) -> list[DigestRow]:
    """The rows of a run's digest.csv, without one that was cut short.

    Raises DataError where there is none, for another file, and, with `check`, for a row that does
    not follow from the one before it.
    """
    path = folder / FILE
    if not path.is_file():
        remedy = run_in(folder, "train with logging.digest=true to have one")
        raise DataError(f"{folder} has no {FILE}; {remedy}.")
    header, *lines = read_rows(path)
    if header != COLUMNS:
        raise DataError(f"{path}: its columns are not {','.join(COLUMNS)}; restore the file.")
    rows = [DigestRow(int(step), *cells) for step, *cells in lines]
    chain = ""
    for row in rows:
        if check and row != row.chained(chain):
            raise DataError(
                f"{path}: the row of step {row.step} does not follow from the rows before it; "
                "one of them was changed, added or removed."
            )
        chain = row.chain
    return rows
