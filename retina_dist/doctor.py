"""Is the data set sound, and do the anchors fit it?

    python -m retina_dist.doctor data=coco data.root=/data/mine [model=retinanet_r18] [data.min_sizes=[320]] [output=report.json]

Layer 4. Exit code 1 when there are errors.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from retina_dist.config import DoctorConfig, ModelConfig, entry_point
from retina_dist.data import checks
from retina_dist.data.checks import Coverage, Finding, ImageCheck
from retina_dist.data.coco import Annotations
from retina_dist.errors import DataError
from retina_dist.files import write_atomically
from retina_dist.model.retinanet import anchor_generator
from retina_dist.tasks.detection import read_split

MARKS = {"error": "ERROR  ", "warning": "warning", "info": "info   "}
WORTH_SAYING = 0.05  # share of boxes without an anchor


@dataclass(frozen=True)
class Report:
    """What the doctor found."""

    findings: list[Finding]
    objects: dict[str, dict[str, dict[str, int]]]  # split -> class -> size -> boxes
    coverage: Coverage
    advice: str | None

    @property
    def num_errors(self) -> int:
        """Kinds of errors, not occurrences."""
        return sum(finding.level == "error" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        best = self.coverage.best_iou
        return {
            "errors": self.num_errors,
            "findings": [asdict(finding) for finding in self.findings],
            "objects": self.objects,
            "anchor_coverage": {
                "boxes": len(best),
                "unreached": float((best < 0.5).mean()) if len(best) else None,
                "by_size": self.coverage.rows("size"),
                "by_aspect": self.coverage.rows("aspect"),
                "advice": self.advice,
            },
        }


def examine(config: DoctorConfig) -> Report:
    """Read both splits, every image file, and hold the boxes against the model's anchors."""
    data = replace(config.data, missing_images="ignore", keep_empty_images=True)
    train = read_split(data, "train")
    assert train is not None, "a missing train split is an error"
    val = read_split(data, "val", train.categories)
    findings: list[Finding] = []
    checked: dict[str, list[ImageCheck]] = {}
    for split, part in (("train", train), ("val", val)):
        if part is None:
            findings.append(Finding("warning", "val", "no validation split", 1, (), "no metric and no best checkpoint"))
            continue
        checked[split] = _checked(part, split, data.max_pixels)
        _fill_sizes(part, checked[split])
        findings += [Finding("info", split, text, 1) for text in part.warnings]
        findings += checks.image_findings(checked[split], split) + checks.box_findings(part, split)
    findings += checks.leak_findings(checked["train"], checked.get("val", []))
    findings += checks.category_findings(train, val)
    cells = [a.numpy() for a in anchor_generator(config.model.anchor_sizes, config.model.aspect_ratios).cell_anchors]
    coverage = checks.anchor_coverage(
        train,
        cells,
        min_size=data.val_min_size or max(data.min_sizes),
        max_size=data.max_size,
        num_buckets=data.num_buckets,
    )
    objects = {s: checks.objects_table(part) for s, part in (("train", train), ("val", val)) if part is not None}
    order = list(MARKS)
    return Report(
        sorted(findings, key=lambda f: order.index(f.level)), objects, coverage, advice(coverage, config.model)
    )


def advice(coverage: Coverage, model: ModelConfig) -> str | None:
    """What to change when many boxes have no anchor; None when few have none."""
    lost = coverage.best_iou < 0.5
    if not len(lost) or lost.mean() <= WORTH_SAYING:
        return None
    least, most = min(map(min, model.anchor_sizes)), max(map(max, model.anchor_sizes))
    size, aspect = coverage.size[lost], coverage.aspect[lost]
    if np.median(size) < least:
        halved = [[max(1, s // 2) for s in level] for level in model.anchor_sizes]
        return (
            f"most of them are smaller than the smallest anchor ({least} px): train at a larger scale (data.min_sizes), or with "
            f"smaller anchors, model.anchor_sizes={_list(halved)}"
        )
    if np.median(size) > most:
        doubled = [[s * 2 for s in level] for level in model.anchor_sizes]
        return (
            f"most of them are larger than the largest anchor ({most} px): train at a smaller scale (data.min_sizes), or with "
            f"larger anchors, model.anchor_sizes={_list(doubled)}"
        )
    extreme = float(np.exp(np.median(np.abs(np.log(aspect)))))
    if extreme > 2:
        ratios = sorted({*model.aspect_ratios, round(1 / extreme, 2), round(extreme, 2)})
        return f"most of them are longer than the anchors: add aspect ratios, model.aspect_ratios={_list(ratios)}"
    return "they lie between the sizes of the anchors: add sizes to model.anchor_sizes"


def format_report(report: Report) -> str:
    """The report for a terminal."""
    lines = ["", "Findings"]
    for finding in report.findings:
        lines.append(f"  {MARKS[finding.level]}  {finding.split:<5}  {finding.count:>6}  {finding.what}")
        lines += [f"{'':>27}{example}" for example in finding.examples]
        if finding.remedy:
            lines.append(f"{'':>27}-> {finding.remedy}")
    if not report.findings:
        lines.append("  nothing to report")
    for split, table in report.objects.items():
        lines += ["", f"Objects in {split}, by area in stored pixels: small below 32^2, large from 96^2"]
        width = max(len(name) for name in table)
        lines.append(f"  {'class':<{width}}   small  medium   large     all")
        for name, row in sorted(table.items(), key=lambda item: -item[1]["all"]):
            lines.append(
                f"  {name:<{width}}  " + "".join(f"{row[k]:>6}  " for k in ("small", "medium", "large", "all"))
            )
    return "\n".join(lines + _format_coverage(report))


def _format_coverage(report: Report) -> list[str]:
    best = report.coverage.best_iou
    if not len(best):
        return ["", "Anchor coverage: no box to hold against the anchors"]
    share = (best < 0.5).mean()
    lines = [
        "",
        f"Anchor coverage: {share:.1%} of {len(best)} training boxes have no anchor at IoU 0.5, at the training scale",
    ]
    for by, title in (("size", "size in px"), ("aspect", "height/width")):
        lines.append(f"  {title:<14}{'boxes':>8}{'unreached':>12}{'median IoU':>12}")
        for row in report.coverage.rows(by):  # type: ignore[arg-type]
            bounds = f"{row['from']:.3g} to {row['to']:.3g}" if row["to"] else f"from {row['from']:.3g}"
            lines.append(f"  {bounds:<14}{row['boxes']:>8}{row['unreached']:>12.1%}{row['median_iou']:>12.2f}")
    return lines + ([f"  -> {report.advice}"] if report.advice else [])


def _checked(part: Annotations, split: str, max_pixels: int) -> list[ImageCheck]:
    results = checks.check_images(part.records, max_pixels, os.cpu_count() or 1)
    return list(tqdm(results, f"reading {split}", len(part.records), unit=" images", disable=not sys.stderr.isatty()))


def _fill_sizes(part: Annotations, checked: list[ImageCheck]) -> None:
    """Give records that have no size in the annotations that of their file."""
    part.records = tuple(
        replace(record, width=check.size[0], height=check.size[1]) if check.size and not record.width else record
        for record, check in zip(part.records, checked, strict=True)
    )


def _list(values: list) -> str:
    return str(values).replace(" ", "")


@entry_point("doctor")
def main(config: DoctorConfig) -> None:
    """Print, write, and exit by what was found."""
    report = examine(config)
    print(format_report(report))
    if config.output:
        path = Path(config.output)
        if not path.parent.is_dir():
            raise DataError(f"output={path} lies in a folder that does not exist; make it first.")
        text = json.dumps(report.to_dict(), indent=1) + "\n"
        write_atomically(path, lambda temporary: temporary.write_text(text))
    print(f"\n{report.num_errors} kinds of errors" if report.num_errors else "\nno errors")
    if report.num_errors:
        sys.exit(1)


if __name__ == "__main__":
    main()
