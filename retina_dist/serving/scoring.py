"""From the body of a request to the detections of its answer; knows nothing of a web server.

Layer 3. Every server calls this, so that all give the same answers.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from retina_dist.data.images import MAX_PIXELS, decode_image
from retina_dist.detector import Detector
from retina_dist.errors import ImageError, UserError
from retina_dist.types import Batch

USAGE = 'send a picture as image/*, pictures as multipart/form-data, or application/json {"images": [base64, ...]}'


class Refused(UserError):
    """A request that cannot be answered, with the HTTP status that says why."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True)
class Prepared:
    """A picture on its canvas."""

    batch: Batch
    width: int  # of the picture as it is displayed, in px
    height: int


class Scorer:
    """Pictures as bytes in, what an answer says of them out.

    Detections below `score_threshold` are left out, beside those that the detector leaves out itself. A picture whose header claims
    more than `max_pixels` is refused before it is decoded.
    """

    def __init__(self, detector: Detector, *, score_threshold: float = 0.0, max_pixels: int = MAX_PIXELS) -> None:
        self.detector = detector
        self.score_threshold, self.max_pixels = score_threshold, max_pixels

    def prepare(self, images: Sequence[bytes]) -> list[Prepared]:
        """Pictures decoded and resized, in any thread. Raises Refused (400) for the first that is none."""
        return [self._prepare(data, i) for i, data in enumerate(images)]

    def _prepare(self, data: bytes, i: int) -> Prepared:
        try:
            pixels = decode_image(data, max_pixels=self.max_pixels)
        except ImageError as error:
            raise Refused(400, f"picture {i}: {str(error).split(';')[0]}") from error
        return Prepared(self.detector.prepare(pixels), pixels.shape[2], pixels.shape[1])

    def detect(self, pictures: Sequence[Prepared]) -> list[dict[str, Any]]:
        """Of each picture its size and its detections, COCO's way, best first; in one thread at a time."""
        categories = self.detector.categories
        answers = []
        for picture, found in zip(pictures, self.detector.detect([p.batch for p in pictures]), strict=True):
            boxes = found["boxes"].to(torch.float64)
            boxes[:, 2:] -= boxes[:, :2]  # x, y, width, height
            rows = zip(boxes.tolist(), found["scores"].tolist(), found["labels"].tolist(), strict=True)
            detections = [
                {
                    "category_id": categories.category_id_of(label),
                    "category_name": categories.name_of(label),
                    "bbox": box,
                    "score": score,
                }
                for box, score, label in rows
                if score >= self.score_threshold and categories.category_id_of(label) >= 0
            ]
            answers.append({"width": picture.width, "height": picture.height, "detections": detections})
        return answers

    def score(self, content_type: str, body: bytes) -> dict[str, Any]:
        """The answer to a request, at once, one picture in memory at a time. Raises Refused."""
        images = read_images(content_type, body)
        return answer([found for i, data in enumerate(images) for found in self.detect([self._prepare(data, i)])])


def answer(pictures: list[dict[str, Any]]) -> dict[str, Any]:
    """What a server sends back."""
    return {"pictures": pictures}


def read_images(content_type: str, body: bytes) -> list[bytes]:
    """The pictures of a request's body, at least one. Raises Refused: 415 for another type, 400 for a broken body."""
    kind = content_type.split(";")[0].strip().lower()
    if kind.startswith("image/") or kind == "application/octet-stream":
        images = [body] if body else []
    elif kind == "application/json":
        images = _of_json(body)
    elif kind == "multipart/form-data":
        images = _of_multipart(content_type, body)
    else:
        raise Refused(
            415, f"{f'the content type {kind} is not understood' if kind else 'no content type is given'}; {USAGE}."
        )
    if not images:
        raise Refused(400, f"there is no picture in the request; {USAGE}.")
    return images


def _of_json(body: bytes) -> list[bytes]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the body is no JSON ({error}); {USAGE}.") from error
    texts = document.get("images") if isinstance(document, dict) else None
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise Refused(400, "the JSON is not as it should be; " + USAGE + ".")
    images = []
    for i, text in enumerate(texts):
        try:
            images.append(base64.b64decode(text, validate=True))
        except (binascii.Error, ValueError) as error:
            raise Refused(400, f"picture {i}: is not base64 ({error}).") from error
    return images


def _of_multipart(content_type: str, body: bytes) -> list[bytes]:
    """The content of every file of the form, in order, whatever its name; other fields are passed over."""
    try:
        from python_multipart.exceptions import FormParserError
        from python_multipart.multipart import FormParser, parse_options_header
    except ImportError as error:
        raise Refused(
            415, 'multipart/form-data needs python-multipart here: pip install "retina-dist[serve]".'
        ) from error
    images: list[bytes] = []
    ended: list[bool] = []

    def keep(file: Any) -> None:
        file.file_object.seek(0)
        images.append(file.file_object.read())

    boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
    try:
        in_memory = {"MAX_MEMORY_FILE_SIZE": len(body) + 1}
        parser = FormParser(
            "multipart/form-data", None, keep, lambda: ended.append(True), boundary=boundary, config=in_memory
        )
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise Refused(400, f"the body is no multipart/form-data ({error}).") from error
    if not ended:
        raise Refused(400, "the body is no multipart/form-data (its last boundary is missing).")
    return images
