"""The files for Azure ML are right, and the checker finds each wrong one; no account, no network."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("azure.ai.ml", reason="azure-ai-ml, of the extra dev, is not installed")
AZURE = Path(__file__).resolve().parents[3] / "scripts" / "azure"
sys.path.insert(0, str(AZURE))

import check as command  # noqa: E402
import checker  # noqa: E402
from checker import sizes  # noqa: E402

from retina_dist.benchmark.communication import MACHINES  # noqa: E402
from tests.unit.scripts import azure_faults as faults  # noqa: E402

CLUSTERS = AZURE.parents[1] / "docs" / "clusters.md"
# The overrides that the page gives for a classifier: --set and what follows.
CLASSIFICATION = (
    re.findall(r"train-ddp\.yml (--set .*?)\n```", CLUSTERS.read_text(), re.S)[0].replace("\\\n", " ").split()
)


@pytest.mark.parametrize("path", command.all_files(AZURE), ids=lambda path: path.name)
def test_the_files_are_right(path: Path) -> None:
    assert checker.check_file(path)[1] == []


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return faults.copy(AZURE, tmp_path_factory.mktemp("checkout")).resolve()


@pytest.mark.parametrize("fault", faults.FAULTS, ids=lambda fault: f"{fault.rule}-{Path(fault.file).name}")
def test_a_wrong_file_is_found_by_the_rule_for_it(fault: faults.Fault, copied: Path, tmp_path: Path) -> None:
    folder = faults.copy(AZURE, tmp_path).resolve() if fault.file.endswith(".amlignore") or fault.done else copied
    path = folder / fault.file
    text = path.read_text()
    if fault.done:
        fault.done(folder.parents[1])
    else:
        assert text.count(fault.old) == 1, f"{fault.file} has {text.count(fault.old)} times {fault.old!r}"
        path.write_text(text.replace(fault.old, fault.new))
    found = checker.check_file((folder / fault.checked if fault.checked else path).resolve())[1]
    path.write_text(text)
    assert fault.rule in {finding.rule for finding in found}, found


def test_the_copy_that_faults_are_made_of_is_right(copied: Path) -> None:
    assert [checker.check_file(path)[1] for path in sorted(copied.glob("*.yml"))] == [[]] * 16


def test_every_rule_has_a_wrong_file() -> None:
    texts = [(AZURE / "checker" / f"{name}.py").read_text() for name in ("rules", "files")]
    rules = {
        name
        for text in texts
        for name in re.findall(r'(?:yield |yield from \(\(|^    \()"(\w+)", ', text, re.MULTILINE)
    }
    assert len(rules) > 30
    assert rules <= {fault.rule for fault in faults.FAULTS}


def run(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int | str | None:
    """The command's exit code."""
    monkeypatch.setattr(sys, "argv", ["check.py", *arguments])
    with pytest.raises(SystemExit) as end:
        command.main()
    return end.value.code


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ([], 0, "train-ddp.yml  commandJob  ok"),
        (CLASSIFICATION, 0, "train-ddp.yml  commandJob  ok"),
        ([*CLASSIFICATION, "inputs.format=shards"], 1, "settings: "),
        (
            ["--set", "resources.instance_count=3", "inputs.batch_size=12"],
            1,
            "place: 1 x instance_count: 3",
        ),
        (["--set", "inputs.batch_size=12"], 1, "plan: data.batch_size=12 leaves GPUs of 2 x 4 idle"),
    ],
)
def test_the_command_prints_a_table_of_the_file_as_it_will_be(
    changes: list[str], code: int, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([str(AZURE / "train-ddp.yml"), *changes], monkeypatch) == code
    assert words in capsys.readouterr().out


def test_without_the_sdk_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checker.documents._sdk.cache_clear()
    monkeypatch.setitem(sys.modules, "azure.ai", None)
    assert run([str(AZURE / "data.yml")], monkeypatch) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith('error: azure-ai-ml is not installed; pip install "azure-ai-ml>=1.35,<1.36"')
    assert (len(printed.err.splitlines()), printed.out) == (1, "")


def test_sizes_are_those_of_the_communication_model_without_the_retired_ones() -> None:
    for name, machine in MACHINES.items():
        assert sizes.gpus_of(name) == (None if sizes.retired(name) else machine.gpus)
    assert not set(sizes.OTHERS) & set(MACHINES)
    assert sizes.retired("Standard_NC24")
    assert [sizes.gpus_of(size) for size in ("Standard_D4s_v5", "standard_ds3_V2", "STANDARD_E8s_v5")] == [0, 0, 0]
    assert (sizes.gpus_of("Standard_ND96is_H100_v5"), sizes.gpus_of("Standard_NV12ads_A10_v5")) == (8, 1)
    assert (sizes.memory_gib_of("Standard_NV12ads_A10_v5"), sizes.vcpus_of("Standard_NC96ads_A100_v4")) == (8, 96)
    assert sizes.gpus_of("standard_nc96ADS_a100_v4") == 4


def test_the_image_is_built_of_what_azure_uploads() -> None:
    uploaded = {name for _, name in checker.files.snapshot(AZURE.parents[1])}
    text = (AZURE.parent / "image" / "train.Dockerfile").read_text()
    copied = [word for line in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.M) for word in line.split()]
    assert len(copied) > 8
    assert [c for c in copied if not any(name == c or name.startswith(f"{c}/") for name in uploaded)] == []


def test_what_the_walk_writes_is_neither_sent_nor_committed() -> None:
    """Every job takes the checkout along; with COCO in it the walk would end at its ninth step."""
    walk = (AZURE / "README.md").read_text()
    for name in ("coco2017", "coco2017-shards", "best", "figure10", "out", "model", "request.json"):
        assert re.search(rf"\b{re.escape(name)}\b", walk), name
        for ignored in (".amlignore", ".gitignore"):
            assert re.search(rf"^/{re.escape(name)}/?$", (AZURE.parents[1] / ignored).read_text(), re.M), (
                name,
                ignored,
            )
