"""Each broken thing is found in facts, with the host, the values and a remedy; sound facts give no finding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from retina_dist.preflight import checks
from retina_dist.preflight.checks import Finding
from retina_dist.preflight.clock import Offset, offset
from retina_dist.preflight.cluster import findings as all_findings
from retina_dist.preflight.facts import Facts
from retina_dist.preflight.needs import Needs
from retina_dist.preflight.network import Link
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
    return all_findings(ranks, links, NEEDS, "runs", expect_gb_s)


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


def test_machines_of_one_name_are_counted_apart() -> None:
    ranks = [replace(facts, host="node", boot_id="ab"[facts.rank // 2]) for facts in cluster()]
    assert len(checks.first_of_hosts(ranks)) == 2
    (found,) = findings(ranks)
    assert (found.level, found.what) == ("error", "2 machines are both called node")


def test_containers_that_share_a_gpu_are_all_named() -> None:
    ranks = cluster()
    ranks[2].uuid = ranks[1].uuid
    (found,) = findings(ranks)
    assert found.what == "ranks 1, 2 on a, b have the same GPU, GPU-1"


def test_a_host_whose_interface_is_given_needs_no_name() -> None:
    assert findings(cluster(addresses=["127.0.1.1"], chosen_interface="eth0")) == []


def test_what_could_not_be_read_is_found_once() -> None:
    without = {name: version for name, version in VERSIONS.items() if name != "driver"}
    (found,) = findings(cluster(versions=without, unread={"driver": "OSError: none"}))
    assert found.what == "rank 3 could not read the driver (OSError: none)"
    (found,) = findings(cluster(data={"data=coco": "error: there is no folder"}))
    assert found.what == "b cannot read data=coco (there is no folder)"


def test_slow_storage_is_no_difference_of_data() -> None:
    (found,) = findings(cluster(data={"train.json": "slow: 30.0 MB at 1.5 MB/s"}))
    assert (found.level, found.check) == ("warning", "storage")
    assert found.what == "b reads train.json slowly: 30.0 MB at 1.5 MB/s"


def test_a_wrong_clock_of_the_main_rank_is_not_the_others_fault() -> None:
    ranks = [
        replace(cluster()[0], rank=rank, host="abcd"[rank], uuid=str(rank), clock=[(at, at + 0.1)])
        for rank, at in enumerate((190.0, 100.0, 100.02, 100.01))
    ]
    (found,) = findings(ranks)
    assert found.what.startswith("the clock of a is 89.9")
    assert " ahead of that of " in found.what


def test_a_finding_of_many_hosts_is_said_once_on_the_screen() -> None:
    ranks = [replace(cluster()[0], rank=r, host=f"n{r}", uuid=str(r), shm_bytes=0) for r in range(20)]
    found = findings(ranks)
    assert len(found) == 20
    text = ClusterReport("DDP", ranks, LINKS, found, 1.0).text()
    assert text.count("free in /dev/shm") == 8
    assert "and 12 more; output=FILE.json has all" in text
    assert text.count("docker run --shm-size") == 1


def test_a_run_to_resume_has_its_checkpoints_already() -> None:
    ranks = cluster()
    ranks[0] = replace(ranks[0], disk_free=300 * 2**20, checkpoint_bytes=900 * 2**20)
    assert findings(ranks) == []


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


def test_a_slow_network_is_held_against_a_number() -> None:
    assert findings(cluster(), LINKS, expect_gb_s=40.0) == []
    (below,) = findings(cluster(), LINKS, expect_gb_s=100.0)
    assert (below.level, below.what) == ("error", "an all-reduce of 64 MB reaches 48.00 GB/s, below expect_gb_s=100")


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
    report = ClusterReport("DDP over NCCL", ranks, LINKS, found, 12.3)
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
