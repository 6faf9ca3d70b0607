"""Write the report of a run, of two runs side by side, or of a sweep, as one HTML file.

    python -m retina_dist.report run=runs/shapes
    python -m retina_dist.report run=runs/shapes other=runs/shapes-2 output=both.html
    retina-dist compare runs/shapes runs/shapes-2

A training writes report.html into its run folder, and evaluate into its output_dir. Needs
`pip install "retina-dist[analysis]"`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from retina_dist.base.settings import MISSING, setting
from retina_dist.config.entry_point import entry_point
from retina_dist.reporting.run_report import write_report
from retina_dist.run.sweep import TABLE, write_sweep_report


@dataclass
class ReportConfig:
    """`python -m retina_dist.report`."""

    run: str = setting(MISSING, "the folder of a run, an evaluation or a sweep")
    other: str | None = setting(None, "another run, beside it")
    output: str | None = setting(
        None, "null: report.html in `run`, compared_OTHER.html with `other`", writes="file"
    )
    debug: bool = False


@entry_point("report", ReportConfig)
def main(config: ReportConfig) -> None:
    """Write it and print where."""
    run, other = Path(config.run), Path(config.other) if config.other else None
    output = Path(config.output) if config.output else None
    if (run / TABLE).is_file() and not other:
        print(write_sweep_report(run, output))
    else:
        print(write_report(run, other, output))


if __name__ == "__main__":
    main()
