"""What every strategy promises, by the same scenario over one process, torch DDP and Horovod (Gloo and MPI)."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
import torch

from tests.distributed.ranks import Job, run_ranks

LONG = [("ddp", 1), ("ddp", 2), ("horovod", 3)]
JOBS = [("single", 1), ("horovod", 2), ("mpi", 2), ("ddp", 3), *LONG]


@cache
def contract(kind: str, processes: int) -> Job:
    return run_ranks(kind, processes, "contract")


@pytest.fixture(
    params=[pytest.param(job, marks=pytest.mark.long) if job in LONG else job for job in JOBS],
    ids=lambda job: f"{job[0]}-{job[1]}",
    scope="module",
)
def job(request: pytest.FixtureRequest) -> Job:
    return contract(*request.param)


@pytest.fixture
def alone() -> dict[str, Any]:
    return contract("single", 1).ranks[0]


def test_ranks_know_who_they_are(job: Job) -> None:
    world = len(job.ranks)
    for rank, found in enumerate(job.ranks):
        assert found["properties"] | {"backend": ""} == {
            "rank": rank,
            "local_rank": rank,
            "world_size": world,
            "is_main": rank == 0,
            "device": "cpu",
            "backend": "",
        }


def test_collectives_by_hand(job: Job) -> None:
    world = len(job.ranks)
    n = range(world)
    for found in (rank["collectives"] for rank in job.ranks):
        for dtype in ("torch.float32", "torch.float64", "torch.int64"):
            assert found[f"sum {dtype}"] == [[sum(r + 1 for r in n), -sum(n)], [2 * sum(n), 5 * world]]
            assert found[f"min {dtype}"] == [[1, -(world - 1)], [0, 5]]
            assert found[f"max {dtype}"] == [[world, 0], [2 * (world - 1), 5]]
        assert found["mean"] == [sum(n) / world]
        assert found["scalar"] == world - 1
        assert found["not contiguous"] == [[sum(v + r for r in n) for v in row] for row in ((0, 3), (1, 4), (2, 5))]
        assert found["ragged"] == [[float(r)] * 2 for r in n for _ in range(r)]
        assert found["first empty"] == [[r] for r in n if r]
        assert found["all empty"] == [0, 7]
        assert found["broadcast"] == [float(world - 1), 7.0]
        assert found["object"] == {"a": [0, 1, 2], "b": [1, 2.5, None, "x"], "c": {"d": True}}


@pytest.mark.parametrize("part", ["plain", "accumulate", "unequal shares", "clip", "strided"])
def test_training_is_that_of_one_process(job: Job, alone: dict[str, Any], part: str) -> None:
    for found in (rank[part] for rank in job.ranks):
        assert found["weights"] == job.ranks[0][part]["weights"], "equal on all ranks, to the bit"
        assert found["momentum"] == job.ranks[0][part]["momentum"]
        close(found["weights"], alone[part]["weights"], 1e-13)
        close(found["momentum"], alone[part]["momentum"], 1e-13)
        close(found["norms"], alone[part]["norms"], 1e-13)


def test_a_group_with_fewer_micro_batches_is_sent_whole(job: Job, alone: dict[str, Any]) -> None:
    # Horovod counts backward passes; what it has not sent by the end of a short group must be flushed
    for found in (rank["short_group"] for rank in job.ranks):
        close(found["weights"], alone["short_group"]["weights"], 1e-13)
        assert found["weights"] != found["weights"][::-1]


def test_infinity_on_one_rank_skips_the_step_on_all(job: Job) -> None:
    # reduce, then unscale: in the other order only the rank with the infinity would skip
    for found in (rank["skip"] for rank in job.ranks):
        assert found["moved"] == [True, False, True, True]
        assert found["scales"] == [8.0, 4.0, 4.0, 4.0]
        assert found["weights"] == job.ranks[0]["skip"]["weights"]


def test_an_infinite_loss_on_one_rank_leaves_the_step_out_on_all_and_is_written_down_once(job: Job) -> None:
    for found in (rank["nonfinite"] for rank in job.ranks):
        assert found["skipped"] == 1
        assert found["weights"] == job.ranks[0]["nonfinite"]["weights"]
    files = [rank["nonfinite"]["files"] for rank in job.ranks]
    assert list(files[0]) == ["nonfinite_00000002.json"]
    assert not any(files[1:])
    ranks = files[0]["nonfinite_00000002.json"]["ranks"]
    assert [r["rank"] for r in ranks] == list(range(len(job.ranks)))
    assert [math.isinf(r["losses"]["loss"]) for r in ranks] == [r == len(ranks) - 1 for r in range(len(ranks))]
    assert [r["micro_batches"] for r in ranks] == [[[{"rank": r}]] for r in range(len(ranks))]


def test_what_one_rank_wants_all_know(job: Job) -> None:
    assert [rank["wishes"] for rank in job.ranks] == [[0, len(job.ranks) - 1, 0]] * len(job.ranks)


def test_time_spent_waiting_for_a_slow_rank_is_communication_and_the_rank_is_named(job: Job) -> None:
    found = job.ranks[0]["timer"]
    assert all(rank["timer"] == found for rank in job.ranks)
    times = [rank["step_ms"] for rank in found["ranks"]]
    assert found["slowest"] == len(times) - 1
    assert times[-1]["forward"]["p50"] >= 40
    for rank in times[:-1]:
        assert rank["communication"]["p50"] >= 30
        assert rank["own"]["p50"] <= 30
    for rank in found["ranks"]:
        assert sum(rank["seconds"].values()) == pytest.approx(rank["wall_s"], rel=0.03)


# of a gradient: fp64 as it is; 8 bits of mantissa, rounded on each rank and as they are added up; 11 bits, or fp32 when sent again
WIRE_ERRORS = {"none": (1e-13, 1e-13), "bf16": (2e-2, 2e-2), "fp16": (2e-3, 1e-5)}


@pytest.mark.parametrize("compression", list(WIRE_ERRORS))
def test_gradients_over_the_wire_are_those_of_one_process(job: Job, compression: str) -> None:
    """In each memory format, accumulated or not, small and above fp16's range."""
    cases = job.ranks[0][f"wire {compression}"]
    assert len(cases) >= 4
    bound, bound_resent = WIRE_ERRORS[compression]
    alone = len(job.ranks) == 1
    for found in (rank[f"wire {compression}"] for rank in job.ranks):
        for name, case in found.items():
            for kind, error in case["errors"].items():
                assert error <= (bound_resent if kind == "overflow" else bound), f"{name}, {kind}"
            assert case["overflows"] == (compression == "fp16" and not alone), name
            assert case["weights"] == cases[name]["weights"], "equal on all ranks, to the bit"
    if compression != "none" and not alone:
        assert all(case["errors"]["plain"] > 1e-5 for case in cases.values()), "something was compressed"


def test_sharing_the_state_takes_no_step(job: Job) -> None:
    # Horovod's own broadcast of a fresh optimizer's state moves the weights (horovod#2805)
    for found in (rank["start"] for rank in job.ranks):
        assert found == {"unmoved": True, "momentum": 0, "step": 5}


def test_an_error_on_one_rank_ends_all(job: Job) -> None:
    last = len(job.ranks) - 1
    for rank, found in enumerate(rank["errors"] for rank in job.ranks):
        everywhere = last > 0
        mine = ["UserError", f"rank {last} cannot", everywhere, last]
        lost = ["PeerLost", f"rank {last} stopped; its message says why.", True, None]
        assert found[0] == (mine if rank == last else lost)
        assert found[1][:2] == (
            ["UserError", "rank 0 cannot"] if rank == 0 else ["PeerLost", "rank 0 stopped; its message says why."]
        )
        assert found[2] == {"rank": 0}


def test_one_flipped_bit_is_found_and_named(job: Job) -> None:
    last = len(job.ranks) - 1
    for found in (rank["sentinel"] for rank in job.ranks):
        if last == 0:
            assert found == ["equal", "equal"]
        else:
            others = ", ".join(map(str, range(last)))
            assert found[0].startswith(
                f"after step 7 the replicas differ in model.layers.2.weight (rank {last} against {others});"
            )
            assert f"optimizer.layers.0.bias.momentum_buffer (rank {last} against {others})" in found[1]


def test_checkpoints_name_parameters_as_the_plain_model_does(job: Job, alone: dict[str, Any]) -> None:
    assert job.ranks[0]["plain"]["keys"] == alone["plain"]["keys"]
    assert not any("module" in key for key in alone["plain"]["keys"])


@pytest.mark.parametrize(
    ("kind", "processes"), [("horovod", 2), ("mpi", 2), pytest.param("ddp", 6, marks=pytest.mark.long)]
)
def test_metrics_do_not_depend_on_ranks(kind: str, processes: int) -> None:
    alone = run_alone()
    ranks = run_ranks(kind, processes, "evaluation").ranks
    for count in ("5", "23"):
        images = [image for rank in ranks for image in rank[count]["images"]]
        assert sorted(images) == list(range(1, int(count) + 1)), "each image once"
        for found in ranks:
            assert found[count]["metrics"] == pytest.approx(alone[count]["metrics"], abs=1e-12, nan_ok=True)
            stats, expected = (
                {k: repr(v) for k, v in run[count]["metrics"].items() if k.startswith("coco/")}
                for run in (found, alone)
            )
            assert stats == expected, "to the bit"
    if processes == 6:
        assert any(not rank["5"]["images"] for rank in ranks), "a rank without an image takes part"
    assert 0 < alone["23"]["metrics"]["coco/AP"] < 1


@cache
def run_alone() -> Any:
    return run_ranks("single", 1, "evaluation").ranks[0]


def close(found: list[float], expected: list[float], bound: float) -> None:
    a, b = torch.tensor(found, dtype=torch.float64), torch.tensor(expected, dtype=torch.float64)
    assert (a - b).abs().max() <= bound * b.abs().max()


@pytest.mark.parametrize("kind", ["ddp", "horovod", "mpi"])
def test_a_crash_on_one_rank_ends_the_job_with_its_traceback(kind: str) -> None:
    job = run_ranks(kind, 2, "crash", check=False)
    assert job.exit_code != 0
    assert "[rank 1] RuntimeError: the disk fell out" in job.output
    assert job.ranks == [None, None]


@pytest.mark.parametrize("kind", ["ddp", "horovod", "mpi"])
def test_wrong_data_on_one_rank_ends_the_job_with_one_sentence(kind: str) -> None:
    job = run_ranks(kind, 2, "bad_input", check=False)
    assert job.exit_code != 0
    assert job.output.count("[rank 1] error: no such folder") == 1
    assert "[rank 0] error" not in job.output
    assert job.ranks == [None, None]


def test_a_process_that_is_stopped_ends_an_mpi_job_in_the_set_time() -> None:
    # MPI itself, and with it Horovod's stall check, waits for ever
    job = run_ranks("mpi", 2, "frozen", check=False)
    assert job.exit_code != 0
    assert "error: rank 0 waited 6 s for another rank at the start" in job.output


@pytest.mark.parametrize("kind", ["ddp", "horovod"])
def test_a_rank_that_stays_away_ends_the_job_in_the_set_time(kind: str) -> None:
    # Horovod on its own only warns and waits for ever
    job = run_ranks(kind, 2, "absent", check=False)
    assert job.exit_code != 0
    assert "rank 0 waited for rank 1 at the start" in job.output
