"""Evaluate another tool's detections: COCO metrics, and which class it confuses with which.

    python examples/evaluate_results.py instances_val.json results.json

`results.json` is a COCO results list, [{"image_id": 1, "category_id": 3, "bbox": [x, y, width,
height], "score": 0.9}, ...], as ultralytics, Detectron2, MMDetection and others write it.
`python -m retina_dist.evaluate` does the same with more tables.
"""

from __future__ import annotations

import sys
from pathlib import Path

import retina_dist as rd
from retina_dist.detection.coco_metrics import CocoResult, evaluate_rows, read_results


def main(annotations: str, results: str) -> CocoResult:
    """Print the metrics and the classes from the worst to the best, and return them."""
    path = Path(annotations)
    truth = rd.load_annotations(path, path.parent, missing_images="ignore")
    rows = read_results(
        Path(results), truth.coco
    )  # [n, 7]: image, x, y, width, height, score, class
    result = evaluate_rows(truth.coco, rows)

    print(f"{len(rows)} detections on {len(truth.coco['images'])} images")
    for name, value in result.stats.items():
        print(f"{name:<6}{value:.3f}")
    known = {name: ap for name, ap in result.per_class.items() if ap is not None}
    for name in sorted(known, key=lambda name: known[name]):
        print(f"AP of {name}: {known[name]:.3f}")
    return result


if __name__ == "__main__":
    main(*sys.argv[1:])
