"""Write the report of a run, of two runs side by side, or of a sweep, as one HTML file.

    python -m retina_dist.report run=runs/shapes
    python -m retina_dist.report run=runs/shapes other=runs/shapes-2 output=both.html
    retina-dist compare runs/shapes runs/shapes-2
    retina-dist compare runs/shapes results.json annotations=instances_val.json

`compare` prints each metric of both and which is better; COCO results of any tool may be one of
them, or both. A training writes report.html into its run folder, and evaluate into its output_dir.
The file needs `pip install "retina-dist[analysis]"`.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from retina_dist.base.errors import ConfigError
from retina_dist.base.settings import MISSING, setting
from retina_dist.config.entry_point import entry_point
from retina_dist.reporting.page import page_if_possible
from retina_dist.reporting.run_files import RunFiles
from retina_dist.reporting.run_report import (
    conclude,
    describe_equality,
    table_of,
    tell_apart,
    why_not_comparable,
    write_comparison,
    write_report,
)
from retina_dist.reporting.sweep_table import TABLE, write_sweep_report


@dataclass
class ReportConfig:
    """`python -m retina_dist.report`."""

    run: str = setting(MISSING, "the folder of a run, an evaluation or a sweep")
    other: str | None = setting(
        None, "another run, beside it; each may also be a COCO results json"
    )
    annotations: str | None = setting(None, "the ground truth of COCO results, a json")
    output: str | None = setting(
        None, "null: report.html in `run`, compared_OTHER.html with `other`", writes="file"
    )
    debug: bool = False


@entry_point("report", ReportConfig)
def main(config: ReportConfig) -> None:
    """Write it and print where."""
    if config.output and not config.output.endswith(".html"):
        raise ConfigError(f"output={config.output} is not HTML, as a report is; give FILE.html.")
    if config.annotations and not config.other:
        raise ConfigError(
            f"annotations={config.annotations} is read where two results are compared; "
            "leave it out."
        )
    run = Path(config.run)
    output = Path(config.output) if config.output else None
    if config.other:
        compare(run, Path(config.other), config.annotations, output)
    elif (run / TABLE).is_file():
        print(write_sweep_report(run, output))
    else:
        print(write_report(run, output))


def compare(run: Path, other: Path, annotations: str | None, output: Path | None) -> None:
    """Print the metrics of two results, which is better, and where their report is."""
    if annotations and run.is_dir() and other.is_dir():
        raise ConfigError(
            f"annotations={annotations} is for a COCO results json, not for two folders; "
            "leave it out."
        )
    with TemporaryDirectory() as folder:
        first = _evaluated(run, annotations, Path(folder) / "first")
        second = _evaluated(other, annotations, Path(folder) / "second")
        if run.resolve() == other.resolve():
            raise ConfigError(f"other={other} is the run itself; give another to compare it with.")
        tell_apart(first, second)
        answer = f"{table_of(first, second)}\n\n{conclude(first, second)}"
        why = why_not_comparable(first, second)
        if why:
            answer = f"{why}\n\n{table_of(first, second)}"
        print(describe_equality(first, second) or answer, end="\n\n")
        print(page_if_possible(partial(write_comparison, first, second, output)))


def _evaluated(result: Path, annotations: str | None, folder: Path) -> RunFiles:
    """The files of a run; of a COCO results json those of its evaluation, written to `folder`."""
    if not result.is_file() or result.suffix == ".pt":
        return RunFiles(result)
    from retina_dist.detection.commands import evaluate_results

    evaluate_results(result, annotations, folder)
    return RunFiles(folder, result)


if __name__ == "__main__":
    main()
