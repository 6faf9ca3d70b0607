"""No password, token or key of a setting reaches a file, the screen, an error or MLflow."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sys
import uuid
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

import retina_dist.train
from retina_dist.base.errors import DataError
from retina_dist.base.files import names_in, parse_path
from retina_dist.base.redaction import redacted
from retina_dist.detection.settings import DetectionData, DetectionRunConfig, ModelConfig
from retina_dist.engine.plan import TrainerConfig
from retina_dist.optim.settings import OptimizerConfig, ScheduleConfig
from retina_dist.run import mlflow_run
from retina_dist.run.resume import Run
from retina_dist.tracking.settings import LoggingConfig

# As users and services write them; SECRET is what nobody may see.
KINDS = [
    "https://me:SECRET@host/x",
    "https://:SECRET@host:8080/x",
    "ftp://me:a@b:SECRET@host/x",
    "https://me:p/SECRET@host/x",
    "postgresql://me:SECRET@host:5432/mlflow",
    "abfs://me:SECRET@account.dfs.core.windows.net/x",
    "http://127.0.0.1:9/metadata?token=SECRET",
    "https://account.blob.core.windows.net/box/a.json?sv=2024-11-04&se=2030&sr=b&sig=SECRET%3D",
    "az://box/run?sig=SECRET",
    "https://b.s3.amazonaws.com/k?X-Amz-Credential=SECRET%2F2024&X-Amz-Security-Token=SECRET&X-Amz-Signature=SECRET",
    "https://host/x#access_token=SECRET&type=bearer",
    "https://host/x?SECRETSECRETSECRETSECRETSECRET",
    "DefaultEndpointsProtocol=https;AccountName=mine;AccountKey=SECRET==;EndpointSuffix=core.windows.net",
    "BlobEndpoint=https://mine.blob.core.windows.net/;SharedAccessSignature=sv=2024&sig=SECRET&se=2030",
    "Server=tcp:db;User ID=me;Password=SECRET;Encrypt=True",
    "export MLFLOW_TRACKING_PASSWORD='SECRET with spaces'",
    "MLFLOW_TRACKING_TOKEN=SECRET",
    "AzureBlobFileSystem(account_name='mine', account_key='SECRET', sas_token='SECRET')",
    '{"client_secret": "SECRET", "api_key": "SECRET"}',
    "Authorization: Bearer SECRETSECRET.x-y",
    "aws_secret_access_key = SECRET",
]
AROUND = [
    "{}",
    "could not open {} (ClientError: 403); look at the network.",
    "data.root={}, and {}",
    "[rank 1] error: '{}': no such file.",
    '{{"where": "{}", "again": ["{}"]}}',
    "see ({}), {}.",
]


@pytest.mark.parametrize("kind", KINDS)
def test_secrets_are_masked(kind: str) -> None:
    host = next(
        (word for word in ("host", "core.windows.net", "amazonaws", "mine", "box") if word in kind),
        "",
    )
    for around in AROUND:
        masked = redacted(around.replace("{}", kind).replace("{{", "{").replace("}}", "}"))
        assert "SECRET" not in masked
        assert redacted(masked) == masked
        assert host in masked, "what helps to find the mistake stays"


@pytest.mark.parametrize(
    "text",
    [
        "az://container/run",
        "abfss://container@account.dfs.core.windows.net/run",
        "http://169.254.169.254",
        "http://host:8080/a@b.jpg",
        "sqlite:///mlflow.db",
        "/data/a@b:c/x.json",
        "data.root=/data/coco optimizer.lr=0.1",
        "give data.train_annotations=FILE; see https://example.org/docs.",
        "a token of the model, the password is wrong, secrets are kept",
        "simplecache::file:///data/set",
        "runs/shapes/checkpoints/best.pt: 12 tokens; key=3",
    ],
)
def test_everything_else_stays(text: str) -> None:
    assert redacted(text) == text


# in a run


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DetectionRunConfig:
    """A run of two steps whose every free text has secrets in it, and which needs those of its data and checkpoints."""
    import fsspec

    from retina_dist.detection.data.synthetic import make_shapes

    monkeypatch.chdir(tmp_path)
    make_shapes(Path("shapes"), num_train=4, num_val=2, image_size=64, seed=0)
    box = f"memory://me:SECRET@{uuid.uuid4().hex}"
    memory = fsspec.filesystem("memory")
    for path in Path("shapes").rglob("*.*"):
        memory.pipe_file(f"{box}/{path}", path.read_bytes())
        memory.pipe_file(f"{box}/{path}?token=SECRET", path.read_bytes())
    shutil.rmtree("shapes")
    texts = iter(KINDS)
    data = DetectionData(
        name="shapes",
        train_annotations=f"{box}/shapes/annotations/instances_train.json?token=SECRET",
        train_images=f"{box}/shapes/train",
        val_annotations=f"{box}/shapes/annotations/instances_val.json",
        val_images=f"{box}/shapes/val",
        batch_size=2,
        min_sizes=[64],
        max_size=64,
        num_workers=0,
    )
    trainer = TrainerConfig(
        max_duration="2steps", validate_every="2steps", checkpoint_dir=f"{box}/checkpoints"
    )
    logging = LoggingConfig(
        mlflow="false",
        mlflow_uri=f"https://me:SECRET@host {next(texts)}",
        experiment=" ".join(KINDS),
        run_name=KINDS[12],
    )
    model = ModelConfig(backbone="resnet18", fpn_channels=16, norm="frozen_bn")
    schedule, optimizer = ScheduleConfig(name="constant"), OptimizerConfig(lr=1e-3)
    return DetectionRunConfig(
        data, model, optimizer, schedule, trainer, logging=logging, output_dir="run"
    )


def leaks(found: Iterator[tuple[str, bytes]]) -> list[str]:
    return [
        f"{name}: …{text[max(0, text.find(b'SECRET') - 60) :][:120]!r}"
        for name, text in found
        if b"SECRET" in text
    ]


def unpacked(name: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    yield name, content
    if zipfile.is_zipfile(io.BytesIO(content)):
        archive = zipfile.ZipFile(io.BytesIO(content))
        for member in archive.namelist():
            yield f"{name}, {member}", archive.read(member)


def written(checkpoints: str) -> Iterator[tuple[str, bytes]]:
    """The content of all files of the run, and of those inside its checkpoints."""
    for path in (p for p in Path().rglob("*") if p.is_file()):
        yield from unpacked(str(path), path.read_bytes())
    folder = parse_path(checkpoints)
    for name in names_in(folder):
        yield from unpacked(name, (folder / name).read_bytes())


def test_a_run_keeps_its_secrets(
    planted: DetectionRunConfig, capfd: pytest.CaptureFixture[str]
) -> None:
    from retina_dist.run.assemble import train

    checkpoints = str(planted.trainer.checkpoint_dir)
    train(planted)
    longer = replace(
        planted, resume="auto", trainer=replace(planted.trainer, max_duration="3steps")
    )
    train(longer)
    out, err = capfd.readouterr()
    broken = replace(
        planted.data, train_annotations=f"{planted.data.train_images}/absent.json?sig=SECRET"
    )
    with pytest.raises(DataError) as caught:
        train(
            replace(
                planted,
                data=broken,
                output_dir="other",
                trainer=replace(planted.trainer, checkpoint_dir=None),
            )
        )
    assert "absent.json?sig=***" in str(caught.value)
    screen = [
        ("stdout", out.encode()),
        ("stderr", err.encode()),
        ("error", str(caught.value).encode()),
    ]
    found = dict(written(checkpoints))
    assert {"run/config.yaml", "run/result.json", "step_00000003.pt, step_00000003/data.pkl"} <= {
        *found,
        *(name.replace("archive", "step_00000003") for name in found),
    }
    assert leaks(iter([*found.items(), *screen])) == []
    assert b"mine.blob.core.windows.net" in found["run/config.yaml"]


def test_mlflow_gets_no_secret(
    planted: DetectionRunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = MagicMock(MlflowException=ValueError)
    mlflow.entities.Param = mlflow.entities.RunTag = lambda key, value: (key, value)
    given = SimpleNamespace(run_id="7", run_name="a", status="RUNNING")
    mlflow.MlflowClient.return_value.get_run.return_value = SimpleNamespace(
        info=given, data=SimpleNamespace(params={})
    )
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setenv("MLFLOW_RUN_ID", "7")
    run = Run(Path("run"), 1, parse_path(f"{planted.trainer.checkpoint_dir}/step_00000001.pt"))
    with mlflow_run.MlflowRun("https://me:SECRET@host", planted, run, {"x": KINDS[0]}):
        pass
    sent = mlflow.MlflowClient.return_value.log_batch.call_args.kwargs
    assert dict(sent["params"])["data.train_images"].startswith("memory://")
    assert leaks(iter([("MLflow", json.dumps(sent).encode())])) == []


def test_a_sweep_gets_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Hydra's own multirun.yaml is redacted too."""

    def fails(config: DetectionRunConfig) -> None:
        raise OSError(f"{KINDS[0]} is not there")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(retina_dist.train, "train", fails)
    overrides = [f"logging.experiment='{KINDS[0]}'", "optimizer.lr=1,2", "output_dir=sweep"]
    monkeypatch.setattr(sys, "argv", ["train", "-m", *overrides])
    with pytest.raises(SystemExit):
        retina_dist.train.main()
    folder = Path("sweep")
    rows = list(csv.DictReader((folder / "sweep.csv").read_text().splitlines()))
    assert "OSError: https://host/x is not there" in rows[0]["error"]
    written = [(str(path), path.read_bytes()) for path in folder.rglob("*") if path.is_file()]
    assert any(name.endswith("multirun.yaml") for name, _ in written)
    out, err = capfd.readouterr()
    assert leaks(iter([*written, ("stdout", out.encode()), ("stderr", err.encode())])) == []
