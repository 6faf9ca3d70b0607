"""Each broken thing is found in facts, with the host, the values and a remedy; sound facts give no finding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from retina_dist.preflight import checks
from retina_dist.preflight.checks import Finding
from retina_dist.preflight.clock import Offset, offset
from retina_dist.preflight.facts import Facts
from retina_dist.preflight.needs import Needs
from retina_dist.preflight.network import Link, expected_machine, with_expected
from retina_dist.preflight.report import ClusterReport

NEEDS = Needs(shm_of_rank=2 * 2**30, open_files=400, disk=2**30)
VERSIONS = {"retina_dist": "0.2", "torch": "2.11", "torchvision": "0.26", "NCCL": "2.27.5", "driver": "580.65.06"}
LINKS = (Link(1, 0.3), Link(64, 2.0))


def cluster(**of_rank_3: Any) -> list[Facts]:
    """Two hosts of two GPUs, all sound but for what is given of rank 3 on host b."""
    ranks = [
        Facts(
            rank=rank,
            host="ab"[rank // 2],
            gpu="NVIDIA A100-SXM4-80GB",
            uuid=f"GPU-{rank}",
            memory_gib=79.3,
            versions=VERSIONS,
            addresses=[f"10.0.0.{rank // 2}"],
            ethernet_gbit=100.0,
            infiniband_gbit=1600.0,
            shm_bytes=16 * 2**30,
            open_files=65536,
            disk_free=2**40,
            data={"train.json": "SHA-256 12"} if rank % 2 == 0 else {},
            clock=[(100.0 + rank, 101.0 + rank)],
            step_ms=20.0 + 0.1 * rank,
        )
        for rank in range(4)
    ]
    host_wide = {"addresses", "foreign", "shm_bytes", "open_files", "data", "clock"} & of_rank_3.keys()
    for rank in (2, 3) if host_wide else (3,):
        ranks[rank] = replace(ranks[rank], **of_rank_3)
    return ranks


def findings(ranks: list[Facts], links: tuple[Link, ...] = LINKS, expect_gb_s: float | None = None) -> list[Finding]:
    return [
        *checks.version_findings(ranks),
        *checks.gpu_findings(ranks),
        *checks.data_findings(ranks),
        *checks.memory_findings(ranks, NEEDS),
        *checks.disk_findings(ranks, NEEDS, "runs"),
        *checks.file_findings(ranks, NEEDS),
        *checks.name_findings(ranks),
        *checks.clock_findings(ranks),
        *checks.link_findings(links, len(ranks), expect_gb_s),
        *checks.step_findings(ranks),
        *checks.unread_findings(ranks),
    ]


def test_a_sound_cluster_has_no_finding() -> None:
    assert findings(cluster()) == []


@pytest.mark.parametrize(
    ("broken", "level", "what"),
    [
        (
            {"versions": {**VERSIONS, "torchvision": "0.25"}},
            "error",
            "torchvision: 0.25 on b (rank 3), but 0.26 on the others",
        ),
        ({"versions": {**VERSIONS, "NCCL": "2.18"}}, "error", "NCCL: 2.18 on b (rank 3), but 2.27.5 on the others"),
        (
            {"versions": {**VERSIONS, "driver": "535.104.05"}},
            "warning",
            "driver: 535.104.05 on b (rank 3), but 580.65.06 on the others",
        ),
        ({"uuid": "GPU-2"}, "error", "ranks 2, 3 on b have the same GPU, GPU-2"),
        (
            {"gpu": "Tesla T4", "memory_gib": 14.6},
            "warning",
            "the device: Tesla T4, 14.6 GiB on b (rank 3), but NVIDIA A100-SXM4-80GB, 79.3 GiB on the others",
        ),
        (
            {"data": {"train.json": "SHA-256 34"}},
            "error",
            "train.json: SHA-256 34 on b (rank 2), but SHA-256 12 on a",
        ),
        (
            {"data": {"train.json": "error: FileNotFoundError: no such file."}},
            "error",
            "b cannot read train.json (FileNotFoundError: no such file)",
        ),
        (
            {"shm_bytes": 64 * 2**20},
            "error",
            "b has 64.0 MiB free in /dev/shm, and the data workers of its 2 ranks need 4.0 GiB",
        ),
        ({"open_files": 256}, "warning", "b lets a process open 256 files, and a rank may need about 400"),
        (
            {"addresses": ["127.0.1.1"]},
            "warning",
            "b resolves its own name to 127.0.1.1, where no other host can reach it",
        ),
        (
            {"addresses": ["10.9.9.9"], "foreign": ["10.9.9.9"]},
            "warning",
            "b resolves its own name to 10.9.9.9, which is no address of it",
        ),
        ({"addresses": []}, "warning", "b cannot resolve its own name"),
        ({"clock": [(190.0, 191.0)]}, "warning", "the clock of b is 90.000 s ahead of that of a (+- 1.000 s)"),
        ({"clock": [(10.0, 11.0)]}, "warning", "the clock of b is 90.000 s behind that of a (+- 1.000 s)"),
        (
            {"step_ms": 40.2},
            "warning",
            "rank 3 on b takes 40.2 ms for a step, 2.00 times the median: every step waits for it",
        ),
        (
            {"unread": {"driver": "OSError: no /proc"}},
            "warning",
            "rank 3 could not read the driver (OSError: no /proc)",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_a_broken_thing_is_the_only_finding(broken: dict[str, Any], level: str, what: str) -> None:
    (found,) = findings(cluster(**broken))
    assert (found.level, found.what) == (level, what)
    assert found.remedy.endswith(".")


def test_a_full_disk_counts_on_the_main_rank_which_writes() -> None:
    ranks = cluster()
    ranks[3].disk_free = 0
    assert findings(ranks) == []
    ranks[0].disk_free = 300 * 2**20
    (found,) = findings(ranks)
    assert found.what == "a has 300.0 MiB free for runs, and the checkpoints need 1.0 GiB"


def test_a_name_that_leads_home_only_is_fine_on_a_single_host() -> None:
    ranks = [replace(facts, host="a", addresses=["127.0.1.1"]) for facts in cluster()]
    assert list(checks.name_findings(ranks)) == []


def test_what_cannot_be_known_is_not_held_against_anyone() -> None:
    ranks = [replace(f, shm_bytes=None, open_files=None, disk_free=None, step_ms=None) for f in cluster()]
    assert findings(ranks) == []
    assert list(checks.memory_findings(cluster(shm_bytes=0), replace(NEEDS, shm_of_rank=None))) == []


def test_a_slow_network_is_held_against_the_hardware_or_a_number() -> None:
    machine, words = expected_machine(cluster(), None)
    assert words == "NVIDIA A100-SXM4-80GB among each other and 1600 Gbit/s of InfiniBand between hosts"
    good = with_expected(LINKS, 4, machine)
    assert good[1].expected_ms is not None
    assert 0.3 < good[1].expected_ms < 1.5  # 64 MB over 188 GB/s, both ways, and some hops
    (slow,) = findings(cluster(), (good[0]._replace(ms=0.1), good[1]._replace(ms=50.0)))
    assert slow.what.startswith("an all-reduce of 64 MB takes 50.00 ms, and should take about 0.")
    (below,) = findings(cluster(), LINKS, expect_gb_s=100.0)
    assert (below.level, below.what) == ("error", "an all-reduce of 64 MB reaches 48.00 GB/s, below expect_gb_s=100")


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([replace(f, gpu=None) for f in cluster()], "not known for CPUs"),
        ([replace(f, gpu="NVIDIA X1") for f in cluster()], "the links of NVIDIA X1"),
        ([replace(f, infiniband_gbit=None, ethernet_gbit=None) for f in cluster()], "the network cards' speed"),
    ],
)
def test_unknown_hardware_expects_nothing(ranks: list[Facts], words: str) -> None:
    machine, said = expected_machine(ranks, None)
    assert machine is None
    assert words in said
    assert with_expected(LINKS, 4, machine) == list(LINKS)


def test_without_infiniband_the_slowest_hosts_ethernet_counts() -> None:
    ranks = [replace(f, infiniband_gbit=None, ethernet_gbit=25.0 if f.host == "b" else 100.0) for f in cluster()]
    machine, words = expected_machine(ranks, None)
    assert machine is not None
    assert machine.outside == pytest.approx(1.7)  # the pair of nccl-tests#83
    assert words.endswith("25 Gbit/s of Ethernet between hosts")


def test_a_kind_of_machine_is_taken_at_its_word() -> None:
    machine, words = expected_machine([replace(f, gpu=None) for f in cluster()], "Standard_ND96asr_v4")
    assert machine is not None
    assert machine.gpus == 2
    assert words.startswith("Standard_ND96asr_v4")


def test_many_rounds_bound_an_offset_more_tightly() -> None:
    # truly 5 s ahead; all-reduces that end at 1, 11 and 21, which either side was late for
    here = [(0.0, 1.0), (10.9, 11.0), (20.0, 21.0)]
    there = [(5.9, 6.0), (15.0, 16.0), (25.95, 26.0)]
    found = offset(here, there)
    assert found.ahead_s == pytest.approx(5.0, abs=found.bound_s)
    assert found.bound_s < offset(here[:1], there[:1]).bound_s
    assert found.at_least_s == pytest.approx(4.95)
    assert Offset(0.2, 0.5).at_least_s == 0.0


def test_the_report_puts_the_remedies_last() -> None:
    ranks = cluster(uuid="GPU-2", clock=[(190.0, 191.0)])
    found = sorted(findings(ranks), key=lambda finding: finding.level)
    report = ClusterReport("DDP over NCCL", ranks, LINKS, "not known", found, 12.3)
    lines = report.text().splitlines()
    assert lines[0] == "DDP over NCCL, 2 hosts"
    assert any("2 x NVIDIA A100-SXM4-80GB, 79.3 GiB" in line for line in lines)
    assert lines.index("ERRORS") < lines.index("WARNINGS")
    assert lines[-1] == "1 error, 1 warning in 12 s: fix the errors before you train."
    content = report.to_dict()
    assert (content["errors"], content["warnings"]) == (1, 1)
    assert content["all_reduce"][1]["gb_s"] == pytest.approx(48.0)
    assert content["clock"]["b"]["ahead_s"] == pytest.approx(90.0, abs=1.0)
    assert [facts["uuid"] for facts in content["ranks"]] == ["GPU-0", "GPU-1", "GPU-2", "GPU-2"]
