"""What every strategy promises, over one process, torch DDP and Horovod (Gloo and MPI).

And how each ends when a rank fails.
"""

from __future__ import annotations

import pytest

from tests.distributed.ranks import run_ranks

BACKENDS = {
    "single": "one process",
    "ddp": "DDP over Gloo",
    "horovod": "Horovod over Gloo",
    "mpi": "Horovod over MPI",
}
JOBS = [("horovod", 2), ("mpi", 2), ("ddp", 3)]
LONG = [
    pytest.param(*job, marks=pytest.mark.long)
    for job in (("single", 1), ("ddp", 1), ("ddp", 2), ("horovod", 3))
]
# of a gradient: 8 bits of mantissa, rounded on each rank and as they are added up; 11 bits, or fp32
# when sent again
WIRE_ERRORS = {"bf16": (2e-2, 2e-2), "fp16": (2e-3, 1e-5)}


@pytest.mark.parametrize(("kind", "processes"), [*JOBS, *LONG])
def test_the_contract_is_kept_and_gradients_in_16_bits_are_those_of_one_process(
    kind: str, processes: int
) -> None:
    """In each memory format, accumulated or not, small and above fp16's range."""
    ranks = run_ranks(kind, processes, "contract").ranks
    assert [found["who"] for found in ranks] == [
        [rank, rank, processes, BACKENDS[kind]] for rank in range(processes)
    ]
    for compression, (bound, bound_resent) in WIRE_ERRORS.items():
        cases = ranks[0][compression]
        assert len(cases) == 4
        for found in (rank[compression] for rank in ranks):
            for name, case in found.items():
                for step, error in case["errors"].items():
                    assert error <= (bound_resent if step == "overflow" else bound), (
                        f"{compression}, {name}, {step}"
                    )
                assert case["overflows"] == (compression == "fp16" and processes > 1), name
                assert case["weights"] == cases[name]["weights"], "equal on all ranks, to the bit"
        if processes > 1:
            assert all(case["errors"]["plain"] > 1e-5 for case in cases.values()), (
                "something was compressed"
            )


@pytest.mark.parametrize("kind", ["ddp", "horovod", pytest.param("mpi", marks=pytest.mark.long)])
def test_a_crash_on_one_rank_ends_the_job_with_its_traceback(kind: str) -> None:
    job = run_ranks(kind, 2, "crash", check=False)
    assert job.exit_code != 0
    assert "[rank 1] IndexError: list index out of range" in job.output
    assert job.ranks == [None, None]


@pytest.mark.long
def test_horovod_refuses_a_sum_of_unequal_shapes() -> None:
    job = run_ranks("horovod", 2, "unequal", check=False)
    assert job.exit_code != 0
    assert (
        "One rank sent a tensor of shape [2], but another rank sent a tensor of shape [3]"
        in job.output
    )


# the contract raises on every rank; tests/unit/strategies/test_errors_by_rank.py has the sentence
@pytest.mark.long
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
    assert "error: rank 0 waited 6 s for another rank (starting)" in job.output


@pytest.mark.parametrize("kind", ["ddp", "horovod"])
def test_a_rank_that_stays_away_ends_the_job_in_the_set_time(kind: str) -> None:
    # Horovod on its own only warns and waits for ever
    job = run_ranks(kind, 2, "absent", check=False)
    assert job.exit_code != 0
    assert "rank 0 waited for rank 1 (starting: " in job.output


@pytest.mark.parametrize(
    "jobs",
    [
        [("ddp", 2), ("horovod", 2)],
        pytest.param([("mpi", 2), ("ddp", 4), ("horovod", 4)], marks=pytest.mark.long),
    ],
    ids=["two processes", "four"],
)
def test_virtual_ranks_have_the_same_bits_on_any_backend(jobs: list[tuple[str, int]]) -> None:
    """With dropout, batch norm, an average, clipping, warm-up and short steps; digest.csv too."""
    expected = run_ranks("single", 1, "same_bits").ranks
    assert len(expected[0]["digest.csv"]) == 8
    for kind, processes in jobs:
        assert run_ranks(kind, processes, "same_bits").ranks == expected * processes, kind
