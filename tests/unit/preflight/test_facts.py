"""What a rank reads of its machine, from made-up /sys and real sockets; what it cannot read stops nothing."""

from __future__ import annotations

import math
import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from retina_dist.errors import UserError
from retina_dist.files import Url
from retina_dist.preflight import data_files, facts
from retina_dist.preflight.clock import ROUNDS, read_clock
from retina_dist.preflight.cluster import CPU, _checkpoint_bytes, _or_user_error
from retina_dist.preflight.facts import Facts, existing, is_loopback, is_own, read_machine
from retina_dist.preflight.gather import gather_facts
from retina_dist.preflight.needs import needs_of
from retina_dist.preflight.network import measure_links
from retina_dist.strategies.single_device import SingleDeviceStrategy


def test_a_machine_is_read(tmp_path: Path) -> None:
    found = read_machine(SingleDeviceStrategy("cpu"), tmp_path / "runs" / "new")
    assert found.versions["torch"] == torch.__version__
    assert found.gpu is None
    assert found.open_files
    assert found.disk_free
    assert not {"versions", "disk of the run folder", "limit of open files"} & found.unread.keys()


def test_what_cannot_be_read_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(facts, "SHARED_MEMORY", tmp_path / "none")
    found = read_machine(SingleDeviceStrategy("cpu"), tmp_path)
    assert found.shm_bytes is None
    assert str(tmp_path / "none") in found.unread


def test_a_gpu_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gpu = SimpleNamespace(name="NVIDIA T4", total_memory=15 * 2**30, uuid="12-34")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    monkeypatch.setattr(facts, "driver_version", lambda: None)
    monkeypatch.setattr(facts, "nccl_version", lambda: "2.27.5")
    strategy = SingleDeviceStrategy("cpu")
    strategy.device = torch.device("cuda", 0)
    found = read_machine(strategy, tmp_path)
    assert (found.gpu, found.memory_gib, found.uuid) == ("NVIDIA T4", 15.0, "12-34")
    assert found.versions["NCCL"] == "2.27.5"
    assert "driver" not in found.versions
    assert "driver" in found.unread
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: 1 // 0)
    assert "ZeroDivisionError" in read_machine(strategy, tmp_path).unread["GPU"]


def test_a_host_without_ipv6_has_no_such_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_ipv6(family: int, kind: int) -> None:
        raise OSError(97, "Address family not supported by protocol")

    monkeypatch.setattr(facts, "socket", SimpleNamespace(AF_INET6=10, AF_INET=2, SOCK_STREAM=1, socket=without_ipv6))
    assert not is_own("2001:db8::1")


def test_addresses_are_told_apart() -> None:
    assert is_loopback("127.0.1.1")
    assert is_loopback("::1")
    assert not is_loopback("fe80::1%eth0")
    assert is_own("127.0.0.1")
    assert not is_own("192.0.2.77")  # set aside for examples: nobody's


def test_facts_travel_as_they_are() -> None:
    own = Facts(0, "hôte", versions={"torch": "2"}, clock=[(1.5, 2.5)], unread={"driver": "none"})
    (found,) = gather_facts(SingleDeviceStrategy("cpu"), own)
    assert found.clock == [[1.5, 2.5]]
    found.clock = own.clock
    assert found == own


def test_what_goes_before_the_network_is_measured_needs_no_gpus_network() -> None:
    strategy = SingleDeviceStrategy("cpu")
    strategy.device = torch.device("meta")  # whose tensors have no values
    assert len(gather_facts(strategy, Facts(0, "a"))) == 1
    assert len(read_clock(strategy)) == ROUNDS
    assert strategy.run_collectively(lambda: 3, CPU) == 3


def test_whatever_a_broken_machine_raises_names_host_and_phase() -> None:
    with pytest.raises(UserError, match=r"the digest of the data failed on .*ZeroDivisionError"):
        _or_user_error("the digest of the data", lambda: 1 // 0)


def test_one_rank_has_no_link() -> None:
    assert measure_links(SingleDeviceStrategy("cpu")) == []


def test_digests_tell_files_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_bytes(b"abc")
    other.write_bytes(b"abd")
    digest = partial(data_files.digest, until=math.inf)
    assert digest(one) == "SHA-256 ba7816bf8f01cfea… of 3 bytes"
    assert digest(one) != digest(other)
    assert digest(tmp_path) == digest(tmp_path)
    assert digest(tmp_path).endswith("of 2 names")
    with pytest.raises(OSError, match="none"):
        digest(tmp_path / "none")
    monkeypatch.setattr(data_files, "MOST_BYTES", 2)
    monkeypatch.setattr(data_files, "PIECE", 2)
    assert digest(one) == digest(other)  # so far equal, and of one size


def test_slow_storage_and_errors_are_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one").write_bytes(b"abc")
    files = [tmp_path / "one", tmp_path / "none"]
    assert [found.partition(" ")[0] for found in data_files.digests(files).values()] == ["SHA-256", "error:"]
    monkeypatch.setattr(data_files, "MOST_SECONDS", -1.0)
    assert [found.partition(" ")[0] for found in data_files.digests(files).values()] == ["slow:", "error:"]


def test_a_file_behind_a_url_is_not_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fsspec")
    url = Url("memory://preflight/train.json")
    url.write_bytes(b"abcdef")
    monkeypatch.setattr(data_files, "MOST_BYTES_OF_URL", 3)
    assert data_files.digest(url, math.inf) == "SHA-256 ba7816bf8f01cfea… of 6 bytes"
    with pytest.raises(OSError, match="there is no"):
        data_files.digest(Url("memory://preflight/none.json"), math.inf)


def test_the_folder_that_is_there_stands_in_for_one_that_is_not(tmp_path: Path) -> None:
    assert existing(tmp_path / "a" / "b") == tmp_path


def test_needs_follow_the_settings() -> None:
    config = SimpleNamespace(
        data=SimpleNamespace(batch_size=64, num_workers=4),
        trainer=SimpleNamespace(accumulate=2, ema_decay=0.999, keep_last=2, save_top_k=1, checkpoint_dir=None),
        optimizer=SimpleNamespace(name="adamw"),
    )
    needs = needs_of(config, 8, 1000, 10**6)
    assert needs.shm_of_rank == 4 * 2 * 4 * 1000  # workers x batches ahead x images of a micro-batch x bytes
    assert needs.disk == 4 * 4 * 10**6  # checkpoints, one of them being written, of weights, two means and an average
    assert needs_of(config, 8, None, None).shm_of_rank is None
    config.data.synthetic = object()
    assert needs_of(config, 8, 1000, None).shm_of_rank == 0
    config.trainer.checkpoint_dir = "az://container/run"
    assert needs_of(config, 8, None, 10**6).disk is None


def test_a_checkpoint_that_has_two_names_takes_its_room_once(tmp_path: Path) -> None:
    (tmp_path / "step_8.pt").write_bytes(bytes(100))
    os.link(tmp_path / "step_8.pt", tmp_path / "best.pt")
    (tmp_path / "last.pt").symlink_to("gone.pt")
    config = SimpleNamespace(resume="auto", output_dir=str(tmp_path), trainer=SimpleNamespace(checkpoint_dir=None))
    assert _checkpoint_bytes(config) == 100  # type: ignore[arg-type]
