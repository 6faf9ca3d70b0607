"""A logger from outside the package: a line of JSON for each row of metrics."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from retina_dist.base.settings import setting
from retina_dist.tracking.settings import LoggingConfig


@dataclass
class JsonlSettings(LoggingConfig):
    file: str = setting("metrics.jsonl", "in the run folder")
    digits: int = setting(6, "of each value", at_least=1)


class JsonlLogger:
    settings = JsonlSettings

    def __init__(self, settings: JsonlSettings, folder: Path, resume_step: int | None) -> None:
        path, kept = folder / settings.file, ""
        if resume_step is not None and path.exists():
            lines = path.read_text().splitlines(keepends=True)
            kept = "".join(line for line in lines if json.loads(line)["step"] <= resume_step)
        path.write_text(kept)
        self.file, self.digits = path.open("a", encoding="utf-8"), settings.digits

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        values = {name: float(f"{value:.{self.digits}g}") for name, value in metrics.items()}
        self.file.write(json.dumps({"step": step, **values}) + "\n")
        self.file.flush()

    def close(self) -> None:
        self.file.close()
