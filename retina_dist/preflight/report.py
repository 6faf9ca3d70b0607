"""The check of a cluster as a table that is read once, and as JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from retina_dist.preflight.checks import Finding, first_of_hosts
from retina_dist.preflight.clock import offset
from retina_dist.preflight.facts import Facts
from retina_dist.preflight.network import Link
from retina_dist.preflight.speed_checks import slowest
from retina_dist.text import format_bytes, pluralize

TITLES = {"error": "ERRORS", "warning": "WARNINGS"}
MOST_HOSTS = 64  # rows on the screen
MOST_ALIKE = 8  # findings with one remedy


@dataclass(frozen=True)
class ClusterReport:
    """What the main rank knows when all is gathered."""

    job: str  # strategy and launcher, in words
    ranks: Sequence[Facts]
    links: Sequence[Link]
    findings: Sequence[Finding]
    seconds: float

    @property
    def errors(self) -> int:
        """How many findings are errors."""
        return sum(finding.level == "error" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """For JSON, with every fact of every rank."""
        count = len(self.ranks)
        return {
            "job": self.job,
            "errors": self.errors,
            "warnings": len(self.findings) - self.errors,
            "findings": [asdict(finding) for finding in self.findings],
            "all_reduce": [{**link._asdict(), "gb_s": link.gb_s(count)} for link in self.links],
            "clock": {f.host: offset(self.ranks[0].clock, f.clock)._asdict() for f in self._others()},
            "seconds": round(self.seconds, 1),
            "ranks": [{key: value for key, value in asdict(facts).items() if key != "clock"} for facts in self.ranks],
        }

    def _others(self) -> list[Facts]:
        return first_of_hosts(self.ranks)[1:]

    def text(self) -> str:
        """For a terminal."""
        return f"{self.machines()}\n\n{self.network()}"

    def machines(self) -> str:
        """All but the network; what is wrong comes last, where the reader is."""
        hosts = first_of_hosts(self.ranks)
        lines = [f"{self.job}, {pluralize(len(hosts), 'host')}", "", *self._hosts(hosts[:MOST_HOSTS])]
        if (more := len(hosts) - MOST_HOSTS) > 0:
            lines.append(f"  ... and {pluralize(more, 'more host')}; output=FILE.json has all")
        lines += [
            "",
            "Versions on the main rank: " + ", ".join(f"{k} {v or '?'}" for k, v in self.ranks[0].versions.items()),
        ]
        lines += [f"Data: {file}: {found}" for file, found in self.ranks[0].data.items()] or [
            "Data: no file to compare"
        ]
        worst, ratio = slowest(self.ranks)
        if worst:
            who = f"slowest is rank {worst.rank} on {worst.host}"
            lines.append(f"Step of computation: {who}, {worst.step_ms:.1f} ms, {ratio:.2f} times the median")
        return "\n".join([*lines, *_in_lines([finding for finding in self.findings if finding.check != "network"])])

    def network(self) -> str:
        """The network, and how many errors and warnings there are in all."""
        found = _in_lines([finding for finding in self.findings if finding.check == "network"])
        return "\n".join([*self._network(), *found, "", self._verdict()])

    def _hosts(self, hosts: Sequence[Facts]) -> Iterator[str]:
        width = max(4, *(len(facts.host) for facts in hosts))
        titles = f"{'/dev/shm':>10}{'disk free':>11}{'files':>9}{'step':>10}{'clock':>20}"
        yield f"  {'host':<{width}}  {'ranks':<15}{'device':<34}{titles}"
        for facts in hosts:
            mine = [other for other in self.ranks if other.machine == facts.machine]
            numbers = _numbers([other.rank for other in mine])
            device = f"{len(mine)} x {facts.gpu or 'CPU'}" + (f", {facts.memory_gib:g} GiB" if facts.memory_gib else "")
            steps = [other.step_ms for other in mine if other.step_ms]
            clock = "reference"
            if facts.machine != self.ranks[0].machine:
                found = offset(self.ranks[0].clock, facts.clock)
                clock = f"{found.ahead_s * 1e3:+.1f} +- {found.bound_s * 1e3:.1f} ms"
            yield (
                f"  {facts.host:<{width}}  {numbers:<15}{device:<34}{_amount(facts.shm_bytes):>10}{_amount(facts.disk_free):>11}"
                f"{facts.open_files or '?':>9}{f'{max(steps):.1f} ms' if steps else '?':>10}{clock:>20}"
            )

    def _network(self) -> Iterator[str]:
        count = len(self.ranks)
        if not self.links:
            yield "All-reduce: one rank has nobody to exchange with"
            return
        yield f"All-reduce over {count} ranks"
        for link in self.links:
            yield f"  {link.size_mb:>3} MB  {link.ms:>9.2f} ms  {link.gb_s(count):>8.2f} GB/s of bus bandwidth"

    def _verdict(self) -> str:
        warnings = len(self.findings) - self.errors
        words = f"{pluralize(self.errors, 'error', none='no')}, {pluralize(warnings, 'warning', none='no')}"
        what = "fix the errors before you train" if self.errors else "fit to train on"
        return f"{words.capitalize()} in {self.seconds:.0f} s: {what}."


def _in_lines(findings: Sequence[Finding]) -> Iterator[str]:
    """By level, and those with one remedy together."""
    for level, title in TITLES.items():
        alike = defaultdict(list)
        for finding in findings:
            if finding.level == level:
                alike[finding.check, finding.remedy].append(finding.what)
        if alike:
            yield from ("", title)
        for (check, remedy), found in alike.items():
            for i, what in enumerate(found[:MOST_ALIKE]):
                yield f"  {'' if i else check:<11}{what}"
            if (more := len(found) - MOST_ALIKE) > 0:
                yield f"  {'':<11}and {more} more; output=FILE.json has all"
            yield f"{'':<11}-> {remedy}"


def _amount(size: int | None) -> str:
    return "?" if size is None else format_bytes(size)


def _numbers(ranks: Sequence[int]) -> str:
    """ "3", "0 to 7", or "0, 2, ... 14" where a launcher deals ranks out to hosts in turn."""
    if len(ranks) < 3:
        return ", ".join(map(str, ranks))
    run = ranks[-1] - ranks[0] == len(ranks) - 1
    return f"{ranks[0]} to {ranks[-1]}" if run else f"{ranks[0]}, {ranks[1]}, ... {ranks[-1]}"
