"""Weights as .safetensors: read without pickle, from a file or from a hub that is a server of this
machine.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
import pytest
import torch
from safetensors.torch import save
from torchvision.models import resnet18

from retina_dist.base.errors import CheckpointError
from retina_dist.detection.model.retinanet import build_retinanet
from retina_dist.detection.model.weights import load_backbone_weights
from retina_dist.model.weights import read_state

NAME = "model.safetensors"


@pytest.fixture(scope="module")
def body() -> bytes:
    torch.manual_seed(0)
    return save(resnet18().state_dict())


@pytest.fixture
def hub(body: bytes, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The three answers of the Hub that reading one file needs; what was asked for."""
    asked: list[str] = []

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            listed = [{"type": "file", "path": NAME, "size": len(body), "oid": "a" * 40}]
            answer = listed if "/tree/" in self.path else {"id": "org/net", "sha": "c" * 40}
            self._send(body if "/resolve/" in self.path else json.dumps(answer).encode())

        def _send(self, content: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setitem(
        fsspec.config.conf, "hf", {"endpoint": f"http://127.0.0.1:{server.server_port}"}
    )
    yield asked
    server.shutdown()


def test_a_backbone_loads_from_safetensors(body: bytes, tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(body)
    model = build_retinanet(num_classes=3, backbone="resnet18", fpn_channels=16)
    report = load_backbone_weights(model, str(tmp_path / NAME), "resnet18")
    assert not report.missing
    torch.manual_seed(0)
    assert torch.equal(
        model.backbone.body.layer1[0].conv1.weight, resnet18().layer1[0].conv1.weight
    )


def test_a_file_of_the_hub_is_read(body: bytes, hub: list[str]) -> None:
    state = read_state(f"hf://org/net/{NAME}")
    assert state.state.keys() == resnet18().state_dict().keys()
    assert f"/org/net/resolve/main/{NAME}" in hub


@pytest.mark.parametrize("cut", [slice(0, 4), slice(0, 2000), slice(0, -10), slice(8, None)])
def test_damaged_files_are_named(cut: slice, body: bytes, tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(body[cut])
    with pytest.raises(
        CheckpointError, match=r"model\.safetensors cannot be read as a file of tensors"
    ):
        read_state(str(tmp_path / NAME))
