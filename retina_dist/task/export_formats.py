"""A model as an .onnx, .pt2 or state_dict file, compared with the original before the file gets its name."""

from __future__ import annotations

import io
import json
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from retina_dist import __version__
from retina_dist.base.errors import ConfigError
from retina_dist.base.files import write_atomically
from retina_dist.base.torch_files import load_torch

logger = logging.getLogger(__name__)

ENDINGS = (".onnx", ".pt2", ".pt")
Runner = Callable[
    [Tensor], Sequence[Tensor]
]  # an image [1, 3, h, w] uint8 to the tensors of `output_names`


def check_ending(output: Path) -> None:
    """Raise ConfigError for a file that no exporter writes, or whose packages are missing."""
    if output.suffix not in ENDINGS:
        raise ConfigError(f"output={output} has no known ending; use one of {', '.join(ENDINGS)}.")
    missing = [
        package for package in ("onnx", "onnxscript", "onnxruntime") if find_spec(package) is None
    ]
    if output.suffix == ".onnx" and missing:
        raise ConfigError(
            f'an .onnx file needs {", ".join(missing)}; pip install "retina-dist[export]".'
        )


@dataclass(frozen=True)
class Exporter:
    """A model to export: `graph` traces the model, `with_state` makes torchvision's class of `state`, `metadata` is in the file."""

    graph: Callable[[], ExportedProgram]
    input_name: str
    output_names: Sequence[str]
    state: Mapping[str, Tensor]
    with_state: Callable[[Mapping[str, Tensor]], Runner]
    metadata: Mapping[str, Any]

    def write(self, output: Path, compare: Callable[[Runner], None]) -> None:
        """Write `output` in the form of its ending and read it back; if `compare` raises an error, an old file stays."""

        def make(temporary: Path) -> None:
            logger.info(
                f"writing {output}, then comparing it with PyTorch: up to some minutes on a CPU"
            )
            with _quiet():
                self._write(temporary, output.suffix)
                compare(self._read(temporary, output.suffix))

        write_atomically(output, make)

    def read_back(self, form: str) -> Runner:
        """The model as an exported file of that ending runs it, on the CPU."""
        check_ending(Path(f"model{form}"))
        with tempfile.TemporaryDirectory() as folder, _quiet():
            path = Path(folder) / f"model{form}"
            self._write(path, form)
            return self._read(path, form)

    def _write(self, path: Path, form: str) -> None:
        installed = {package.name: package.version for package in distributions()}
        versions = {
            name: installed.get(name) for name in ("torch", "torchvision", "onnx", "onnxscript")
        }
        metadata = {**self.metadata, "versions": {"retina_dist": __version__, **versions}}
        metadata = {key: json.dumps(value) for key, value in metadata.items()}
        if form == ".pt":
            torch.save(self.state, path)
        elif form == ".pt2":
            file = io.BytesIO()
            torch.export.save(self.graph(), file, extra_files=metadata)
            path.write_bytes(file.getvalue())
        else:
            graph: Any = self.graph()
            names: Any = {"input_names": [self.input_name], "output_names": list(self.output_names)}
            program = torch.onnx.export(
                graph, (), dynamo=True, verbose=False, external_data=False, **names
            )
            assert program is not None
            program.model.metadata_props.update(metadata)
            path.write_bytes(program.model_proto.SerializeToString())

    def _read(self, path: Path, form: str) -> Runner:
        if form == ".pt":
            return torch.inference_mode()(self.with_state(load_torch(path)[0]))
        if form == ".pt2":
            module = torch.export.load(io.BytesIO(path.read_bytes())).module()
            outputs = torch.no_grad()(module)
            return lambda image: (
                values if isinstance(values := outputs(image), tuple) else (values,)
            )
        import onnxruntime

        session = onnxruntime.InferenceSession(
            path.read_bytes(), providers=["CPUExecutionProvider"]
        )
        names = list(self.output_names)
        return lambda image: [
            torch.from_numpy(x) for x in session.run(names, {self.input_name: image.numpy()})
        ]


@contextmanager
def _quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
