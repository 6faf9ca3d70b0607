"""Numbers in sentences and in text files, and text that may be shown."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*", re.ASCII | re.IGNORECASE)
# Controls (C0, C1), line separators, marks that turn the direction of writing, and halves of a character (JSON's "\ud800").
UNSHOWABLE = re.compile(r"[\0-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def is_text(value: object) -> bool:
    """Not empty, and without what a terminal acts on or no file can hold."""
    return isinstance(value, str) and value != "" and UNSHOWABLE.search(value) is None


def showable(text: object) -> str:
    """Text that others wrote, with what a terminal acts on written out, as Python does.

    >>> showable("a\\x1b[2J")
    'a\\\\x1b[2J'
    """
    return UNSHOWABLE.sub(lambda found: repr(found[0])[1:-1], str(text))


def number(text: str) -> float:
    """The decimal number that a text file holds; NaN for anything else, such as the "1_0" and "nan" that `float` takes."""
    return float(text) if NUMBER.fullmatch(text) else math.nan


def pluralize(number: int | str, noun: str, none: str = "0") -> str:
    """A number, or one already written out, with its noun in the singular or plural; `none` replaces a zero.

    >>> pluralize(1, "image"), pluralize(2, "box"), pluralize("1.5", "epoch"), pluralize(0, "error", none="no")
    ('1 image', '2 boxes', '1.5 epochs', 'no errors')
    """
    ending = "" if str(number) == "1" else "es" if noun.endswith(("s", "x")) else "s"
    return f"{number or none} {noun}{ending}"


def ranks_in_words(ranks: Iterable[int]) -> str:
    """The first eight ranks, and how many more there are.

    >>> ranks_in_words([3]), ranks_in_words(range(10))
    ('rank 3', 'ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more')
    """
    found = list(ranks)
    shown = ", ".join(map(str, found[:8])) + (f" and {len(found) - 8} more" if len(found) > 8 else "")
    return f"rank{'s' * (len(found) > 1)} {shown}"


def amount(size: float) -> str:
    """Bytes in MiB or GiB.

    >>> amount(3 * 2**20), amount(2**31)
    ('3.0 MiB', '2.0 GiB')
    """
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
