"""The GPU suite: limits, failures and figures of its parts; its JSON and image. No GPU is needed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from retina_dist.benchmark import step, suite, suite_parts
from retina_dist.benchmark.settings import SuiteConfig
from retina_dist.benchmark.suite_parts import Part
from retina_dist.config.compose import load_config
from retina_dist.errors import ConfigError
from retina_dist.reporting import suite as image

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
CPU = {"cpu": "a CPU", "gpus": [], "gpu": None, "mlperf_img_s": None, "cuda": None, "nccl": None}
EIGHT = {"cpu": "a CPU", "gpus": ["NVIDIA X"] * 8, "gpu": "X", "mlperf_img_s": 200.0, "cuda": "13.0", "nccl": "2.30.7"}


def python(code: str) -> list[str]:
    return ["-c", code]


def part(*commands: list[str], name: str = "x", seconds: int = 60, left_out: str | None = None) -> Part:
    return Part(name, seconds, commands, lambda found, text: {"found": dict(found), "words": text.split()}, left_out)


def test_a_part_leaves_its_figures_and_its_log(tmp_path: Path) -> None:
    code = f"print('done'); open({str(tmp_path / 'x.json')!r}, 'w').write('{{\"a\": 1}}')"
    found = suite.run_part(part(python(code)), tmp_path)
    assert (found["status"], found["figures"]) == ("ok", {"found": {"a": 1}, "words": ["done"]})
    assert (tmp_path / "x.log").read_text() == "done\n"


@pytest.mark.parametrize(
    ("code", "seconds", "status", "reason"),
    [
        ("raise SystemExit('ValueError: no such thing')", 60, "failed", "ValueError: no such thing"),
        ("pass; exit(3)", 60, "failed", "it printed nothing"),
        ("import time; print('begun', flush=True); time.sleep(600)", 1, "timed out", "not done within 1 s"),
    ],
)
def test_a_part_that_fails_is_named_with_its_reason(
    code: str, seconds: int, status: str, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "x.json").write_text('{"of": "an earlier suite"}')
    found = suite.run_part(part(python(code), seconds=seconds), tmp_path)
    assert (found["status"], found["reason"], found["figures"]["found"]) == (status, reason, {})


def test_what_a_part_started_ends_with_it(tmp_path: Path) -> None:
    """As a launcher's processes, which hold the GPU; one in a session of its own, which nobody has ended, is not waited for."""
    inner = "[sys.executable, '-c', 'import time; time.sleep(30)']"
    lines = ["import subprocess as s, sys", f"s.Popen({inner}, start_new_session=True)"]
    lines += [f"print(s.Popen({inner}).pid, flush=True)", f"s.run({inner})"]
    found = suite.run_part(part(python("; ".join(lines)), seconds=1), tmp_path)
    assert found["status"] == "timed out"
    status = Path("/proc", *found["figures"]["words"], "stat")
    end = time.monotonic() + 20
    while status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < end, "it has not ended"
        time.sleep(0.05)


def test_a_smaller_batch_follows_where_memory_is_short_and_only_there(tmp_path: Path) -> None:
    full = python("raise SystemExit('torch.OutOfMemoryError: CUDA out of memory.')")
    wrong, right = python("raise SystemExit('wrong')"), python("print('fits')")
    found = suite.run_part(part(full, full, right, wrong), tmp_path)
    assert (found["status"], found["figures"]["words"], found["command"][1:]) == ("ok", ["fits"], right)
    assert suite.run_part(part(wrong, right), tmp_path)["reason"] == "wrong"


def test_a_file_to_post_has_no_folder_of_this_machine(tmp_path: Path) -> None:
    code = f"raise SystemExit('Error: {tmp_path}/a and {suite.ROOT}/b')"
    found = suite.run_part(part([*python(code), f"output={tmp_path / 'x.json'}", str(suite.ROOT / "tests")]), tmp_path)
    assert found["command"] == ["python", "-c", "raise SystemExit('Error: a and b')", "output=x.json", "tests"]
    assert found["reason"] == "Error: a and b"


def test_all_reduce_is_judged_by_its_links(tmp_path: Path) -> None:
    """The doctor's exit code 1 may be about the disk; torchrun's is 1 when the job itself failed, too."""
    [real] = [part for part in suite_parts.parts(EIGHT, tmp_path, small=True) if part.name == "all_reduce"]
    assert "data.num_workers=0" in real.commands[0]
    report = f"open({str(tmp_path / 'all_reduce.json')!r}, 'w').write('{{\"all_reduce\": [1]}}')"
    full, broken = python(f"{report}; raise SystemExit('disk')"), python("raise SystemExit('NCCL error')")
    found = suite.run_part(replace(real, commands=[full]), tmp_path)
    assert (found["status"], found["figures"], "reason" in found) == ("ok", {"all_reduce": [1]}, False)
    found = suite.run_part(replace(real, commands=[broken]), tmp_path)
    assert (found["status"], found["reason"]) == ("failed", "NCCL error")


def test_a_part_is_left_out_with_the_reason(tmp_path: Path) -> None:
    never = python("print('run')")
    assert suite.run_part(part(never, left_out="no GPU"), tmp_path) == {"status": "left out", "reason": "no GPU"}
    assert suite.run_part(part(never), tmp_path, left_s=1)["reason"] == "the suite's 10 minutes were over"
    assert not list(tmp_path.iterdir())


def _split(command: Sequence[str]) -> tuple[str, list[str]]:
    """The module that is run, behind torchrun too, and its settings."""
    place = len(command) - 1 - list(reversed(command)).index("-m")
    return command[place + 1], list(command[place + 2 :])


@pytest.mark.parametrize(("machine", "small"), [(CPU, True), (EIGHT, True), (EIGHT, False)])
def test_every_command_is_one_that_this_version_understands(machine: dict, small: bool, tmp_path: Path) -> None:
    found = suite_parts.parts(machine, tmp_path, small)
    assert {"correctness", "parity", "mlperf", "scaling", "all_reduce", "memory_bf16"} <= {part.name for part in found}
    for part_ in found:
        for module, settings in (_split(command) for command in part_.commands):
            if module != "pytest":
                name = module.removeprefix("retina_dist.").replace(".", "_")
                config = load_config(name, settings)
                assert config.output == str(tmp_path / f"{part_.name}.json")
                assert config.strategy.device == ("cuda" if machine["gpus"] else "cpu")
    if not small:
        batches = [
            load_config("benchmark_step", c[2:]).batch_sizes for p in found if p.name == "mlperf" for c in p.commands
        ]
        assert batches == [[32], [16], [8], [4], [2]]


def test_figures_are_taken_from_what_the_benchmarks_write() -> None:
    step = suite_parts.steps(json.loads((BENCHMARKS / "step_cpu_small_128.json").read_text()), "")
    assert {**step["rows"][0], "images_per_s": 0} == {
        "path": "torchvision",
        "batch_size": 16,
        "images_per_s": 0,
        "ratio": 1.0,
    }
    scaling = suite_parts.scaling(json.loads((BENCHMARKS / "scaling_2_cores.json").read_text()), "")
    assert (scaling["rows"][0]["launcher"], scaling["rows"][0]["speedup"]) == ("python", 1.0)
    cases = {"fp64/clip": {"losses": 1e-16, "weights": 3e-16}, "fp64/live batch norm": {"losses": 0.1}}
    assert suite_parts.differences({"torchrun 2": cases}, "") == {"largest_difference": {"torchrun 2 fp64": 3e-16}}
    row = {"images_per_s": 50.0, "batch_size": 32, "path": "bf16-graph", "peak_memory_gib": 9.0}
    assert suite_parts.mlperf_share(EIGHT)({"rows": [row]}, "")["share"] == 0.25
    memory = {"predicted_gib": 1.25, "measured_gib": 1.5}
    rows = suite_parts.memory_of("bf16")({"batch_size": 8, "memory": memory}, "")["rows"]
    assert rows == [{"name": "bf16\nbatch 8", **memory}]
    assert suite_parts.mlperf_share(CPU)({"rows": [row]}, "")["share"] is None


def suite_of(monkeypatch: pytest.MonkeyPatch, machine: dict[str, Any], found: list[Part]) -> None:
    monkeypatch.setattr(suite, "_in_a_child", lambda function: machine)
    monkeypatch.setattr(suite_parts, "parts", lambda machine, folder, small: found)


def test_the_suite_counts_failures_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failing, fine = python("raise SystemExit('broken')"), python("print('well')")
    parts = [part(failing, name="parity"), part(fine, name="other"), part(fine, name="tests", left_out="no GPU")]
    suite_of(monkeypatch, CPU, parts)
    suite.run(SuiteConfig(output_dir=str(tmp_path / "new"), small=True))
    found = json.loads((tmp_path / "new" / "suite.json").read_text())
    assert {name: part["status"] for name, part in found["parts"].items()} == {
        "parity": "failed",
        "other": "ok",
        "tests": "left out",
    }
    assert found["machine"] == CPU
    assert "torch" in found["versions"]
    assert (tmp_path / "new" / "suite.png").read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out.splitlines()[-1] == "1 of 3 parts failed: parity"


def test_without_a_gpu_it_says_how_to_run_it_small(monkeypatch: pytest.MonkeyPatch) -> None:
    suite_of(monkeypatch, CPU, [])
    with pytest.raises(ConfigError, match="no GPU here; small=true runs"):
        suite.run(SuiteConfig())


def drawn(monkeypatch: pytest.MonkeyPatch, parts: dict[str, Any], machine: dict[str, Any]) -> list[list[str]]:
    """The texts of each panel, the first of the whole image."""
    figure = Figure()

    @contextmanager
    def kept(out: Path, size: tuple[float, float]) -> Iterator[Figure]:
        yield figure

    monkeypatch.setattr(image, "new_figure", kept)
    about = {"machine": machine, "parts": parts, "versions": {"torch": "2.15"}, "commit": "abc", "small": False}
    image.plot_suite(about, Path("unused.png"))
    panels = [
        [axes.get_title(loc="left") or axes.get_title(), *(text.get_text() for text in axes.texts)]
        for axes in figure.axes
    ]
    return [[str(figure.get_suptitle())], *panels]


def test_the_image_shows_figures_and_why_a_panel_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    mlperf = {
        "path": "bf16-graph",
        "batch_size": 8,
        "images_per_s": 123.0,
        "published_images_per_s": 200.0,
        "share": 0.615,
    }
    rows = [{"path": "torchvision", "batch_size": 2, "images_per_s": 10.0, "ratio": 1.0}]
    rows.append({"path": "bf16", "batch_size": 2, "images_per_s": 25.0, "ratio": 2.5})
    parts = {
        "mlperf": {"status": "ok", "figures": mlperf},
        "step_2": {"status": "ok", "figures": {"rows": rows}},
        "step_8": {"status": "timed out", "reason": "not done within 60 s"},
        "scaling": {"status": "failed", "reason": "NCCL says no"},
        "memory_bf16": {"status": "left out", "reason": "no GPU"},
    }
    title, steps, published, memory, scaling = drawn(monkeypatch, parts, EIGHT)
    assert title == ["8 x NVIDIA X, commit abc"]
    assert steps[1:] == ["1.00x", "2.50x"]
    assert published[1:] == ["123", "200"]
    assert memory[1:] == ["memory_bf16: left out, no GPU"]
    row = {"name": "bf16\nbatch 2", "predicted_gib": 1.25, "measured_gib": 1.5}
    parts["memory_bf16"] = {"status": "ok", "figures": {"rows": [row]}}
    assert drawn(monkeypatch, parts, EIGHT)[3][1:] == ["1.25", "1.5"]
    assert scaling[1:] == ["scaling: failed, NCCL says no"]
    one = {"launcher": "python", "processes": 1, "images_per_s": 50.0, "speedup": 1.0, "backend": "one process"}
    links = [{"size_mb": 1, "gb_s": 3.21}, {"size_mb": 64, "gb_s": 210.4}]
    parts["scaling"] = {"status": "ok", "figures": {"rows": [one]}}
    parts["all_reduce"] = {"status": "ok", "figures": {"all_reduce": links}}
    assert (
        drawn(monkeypatch, parts, EIGHT)[4][0] == "Several processes; all-reduce 3.21 GB/s at 1 MB, 210 GB/s at 64 MB"
    )


def test_a_real_part(tmp_path: Path) -> None:
    [mlperf] = [part for part in suite_parts.parts(CPU, tmp_path, small=True) if part.name == "mlperf"]
    step.benchmark(load_config("benchmark_step", list(mlperf.commands[0][2:])))
    found = mlperf.figures(suite_parts.read_json(tmp_path / "mlperf.json"), "")
    assert (found["batch_size"], found["path"], found["share"]) == (4, "bf16", None)
    assert found["images_per_s"] > 0


@pytest.mark.long
def test_the_whole_small_suite(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "retina_dist.benchmark", "suite", "small=true", f"output_dir={tmp_path / 'found'}"]
    done = subprocess.run(line, capture_output=True, text=True)
    found = json.loads((tmp_path / "found" / "suite.json").read_text())["parts"]
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert {part["status"] for part in found.values()} <= {"ok", "left out"}
    assert all(part["figures"] for part in found.values() if part["status"] == "ok")
