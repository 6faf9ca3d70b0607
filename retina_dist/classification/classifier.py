"""A trained classifier, ready to use: images in, probabilities out.

Pre-processing is that of the validation during training, from what the checkpoint says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from retina_dist.classification.data.transforms import eval_transform
from retina_dist.classification.model import Classifier, build_classifier
from retina_dist.data.images import read_image
from retina_dist.engine.checkpoint_store import load_checkpoint
from retina_dist.engine.precision import Precision, autocast
from retina_dist.errors import CheckpointError, UserError
from retina_dist.torch_files import remedy_of

MAX_SIDE = 10**4  # px


class TrainedClassifier:
    """A classifier with the names of its classes and its input size.

    >>> classifier = TrainedClassifier.from_checkpoint("runs/drawn_classes/checkpoints/best.pt")     # doctest: +SKIP
    >>> classifier.predict(["image.jpg"])                                                  # doctest: +SKIP
    """

    def __init__(
        self,
        model: Classifier,
        classes: Sequence[str],
        *,
        image_size: int,
        short_side: int,
        device: torch.device,
        precision: Precision = "fp32",
        arguments: Mapping[str, Any],
    ) -> None:
        self.arguments = arguments  # of `build_classifier`
        self.model = model.to(device).eval()
        self.classes = tuple(classes)
        self.image_size, self.short_side = image_size, short_side
        self.device, self.precision = device, precision
        self.autocast = autocast(device, precision)

    @classmethod
    def from_checkpoint(
        cls, path: str | Path, *, device: str = "cpu", precision: Precision = "fp32"
    ) -> TrainedClassifier:
        """The classifier that a run saved, with averaged weights if it kept any. Raises CheckpointError."""
        return cls.from_content(load_checkpoint(path), str(path), device=device, precision=precision)

    @classmethod
    def from_content(
        cls, content: dict[str, Any], source: str, *, device: str = "cpu", precision: Precision = "fp32"
    ) -> TrainedClassifier:
        """The classifier of a checkpoint already read; `source` is its name in errors."""
        try:
            classes = [str(name) for name in content["classes"]]
            side, short = content["input"]["image_size"], content["input"]["short_side"]
            if not (type(side) is type(short) is int and 1 <= side <= short <= MAX_SIDE):
                raise ValueError(f"its input is of {side!r} of {short!r} px")
            arguments = {**content["model_arguments"], "num_classes": len(classes), "image_size": side}
            model = build_classifier(**arguments)
            model.load_state_dict(content["ema"]["model"] if content["ema"] else content["model"])
        except (KeyError, TypeError, ValueError, AttributeError, AssertionError, RuntimeError) as error:
            reason = str(error).split(";")[0] if isinstance(error, UserError) else str(error).splitlines()[0]
            raise CheckpointError(
                f"{source} does not describe a classifier ({reason}); {remedy_of(content)}."
            ) from error
        where = torch.device(device)
        sizes = {"image_size": side, "short_side": short}
        return cls(model, classes, device=where, precision=precision, arguments=arguments, **sizes)

    def predict(self, images: Sequence[str | Path | Tensor]) -> Tensor:
        """[N, K] float32 probabilities of each image (a file, or uint8 [3, h, w] RGB). Raises ImageError."""
        return torch.cat([self.probabilities(self.prepare(image)) for image in images])

    def prepare(self, image: str | Path | Tensor) -> Tensor:
        """The network's input of an image, [1, 3, S, S] uint8."""
        pixels = image if isinstance(image, Tensor) else read_image(image)
        return eval_transform(pixels, self.image_size, self.short_side)[None]

    @torch.inference_mode()
    def probabilities(self, images: Tensor) -> Tensor:
        """[B, 3, S, S] uint8 -> [B, K] float32 on the CPU."""
        with self.autocast():
            logits = self.model.logits(images.to(self.device))
        return logits.float().softmax(1).cpu()
