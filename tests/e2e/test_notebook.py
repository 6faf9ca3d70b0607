"""The notebook is committed without outputs, and does what it says, from the first cell to the last."""

from __future__ import annotations

import base64
import io
from pathlib import Path

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


@pytest.mark.long
def test_every_cell_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(
        prefix=str(tmp_path / "jupyter")
    )  # a kernel of this very Python, whatever others there are
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter" / "share" / "jupyter"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    folder = tmp_path / "work"
    folder.mkdir()
    NotebookClient(
        notebook,
        timeout=TIMEOUT_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    ).execute()
    outputs = [
        output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs
    ]
    said = "".join(output.get("text", "") for output in outputs)
    assert "tensors and" in said  # as a script, the same to the bit
    assert "by two under torchrun" in said
    assert (
        "by two under horovodrun" in said
        or f"horovodrun left out: {why_missing('horovodrun')}" in said
    )
    assert said.count("with probability") == 6
    assert "needs an Azure subscription: not run here" in said
    data = [output["data"] for output in outputs if "data" in output]
    encoded = [d.get("image/png") or d.get("image/jpeg") for d in data]  # a PIL image comes in both
    images = [
        Image.open(io.BytesIO(base64.b64decode(text))).convert("L") for text in encoded if text
    ]
    assert len(images) == 3
    assert all(min(image.size) > 200 for image in images)
    assert all(len(image.resize((64, 64)).getcolors()) > 10 for image in images)  # not blank
