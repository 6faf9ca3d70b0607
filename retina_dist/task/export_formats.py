"""A model as an .onnx, .pt2 or state_dict file, compared with the original before it is there."""

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.export import ExportedProgram

from retina_dist.base import __version__
from retina_dist.base.console import heartbeat
from retina_dist.base.errors import ConfigError, UserError, describe_error, set_status
from retina_dist.base.files import write_atomically
from retina_dist.base.other_names import value_meant
from retina_dist.base.torch_files import load_torch
from retina_dist.data.images import AnyImage, find_images
from retina_dist.task.model_card import write_card
from retina_dist.task.predictor import Predictor
from retina_dist.task.settings import ExportConfig

logger = logging.getLogger(__name__)

ENDINGS = (".onnx", ".pt2", ".pt")
PACKAGES = ("torch", "torchvision", "onnx", "onnxscript", "onnxruntime")  # that write and run them
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
# An image [1, 3, h, w] uint8 to the tensors of `output_names`.
Runner = Callable[[Tensor], Sequence[Tensor]]


def check_ending(output: Path) -> None:
    """Raise ConfigError for a file that no exporter writes, or whose packages are missing."""
    if output.suffix not in ENDINGS:
        hint = value_meant("ending", output.suffix, ()) or f"use one of {', '.join(ENDINGS)}"
        raise ConfigError(f"output={output} has no known ending; {hint}.")
    if output.with_name("manifest.json").exists():
        raise ConfigError(f"output={output} is among a run's checkpoints; give another folder.")
    missing = [package for package in ONNX_PACKAGES if find_spec(package) is None]
    if output.suffix == ".onnx" and missing:
        raise ConfigError(
            f'an .onnx file needs {", ".join(missing)}; pip install "retina-dist[export]".'
        )


def images_to_compare(
    config: ExportConfig, draw: Callable[[np.random.Generator, int], AnyImage]
) -> Iterator[AnyImage]:
    """The images that the settings name, else drawn ones; `draw` makes that of a number."""
    if config.images:
        yield from find_images(config.images)[: config.num_images]
        return
    rng = np.random.default_rng(0)
    for number in range(config.num_images):
        set_status(f"detecting, {number} of {config.num_images} images to compare")
        yield draw(rng, number)


def describe_export(predictor: Predictor, config: ExportConfig, summary: str) -> None:
    """Write the model card and print what was written."""
    output = Path(config.output)
    print(f"{output}: {output.stat().st_size / 1e6:.1f} MB; {summary}")
    if output.suffix == ".pt" and predictor.temperature != 1:
        print(f"divide logits by temperature={predictor.temperature:g}: {output} does not hold it")
    print(f"described in {write_card(output, predictor, config.checkpoint, config.intended_use)}")


@dataclass(frozen=True)
class Exporter:
    """A model to export.

    Args:
        graph: traces the model.
        input_name: the name of the image in the graph.
        output_names: those of the tensors that the graph gives.
        state: the model's state_dict, for a .pt file.
        with_state: makes what runs such a state_dict, such as torchvision's own class.
        metadata: JSON values by name, written into the file.
    """

    graph: Callable[[], ExportedProgram]
    input_name: str
    output_names: Sequence[str]
    state: Mapping[str, Tensor]
    with_state: Callable[[Mapping[str, Tensor]], Runner]
    metadata: Mapping[str, object]

    def write(self, output: Path, compare: Callable[[Runner], None]) -> None:
        """Write `output` in the form of its ending, read it back and let `compare` run it.

        If `compare` raises an error, an old file stays.
        """

        def make(temporary: Path) -> None:
            logger.info(
                f"writing {output}, then comparing it with PyTorch: up to some minutes on a CPU"
            )
            set_status(f"writing {output.name}")
            with _quiet(), heartbeat():
                self._write(temporary, output.suffix)
                compare(self.read(temporary, output.suffix))

        write_atomically(output, make)

    def _write(self, path: Path, form: str) -> None:
        if form == ".pt":
            torch.save(self.state, path)
            return
        graph = self.graph()
        if form == ".pt2":
            file = io.BytesIO()
            torch.export.save(graph, file, extra_files=self._texts())
            path.write_bytes(file.getvalue())
            return
        program = torch.onnx.export(
            graph,
            (),
            input_names=[self.input_name],
            output_names=list(self.output_names),
            dynamo=True,
            verbose=False,
            external_data=False,
        )
        assert program is not None
        program.model.metadata_props.update(self._texts())
        path.write_bytes(program.model_proto.SerializeToString())

    def _texts(self) -> dict[str, str]:
        """The metadata as JSON by name, with the versions of the packages that write the file."""
        metadata = {**self.metadata, "versions": versions()}
        return {key: json.dumps(value) for key, value in metadata.items()}

    def read(self, path: Path, form: str) -> Runner:
        """The model as a file of the ending `form` runs it, on the CPU."""
        if form == ".pt":
            return torch.inference_mode()(self.with_state(load_torch(path)[0]))
        if form == ".pt2":
            return _pt2_runner(path)
        return _onnx_runner(path, self.input_name, list(self.output_names))


def versions() -> dict[str, str]:
    """The versions of this package, and of `PACKAGES` that are installed."""
    versions = {"retina_dist": __version__}
    for package in distributions():
        if package.name in PACKAGES:
            versions[package.name] = package.version
    return versions


def input_size(path: Path) -> tuple[int, int] | None:
    """Height and width in px of the only images that an exported file takes; None: any.

    Raises UserError for an .onnx or .pt2 that cannot be read.
    """
    if path.suffix == ".pt":
        return None
    try:
        if path.suffix == ".pt2":
            program = _pt2_program(path)
            (name,) = program.graph_signature.user_inputs
            nodes = {node.name: node for node in program.graph.nodes}
            shape = nodes[name].meta["val"].shape
        else:
            shape = _onnx_session(path).get_inputs()[0].shape
    except Exception as error:  # of another runtime
        raise UserError(
            f"{path} cannot be read ({describe_error(error)}); check its path, or export it again."
        ) from error
    height, width = shape[-2:]
    if isinstance(height, int) and isinstance(width, int):  # else symbols
        return height, width
    return None


def _pt2_program(path: Path) -> ExportedProgram:
    return torch.export.load(io.BytesIO(path.read_bytes()))


def _onnx_session(path: Path) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])


def _pt2_runner(path: Path) -> Runner:
    module = _pt2_program(path).module()

    @torch.no_grad()
    def run(image: Tensor) -> Sequence[Tensor]:
        outputs = module(image)
        return outputs if isinstance(outputs, tuple) else (outputs,)

    return run


def _onnx_runner(path: Path, input_name: str, output_names: list[str]) -> Runner:
    session = _onnx_session(path)

    def run(image: Tensor) -> Sequence[Tensor]:
        arrays = session.run(output_names, {input_name: image.numpy()})
        return list(map(torch.from_numpy, arrays))

    return run


@contextmanager
def _quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
