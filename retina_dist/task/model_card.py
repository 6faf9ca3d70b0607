"""The model card of the service's page and of exports.

It says what a model is, what it was trained on and how well it does.
"""

import hashlib
import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from retina_dist.base import __version__
from retina_dist.base.files import write_text
from retina_dist.base.redaction import redacted
from retina_dist.base.text import pluralize
from retina_dist.model.weights import is_torchvision_name, publication_of
from retina_dist.task.predictor import Predictor

MAX_CLASSES = 100  # named in a card
USE = (
    "Images like those it was trained on. Evaluate it on your own first; "
    "where a mistake does harm, let a person decide."
)

UNKNOWN = "unknown"

Card = dict[str, dict[str, str]]  # rows of a name and a value, by section
Values = Mapping[str, Any]


def model_card(predictor: Predictor, checkpoint: str, intended_use: str | None = None) -> Card:
    """The sections Model, Intended use and Versions and, after a run, those of its training.

    These are Model settings, Starting weights, Training data and Figures.
    """
    record = predictor.record
    names = predictor.class_names
    classes = f"{len(names)}: {', '.join(names[:MAX_CLASSES])}"
    if len(names) > MAX_CLASSES:
        classes += f" and {len(names) - MAX_CLASSES} more"

    card = {
        "Model": {
            "name": f"{predictor.kind} {redacted(checkpoint)}",
            "classes": classes,
            "parameters": f"{sum(p.numel() for p in predictor.model.parameters()):,}",
            **plain_rows(predictor.metadata()),
        },
        "Intended use": {"images and use": intended_use or USE},
    }

    config = record.get("config") or {}
    settings = config.get("model")
    if settings:
        card["Model settings"] = plain_rows(settings)
        card["Starting weights"] = _starting_weights(settings | _origin(record))
    elif is_torchvision_name(checkpoint):
        card["Starting weights"] = _starting_weights({"weights": checkpoint})
    data = config.get("data")
    if data:
        card["Training data"] = _training_data(record, data)
    metrics = record.get("metrics")
    if metrics:
        card["Figures"] = {name: f"{value:.4g}" for name, value in metrics.items()}

    card["Versions"] = record.get("versions") or {"retina_dist": __version__}
    return card


def _origin(record: Values) -> dict[str, str]:
    """What a checkpoint says of its data's license and source, and of its starting weights."""
    return {name: text for name, text in (record.get("origin") or {}).items() if text}


def _training_data(record: Values, data: Values) -> dict[str, str]:
    images = (
        f"{pluralize(str(data.get('batch_size')), 'image')} over "
        f"{pluralize(str(record.get('world_size')), 'process')}"
    )
    stated = {"license": UNKNOWN, "source": UNKNOWN} | _origin(record)
    return {
        "root": redacted(str(data.get("root") or data.get("train_annotations"))),
        "fingerprint of its images": str(record.get("images")),
        "length": f"{record['step']} steps of {images}",
        "license": str(data.get("license") or stated["license"]),
        "source": redacted(str(data.get("source") or stated["source"])),
    }


def _starting_weights(settings: Values) -> dict[str, str]:
    """Where the weights that a training started from are from, and under which license."""
    source = settings.get("weights") or settings.get("backbone_weights")  # of runs without origin
    if not source:
        return {"weights": "none, random numbers"}
    known = publication_of(str(source))
    return {
        "weights": redacted(str(source)),
        "license": known.meta.get("license", UNKNOWN) if known else UNKNOWN,
        "source": known.url if known else UNKNOWN,
    }


def write_card(
    output: Path, predictor: Predictor, checkpoint: str, intended_use: str | None
) -> Path:
    """Write FILE_card.md beside the exported FILE, with the file's SHA-256.

    Returns its path.
    """
    card = model_card(predictor, checkpoint, intended_use)
    card["File"] = {
        "name": output.name,
        "bytes": f"{output.stat().st_size:,}",
        "SHA-256": hashlib.sha256(output.read_bytes()).hexdigest(),
    }
    path = output.with_name(f"{output.name}_card.md")
    write_text(path, as_markdown(card))
    return path


def as_markdown(card: Card) -> str:
    """One table for each section."""
    lines = [f"# {_cell(card['Model']['name'])}"]
    for title, rows in card.items():
        lines += ["", f"## {title}", "", "| | |", "|---|---|"]
        lines += [f"| {_cell(name)} | {_cell(value)} |" for name, value in rows.items()]
    return "\n".join(lines) + "\n"


def plain_rows(values: Mapping[str, object]) -> dict[str, str]:
    """The plain values, without lists and sections."""
    rows = {}
    for name, value in values.items():
        if isinstance(value, str | int | float):
            rows[name.replace("_", " ")] = redacted(str(value))
    return rows


def _cell(text: str) -> str:
    """Text of others as one cell of a table: no HTML, no further cell, no further line."""
    return " ".join(html.escape(text, quote=False).replace("|", "\\|").split())
