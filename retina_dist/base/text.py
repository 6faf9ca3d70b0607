"""Numbers and names in messages; text from files, made safe to print."""

import math
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*", re.ASCII | re.IGNORECASE)
# Controls (C0, C1), line separators, marks that turn the direction of writing, and halves of a
# character (JSON's "\ud800").
UNSHOWABLE = re.compile(r"[\0-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def rows_of(table: str, separator: str = ": ") -> dict[str, str]:
    """The texts of a table, one a line, by what stands before the separator.

    >>> rows_of("a: b" + chr(10) + "c: d: e")
    {'a': 'b', 'c': 'd: e'}
    """
    return dict(line.split(separator, 1) for line in table.strip().splitlines())


def is_text(value: object) -> bool:
    """Not empty, and without what a terminal acts on or no file can hold."""
    return isinstance(value, str) and value != "" and UNSHOWABLE.search(value) is None


def escape(text: object, most: int | None = None) -> str:
    """Text that others wrote, with control characters written out as Python does.

    >>> escape("a\\x1b[2J"), escape("one\\ntwo three", 7)
    ('a\\\\x1b[2J', 'one tw…')
    """
    text = str(text)
    if most is not None:
        if len(text) > most:
            text = f"{text[: most - 1]}…"
        text = " ".join(text.split())
    return UNSHOWABLE.sub(lambda match: repr(match[0])[1:-1], text)


def truncate(names: Sequence[object], most: int = 5) -> str:
    """The first `most` of many names, escaped.

    >>> truncate(["a", "b"]), truncate(["a", "b"], most=1)
    ('a, b', 'a, …')
    """
    return ", ".join(escape(name, 80) for name in names[:most]) + (
        ", …" if len(names) > most else ""
    )


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """A line of each row, with its columns below each other."""
    widths = [max(map(len, column)) + 2 for column in zip(*rows, strict=True)]
    return ["".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def parse_number(text: str) -> float:
    """The decimal number in a text; NaN for anything else, such as "1_0", which `float` takes."""
    if NUMBER.fullmatch(text):
        return float(text)
    return math.nan


def pluralize(number: int | str, noun: str, none: str = "0") -> str:
    """A number with its noun in the singular or plural; `none` replaces a zero.

    >>> pluralize(1, "image"), pluralize(2, "box"), pluralize(0, "error", none="no")
    ('1 image', '2 boxes', 'no errors')
    """
    ending = "s"
    if noun.endswith(("s", "x")):
        ending = "es"
    if str(number) == "1":
        ending = ""
    return f"{number or none} {noun}{ending}"


def name_of_run(folder: Path) -> str:
    """The name of a run's folder; of a sweep's job with that of the sweep."""
    if folder.name.isdecimal():
        return "/".join(folder.parts[-2:])
    return folder.name


def as_override(key: str, value: object) -> str:
    """KEY=VALUE as a shell and Hydra take it, quoted where it must be.

    >>> print(as_override("resume", "runs/bccd"), as_override("resume", "my runs/a=1"))
    resume=runs/bccd 'resume="my runs/a=1"'
    """
    text = str(value)
    if re.fullmatch(r"[\w./:@%+-]+", text, re.ASCII):
        return f"{key}={text}"
    quoted = text.replace('"', '\\"')
    return shlex.quote(f'{key}="{quoted}"')


def format_ranks(ranks: Iterable[int]) -> str:
    """The first eight ranks, and how many more there are.

    >>> format_ranks([3]), format_ranks(range(10))
    ('rank 3', 'ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more')
    """
    ranks = list(ranks)
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    listed = f"ranks {', '.join(map(str, ranks[:8]))}"
    if len(ranks) > 8:
        listed += f" and {len(ranks) - 8} more"
    return listed


def format_bytes(size: float) -> str:
    """Bytes in MiB or GiB.

    >>> format_bytes(3 * 2**20), format_bytes(2**31)
    ('3.0 MiB', '2.0 GiB')
    """
    if size >= 2**30:
        return f"{size / 2**30:.1f} GiB"
    return f"{size / 2**20:.1f} MiB"


def format_duration(seconds: float) -> str:
    """Hours, minutes and seconds.

    >>> format_duration(3723.4), format_duration(59.6), format_duration(90061)
    ('1:02:03', '1:00', '25:01:01')
    """
    minutes, second = divmod(round(seconds), 60)
    hour, minute = divmod(minutes, 60)
    if hour:
        return f"{hour}:{minute:02}:{second:02}"
    return f"{minute}:{second:02}"
