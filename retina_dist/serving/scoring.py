"""From the body of a request to its images, and from an image to its answer."""

import base64
import io
import json
import re
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from python_multipart import parse_form
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header

from retina_dist.base.errors import ImageError, UserError
from retina_dist.base.unknown_keys import alias
from retina_dist.data.images import MAX_PIXELS, decode_image
from retina_dist.task.predictor import LIMITS, Predictor

USAGE = (
    "send an image as image/* (curl -H 'Content-Type: image/jpeg' --data-binary @FILE), images as "
    'multipart/form-data (curl -F image=@FILE), or application/json {"images": [base64, ...]}'
)
SPARE_PARTS = 1000  # other form fields, or other JSON values, in a body


class RequestError(UserError):
    """A request that cannot be answered; `status` is the HTTP status of the response."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Scorer:
    """Answers images with a model, by its `to_dict` and the image's size."""

    def __init__(self, predictor: Predictor, max_pixels: int = MAX_PIXELS) -> None:
        self.predictor = predictor
        self.max_pixels = max_pixels
        self.Answer = predictor.Answer

    def prepare(self, data: bytes, i: int) -> tuple[object, int, int]:
        """The model's input from image `i` of a request, and width and height of its display in px.

        In any thread. Raises RequestError (400), before decoding if it is not a JPEG, PNG or WebP
        or its header claims more than `max_pixels`.
        """
        try:
            pixels = decode_image(data, max_pixels=self.max_pixels)
        except ImageError as error:
            reason = str(error).split(";")[0]  # without the advice for data sets
            if data.isascii():  # as curl sends it without @
                reason += f": it is text; {USAGE}."
            raise RequestError(400, f"image {i}: {reason}") from error
        return self.predictor.prepare(pixels), pixels.shape[2], pixels.shape[1]

    def predict(self, images: Sequence[tuple[object, int, int]]) -> list[dict[str, object]]:
        """An `Answer` for each prepared image, in one thread at a time."""
        outputs = self.predictor.run([prepared for prepared, _, _ in images])
        answers = []
        for output, (_, width, height) in zip(outputs, images, strict=True):
            found = self.predictor.to_dict(output)
            answers.append({"width": width, "height": height, **found})
        return answers


def read_images(content_type: str, body: bytes, max_images: int = 16) -> list[bytes]:
    """The image files in a request's body, at least one.

    Raises RequestError: 415 for another type, 400 for a broken body, 413 for more than
    `max_images`.
    """
    kind = content_type.split(";")[0].strip().lower()
    if kind.startswith("image/") or kind == "application/octet-stream":
        images = [body] if body else []
    elif kind == "application/json":
        images = _read_json(body, max_images)
    elif kind == "multipart/form-data":
        images = _read_form(content_type, body, max_images)
    elif kind:
        raise RequestError(415, f"the content type {kind} is not understood; {USAGE}.")
    else:
        raise RequestError(415, f"the content type is missing; {USAGE}.")

    if not images:
        raise RequestError(400, f"the request has no image; {USAGE}.")
    if len(images) > max_images:
        raise RequestError(
            413,
            f"the request has {len(images)} images, more than max_images={max_images}; send fewer.",
        )
    return images


def _read_json(body: bytes, max_images: int) -> list[bytes]:
    # Python's parser blocks all threads: for seconds if 20 MB are brackets, for 0.1 s if they have
    # few values.
    limit = max_images + SPARE_PARTS
    if sum(map(body.count, (b"[", b"{", b",", b":"))) > limit:
        raise RequestError(413, f"the JSON has more than {limit} values; {USAGE}.")
    try:
        content = json.loads(body)
        if not isinstance(content, dict) or not isinstance(content.get("images"), list):
            raise TypeError("images is not a list")
        images = [
            base64.b64decode(re.sub("^data:[^,]*,", "", image), validate=True)
            for image in content["images"]
        ]
    except (ValueError, TypeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise RequestError(400, f"the body is not such JSON ({reason}); {USAGE}.") from error
    check_names(content)
    return images


def check_names(names: Iterable[str]) -> None:
    """Raise RequestError (400) for the name of a limit, which the server's start sets.

    Of many names, and of a long one, the first part is looked at, which takes milliseconds.
    """
    for name in islice(names, 8):
        limit = alias(name[:40], LIMITS) or name
        if limit in LIMITS:
            raise RequestError(400, f"{name} is not of a request; start serve with {limit}=….")


def _read_form(content_type: str, body: bytes, max_images: int) -> list[bytes]:
    """The content of every file of the form, in order, whatever its name.

    Fields that are no limit are ignored.
    """
    images: list[bytes] = []
    fields: list[Any] = []

    def keep(file: Any) -> None:
        file.file_object.seek(0)
        images.append(file.file_object.read())

    limit = max_images + SPARE_PARTS  # fields are read one by one in Python, 100,000 in 3 s
    boundary = b"--" + parse_options_header(content_type)[1].get(b"boundary", b"")
    if body.count(boundary) > limit:
        raise RequestError(413, f"the form has more than {limit} fields; {USAGE}.")
    try:
        parse_form({"Content-Type": content_type.encode()}, io.BytesIO(body), fields.append, keep)
    except (FormParserError, ValueError) as error:
        raise RequestError(
            400, f"the body is not multipart/form-data ({error}); {USAGE}."
        ) from error
    if not body.rstrip().endswith(boundary + b"--"):
        raise RequestError(400, f"the form ends before its last boundary; {USAGE}.")
    check_names(field.field_name.decode("latin-1") for field in fields)
    return images
