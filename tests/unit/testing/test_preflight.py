"""`doctor cluster=true`: each broken thing is the only finding, with the host, the values and a
remedy.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from retina_dist.data.settings import ImageDataSettings
from retina_dist.reporting.findings import Finding
from retina_dist.testing import preflight
from retina_dist.testing.preflight import Facts, Link

VERSIONS = {
    "retina_dist": "0.2",
    "torch": "2.11",
    "torchvision": "0.26",
    "NCCL": "2.27.5",
    "driver": "580.65.06",
}
LINKS = (Link(1, 0.3), Link(64, 2.0))
CONFIG: Any = SimpleNamespace(data=ImageDataSettings(num_workers=8), expect_gb_s=None)


def cluster(**of_rank_3: Any) -> list[Facts]:
    """Two hosts of two GPUs, all sound but for what is given of rank 3 on host b."""
    ranks = [
        Facts(
            rank=rank,
            host="ab"[rank // 2],
            gpu="NVIDIA A100-SXM4-80GB",
            memory_gib=79.3,
            versions=VERSIONS,
            addresses=[f"10.0.0.{rank // 2}"],
            shm_bytes=16 * 2**30,
            open_files=65536,
            disk_free=2**40,
            data="12ab…, 800 images" if rank % 2 == 0 else None,
            step_ms=20.0 + 0.1 * rank,
        )
        for rank in range(4)
    ]
    host_wide = {"addresses", "shm_bytes", "open_files", "data"} & of_rank_3.keys()
    for rank in (2, 3) if host_wide else (3,):
        ranks[rank] = replace(ranks[rank], **of_rank_3)
    return ranks


def findings(ranks: list[Facts], expect_gb_s: float | None = None, **data: Any) -> list[Finding]:
    config: Any = SimpleNamespace(**{**vars(CONFIG), **data})
    return preflight.findings(ranks, LINKS, config, "runs", expect_gb_s)


def test_a_sound_cluster_has_no_finding() -> None:
    assert findings(cluster()) == []
    none = {"shm_bytes": None, "open_files": None, "disk_free": None, "step_ms": None}
    assert findings([replace(f, **none) for f in cluster()]) == [], "unknown values are not faults"
    one_host = [replace(f, host="a", addresses=["127.0.1.1"]) for f in cluster()]
    assert findings(one_host) == [], "nobody asks for the address of a single host"


@pytest.mark.parametrize(
    ("broken", "level", "what"),
    [
        ({"versions": {**VERSIONS, "torchvision": "0.25"}}, "error", "torchvision: 0.25 on b (rank 3), but 0.26 on the others"),
        ({"versions": {**VERSIONS, "driver": "535"}}, "warning", "driver: 535 on b (rank 3), but 580.65.06 on the others"),
        (
            {"gpu": "Tesla T4", "memory_gib": 14.6},
            "warning",
            "the device: Tesla T4, 14.6 GiB on b (rank 3), but NVIDIA A100-SXM4-80GB, 79.3 GiB on the others",
        ),
        ({"data": "34cd…, 799 images"}, "error", "the training data: 34cd…, 799 images on b (rank 2), but 12ab…, 800 images on a"),
        ({"unread": {"training data": "no such file."}}, "error", "rank 3 could not read the training data (no such file)"),
        (
            {"shm_bytes": 64 * 2**20},
            "warning",
            "b has 64.0 MiB free in /dev/shm, and the data workers of its 2 ranks may need 1.0 GiB",
        ),
        ({"open_files": 256}, "warning", "b lets a process open 256 files, and a rank may need about 588"),
        ({"addresses": ["127.0.1.1"]}, "warning", "b resolves its own name to 127.0.1.1, where no other host can reach it"),
        ({"step_ms": 40.2}, "warning", "rank 3 on b takes 40.2 ms for a step, 2.00 times the median: every step waits for it"),
        (
            {"versions": {n: v for n, v in VERSIONS.items() if n != "driver"}, "unread": {"driver": "OSError: no /proc"}},
            "warning",
            "rank 3 could not read the driver (OSError: no /proc)",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)  # fmt: skip
def test_a_broken_thing_is_the_only_finding(broken: dict[str, Any], level: str, what: str) -> None:
    (finding,) = findings(cluster(**broken))
    assert (finding.level, finding.what) == (level, what)
    assert finding.remedy.endswith(".")


def test_faults_of_the_main_rank_and_of_several_hosts() -> None:
    named = [replace(f, host="node", boot_id="ab"[f.rank // 2]) for f in cluster()]
    assert [f.what for f in findings(named)] == ["2 machines are called node"]
    ranks = cluster()
    ranks[3].disk_free = 0
    assert findings(ranks) == [], "rank 0 writes"
    ranks[0].disk_free = 300 * 2**20
    assert [f.what for f in findings(ranks)] == [
        "a has 300.0 MiB free for runs, where checkpoints go"
    ]
    (below,) = findings(cluster(), expect_gb_s=100.0)
    assert (below.level, below.what) == (
        "error",
        "an all-reduce of 64 MB reaches 48.00 GB/s, below expect_gb_s=100",
    )
