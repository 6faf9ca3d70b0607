"""The certificate of exported files: do they, the server and tiles answer as the checkpoint does?

Each form of a model gets every validation image and is compared with PyTorch. Planted faults are
compared in the same way, which shows what the comparison notices on these images.
"""

import copy
import hashlib
import platform
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor
from torchvision.transforms.v2.functional import to_pil_image

from retina_dist.base.console import heartbeat, print_redacted
from retina_dist.base.errors import UserError, describe_error, set_status
from retina_dist.base.files import read_bytes, write_json, write_text
from retina_dist.base.redaction import redacted
from retina_dist.data.images import read_image
from retina_dist.data.module import skipping
from retina_dist.data.sources import Source, read
from retina_dist.engine.checkpoint.store import located
from retina_dist.engine.precision import autocast
from retina_dist.model.weights import is_torchvision_name
from retina_dist.strategies.devices import resolve_device
from retina_dist.task.export_formats import Exporter, Runner, versions
from retina_dist.task.model_card import as_markdown, plain_rows
from retina_dist.task.predictor import Predictor, changed
from retina_dist.task.settings import EvaluateConfig

PYTORCH = "PyTorch"
TILES = "tiles"
SERVER = "server"
# How files begin that a client may send: JPEG, PNG, WebP.
SENT = (b"\xff\xd8", b"\x89PNG", b"RIFF")

Entry = dict[str, Any]
Ask = Callable[[bytes], Entry]  # the server's answer to an image file
# Serves a predictor, and images of up to so many pixels.
Serve = Callable[[Predictor, int], AbstractContextManager[Ask]]
Form = Callable[[Tensor, bytes], Entry]  # the answer to an image, its pixels and its file


class NotCertified(UserError):
    """A form of a model answers otherwise than its checkpoint; the certificate says how."""

    exit_code = 1


class Certifier(ABC):
    """The forms of a model, whose answers, as a client gets them, a task compares.

    Args:
        config: the settings of the command.
        opened: loads the predictor, how its data is read, and the validation set.
        exporter_of: makes the exporter that reads files of the model.
    """

    metric: ClassVar[str]
    sources: Sequence[Source]  # of the images
    truth: str  # SHA-256 of the annotations
    tolerances: Mapping[str, float]

    def __init__(
        self,
        config: EvaluateConfig,
        opened: Callable[..., Sequence[Any]],
        exporter_of: Callable[..., Exporter],
    ) -> None:
        self.served, self.data, self.val = opened(config, resolve_device(config.device))
        self.predictor = self.served.whole or self.served
        self.exporter = exporter_of(self.predictor, str(config.checkpoint))
        self.runners: dict[str, Runner] = {}
        self.references: dict[str, str] = {}  # what a form is compared with; else PYTORCH
        self.seen: list[int] = []  # the numbers of the images that could be decoded

    @abstractmethod
    def exported(self, predictor: Predictor, run: Runner, pixels: Tensor) -> object:
        """The output of an exported file for an image that `predictor` prepares."""

    def reference(self, file: str) -> tuple[str, Predictor]:
        """The name and the predictor of the form that a file should answer as."""
        return PYTORCH, self.predictor

    @abstractmethod
    def judge(self, answers: list[Entry]) -> Entry:
        """`metric` of the answers to all images: an `Interval` as a dictionary."""

    @abstractmethod
    def differences(self, expected: list[Entry], others: list[Entry]) -> dict[str, float]:
        """The largest differences by the names of `tolerances`; all finite."""

    def faults(self) -> dict[str, Predictor]:
        """Models with a planted fault each, by what is wrong."""
        sound = self.predictor
        return {
            "input in BGR order": changed(sound, prepare=lambda x: sound.prepare(x.flip(0))),
            "fp16 weights": changed(sound, model=copy.deepcopy(sound.model).half().float()),
            "fp16 arithmetic": changed(sound, autocast=autocast(sound.device, "fp16")),
        }

    def forms(self, files: Sequence[str], ask: Ask) -> dict[str, Form]:
        """Each form by its name, PyTorch first."""
        forms: dict[str, Form] = {PYTORCH: partial(_answer, self.predictor)}
        for file in files:
            name, predictor = self.reference(file)
            self.references[file] = name
            forms[name] = partial(_answer, predictor)
            forms[file] = partial(self._run, predictor, file)
        if self.served is not self.predictor:
            forms[TILES] = partial(_answer, self.served)
            self.references[SERVER] = TILES
        forms[SERVER] = partial(_asked, ask)
        return forms

    def _run(self, predictor: Predictor, file: str, pixels: Tensor, content: bytes) -> Entry:
        if file not in self.runners:
            path = Path(file)
            self.runners[file] = self.exporter.read(path, path.suffix)
        return predictor.to_dict(self.exported(predictor, self.runners[file], pixels))

    def compare(self, forms: Mapping[str, Form]) -> tuple[dict[str, Entry], str]:
        """What is known of each form, and the SHA-256 of the images that all have seen.

        What only other forms are compared with, such as tiles, has no tolerance. Raises UserError
        for a form that does not run.
        """
        answers = defaultdict(list)
        digest = hashlib.sha256()
        for number, source in enumerate(self.sources):
            set_status(f"certificate, {number} of {len(self.sources)} images")
            with skipping(self.data.bad_images):
                content = read(source)
                pixels = read_image(source, None, self.data.max_pixels, content)
                digest.update(content)
                self.seen.append(number)
                for name, answer in forms.items():
                    answers[name].append(_try(name, answer, source, pixels, content))

        if not self.seen:
            raise UserError(f"none of {len(self.sources)} images can be decoded; restore them.")
        entries = {}
        for name, found in answers.items():
            set_status(f"certificate, {self.metric} of {name}")
            like = self.references.get(name, PYTORCH)
            apart = self.differences(answers[like], found)
            entries[name] = {self.metric: self.judge(found), **apart}
            if like != PYTORCH:
                entries[name]["beside"] = like
            if name == PYTORCH or name not in self.references.values():
                passed = all(apart[key] <= most for key, most in self.tolerances.items())
                entries[name]["passed"] = passed
        return entries, digest.hexdigest()


def _answer(predictor: Predictor, pixels: Tensor, content: bytes) -> Entry:
    return predictor.to_dict(predictor.run_each(pixels)[0])


def _try(name: str, answer: Form, source: Source, pixels: Tensor, content: bytes) -> Entry:
    try:
        return answer(pixels, content)
    except Exception as error:  # of another runtime
        raise UserError(
            f"{name} does not run on {source} ({describe_error(error)}); "
            "check its path, or export it again."
        ) from error


def _asked(ask: Ask, pixels: Tensor, content: bytes) -> Entry:
    if not content.startswith(SENT):
        file = BytesIO()
        to_pil_image(pixels).save(file, "PNG")
        content = file.getvalue()
    return ask(content)


def certify(
    certifier_of: Callable[[EvaluateConfig], Certifier], config: EvaluateConfig, serve: Serve
) -> None:
    """Write certificate.json and certificate.md into `output_dir`, or beside the first file.

    Raises NotCertified, after that, where a form differs by more than the tolerances.
    """
    files = config.certify or []
    certifier = certifier_of(config)
    with heartbeat(), serve(certifier.served, certifier.data.max_pixels) as ask:
        forms = certifier.forms(files, ask)
        faults = certifier.faults()
        for name, faulty in faults.items():
            forms[name] = partial(_answer, faulty)
        entries, images = certifier.compare(forms)

    planted = {name: entries.pop(name) for name in faults}
    for entry in planted.values():
        entry["caught"] = not entry.pop("passed")
    checkpoint = str(config.checkpoint)
    digests = {"images": images, "annotations": certifier.truth}
    for file in files:
        digests[file] = _sha256(read_bytes(Path(file)))
    if not is_torchvision_name(checkpoint):
        digests["checkpoint"] = _sha256(read_bytes(located(checkpoint)))
    failed = [name for name, entry in entries.items() if not entry.get("passed", True)]
    certificate = {
        "checkpoint": redacted(checkpoint),
        "passed": not failed,
        "images": len(certifier.seen),
        "tolerances": certifier.tolerances,
        "forms": entries,
        "faults": planted,
        "sha256": digests,
        "model": plain_rows(certifier.served.metadata()),
        "versions": {"python": platform.python_version(), **versions()},
    }
    if not entries[PYTORCH][certifier.metric]["value"]:
        certificate["warning"] = (
            f"{certifier.metric} of PyTorch is not above 0 on these images, so that equal answers "
            "prove nothing; train it for longer, or give images that it knows"
        )
    folder = Path(config.output_dir or Path(files[0]).parent)
    _write(certificate, certifier.metric, folder)
    if failed:
        raise NotCertified(
            f"{', '.join(failed)} differs from {checkpoint} by more than the tolerances, as "
            f"{folder}/certificate.md says; export it again with the same thresholds."
        )


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _write(certificate: Entry, metric: str, folder: Path) -> None:
    """Write a certificate as JSON and as Markdown, and print it."""
    write_json(folder / "certificate.json", certificate)
    verdict = "passed" if certificate["passed"] else "NOT PASSED"
    if "warning" in certificate:
        verdict += f"; warning: {certificate['warning']}"
    card = {"Model": {"name": f"Certificate of {certificate['checkpoint']}: {verdict}"}}
    shown = [card["Model"]["name"]]
    for part, entries in certificate.items():
        if part in ("forms", "faults"):
            card[part] = {name: _line(entry, metric) for name, entry in entries.items()}
            width = max(map(len, entries))
            shown += ["", part, *(f"  {name:<{width}}  {x}" for name, x in card[part].items())]
        elif isinstance(entries, dict):
            card[part] = {name: str(value) for name, value in entries.items()}
    write_text(folder / "certificate.md", as_markdown(card))
    shown += ["", f"written to {folder}/certificate.json and certificate.md"]
    print_redacted("\n".join(shown))


def _line(entry: Entry, metric: str) -> str:
    interval = entry[metric]
    words = [f"{metric} -"]
    if interval["value"] is not None:
        words = [f"{metric} {interval['value']:.4f}"]
    if interval["low"] is not None:
        words.append(f"95 % {interval['low']:.4f} to {interval['high']:.4f}")
    for key, value in entry.items():
        if isinstance(value, bool):
            words.append(key if value else f"NOT {key.upper()}")
        elif isinstance(value, float):
            words.append(f"{key} {value:.2g}")
        elif isinstance(value, str):
            words.append(f"{key} {value}")
    return ", ".join(words)
