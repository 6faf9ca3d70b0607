"""What a task says at the end of a run."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from retina_dist.task.image_task import MAX_LOGGED_CLASSES, ImageTask


def test_many_classes_are_printed_where_no_file_has_them(tmp_path: Path) -> None:
    """With `logging.plots=false` a run writes no metrics.json."""
    per_class = {f"class {i}": 0.25 for i in range(MAX_LOGGED_CLASSES + 1)}
    evaluator = SimpleNamespace(last_result=SimpleNamespace(per_class=per_class))
    task: Any = SimpleNamespace(evaluator=evaluator, class_metric="AP")
    printed = ImageTask.describe_results(task, tmp_path)
    assert len(printed) == 21
    assert printed[20].split() == ["class", "20", "AP", "0.250"]
    (tmp_path / "metrics.json").write_text("{}")
    named = [f"  AP of 21 classes: {tmp_path / 'metrics.json'}"]
    assert ImageTask.describe_results(task, tmp_path) == named
