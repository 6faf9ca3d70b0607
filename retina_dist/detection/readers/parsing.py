"""Text, numbers and tables out of annotation files; an error names the file and what is wrong in
it.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from retina_dist.base.errors import DataError, UserError, first_line
from retina_dist.base.files import PathOrUrl, open_regular, read_bytes
from retina_dist.base.text import escape, parse_number
from retina_dist.data.images import SUFFIXES

# of image files
ENDINGS = [case for suffix in sorted(SUFFIXES) for case in (suffix, suffix.upper())]
# what parsers and the look into their results raise; LookupError is of an unknown encoding too
DAMAGED = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
    csv.Error,
    ElementTree.ParseError,
)


@contextmanager
def reading(
    path: object, form: str, remedy: str = "restore the file", missing: str = ""
) -> Iterator[None]:
    """Within it, an error that a damaged or absent file causes is a DataError.

    Args:
        path: the file, which the sentence names.
        form: what it cannot be read as.
        remedy: what to do about a damaged file.
        missing: what to do about one that does not exist; by default `remedy`.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise DataError(f"{escape(path)} {_absence(path)}; {missing or remedy}.") from error
    except UserError:
        raise
    except OSError as error:
        reason = error.strerror or first_line(error)
        raise DataError(f"{escape(path)} cannot be read as {form} ({reason}); {remedy}.") from error
    except DAMAGED as error:
        reason = first_line(error)
        if isinstance(error, LookupError):
            reason = f"{type(error).__name__}: {error}"
        problem = f"cannot be read as {form} ({escape(reason, 200)})"
        raise DataError(f"{escape(path)} {problem}; {remedy}.") from error


def _absence(path: object) -> str:
    """A link that leads nowhere is listed, so its user sees a file there."""
    if isinstance(path, Path) and path.is_symlink():
        return f"is a link to {escape(os.readlink(path))}, which does not exist"
    return "does not exist"


def read_text(path: PathOrUrl) -> str:
    """A text file in UTF-8, with or without a byte-order mark. Raises DataError."""
    with reading(path, "text in UTF-8", "restore the file, or save it in UTF-8"):
        return read_bytes(path).decode("utf-8-sig")


def head_of(path: Path) -> bytes:
    """The first bytes of a file, by which formats of one ending are told apart.
    Raises DataError.
    """
    with reading(path, "an annotation", "restore or remove it"), open_regular(path) as file:
        return file.read(4096)


def parse_xml(path: Path, tag: str) -> ElementTree.Element:
    """The root element of an XML file, which must be a `tag`. Raises DataError."""
    with reading(path, "an annotation"):
        root = ElementTree.fromstring(read_bytes(path))
    if root.tag != tag:
        found = escape(repr(root.tag), 80)
        raise DataError(f"{path} has the root element {found}, not {tag!r}; restore the file.")
    return root


def parse_json(path: PathOrUrl, form: str, remedy: str = "restore the file", **words: str) -> Any:
    """The content of a JSON file; `form`, `remedy` and `missing` as for `reading`. Raises
    DataError.
    """
    with reading(path, form, remedy, **words):
        return json.loads(read_bytes(path))


def csv_rows(path: PathOrUrl, missing: str = "") -> Iterator[tuple[int, list[str]]]:
    """The number and the cells of each line of a CSV that is not empty. Raises DataError."""
    with reading(path, "CSV", missing=missing):
        text = read_bytes(path).decode("utf-8-sig")
        reader = csv.reader(io.StringIO(text, newline=""))
        for row in reader:
            if row:
                yield reader.line_num, row


def number_in(text: str | None, where: object, what: str) -> float:
    """A finite decimal number. DataError otherwise: `where` it stands and `what` belongs there."""
    value = parse_number(text or "")
    if not math.isfinite(value):
        given = (text or "")[:80]
        raise DataError(f"{where} has {what} {given!r}, not a number; correct or remove it.")
    return value


def numbers_in(texts: Sequence[str], where: object, what: str) -> list[float]:
    """Several of them."""
    return [number_in(text, where, what) for text in texts]


def bounds_of(points: Sequence[tuple[float, float]]) -> list[float]:
    """The bounding box x1, y1, x2, y2 of points (x, y)."""
    xs = [x for x, _ in points]
    ys = [y for _, y in points]
    return [min(xs), min(ys), max(xs), max(ys)]
