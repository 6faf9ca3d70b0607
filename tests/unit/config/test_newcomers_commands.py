"""What deployers and evaluators give the commands besides train, and the remedy that is answered."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path

import pytest

from retina_dist import Detector, TrainedClassifier, __main__, __version__
from retina_dist.base.errors import CheckpointError, ConfigError, DataError
from retina_dist.base.files import parse_path
from retina_dist.base.torch_files import load_torch
from retina_dist.benchmark.__main__ import main as benchmark
from retina_dist.config.compose import load_config
from retina_dist.config.entry_point import parse
from retina_dist.data.images import find_images
from retina_dist.detection.coco_metrics import read_results
from retina_dist.reporting.run_files import RunFiles
from retina_dist.serving.scoring import RequestError, Scorer, read_images

COMMAND_LINES = {
    ("predict", "checkpoint=a", "data.min_sizes=[640]"): (
        "it is one of python -m retina_dist.train: leave it out."
    ),
    (
        "predict",
        "checkpoint=a",
        "input=",
        "photos/a.jpg",
    ): "since a space follows it; write input=photos/a.jpg",
    ("predict", "checkpoint=a", "input="): "input is empty, as of an unset variable",
    ("predict", "checkpoint=a", "input=b", "nms=true"): "NMS is part of the detector",
    ("predict", "checkpoint=a", "input=b", "classes=[0]"): "each class of the data is taken",
    ("evaluate", "checkpoint=a", "data=coco.yaml"): "to evaluate, give root=FOLDER, to predict",
    ("evaluate", "checkpoint=a", "split=train"): "give annotations=FILE images=FOLDER of these",
    ("convert", "root=a", "output=b.json", "split=all"): "give one, and run it for each",
    ("report", "run=[a,b]"): "give one, and another by the key other.",
    ("export", "checkpoint=a", "output=b.onnx", "size=128x96"): "or size=[HEIGHT,WIDTH]",
}


@pytest.mark.parametrize("line", COMMAND_LINES, ids=" ".join)
def test_the_remedy_of_a_command_line_is_named(line: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(line[0], list(line[1:]))
    assert COMMAND_LINES[line] in str(caught.value)


WORDS = {
    ("doctor", "data"): "write data.root=data.",
    ("shards", "data", "packed"): "write data.root=data output=packed.",
    ("convert", "data", "out.json"): "write root=data output=out.json.",
    ("evaluate", "a.json", "b.json"): "write results=a.json annotations=b.json.",
    ("evaluate", "checkpoint=a", "b.json"): "write annotations=b.json.",
}


@pytest.mark.parametrize("line", WORDS, ids=" ".join)
def test_a_folder_called_as_a_key_and_a_json_are_values(
    line: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "a.json").touch()
    (tmp_path / "b.json").touch()
    with pytest.raises(ConfigError) as caught:
        load_config(line[0], list(line[1:]))
    assert str(caught.value).endswith(WORDS[line])


@pytest.mark.parametrize("name", ["model.onnx", "model.engine", "model.pt2"])
def test_an_exported_file_is_no_checkpoint(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x08\x0a")
    (tmp_path / "config.yaml").touch()
    with pytest.raises(CheckpointError, match="give the folder of the run, or its .pt file"):
        load_torch(tmp_path / "config.yaml")
    with pytest.raises(
        CheckpointError, match=f"{name} .*it is an exported model, .* it was made of"
    ):
        load_torch(parse_path(str(tmp_path / name)))


def test_a_run_without_checkpoint_is_told_from_a_wrong_path(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"in {tmp_path}; give a run that has saved one"):
        load_torch(tmp_path)
    with pytest.raises(CheckpointError, match="give a run folder, or its .pt file"):
        load_torch(tmp_path / "none")


def test_a_file_of_a_run_names_the_run_and_predictions_the_results(tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "metrics.csv").touch()
    with pytest.raises(DataError, match=f"; give its run, {tmp_path / 'run'}."):
        RunFiles(tmp_path / "run" / "metrics.csv")
    (tmp_path / "predictions").mkdir()
    with pytest.raises(DataError, match="or to compare, a json of results"):
        RunFiles(tmp_path / "predictions")


def test_a_checkpoint_without_its_folder_or_ending_is_found(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last.pt").touch()
    for name in ("last", "last.pth", "last.pt"):
        with pytest.raises(CheckpointError, match=f"write {tmp_path}/checkpoints/last.pt"):
            load_torch(tmp_path / name)


def test_a_folder_of_images_is_corrected(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    with pytest.raises(DataError, match=f"; use {tmp_path / 'photos'}."):
        find_images(str(tmp_path / "photso"))


BASE64 = base64.b64encode(b"\xff\xd8").decode()
BODIES = {
    "application/x-www-form-urlencoded": (b"\xff", "--data-binary @FILE"),
    "application/json 1": (b"[1]", "images is not a list"),
    "application/json 2": (b'{"image": "a"}', "images is not a list"),
    "application/json 3": (b'{"images": ["a.jpg"], "conf": 1}', "Only base64"),
    "application/json 4": (
        json.dumps({"images": [BASE64], "conf": 0.5}).encode(),
        "conf is not of a request; start serve with score_threshold=…",
    ),
    "multipart/form-data; boundary=b 5": (
        b'--b\r\nContent-Disposition: form-data; name="image"\r\n\r\na.jpg\r\n--b--\r\n',
        "curl -F image=@FILE",
    ),
    "multipart/form-data; boundary=b 6": (
        b'--b\r\nContent-Disposition: form-data; name="score_threshold"\r\n\r\n0.5\r\n--b--\r\n',
        "start serve with score_threshold=…",
    ),
}


@pytest.mark.parametrize("kind", BODIES)
def test_a_request_is_answered_with_what_to_send(kind: str) -> None:
    body, said = BODIES[kind]
    with pytest.raises(RequestError) as caught:
        read_images(kind.rstrip(" 0123456789"), body)
    assert said in str(caught.value)


def test_a_data_url_is_an_image_and_other_keys_pass() -> None:
    content = {"images": [f"data:image/jpeg;base64,{BASE64}", BASE64], "id": 3, "note": "a"}
    assert read_images("application/json", json.dumps(content).encode()) == [b"\xff\xd8"] * 2


def test_a_field_of_a_form_may_have_any_name() -> None:
    field = b'--b\r\nContent-Disposition: form-data; name="\xff"\r\n\r\n1\r\n'
    file = b'--b\r\nContent-Disposition: form-data; name="i"; filename="a"\r\n\r\nabc\r\n--b--\r\n'
    assert read_images("multipart/form-data; boundary=b", field + file) == [b"abc"]


def test_a_path_in_place_of_an_image_says_how_to_send_the_file() -> None:
    scorer = object.__new__(Scorer)
    scorer.max_pixels = 1000
    with pytest.raises(RequestError, match="it is text; send an image .*--data-binary @FILE"):
        scorer.prepare(b"photos/a.jpg", 0)
    with pytest.raises(RequestError, match=r"not JPEG, PNG, WEBP\)$"):
        scorer.prepare(b"\xff\xfe\x00", 0)


def test_an_image_may_be_named_with_its_ending(tmp_path: Path) -> None:
    truth = {"images": [{"id": 7, "file_name": "a.jpg"}], "categories": [{"id": 1}]}
    row = {"category_id": 1, "bbox": [1, 2, 3, 4], "score": 0.5}
    for name in ("a.jpg", "a"):
        (tmp_path / "r.json").write_text(json.dumps([{"image_id": name, **row}]))
        assert read_results(tmp_path / "r.json", truth)[0, 0] == 7


@pytest.mark.parametrize("words", [["help", "predict"], ["--help", "predict"], ["predict", "-h"]])
def test_help_of_a_command_is_its_page(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["retina-dist", *words])
    __main__.main()
    page = capsys.readouterr().out
    assert page.startswith("Run a checkpoint on images")
    assert "data.min_sizes" not in page  # which the command lacks


def test_a_command_that_is_none_is_not_guessed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["retina-dist", "list"])
    with pytest.raises(SystemExit):
        __main__.main()
    assert "the commands are train, evaluate" in capsys.readouterr().err


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("train", ["--version"])
    assert capsys.readouterr().out.strip() == __version__


def test_a_benchmark_is_named_before_its_settings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmark", "data.root=a"])
    with pytest.raises(SystemExit):
        benchmark()
    assert "write step, data or scaling first." in capsys.readouterr().err


def test_a_class_says_what_loads_a_checkpoint() -> None:
    with pytest.raises(AttributeError, match=r"call from_checkpoint\(RUN\)"):
        Detector.load("runs/a")  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"call from_checkpoint"):
        TrainedClassifier.load_from_checkpoint("runs/a")  # type: ignore[attr-defined]
    assert not hasattr(Detector, "__absent__")
