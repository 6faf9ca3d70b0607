"""The notebook is committed without outputs, and does what it says, from the first cell to the
last.
"""

from __future__ import annotations

import base64
import io
from typing import Any

import nbformat
import pytest
from ipykernel.kernelspec import install
from nbclient import NotebookClient
from PIL import Image

from retina_dist.strategies.start_processes import why_missing
from tests.e2e.conftest import ROOT

NOTEBOOK = ROOT / "examples" / "from_notebook_to_cluster.ipynb"
TIMEOUT_S = 600  # of a cell


def test_it_is_committed_without_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)
    assert all(len(cell.source.splitlines()) <= 30 for cell in code)
    assert not any(
        "widgets" in part for part in (notebook.metadata, *(cell.metadata for cell in code))
    )


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What the cells print and show, in a kernel of this very Python."""
    folder = tmp_path_factory.mktemp("notebook")
    install(prefix=str(folder / "jupyter"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    work = folder / "work"
    work.mkdir()
    client = NotebookClient(
        notebook,
        timeout=TIMEOUT_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(work)}},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(folder / "jupyter" / "share" / "jupyter"))
        patch.setenv("JUPYTER_RUNTIME_DIR", str(folder / "runtime"))
        patch.setenv("IPYTHONDIR", str(folder / "ipython"))
        patch.setenv("PYTHONPATH", str(ROOT))
        client.execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [output for cell in code for output in cell.outputs]


@pytest.mark.long
def test_every_cell_says_what_it_found(outputs: list[Any]) -> None:
    said = "".join(output.get("text", "") for output in outputs)
    assert "tensors and" in said  # as a script, the same to the bit
    assert "by two under torchrun" in said
    left_out = f"horovodrun left out: {why_missing('horovodrun')}"
    assert "by two under horovodrun" in said or left_out in said
    assert said.count("with probability") == 6
    assert "needs an Azure subscription: not run here" in said


@pytest.mark.long
def test_three_pictures_are_shown(outputs: list[Any]) -> None:
    data = [output["data"] for output in outputs if "data" in output]
    encoded = [each.get("image/png") or each.get("image/jpeg") for each in data]  # PIL shows both
    files = [io.BytesIO(base64.b64decode(text)) for text in encoded if text]
    images = [Image.open(file).convert("L") for file in files]
    assert len(images) == 3
    assert all(min(image.size) > 200 for image in images)
    assert all(len(image.resize((64, 64)).getcolors()) > 10 for image in images)  # not blank
