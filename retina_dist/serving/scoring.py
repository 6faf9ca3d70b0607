"""From the body of a request to the content of its answer, without a web server.

Every server calls this, so that all give the same answers.
"""

from __future__ import annotations

import base64
import binascii
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from torch import Tensor

from retina_dist.data.images import MAX_PIXELS, count_pixels, decode_image
from retina_dist.errors import ImageError, UserError

USAGE = 'send an image as image/*, images as multipart/form-data, or application/json {"images": [base64, ...]}'
MAX_IMAGES = 16  # of a request
SPARE_PARTS = 1000  # other form fields, or other JSON values, in a body


Input = TypeVar("Input")


@dataclass(frozen=True)
class Prepared(Generic[Input]):
    """An image as the model takes it, and the size at which it is displayed, in pixels."""

    input: Input
    width: int
    height: int


class RequestError(UserError):
    """A request that cannot be answered; `status` is the HTTP status of the response."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Scorer(ABC, Generic[Input]):
    """From the body of a request to the content of its response; a task's subclass runs its model.

    Raises RequestError before anything is decoded: for an image whose header claims more than `max_pixels`, for a request of more
    than `max_images`, and for images of more than `max_request_pixels` together.
    """

    result: ClassVar[type]  # a TypedDict, the result for one image; the OpenAPI description is made from it

    def __init__(
        self, *, max_pixels: int = MAX_PIXELS, max_images: int = MAX_IMAGES, max_request_pixels: int = 2 * MAX_PIXELS
    ) -> None:
        self.max_pixels, self.max_images, self.max_request_pixels = max_pixels, max_images, max_request_pixels

    @abstractmethod
    def to_input(self, pixels: Tensor) -> Input:
        """The model's input from an image, uint8 [3, h, w] RGB; called in any thread."""

    @abstractmethod
    def predict(self, images: Sequence[Prepared[Input]]) -> list[dict[str, Any]]:
        """A `result` for each image; called in one thread at a time."""

    def read(self, content_type: str, body: bytes) -> list[bytes]:
        """The images of a request, in any thread. Raises RequestError as `read_images` does, and 413 for too many pixels."""
        images = read_images(content_type, body, self.max_images)
        pixels = 0
        for i, data in enumerate(images):
            with _image_errors(i):
                pixels += count_pixels(data, self.max_pixels)
        if pixels > self.max_request_pixels:
            raise RequestError(
                413,
                f"the {len(images)} images of the request have {pixels} pixels together, more than max_request_pixels="
                f"{self.max_request_pixels}; send fewer at once.",
            )
        return images

    def prepare(self, data: bytes, i: int) -> Prepared[Input]:
        """The model's input from image `i` of a request, in any thread. Raises RequestError (400) if it is no image."""
        with _image_errors(i):
            pixels = decode_image(data, max_pixels=self.max_pixels)
        return Prepared(self.to_input(pixels), pixels.shape[2], pixels.shape[1])

    def score(self, content_type: str, body: bytes) -> dict[str, Any]:
        """The response to a request, one image at a time. Raises RequestError."""
        images = self.read(content_type, body)
        return answer([found for i, data in enumerate(images) for found in self.predict([self.prepare(data, i)])])


@contextmanager
def _image_errors(i: int) -> Iterator[None]:
    """Turns an ImageError into a RequestError of image `i`, without the advice for data sets."""
    try:
        yield
    except ImageError as error:
        raise RequestError(400, f"image {i}: {str(error).split(';')[0]}") from error


def answer(images: list[dict[str, Any]]) -> dict[str, Any]:
    """The body of a response."""
    return {"images": images}


def read_images(content_type: str, body: bytes, max_images: int = MAX_IMAGES) -> list[bytes]:
    """The images of a request's body, at least one.

    Raises RequestError: 415 for another type, 400 for a broken body, 413 for more than `max_images`.
    """
    kind = content_type.split(";")[0].strip().lower()
    if kind.startswith("image/") or kind == "application/octet-stream":
        images = [body] if body else []
    elif kind == "application/json":
        images = _of_json(body, max_images)
    elif kind == "multipart/form-data":
        images = _of_multipart(content_type, body, max_images)
    else:
        raise RequestError(
            415, f"{f'the content type {kind} is not understood' if kind else 'no content type is given'}; {USAGE}."
        )
    if not images:
        raise RequestError(400, f"there is no image in the request; {USAGE}.")
    _check_number(len(images), max_images)
    return images


def _check_number(found: int, most: int) -> None:
    if found > most:
        raise RequestError(413, f"the request has {found} images, more than max_images={most}; send fewer at once.")


def _of_json(body: bytes, max_images: int) -> list[bytes]:
    # Python's parser blocks all threads: for seconds if 20 MB are brackets, for 0.1 s if they have few values.
    if sum(map(body.count, (b"[", b"{", b",", b":"))) > max_images + SPARE_PARTS:
        raise RequestError(
            413, f"the JSON has more than max_images={max_images} images and {SPARE_PARTS} other values; {USAGE}."
        )
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(400, f"the body is no JSON ({error}); {USAGE}.") from error
    texts = document.get("images") if isinstance(document, dict) else None
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise RequestError(400, "the JSON has no list of texts named images; " + USAGE + ".")
    _check_number(len(texts), max_images)
    images = []
    for i, text in enumerate(texts):
        try:
            images.append(base64.b64decode(text, validate=True))
        except (binascii.Error, ValueError) as error:
            raise RequestError(400, f"image {i}: is not base64 ({error}).") from error
    return images


def _of_multipart(content_type: str, body: bytes, max_images: int) -> list[bytes]:
    """The content of every file of the form, in order, whatever its name; other fields are ignored."""
    try:
        from python_multipart.exceptions import FormParserError
        from python_multipart.multipart import FormParser, parse_options_header
    except ImportError as error:
        raise RequestError(
            415, 'multipart/form-data needs python-multipart here: pip install "retina-dist[serve]".'
        ) from error
    images: list[bytes] = []
    ended: list[bool] = []

    def keep(file: Any) -> None:
        file.file_object.seek(0)
        images.append(file.file_object.read())

    boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
    parts = body.count(b"\n--" + boundary)  # read one by one in Python, 100,000 in 3 s
    if parts > max_images + SPARE_PARTS:
        raise RequestError(
            413, f"the form has more than max_images={max_images} images and {SPARE_PARTS} other fields; {USAGE}."
        )
    try:
        in_memory = {"MAX_MEMORY_FILE_SIZE": len(body) + 1}
        parser = FormParser(
            "multipart/form-data", None, keep, lambda: ended.append(True), boundary=boundary, config=in_memory
        )
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise RequestError(400, f"the body is no multipart/form-data ({error}).") from error
    if not ended:
        raise RequestError(400, "the body is no multipart/form-data (its last boundary is missing).")
    return images
