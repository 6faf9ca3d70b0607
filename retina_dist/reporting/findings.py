"""A doctor's report: findings with their remedies, and facts."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from retina_dist.base.console import print_redacted
from retina_dist.base.files import write_json
from retina_dist.base.redaction import redacted_tree
from retina_dist.base.text import escape, pluralize

Level = Literal["error", "warning", "info"]
TITLES: dict[Level, str] = {"error": "ERRORS", "warning": "WARNINGS", "info": "INFO"}
NUM_EXAMPLES = 3
MAX_ALIKE = 8  # findings with one remedy that are printed


@dataclass(frozen=True)
class Finding:
    """One kind of trouble: where, what, what to do, how often, and all examples with names."""

    level: Level
    where: str
    what: str
    remedy: str = ""
    count: int | None = None
    examples: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        """What it is, and its first examples."""
        yield self.what if self.count is None else f"{self.what}: {self.count}"
        for example in self.examples[:NUM_EXAMPLES]:
            yield f"  {escape(example)}"
        more = len(self.examples) - NUM_EXAMPLES
        if more > 0:
            yield f"  ... and {more} more"


def listed(
    level: Level, where: str, what: str, examples: Sequence[str], remedy: str
) -> list[Finding]:
    """The finding that has these examples; none without any."""
    if not examples:
        return []
    return [Finding(level, where, what, remedy, len(examples), tuple(examples))]


@dataclass(frozen=True)
class DoctorReport:
    """The report of a doctor: facts, findings, and `details`, which only the JSON file has."""

    facts: Sequence[str]
    findings: Sequence[Finding]
    details: Mapping[str, object] = field(default_factory=dict)

    def count(self, level: Level) -> int:
        """Kinds of findings, not occurrences; a doctor exits with 1 if there are errors."""
        return sum(finding.level == level for finding in self.findings)

    def to_dict(self) -> dict[str, object]:
        """For JSON, with every example."""
        counts = {title.lower(): self.count(level) for level, title in TITLES.items()}
        findings = []
        for level in TITLES:
            findings += [asdict(each) for each in self.findings if each.level == level]
        return {**counts, "findings": findings, **self.details}

    def text(self) -> str:
        """For a terminal: the facts, the findings by level, and whether to train."""
        verdict = "fit to train on."
        if self.count("warning"):
            verdict = "fit to train on; look at the warnings first."
        if self.count("error"):
            verdict = "fix the errors before you train."
        errors = pluralize(self.count("error"), "error", none="no")
        warnings = pluralize(self.count("warning"), "warning", none="no")
        summary = f"{errors}, {warnings}: {verdict}".capitalize()
        return "\n".join([*self.facts, *_by_level(self.findings), "", summary])

    def show(self, output: str | None) -> None:
        """Print the text, and write the dictionary into the JSON file `output`."""
        print_redacted(self.text())
        if output:
            write_json(Path(output), redacted_tree(self.to_dict()))


def _by_level(findings: Sequence[Finding]) -> Iterator[str]:
    """Lines of the findings by level; findings of one place with the same remedy share it."""
    width = max((len(finding.where) for finding in findings), default=0) + 2
    for level, title in TITLES.items():
        alike: dict[tuple[str, str], list[Finding]] = defaultdict(list)
        for finding in findings:
            if finding.level == level:
                alike[finding.where, finding.remedy].append(finding)
        if alike:
            yield from ("", title)
        for (where, remedy), group in alike.items():
            lines: list[str] = []
            for finding in group[:MAX_ALIKE]:
                lines += finding.lines()
            more = len(group) - MAX_ALIKE
            if more > 0:
                lines.append(f"and {more} more; output=FILE.json has all")
            if remedy:
                lines.append(f"-> {remedy}")
            yield f"  {where:<{width}}{lines[0]}"
            for line in lines[1:]:
                yield f"  {'':<{width}}{line}"
