"""Write the report of a run, of two runs side by side, or of a sweep, as one HTML file.

    python -m retina_dist.report run=runs/shapes
    python -m retina_dist.report run=runs/shapes other=runs/shapes-2 output=both.html
    retina-dist compare runs/shapes runs/shapes-2
    retina-dist compare runs/shapes results.json annotations=instances_val.json

`compare` prints each metric of both and which is better; COCO results of any tool may be one of
them, or both. A training writes report.html into its run folder, and evaluate into its output_dir.
The file needs `pip install "retina-dist[analysis]"`.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from retina_dist.config.entry_point import entry_point
from retina_dist.reporting.run_files import RunFiles
from retina_dist.reporting.run_report import print_comparison, write_report
from retina_dist.reporting.sweep_table import TABLE, write_sweep_report
from retina_dist.task.settings import EvaluateConfig, ReportConfig


@entry_point("report", ReportConfig)
def main(config: ReportConfig) -> None:
    """Write it and print where."""
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
    with TemporaryDirectory() as folder:
        first = _evaluated(run, annotations, Path(folder) / "first")
        second = _evaluated(other, annotations, Path(folder) / "second")
        print_comparison(first, second, output)


def _evaluated(result: Path, annotations: str | None, folder: Path) -> RunFiles:
    """The files of a run; of a COCO results json those of its evaluation, written to `folder`."""
    if not result.is_file() or result.suffix == ".pt":
        return RunFiles(result)
    from retina_dist.task.predictor import command_of

    config = EvaluateConfig(results=str(result), annotations=annotations, output_dir=str(folder))
    command_of(config, "evaluate")(config)
    return RunFiles(folder, result)


if __name__ == "__main__":
    main()
