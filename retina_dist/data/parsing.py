"""Text, numbers and tables out of annotation files; an error names the file and what is wrong in
it.
"""

import cmath
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

from retina_dist.base.errors import ConfigError, DataError, UserError, first_line
from retina_dist.base.files import PathOrUrl, open_regular, read_bytes
from retina_dist.base.text import escape, parse_number, rows_of

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

LFS = b"version https://git-lfs"  # how its pointers begin, https://git-lfs.com

# what a column is -> its names, in small letters without spaces, hyphens and underscores
ALIASES = rows_of("""
file: filename file image imagename imageid imagepath filepath path img name externalid id
class: class label classname labelname category categoryname name target species labels breed \
diagnosis dx
x1: xmin x1 left xtl topleftx
y1: ymin y1 top ytl toplefty
x2: xmax x2 right xbr bottomrightx
y2: ymax y2 bottom ybr bottomrighty
x: x bboxx boxx
y: y bboxy boxy
w: w boxwidth bboxwidth bboxw
h: h boxheight bboxheight bboxh
width: width imagewidth imgwidth
height: height imageheight imgheight
bbox: bbox box boundingbox
split: split subset set isvalid
""")


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
    except (OSError, *DAMAGED) as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        if isinstance(error, LookupError):
            reason = f"{type(error).__name__}: {error}"
        if isinstance(error, KeyError):
            remedy = f"add {error}"
        if isinstance(error, UnicodeDecodeError):
            remedy = "save it in UTF-8"
        if isinstance(path, Path) and _is_lfs_pointer(path):
            remedy = "git lfs pull replaces a pointer of Git LFS"
        raise DataError(
            f"{escape(path)} cannot be read as {form} ({escape(reason, 200)}); {remedy}."
        ) from error


def _is_lfs_pointer(path: Path) -> bool:
    """Whether Git LFS has left its pointer in the file's place."""
    try:
        with open_regular(path) as file:
            return file.read(len(LFS)) == LFS
    except (OSError, ValueError):  # a path that no file can have, such as one with NUL
        return False


def _absence(path: object) -> str:
    """A link that leads nowhere is listed, so its user sees a file there."""
    if isinstance(path, Path) and path.is_symlink():
        return f"is a link to {escape(os.readlink(path))}, which does not exist"
    return "does not exist"


def read_text(path: PathOrUrl) -> str:
    """A text file in UTF-8, with or without a byte-order mark. Raises DataError."""
    with reading(path, "text in UTF-8"):
        return read_bytes(path).decode("utf-8-sig")


def parse_xml(path: PathOrUrl, tag: str) -> ElementTree.Element:
    """The root element of an XML file, which must be a `tag`. Raises DataError."""
    with reading(path, "an annotation", "restore the file, with &amp; for &"):
        root = ElementTree.fromstring(read_bytes(path))
    if root.tag != tag:
        found = escape(repr(root.tag), 80)
        raise DataError(f"{path} has the root element {found}, not {tag!r}; restore the file.")
    return root


def parse_json(path: PathOrUrl, form: str) -> Any:
    """The content of a JSON file; `form` as for `reading`. Raises DataError."""
    with reading(path, form):
        return json.loads(read_bytes(path))


def csv_rows(path: PathOrUrl, missing: str = "") -> Iterator[tuple[int, list[str]]]:
    """The number and the cells of each line of a CSV that is not empty. Raises DataError."""
    with reading(path, "CSV", missing=missing):
        text = read_bytes(path).decode("utf-8-sig")
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter_of(text))
        for row in reader:
            if row:
                yield reader.line_num, row


def csv_cells(path: PathOrUrl, needed: Sequence[str] = ()) -> Iterator[tuple[int, dict[str, str]]]:
    """The number of each line below the header, and its cells by the names of the columns.

    Raises DataError, also for a header that lacks one of the `needed` columns.
    """
    rows = csv_rows(path)
    _, header = next(rows, (1, []))
    for column in needed:
        if column not in header:
            raise DataError(f"{path}: line 1 lacks the column {column}; restore the file.")
    for line, row in rows:
        yield line, dict(zip(header, row, strict=False))


def _named_columns(given: Sequence[str]) -> dict[str, str]:
    """The names of columns that data.columns gives. Raises ConfigError for an unknown column."""
    named = {}
    for text in given:
        column, _, name = text.partition(":")
        if column not in ALIASES:
            remedy = f"write COLUMN:NAME with one of {', '.join(ALIASES)}"
            if name in ALIASES:
                remedy = f"write {name}:{column}"
            raise ConfigError(f"data.columns has {text!r}; {remedy}.")
        named[column] = name
    return named


def columns_of(header: Sequence[str], given: Sequence[str] | None = None) -> dict[str, int]:
    """The number of each column that is known by its name, or by the one that `given` says, as
    "class:kind".
    """
    names_given = _named_columns(given or ())
    plain = list(map(_plain, header))
    found: dict[str, int] = {}
    for column, names in ALIASES.items():
        wanted = names.split()
        if column in names_given:
            wanted = [_plain(names_given[column])]
        for name in wanted:
            if name in plain and plain.index(name) not in found.values():
                found[column] = plain.index(name)
                break
    if "x" in found and "w" not in found and "x1" not in found and "width" in found:
        # then the sides are those of the box
        found |= {"w": found.pop("width"), "h": found.pop("height")}
    return found


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


def delimiter_of(text: str) -> str:
    """What separates the cells of a table, by its first line: a comma unless tabs or semicolons
    are more.
    """
    line = text.lstrip().partition("\n")[0]
    return max(",\t;", key=line.count)


def json_lines(path: PathOrUrl, form: str) -> Iterator[tuple[int, Any]]:
    """The number and the object of each line of a file of JSON lines. Raises DataError."""
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if line.strip():
            with reading(f"{path}:{number}", form):
                yield number, json.loads(line)


def number_in(text: str | None, where: object, what: str) -> float:
    """A finite decimal number. DataError otherwise: `where` it stands and `what` belongs there."""
    value = parse_number(text or "")
    if not math.isfinite(value):
        given = (text or "")[:80]
        remedy = "correct or remove it"
        if math.isfinite(parse_number(given.replace(",", "."))):
            remedy = "write a point for the comma"
        raise DataError(f"{where} has {what} {given!r}, not a number; {remedy}.")
    return value


def numbers_in(texts: Sequence[str], where: object, what: str) -> list[float]:
    """Several of them."""
    return [number_in(text, where, what) for text in texts]


def turned_bounds(
    corners: Sequence[float], degrees: float, about: tuple[float, float]
) -> list[float]:
    """The bounding box of a box x1, y1, x2, y2 that is turned about a point."""
    x1, y1, x2, y2 = corners
    turn = cmath.rect(1, math.radians(degrees))
    centre = complex(*about)
    points = []
    for x, y in ((x1, y1), (x2, y1), (x1, y2), (x2, y2)):
        moved = (complex(x, y) - centre) * turn + centre
        points.append((moved.real, moved.imag))
    return bounds_of(points)


def bounds_of(points: Sequence[tuple[float, float]]) -> list[float]:
    """The bounding box x1, y1, x2, y2 of points (x, y)."""
    xs, ys = zip(*points, strict=True)
    return [min(xs), min(ys), max(xs), max(ys)]
