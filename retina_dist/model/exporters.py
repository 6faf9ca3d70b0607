"""torch's exporters as both tasks use them: a graph into an .onnx or .pt2 file, and the file as a function again."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from retina_dist import __version__
from retina_dist.errors import ConfigError


def versions() -> dict[str, str | None]:
    """Versions of the packages that write an exported file; None for a package that is not installed."""
    return {"retina_dist": __version__} | {p: _version(p) for p in ("torch", "torchvision", "onnx", "onnxscript")}


def require_onnx() -> None:
    """Raise ConfigError where a package that an .onnx file needs is missing; called before a model is traced."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        try:
            __import__(package)
        except ImportError as error:
            raise ConfigError(
                f'an .onnx file needs {package}, which is not installed; pip install "retina-dist[export]".'
            ) from error


def save_onnx(
    graph: Any,
    path: Path,
    *,
    arguments: tuple[Tensor, ...] = (),
    input_name: str,
    output_names: Sequence[str],
    metadata: Mapping[str, str],
) -> None:
    """Write `graph`, an ExportedProgram or a module with example `arguments`."""
    program = torch.onnx.export(
        graph,
        arguments,
        dynamo=True,
        input_names=[input_name],
        output_names=list(output_names),
        verbose=False,
        external_data=False,
    )
    assert program is not None
    program.model.metadata_props.update(metadata)
    path.write_bytes(program.model_proto.SerializeToString())


def load_onnx(path: Path, input_name: str, output_names: Sequence[str]) -> Callable[[Tensor], list[Tensor]]:
    """The file under onnxruntime on the CPU: an image to the tensors of `output_names`."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    return lambda image: [torch.from_numpy(x) for x in session.run(list(output_names), {input_name: image.numpy()})]


def save_pt2(program: Any, path: Path, metadata: dict[str, str]) -> None:
    """Write an ExportedProgram."""
    file = io.BytesIO()
    torch.export.save(program, file, extra_files=metadata)
    path.write_bytes(file.getvalue())


def load_pt2(path: Path) -> Callable[[Tensor], Any]:
    """The file as a function without gradients."""
    module = torch.export.load(io.BytesIO(path.read_bytes())).module()

    def run(image: Tensor) -> Any:
        with torch.no_grad():
            return module(image)

    return run


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the exporters' notes to their own developers."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
