"""Every output of every command that cannot be written is refused in one sentence, before the long
work.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from retina_dist.base.errors import ConfigError
from retina_dist.config.entry_point import check_outputs, reported_errors
from retina_dist.detection.settings import DetectionRunConfig
from retina_dist.task.settings import DoctorConfig, ExportConfig, PredictConfig


def a_file(folder: Path, name: str) -> str:
    (folder / "file").write_text("mine")
    return str(folder / "file" / name)


def the_other_kind(folder: Path, name: str) -> str:
    path = folder / name
    path.mkdir() if Path(name).suffix else path.write_text("mine")
    return str(path)


def a_link_to_nothing(folder: Path, name: str) -> str:
    (folder / name).symlink_to(folder / "nothing")
    return str(folder / name)


WRONG: dict[str, tuple[Callable[[Path, str], str], str]] = {
    "below a file": (a_file, "Not a directory"),
    "of the other kind": (the_other_kind, "exists and is not a (folder|file); give another"),
    "a link to nothing": (a_link_to_nothing, "exists and is not a"),
    "a device": (lambda folder, name: "/dev/null", "exists and is not a"),
    "too long": (lambda folder, name: str(folder / ("n" * 300 + name)), "(?i)too long"),
    "nobody's": (lambda folder, name: f"/proc/{name}", "cannot be written"),
    "a URL": (lambda folder, name: f"nonsense://box/{name}", "is a URL; give a local|cannot be"),
    "with NUL": (lambda folder, name: f"{folder}/a\0{name}", "null byte|NUL"),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize(
    ("config", "key", "name"),
    [(DetectionRunConfig, "output_dir", "out"), (ExportConfig, "output", "out.onnx")],
)
def test_outputs_that_cannot_be_written(
    config: Any, key: str, name: str, wrong: str, tmp_path: Path
) -> None:
    make, words = WRONG[wrong]
    value = make(tmp_path, name)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match=words) as caught:
        check_outputs(config(**{key: value}))
    assert sorted(tmp_path.rglob("*")) == before
    assert "\n" not in str(caught.value)
    assert f"{key}=" in str(caught.value) or "\0" in value


def test_the_name_of_a_folder_is_no_file(tmp_path: Path) -> None:
    """Else a file of that name would be written."""
    with pytest.raises(
        ConfigError, match="output=.*/new/ names a folder; give a file in it, o.*/new/N"
    ):
        check_outputs(DoctorConfig(output=f"{tmp_path}/new/"))
    (tmp_path / "old").mkdir()
    with pytest.raises(
        ConfigError, match="/old names a folder; give a file in it, output=.*/old/N"
    ):
        check_outputs(DoctorConfig(output=f"{tmp_path}/old"))


def test_outputs_that_can_be_written_leave_no_trace(tmp_path: Path) -> None:
    (tmp_path / "there.json").write_text("mine")
    check_outputs(DoctorConfig(output=str(tmp_path / "there.json")))
    check_outputs(DoctorConfig(output=str(tmp_path / "a" / "b" / "new.json")))
    check_outputs(PredictConfig(output_dir=str(tmp_path / "new" / "folder")))
    check_outputs(DetectionRunConfig(output_dir=str(tmp_path)))
    check_outputs(DetectionRunConfig(output_dir="/dev/null", dry_run=True))  # writes nothing
    assert [path.name for path in tmp_path.rglob("*")] == ["there.json"]
    assert (tmp_path / "there.json").read_text() == "mine"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            PermissionError(13, "Permission denied", "runs/x/curves.png"),
            "runs/x/curves.png: Permission denied",
        ),
        (OSError(28, "No space left on device"), "No space left on device"),
        (OSError(9, "Bad file descriptor", 7), "7: Bad file descriptor"),
    ],
)
def test_what_fails_later_is_a_sentence_too(
    error: OSError, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended, reported_errors():
        raise error
    assert ended.value.code == 2
    assert (
        capsys.readouterr().err
        == f"error: {words}; correct that, or give another place (debug=true shows where).\n"
    )
    for other, debug in (
        (error, True),
        (ConnectionError("refused"), False),
    ):  # the second is of no file
        with pytest.raises(SystemExit) as ended, reported_errors(debug=debug):
            raise other
        assert ended.value.code == 1
        assert capsys.readouterr().err.startswith("Traceback")


def test_a_file_that_cannot_be_written_beside_runs_is_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "last.pt").touch()
    with pytest.raises(SystemExit), reported_errors():
        raise PermissionError(13, "Permission denied", str(tmp_path / "model.onnx"))
    assert "model.onnx: Permission denied; correct that, or give another" in capsys.readouterr().err
