"""The variables that each launcher sets, as far as the package reads them.

Dumped from real starts: torchrun 2.15, horovodrun 0.28.1, Open MPI 5.0.11, MPICH 4.0.2 and Ray 2.60 with two processes on
one machine, srun of Slurm 22.05 with two on two nodes; all of rank 1. Azure ML's are documented, not dumped: rank 5 of 8 on two
machines.
"""

from __future__ import annotations

_OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
    "OMPI_UNIVERSE_SIZE": "2",
    "PMIX_RANK": "1",
}
_SLURM_JOB = {
    "SLURM_JOB_ID": "42685",
    "SLURM_JOB_NODELIST": "127.0.0.[1-2]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_NNODES": "2",
    "SLURM_NTASKS": "2",
    "SLURM_TASKS_PER_NODE": "1(x2)",
}
_SRUN = _SLURM_JOB | {
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "127.0.0.[1-2]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
}
_AZURE_MPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
    "AZUREML_RUN_ID": "gentle_apple_1",
}

EXAMPLES: dict[str, dict[str, str]] = {
    "torchrun": {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "45737",
        "TORCHELASTIC_RUN_ID": "55eb2e5e",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    },
    "horovodrun": {
        "HOROVOD_RANK": "1",
        "HOROVOD_SIZE": "2",
        "HOROVOD_LOCAL_RANK": "1",
        "HOROVOD_LOCAL_SIZE": "2",
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
        "HOROVOD_CONTROLLER": "gloo",
    },
    "mpirun": {**_OPEN_MPI, "OMPI_VERSION": "5.0.11"},
    "mpirun, MPICH": {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"},
    "srun": _SRUN,
    "srun --mpi=pmi2": {**_SRUN, "PMI_RANK": "1", "PMI_SIZE": "2", "PMI_JOBID": "42685.1", "SLURM_STEP_ID": "1"},
    # A script of sbatch, without srun: one process, whatever SLURM_PROCID and SLURM_NTASKS say.
    "sbatch": {**_SLURM_JOB, "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"},
    # The shell of salloc, which sets no rank ...
    "salloc": _SLURM_JOB,
    # ... and with LaunchParameters=use_interactive_step, where it is a step of one task.
    "salloc, interactive step": {
        **_SLURM_JOB,
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "0",
        "SLURM_STEP_ID": "4294967290",
        "SLURM_STEP_NODELIST": "127.0.0.1",
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_NUM_TASKS": "1",
        "SLURM_STEP_TASKS_PER_NODE": "1",
    },
    # https://azure.github.io/azureml-cheatsheets/docs/cheatsheets/python/v1/distributed-training
    "Azure ML, type: mpi": {
        **_AZURE_MPI,
        "AZ_BATCH_MASTER_NODE": "10.0.0.4:6000",
        "AZ_BATCHAI_MPI_MASTER_NODE": "10.0.0.4",
    },
    # https://learn.microsoft.com/azure/machine-learning/how-to-train-distributed-gpu
    "Azure ML, type: pytorch": {
        "RANK": "5",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "NODE_RANK": "1",
        "MASTER_ADDR": "10.0.0.4",
        "MASTER_PORT": "6105",
        "AZUREML_RUN_ID": "gentle_apple_1",
    },
    "Ray Train": {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "NODE_RANK": "0",
        "MASTER_ADDR": "192.0.2.2",
        "MASTER_PORT": "44785",
        "RAY_JOB_ID": "01000000",
    },
}
