"""Is the data set sound and, for detection, do the anchors fit it?

    python -m retina_dist.doctor data=coco data.root=/data/mine
    python -m retina_dist.doctor experiment=bccd data.root=/data/bccd images=header output=report.json

Takes every argument of `retina_dist.train`, so that what is examined is what will be trained on. Exit code 1 when
there are errors, 2 when the settings or the annotation files cannot be used.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from retina_dist.config.commands import DoctorConfig
from retina_dist.config.entry_point import entry_point
from retina_dist.files import write_atomically
from retina_dist.redaction import redacted_tree
from retina_dist.reporting.console import tell
from retina_dist.run.build import task_class


@entry_point("doctor")
def main(config: DoctorConfig) -> None:
    """Print, write, and exit by what was found."""
    path = Path(config.output) if config.output else None
    report = task_class(config).examine(config)
    tell(report.text)
    if path:
        text = json.dumps(redacted_tree(report.content), indent=1) + "\n"
        write_atomically(path, lambda temporary: temporary.write_text(text))
    if report.errors:
        sys.exit(1)


if __name__ == "__main__":
    main()
