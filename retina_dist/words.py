"""Numbers in sentences. Layer 0."""

from __future__ import annotations


def counted(number: int | str, noun: str, none: str = "0") -> str:
    """A number, or one already written out, with its noun in the singular or plural; `none` stands for a zero.

    >>> counted(1, "image"), counted(2, "box"), counted("1.5", "epoch"), counted(0, "error", none="no")
    ('1 image', '2 boxes', '1.5 epochs', 'no errors')
    """
    ending = "" if str(number) == "1" else "es" if noun.endswith(("s", "x")) else "s"
    return f"{number or none} {noun}{ending}"
