"""Azurite, Microsoft's emulator of Blob storage: installed once a machine, started once a session.

Skipped, with the reason, where Node.js, npm or a library is missing or the registry cannot be
reached. Nothing leaves this machine but the installation; the account and its key are the
emulator's own, published at
https://learn.microsoft.com/azure/storage/common/storage-use-azurite#well-known-storage-account-and-key
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path

import pytest

from tests.commands import free_port, listens, wait_for

AZURITE = "azurite@3.35.0"  # newer ones want Node 22
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
INSTALL_S, START_S = 300, 60


def new_container() -> str:
    """Its name; with the fixture `storage` only."""
    import fsspec

    name = f"c{uuid.uuid4().hex[:16]}"
    fsspec.filesystem("az").mkdir(name)
    return name


@pytest.fixture(scope="session")
def tools() -> Path:
    """The folder with the program."""
    if not shutil.which("node") or not shutil.which("npm"):
        pytest.skip("Azurite needs Node.js and npm, which are not installed")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "retina_dist"
    folder = cache / AZURITE
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "azure.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # let go of when the file is closed, or the process ends
        if not folder.is_dir():
            unfinished = folder.with_name(f"{folder.name}.unfinished")
            line = [
                "npm",
                "install",
                "--prefix",
                str(unfinished),
                "--no-audit",
                "--no-fund",
                "--loglevel=error",
            ]
            try:
                done = subprocess.run(
                    [*line, AZURITE], capture_output=True, text=True, timeout=INSTALL_S
                )
            except subprocess.TimeoutExpired:
                pytest.skip(f"npm did not install Azurite within {INSTALL_S} s")
            if done.returncode:
                pytest.skip(f"npm cannot install Azurite: {' '.join(done.stderr.split())[:300]}")
            unfinished.rename(folder)
    return folder


@pytest.fixture(scope="session")
def storage(tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The emulator; az:// means it as long as the session lasts. Azure itself needs account name
    and identity instead.
    """
    pytest.importorskip("adlfs", reason="az:// needs adlfs: pip install 'retina-dist[azure]'")
    folder = tmp_path_factory.mktemp("azurite")
    port = free_port()
    # azure-storage-blob speaks versions of the protocol that this Azurite does not know the names
    # of
    line = [
        "node",
        str(tools / "node_modules/.bin/azurite-blob"),
        "--skipApiVersionCheck",
        "--disableTelemetry",
    ]
    line += [
        "--silent",
        "--location",
        str(folder / "data"),
        "--blobHost",
        "127.0.0.1",
        "--blobPort",
        str(port),
    ]
    with (folder / "log.txt").open("w") as log, pytest.MonkeyPatch.context() as patch:
        server = subprocess.Popen(line, cwd=folder, stdout=log, stderr=log)
        try:
            wait_for(lambda: listens(port) or server.poll() is not None, START_S)
            assert server.poll() is None, (folder / "log.txt").read_text()
            endpoint = f"BlobEndpoint=http://127.0.0.1:{port}/{ACCOUNT};"
            account = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};"
            patch.setenv("AZURE_STORAGE_CONNECTION_STRING", account + endpoint)
            forkserver._forkserver._stop()  # type: ignore[attr-defined]  # one that runs has the environment of its start
            yield
        finally:
            server.kill()
            server.wait()
