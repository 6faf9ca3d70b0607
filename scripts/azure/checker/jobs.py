"""Rules for command and sweep jobs that Azure's SDK does not have: each is a function whose sentence says what must hold."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from retina_dist.engine.best import default_mode
from retina_dist.errors import ConfigError

from . import commands
from .documents import JOBS, Document
from .registry import rule
from .sizes import gpus_of

DAY = 24 * 3600
# https://learn.microsoft.com/azure/machine-learning/how-to-manage-quotas
LONGEST, LONGEST_LOW_PRIORITY = 21 * DAY, 7 * DAY
NUM_IMAGES = 117_266  # COCO's train2017 without its images that have no object; batches must not divide it


@rule(*JOBS)
def placeholders_are_declared(job: Document) -> Iterator[str]:
    """Every ${{...}} of the command names an input, an output or a parameter that the file declares."""
    for what, name in sorted(set(commands.PLACEHOLDER.findall(job.command))):
        if name not in job.names(what):
            there = ", ".join(sorted(job.names(what))) or "none"
            yield f"${{{{{what}.{name}}}}} is not declared; {what} of the file: {there}."


@rule(*JOBS)
def declarations_are_used(job: Document) -> Iterator[str]:
    """Every input, output and parameter that the file declares stands in the command."""
    used = set(commands.PLACEHOLDER.findall(job.command))
    for what in ("inputs", "outputs", "search_space"):
        for name in sorted(job.names(what)):
            if (what, name) not in used:
                yield f"{what}.{name} is declared and not used; put ${{{{{what}.{name}}}}} into the command, or drop it."


@rule(*JOBS)
def counts_are_positive(job: Document) -> Iterator[str]:
    """A job has at least one machine and one process on each."""
    for keys in (("resources", "instance_count"), ("distribution", "process_count_per_instance")):
        count = job.trial(*keys)
        if isinstance(count, int) and count < 1:
            yield f"{'.'.join(keys)}: {count} must be at least 1."


@rule(*JOBS)
def processes_are_counted(job: Document) -> Iterator[str]:
    """A distribution by MPI or PyTorch says how many processes a machine gets."""
    kind = str(job.trial("distribution", "type") or "").lower()
    if kind in ("mpi", "pytorch") and job.trial("distribution", "process_count_per_instance") is None:
        yield f"distribution.type: {kind} needs process_count_per_instance; give the number of GPUs of a machine."


@rule(*JOBS)
def a_process_for_each_gpu(job: Document) -> Iterator[str]:
    """A machine gets as many processes as it has GPUs."""
    processes, gpus = job.trial("distribution", "process_count_per_instance"), gpus_of(job.size())
    if isinstance(processes, int) and processes > 0 and gpus is not None and processes != gpus:
        yield f"process_count_per_instance: {processes}, but {job.size()} has {gpus} GPUs; give {gpus or 'a size with GPUs'}."


@rule(*JOBS)
def the_benchmark_fits_the_machine(job: Document) -> Iterator[str]:
    """The scaling benchmark, which starts its own processes on one machine, starts no more than that has GPUs."""
    gpus = gpus_of(job.size())
    for config in commands.settings_of(job, "benchmark_scaling"):
        if gpus is not None and max(config.processes) > gpus:
            yield f"processes={config.processes} on {job.size()}, which has {gpus} GPUs."
        if (job.trial("resources", "instance_count") or 1) > 1 or job.trial("distribution"):
            yield "benchmark scaling starts its own processes on one machine; drop distribution, and give instance_count: 1."


@rule(*JOBS)
def a_place_to_run(job: Document) -> Iterator[str]:
    """A job names a compute that a file beside it describes, or is serverless: an instance type and a tier."""
    serverless = job.trial("resources", "instance_type") and job.get("queue_settings", "job_tier")
    if not job.get("compute"):
        if not serverless:
            yield "no compute: add compute: azureml:NAME, or for serverless resources.instance_type and queue_settings.job_tier."
    elif job.get("queue_settings"):
        yield f"queue_settings is for serverless jobs, and compute: {job.get('compute')} makes it none; drop one of them."
    elif job.compute() is None:
        there = ", ".join(sorted(str(d.get("name")) for d in job.beside if d.kind == "amlCompute")) or "none"
        yield f"compute: {job.get('compute')} is described by no file beside this one (there: {there}), so nothing says its GPUs."


@rule(*JOBS)
def the_compute_has_the_machines(job: Document) -> Iterator[str]:
    """A compute may grow to the machines of the job, or of the trials that a sweep runs at once."""
    compute = job.compute()
    most = compute.get("max_instances") if compute else None
    nodes, trials = job.trial("resources", "instance_count") or 1, job.get("limits", "max_concurrent_trials") or 1
    if isinstance(most, int) and nodes * trials > most:
        what = f"{trials} trials at once of {nodes}" if trials > 1 else f"instance_count: {nodes}"
        yield f"{what}, but {compute.path.name} has max_instances: {most}; raise that or lower this."  # type: ignore[union-attr]


@rule(*JOBS)
def time_limits_are_the_services(job: Document) -> Iterator[str]:
    """No job is given more than Azure lets run: 21 days, 7 on machines that can be taken away."""
    compute = job.compute()
    low = job.get("queue_settings", "job_tier") == "spot" or (
        compute is not None and compute.get("tier") == "low_priority"
    )
    longest = LONGEST_LOW_PRIORITY if low else LONGEST
    for key in ("timeout", "trial_timeout"):
        seconds = job.get("limits", key)
        if isinstance(seconds, int) and not 0 < seconds <= longest:
            kind = "a low-priority or spot job" if low else "a job"
            yield f"limits.{key}: {seconds} s; {kind} may run 1 to {longest} s ({longest // DAY} days)."


@rule(*JOBS)
def shared_memory_has_a_unit(job: Document) -> Iterator[str]:
    """shm_size is a number and one of b, k, m, g; it is given where data workers run, whose default of 2g is little."""
    size = job.trial("resources", "shm_size")
    if size is None and commands.settings_of(job):
        yield "resources.shm_size is not given; its default of 2g is little for data workers: shm_size: 64g."
    elif size is not None and not re.fullmatch(r"[1-9]\d*[bkmg]", str(size)):
        yield f"resources.shm_size: {size} is no number with a unit b, k, m or g, such as 64g."


@rule(*JOBS)
def settings_are_known(job: Document) -> Iterator[str]:
    """Each command of this package composes: its module is there, its settings exist and have possible values."""
    try:
        for call in commands.calls_of(job):
            yield from commands.problems(call)
    except ValueError as error:
        yield f"command: {error}; nothing of it can be read."


@rule(*JOBS)
def batches_divide(job: Document) -> Iterator[str]:
    """The plan of a training holds on the job's processes: the batch is shared equally."""
    from retina_dist.train import build_plan

    nodes, processes = (
        job.trial("resources", "instance_count") or 1,
        job.trial("distribution", "process_count_per_instance"),
    )
    world = nodes * (processes or 1)
    for config in commands.settings_of(job):
        try:
            if world > 0:
                build_plan(config, NUM_IMAGES, world)
        except ConfigError as error:
            yield f"on {nodes} x {processes or 1} processes: {error}"


@rule(*JOBS)
def the_launcher_fits_the_strategy(job: Document) -> Iterator[str]:
    """Horovod is started by type: mpi, DDP by type: pytorch."""
    kind = str(job.trial("distribution", "type") or "").lower()
    wanted = {"mpi": "horovod", "pytorch": "ddp"}.get(kind, "single")
    for config in commands.settings_of(job):
        if config.strategy.name not in ("auto", wanted):
            yield f"strategy={config.strategy.name} with distribution.type: {kind or 'none'}, which is for strategy={wanted}."


@rule(*JOBS)
def the_network_is_the_machines(job: Document) -> Iterator[str]:
    """Settings of NCCL for InfiniBand go with the sizes that have it, those for Ethernet with the others."""
    size = job.size() or ""
    infiniband = re.fullmatch(r"Standard_ND\d+[a-z]*r[a-z]*_.*", size, re.IGNORECASE) is not None
    for config in commands.settings_of(job):
        name = config.nccl.name
        if name == "ethernet" and infiniband:
            yield f"nccl={name} on {size}, whose InfiniBand would lie idle; give nccl=none, nd_a100 or nd_h100."
        elif name.startswith("nd_") and size and not infiniband:
            yield f"nccl={name} on {size}, which has no InfiniBand; give nccl=ethernet."


@rule(*JOBS)
def a_second_start_goes_on(job: Document) -> Iterator[str]:
    """A command also serves to go on: resume=auto, and checkpoints in a mounted output every few minutes."""
    for config in commands.settings_of(job):
        output = re.fullmatch(r"/outputs/([\w.-]+).*", config.trainer.checkpoint_dir or "")
        if config.resume != "auto":
            yield f"resume={config.resume}: a job that is started again would not go on; give resume=auto."
        if not output:
            yield "trainer.checkpoint_dir is no output of the job, and its machines keep nothing; give ${{outputs.NAME}}."
        elif job.get("outputs", output[1], "mode") not in (None, "rw_mount"):
            mode = job.get("outputs", output[1], "mode")
            yield f"outputs.{output[1]}.mode: {mode} writes at the end only, which a lost machine does not reach; give rw_mount."
        if not config.trainer.checkpoint_minutes:
            yield "trainer.checkpoint_minutes is not given, so a lost machine may cost an epoch; give 10."
        return


@rule(*JOBS)
def checkpoints_have_a_place_of_their_own(job: Document) -> Iterator[str]:
    """A job's checkpoints are at a fixed path that no other file names; a sweep's trials each have their own, so no path."""
    for name in sorted(job.names("outputs")):
        path = job.get("outputs", name, "path")
        if job.kind == "sweepJob" and path:
            yield f"outputs.{name}.path: {path}: all trials would write there; drop path, and each has a folder of its own."
        if job.kind == "commandJob" and not path and commands.settings_of(job):
            yield f"outputs.{name} has no path, so a job sent again would not find what is there; give azureml://datastores/…"
        others = (other for other in job.beside if other.kind in JOBS and other.path.resolve() != job.path.resolve())
        for other in others:
            if path and path in [other.get("outputs", there, "path") for there in other.names("outputs")]:
                yield f"outputs.{name}.path: {path} is that of {other.path.name} too; one would go on where the other was."


@rule("sweepJob")
def log_ranges_are_exponents(job: Document) -> Iterator[str]:
    """The bounds of a loguniform parameter are powers of e, below 0 for anything like a learning rate."""
    for name in sorted(job.names("search_space")):
        parameter = job.get("search_space", name)
        if isinstance(parameter, dict) and str(parameter.get("type")).endswith("loguniform"):
            low, high = parameter.get("min_value"), parameter.get("max_value")
            if isinstance(high, (int, float)) and high > 0:
                values = ", ".join(commands.values_of(parameter))
                yield f"search_space.{name}: the bounds are powers of e, so {low} to {high} means {values}; 1e-4 is written -9.21."


@rule("sweepJob")
def ranges_rise(job: Document) -> Iterator[str]:
    """A range has min_value below max_value, a choice has values."""
    for name in sorted(job.names("search_space")):
        parameter: Any = job.get("search_space", name)
        low, high = (parameter.get(key) if isinstance(parameter, dict) else None for key in ("min_value", "max_value"))
        if isinstance(low, (int, float)) and isinstance(high, (int, float)) and low >= high:
            yield f"search_space.{name}: min_value {low} is not below max_value {high}."
        if isinstance(parameter, dict) and parameter.get("type") == "choice" and not parameter.get("values"):
            yield f"search_space.{name} has no values to choose from."


@rule("sweepJob")
def the_space_is_hydras(job: Document) -> Iterator[str]:
    """A sweep whose trials run an experiment with a Hydra sweep of its own has the same space."""
    ours = commands.space_by_setting(job)
    for experiment, theirs in commands.hydra_sweeps(job):
        for key in sorted(set(ours) | set(theirs)):
            if set(ours.get(key, [])) != set(theirs.get(key, [])):
                here, there = (", ".join(space.get(key, [])) or "nothing" for space in (ours, theirs))
                yield f"search_space for {key} has {here}, conf/experiment/{experiment}.yaml {there}; make them the same."


@rule("sweepJob")
def the_metric_is_logged(job: Document) -> Iterator[str]:
    """The sweep's metric is the one that its trials watch, with the same idea of better."""
    metric, goal = job.get("objective", "primary_metric"), str(job.get("objective", "goal")).lower()
    for config in commands.settings_of(job):
        trainer = asdict(config.trainer)
        if metric != trainer["monitor"]:
            yield f"objective.primary_metric: {metric}, but the trials log and watch {trainer['monitor']}; give that."
        elif goal != {"max": "maximize", "min": "minimize"}[mode := trainer["monitor_mode"] or default_mode(metric)]:
            yield f"objective.goal: {goal}, but of {metric} the {mode}imum is best."
        return
