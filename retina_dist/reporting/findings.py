"""A doctor's report: findings with their remedies, and facts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from retina_dist.base.text import escape, pluralize

Level = Literal["error", "warning", "info"]
TITLES: dict[Level, str] = {"error": "ERRORS", "warning": "WARNINGS", "info": "INFO"}
NUM_EXAMPLES = 3
MOST_ALIKE = 8  # findings with one remedy that are printed


@dataclass(frozen=True)
class Finding:
    """One kind of trouble: in which split or check, what, what to do, how often, and examples (all that have names)."""

    level: Level
    where: str
    what: str
    remedy: str = ""
    count: int | None = None
    examples: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        """What it is, and its first examples."""
        yield self.what if self.count is None else f"{self.what}: {self.count}"
        yield from (f"  {escape(example)}" for example in self.examples[:NUM_EXAMPLES])
        if (more := len(self.examples) - NUM_EXAMPLES) > 0:
            yield f"  ... and {more} more"


@dataclass(frozen=True)
class DoctorReport:
    """The report of a doctor: lines of facts, findings, and `details`, which only the JSON file has."""

    facts: Sequence[str]
    findings: Sequence[Finding]
    details: Mapping[str, Any] = field(default_factory=dict)

    def count(self, level: Level) -> int:
        """Kinds of findings, not occurrences; a doctor exits with 1 if there are errors."""
        return sum(finding.level == level for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """For JSON, with every example."""
        counts = {title.lower(): self.count(level) for level, title in TITLES.items()}
        findings = sorted(
            map(asdict, self.findings), key=lambda finding: list(TITLES).index(finding["level"])
        )
        return {**counts, "findings": findings, **self.details}

    def text(self) -> str:
        """For a terminal: the facts, the findings by level, and whether to train."""
        errors, warnings = (
            pluralize(self.count(level), level, none="no") for level in ("error", "warning")
        )
        verdict = (
            "fit to train on; look at the warnings first."
            if self.count("warning")
            else "fit to train on."
        )
        verdict = "fix the errors before you train." if self.count("error") else verdict
        lines = [
            *self.facts,
            *_by_level(self.findings),
            "",
            f"{errors}, {warnings}: {verdict}".capitalize(),
        ]
        return "\n".join(lines)


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
            lines = [line for finding in group[:MOST_ALIKE] for line in finding.lines()]
            if (more := len(group) - MOST_ALIKE) > 0:
                lines.append(f"and {more} more; output=FILE.json has all")
            if remedy:
                lines.append(f"-> {remedy}")
            yield from (
                f"  {where if i == 0 else '':<{width}}{line}" for i, line in enumerate(lines)
            )
