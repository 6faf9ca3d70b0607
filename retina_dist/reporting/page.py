"""One self-contained HTML page of charts by plotly; needs `retina-dist[analysis]`.

plotly's JavaScript is in the page, compressed; the page loads nothing, and forbids the browser to.
"""

import base64
import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from importlib import resources
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

from retina_dist.base.errors import ConfigError
from retina_dist.base.files import write_text
from retina_dist.base.text import format_duration

# Distinct with any colour vision, on white and on black; after Okabe and Ito.
COLORS = (
    "#2f80c3",
    "#d9661f",
    "#189a76",
    "#bf6b9a",
    "#b98900",
    "#4aa5d6",
    "#8668bd",
    "#9b6a55",
    "#75858b",
    "#7f9a1e",
)
REPORT = "report.html"
INSTALL = 'pip install "retina-dist[analysis]"'


@dataclass(frozen=True)
class Chart:
    """A plotly figure: title, traces, what differs from the page's layout, height in px."""

    title: str
    data: Sequence[Mapping[str, object]]
    layout: Mapping[str, object] = field(default_factory=dict)
    height: int = 320
    wide: bool = False


def missing_packages() -> str:
    """The missing packages that a page needs, joined by "and"; "" if none."""
    return " and ".join(name for name in ("plotly", "jinja2") if find_spec(name) is None)


def page_if_possible(write: Callable[[], Path], run: Path | None = None) -> str:
    """A line: where `write` wrote a report, or what it lacks and how to write it then."""
    lacking = missing_packages()
    if not lacking:
        return f"report: {write()}"
    again = f", then python -m retina_dist.report run={run}" if run else ""
    return f"no report, as {lacking} is not installed: {INSTALL}{again}"


def write_page(
    out: Path, title: str, charts: Mapping[str, Sequence[Chart]], **content: object
) -> Path:
    """Write the page `out` of `charts`, by section, and what else page.html shows.

    Raises ConfigError without the extra.
    """
    lacking = missing_packages()
    if lacking:
        raise ConfigError(f"a report needs {lacking}; run {INSTALL}.")

    drawn = chain.from_iterable(charts.values())
    figures = [{"data": chart.data, "layout": chart.layout} for chart in drawn]
    text = json.dumps(figures, separators=(",", ":"), allow_nan=False)
    content["figures"] = escape(text, quote=False)  # plotly reads names as markup
    content["plotly"] = _plotly() if figures else ""
    html = _template().render(content, title=title, charts=charts)
    write_text(out, html, errors="backslashreplace")
    return out


@cache
def _template() -> Any:
    import jinja2

    pages = jinja2.Environment(
        loader=jinja2.PackageLoader("retina_dist.reporting", ""),
        autoescape=True,
        undefined=jinja2.ChainableUndefined,
        trim_blocks=True,
    )
    pages.filters |= {"number": format_number, "duration": format_duration}
    pages.globals |= {"colors": json.dumps(COLORS), "install": INSTALL}
    return pages.get_template("page.html")


@cache
def _plotly() -> str:
    """plotly's JavaScript, compressed, as text."""
    script = resources.files("plotly").joinpath("package_data/plotly.min.js").read_bytes()
    return base64.b64encode(gzip.compress(script, 6, mtime=0)).decode()


def format_number(value: object) -> str:
    """Four digits of a large number, three places of a small one, a dash for None.

    >>> format_number(1234.56), format_number(0.5), format_number(None)
    ('1235', '0.500', '-')
    """
    if not isinstance(value, int | float):
        return "-"
    if abs(value) >= 10:
        return f"{value:.4g}"
    return f"{value:.3f}"
