"""No password, token or key of a setting reaches a file, the screen, an error or MLflow."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sys
import time
import uuid
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import yaml

import retina_dist.serve
import retina_dist.train
from retina_dist.base.errors import DataError
from retina_dist.base.files import names_in, parse_path
from retina_dist.base.redaction import MASK, redacted, redacted_tree
from retina_dist.detection.settings import DetectionData, DetectionRunConfig, ModelConfig
from retina_dist.engine.plan import TrainerConfig
from retina_dist.optim.settings import OptimizerConfig, ScheduleConfig
from retina_dist.run.assemble import tracked_run
from retina_dist.run.records import write_start
from retina_dist.run.resume import Run
from retina_dist.strategies.single_device import SingleDeviceStrategy
from retina_dist.tracking.mlflow import MlflowRun
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
    # names that end in a secret's word
    "HF_TOKEN=SECRET",
    '"hf_token": "SECRET"',
    "{'hf_token': 'SECRET'}",
    "AWS_SESSION_TOKEN=SECRET",
    "GITHUB_TOKEN=SECRET",
    "refresh_token=SECRET",
    "secret_key=SECRET",
    "private_key=SECRET",
    "DB_PASS=SECRET",
    "PGPASSWORD=SECRET",
    "MYSQL_PWD=SECRET",
    "passphrase=SECRET",
    "passcode: SECRET",
    "api-key=SECRET",
    "x-api-key: SECRET",
    "X-API-Key:SECRET",
    "X-Auth-Token: SECRET",
    "PRIVATE-TOKEN: SECRET",
    "ApiKey=SECRET",
    "apikey: SECRET",
    "api key: SECRET",
    "OPENAI_API_KEY=SECRET",
    "WANDB_API_KEY='SECRET'",
    "WANDB_KEY=SECRET",
    "AZURE_STORAGE_KEY=SECRET",
    "azure_client_secret=SECRET",
    "AZURE_STORAGE_SAS_TOKEN=SECRET",
    "AZURE_STORAGE_CONNECTION_STRING='AccountName=mine;AccountKey=SECRET'",
    "AWS_ACCESS_KEY_ID=SECRET",
    "accessKey=SECRET",
    "accessKeyId: SECRET",
    "clientSecret=SECRET",
    "accessToken=SECRET",
    "idToken: 'SECRET'",
    "hftoken=SECRET",
    "dbpassword=SECRET",
    "MLFLOW_TRACKING_PASSWORD=SECRET",
    "RETINA_DIST_API_KEY=SECRET",
    "HF_TOKEN_2=SECRET",
    "token1=SECRET",
    "api_keys=[SECRET,SECRET]",
    "api_tokens: [SECRET, SECRET]",
    "passwords=[a, SECRET]",
    "credentials={user: me, x: SECRET}",
    "signing_key=SECRET",
    "encryption.key=SECRET",
    "subscription-key: SECRET",
    "Ocp-Apim-Subscription-Key: SECRET",
    "SharedAccessKeyName=mine;SharedAccessKey=SECRET",
    "ssh_key=SECRET",
    "license_key=SECRET",
    "session_key=SECRET",
    "_auth=SECRET",
    "_authToken=SECRET",
    "basic_auth=me:SECRET",
    "jwt=SECRET",
    "sig=SECRET",
    "JSESSIONID=SECRET",
    "Cookie: a=1; session=SECRET",
    "Set-Cookie: id=SECRET; Path=/",
    "Authorization: token SECRET",
    "Authorization: ApiKey SECRET",
    "authorization=SharedKey mine:SECRET",
    "Proxy-Authorization: Basic SECRETSECRET",
    '"Authorization": "Bearer SECRET"',
    "Authorization: AWS4-HMAC-SHA256 Credential=SECRET/eu/s3, SignedHeaders=host, Signature=SECRET",
    # ways to write a value
    "token = SECRET",
    "token := SECRET",
    "token => SECRET",
    "token == SECRET",
    'token="SECRET with spaces"',
    "token='a\"SECRET'",
    'token="a\\"SECRET"',
    'DB_PASS=pa"SECRET',
    "password=it'sSECRET",
    "{token:SECRET}",
    "+model={name:x,hub_token:SECRET}",
    '{\\"hf_token\\": \\"SECRET\\", \\"a\\": 1}',
    "os.environ['HF_TOKEN']='SECRET'",
    'os.environ["HF_TOKEN"] = "SECRET"',
    "config[api_key]=SECRET",
    "--api-key SECRET",
    "--hf-token 'SECRET'",
    "--token=SECRET",
    "docker login --password SECRET",
    "<password>SECRET</password>",
    "<ns:apiKey>SECRET</ns:apiKey>",
    'https://u:pa"SECRET@host/x',
    "https://u:pa<SECRET@host/x",
    "ssh://git:SECRET@host:22/x",
    # Hydra's environment of a job
    "+hydra.job.env_set.HF_TOKEN=SECRET",
    "+hydra.job.env_set.ANYTHING=SECRET",
    "'hydra.job.env_set.ANYTHING=SECRET'",
    "hydra.job.env_set={ANYTHING:SECRET,MORE:SECRET}",
    "+hydra.job.env_set={ANYTHING: SECRET, MORE: 'SECRET'}",
    '"env_set": {"ANYTHING": "SECRET", "MORE": "SECRET"}',
    "job:\n  env_set:\n    ANYTHING: SECRET\n    MORE: 'SECRET'\n  name: mine",
    # secrets that are known by how they begin
    "hf_SECRETSECRETSECRETSECRET",
    "ghp_SECRETSECRETSECRETSECRET",
    "github_pat_SECRETSECRETSECRETSECRET",
    "glpat-SECRETSECRETSECRETSECRET",
    "xoxb-SECRETSECRETSECRET",
    "AKIASECRETSECRETSE",
    "AIzaSECRETSECRETSECRETSECRETSECRETSECRET",
    "sk-SECRETSECRETSECRETSECRET",
    "sk-ant-api03-SECRETSECRETSECRETSECRET",
    "sk_live_SECRETSECRETSECRET",
    "npm_SECRETSECRETSECRETSECRETSECRET",
    "pypi-AgEIcHlwaS5vcmcSECRETSECRETSECRET",
    "nvapi-SECRETSECRETSECRETSECRET",
    "gsk_SECRETSECRETSECRETSECRET",
    "hvs.SECRETSECRETSECRETSECRET",
    "dckr_pat_SECRETSECRETSECRETSECRET",
    "SG.SECRETSECRETSECRET.SECRETSECRETSECRET",
    "eyJhbGciOiJIUzI1NiJ9.SECRETSECRET.SECRET-SECRET_SECRET",
    "https://hooks.slack.com/services/T0SECRET/B0SECRET/SECRET",
    "https://discord.com/api/webhooks/123/SECRET",
    "-----BEGIN RSA PRIVATE KEY-----\nSECRET\nSECRET\n-----END RSA PRIVATE KEY-----",
    "-----BEGIN PRIVATE KEY-----\\nSECRET\\nSECRET",
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
        assert "AUTHORIZATION" in kind.upper() or host in masked, "it helps to find the mistake"


HARMLESS = """
az://container/run
abfss://container@account.dfs.core.windows.net/run
http://169.254.169.254
http://host:8080/a@b.jpg
http://host:8080","me@x"
["https://host:8080","me@example"]
sqlite:///mlflow.db
/data/a@b:c/x.json
data.root=/data/coco optimizer.lr=0.1
give data.train_annotations=FILE; see https://example.org/docs.
a token of the model, the password is wrong, secrets are kept
simplecache::file:///data/set
runs/shapes/checkpoints/best.pt: 12 tokens; key=3
tokenizer=bert
tokenizer: {name: bert, vocab: 3}
max_tokens=20
num_tokens: 17
tokens=3
max_token=20
pad_token=<pad>
eos_token: </s>
cls_token=true
class_token=1
mask_token=[MASK]
token=true
"token": null
use_auth_token=False
require_auth=true
api_key=null
password: none
keypoints=17
"keypoints": [1, 2, 3]
key=3
keys=[a,b]
sort_key=area
primary_key=id
image_key: jpg
monkey=0.5
turkey: 0.7
keyboard=12
keystone=1
donkey: AP 0.3
bypass=true
compass=north
first_pass=3
forward_pass=1.2
num_pass=2
passes=3
passed=12
pass_through=1
PWD=/home/me
OLDPWD=/home/me
secretary=0.4
secretary bird: 12 objects
signal=15
significant=0.05
sigma=0.5
design=1
assign=max
author=me
authors: a, b
Kansas=3
passenger=7
passport: 0.8
credits=3
tokenization=fast
session=3
cookies are eaten
classes: person, cookie, token
hf_hub
hf_home=/cache
hf-internal-testing/tiny-random-model
ghp_
sk-learn
scikit-learn==1.5
npm_config=x
glass=3
desk-lamp-of-a-kind: 3
xoxo
AKIA
eyJust a word
SG.a.b
resnet50-0676ba61.pth
fasterrcnn_resnet50_fpn_coco-258fb6c6.pth
runs/2026-11-26/18-00-00
model.backbone_weights=/weights/mobilenet_v2.pth
optimizer=adamw schedule=cosine trainer.precision=bf16
python -m retina_dist.train experiment=bccd -m optimizer.lr=0.01,0.02
+strategy=horovod hydra/launcher=joblib
hydra.job.env_copy=[HOME]
hydra.job.name=train
env_settings=1
/run/secrets/hf_token
/etc/ssl/private/key.pem
checkpoint sha256: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
commit 6175f8d4f2c1b0aa9d3e
images/s 12.5, loss 0.345, lr 1.0e-03
torch.Size([2, 3, 640, 640])
RANK=0 WORLD_SIZE=2 LOCAL_RANK=0
OMP_NUM_THREADS=1
CUDA_VISIBLE_DEVICES=0,1
MASTER_ADDR=10.0.0.1 MASTER_PORT=29500
AccountName=mine;EndpointSuffix=core.windows.net
account_name=mine
user=me
email: me@example.org
see docs/settings.md, section "Secrets"
data.classes=[person,"traffic light",tie]
Basic block
bearer of news
--max-tokens 20
--keypoints 17
<name>x</name>
<keypoints>17</keypoints>
-----BEGIN CERTIFICATE-----
https://example.org/a/b/c.html
https://hooks.example.org/a/b
class "API": 3
api_key: ${oc.env:RETINA_DIST_API_KEY,null}
token: ${HF_TOKEN}
output_dir=runs/token-study
runs/password/config.yaml
AP50:95 = 0.345
12:30:05
""".strip().splitlines()


@pytest.mark.parametrize("text", HARMLESS)
def test_everything_else_stays(text: str) -> None:
    assert redacted(text) == text


def test_hundreds_of_forms_are_tried() -> None:
    assert len(KINDS) >= 100
    assert len(HARMLESS) >= 100


def test_a_dictionary_is_masked_by_its_keys() -> None:
    hidden = {"hf_token": "SECRET", "pin": 1, "db": {"password": 12345, "port": 1}, "token": None}
    hidden |= {"env_set": {"A": "SECRET", "B": ["SECRET", True, 7]}, "max_tokens": 3}
    masked = redacted_tree(hidden)
    assert masked["hf_token"] == masked["db"]["password"] == masked["env_set"]["A"] == MASK
    assert masked["env_set"]["B"] == [MASK, True, MASK]
    assert (masked["pin"], masked["db"]["port"], masked["token"], masked["max_tokens"]) == (
        1,
        1,
        None,
        3,
    )


@pytest.mark.parametrize(
    "text", ["a" * 10**6, "_token" * 10**5, "://" * 10**4, "env_set\n " * 10**5]
)
def test_a_long_text_takes_a_moment(text: str) -> None:
    started = time.process_time()
    redacted(text)
    assert time.process_time() - started < 5


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
        experiment="\n".join(KINDS),
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
        info=given, data=SimpleNamespace(params={}, tags={})
    )
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setenv("MLFLOW_RUN_ID", "7")
    strategy = SingleDeviceStrategy("cpu")
    write_start(planted, strategy, Path("run"), "a plan")
    plan: Any = SimpleNamespace(config=planted, images=KINDS[0])
    logger = MlflowRun(replace(planted.logging, mlflow="true"))
    logger.begin(tracked_run(plan, Run(Path("run")), strategy))
    logger.end_with(None)
    assert "SECRET" in mlflow.MlflowClient.call_args.kwargs["tracking_uri"]
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
    monkeypatch.setenv("UNTOLD", "")
    overrides = [f"logging.experiment='{KINDS[0]}'", "optimizer.lr=1,2", "output_dir=sweep"]
    overrides.append("+hydra.job.env_set.UNTOLD=xSECRETx")
    monkeypatch.setattr(sys, "argv", ["train", "-m", *overrides])
    with pytest.raises(SystemExit):
        retina_dist.train.main()
    folder = Path("sweep")
    rows = list(csv.DictReader((folder / "sweep.csv").read_text().splitlines()))
    assert "OSError: https://host/x is not there" in rows[0]["error"]
    written = [(str(path), path.read_bytes()) for path in folder.rglob("*") if path.is_file()]
    masked = yaml.safe_load((folder / "multirun.yaml").read_text())
    assert masked["hydra"]["job"]["env_set"] == {"UNTOLD": MASK}
    assert "optimizer.lr=1,2" in masked["hydra"]["overrides"]["task"]
    out, err = capfd.readouterr()
    assert leaks(iter([*written, ("stdout", out.encode()), ("stderr", err.encode())])) == []


@pytest.mark.parametrize("what", ["job", "hydra", "all"])
def test_the_composed_settings_are_shown_without_secrets(
    what: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    overrides = ["api_key=SECRET", "+hydra.job.env_set.ANY=SECRET", "checkpoint=a.pt", "port=81"]
    monkeypatch.setattr(sys, "argv", ["serve", *overrides, "--cfg", what])
    retina_dist.serve.main()
    shown = capfd.readouterr().out
    assert leaks(iter([("stdout", shown.encode())])) == []
    assert "port: 81" in shown or "env_set:" in shown


def test_the_command_of_a_run_is_written_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = ["+hydra.job.env_set.ANY=it's SECRET", "--token", "SECRET", "a=1"]
    monkeypatch.setattr(sys, "argv", ["train", *hidden])
    write_start(DetectionRunConfig(), SingleDeviceStrategy("cpu"), tmp_path, "a plan")
    text = (tmp_path / "command.json").read_text()
    assert "SECRET" not in text
    assert "a=1" in text
    assert "--token" in text
