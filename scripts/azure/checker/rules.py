"""What Azure's SDK accepts and the service, the machines or this package do not: a table of values, then what takes two files.

Each rule yields (its name, what is wrong). `trial.KEY` is a sweep's KEY of each trial and a command job's own KEY.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from retina_dist.engine.best import default_mode
from retina_dist.errors import ConfigError

from . import commands
from .documents import JOBS, Document
from .sizes import KNOWN, gpus_of, memory_gib_of, retired, vcpus_of

Problems = Iterator[tuple[str, str]]
DAY = 24 * 3600
LIMITS = "https://learn.microsoft.com/azure/machine-learning/how-to-manage-quotas"
NUM_IMAGES = 117_266  # COCO train2017 without the images that have no object
WORKER_GIB = 3  # of a GPU, for one detector at 800 x 1333 px with its CUDA context; an estimate
STARTERS = {"horovodrun", "mpirun", "mpiexec", "torchrun", "srun", "accelerate", "deepspeed"}
STARTERS |= {"torch.distributed.run", "torch.distributed.launch"}
REMOTE = ("azureml://", "azureml:", "https://", "wasbs://", "abfss://")
SERVER = {"liveness_route": "/healthz", "readiness_route": "/readyz", "scoring_route": "/score"}
COMPUTE, STORE, DATA, SWEEP = ("amlCompute",), ("azureBlob",), ("data",), ("sweepJob",)
ENDPOINT, DEPLOYMENT = ("managedOnlineEndpoint",), ("managedOnlineDeployment",)


def between(least: float, most: float = math.inf, optional: bool = True) -> Callable[[Any], bool]:
    """Whether a value is a number in that range, or is not given where it is `optional`."""
    return lambda value: optional if value is None else not isinstance(value, (int, float)) or least <= value <= most


def matches(pattern: str, optional: bool = False) -> Callable[[Any], bool]:
    """Whether a text has that form."""
    return lambda value: optional if value is None else re.fullmatch(pattern, str(value)) is not None


def absent(value: Any) -> bool:
    """Whether a value is not given or empty."""
    return not value


# rule, kinds, key, what its value must be, what to do
VALUES: list[tuple[str, tuple[str, ...], str, Callable[[Any], bool], str]] = [
    ("counts", JOBS, "trial.resources.instance_count", between(1), "give at least 1."),
    ("counts", JOBS, "trial.distribution.process_count_per_instance", between(1), "give the GPUs of a machine."),
    ("counts", DEPLOYMENT, "instance_count", between(1), "give at least 1."),
    ("counts", COMPUTE, "max_instances", between(1, optional=False), "no machine can start; give at least 1."),
    ("idle_cost", COMPUTE, "min_instances", between(0, 0), "machines that wait are billed; give 0."),
    ("idle_cost", COMPUTE, "idle_time_before_scale_down", between(0, 3600), "idle machines are billed; give at most 3600 s."),
    ("idle_cost", JOBS, "limits.timeout", between(1, optional=False), "a job that hangs is billed for days; give seconds."),
    ("identity", COMPUTE, "identity.type", lambda v: v, "the datastore has no key, so nodes cannot read; give system_assigned."),
    ("closed", COMPUTE, "ssh_public_access_enabled", absent, "SSH is open to the internet; give false."),
    ("no_keys", STORE, "credentials", absent, "a key in a file is a key in the repository; give roles (README, step 3)."),
    ("names", STORE, "account_name", matches("[a-z0-9]{3,24}"), "give 3 to 24 lower-case letters and digits."),
    ("names", STORE, "container_name", matches("(?!.*--)[a-z0-9][a-z0-9-]{1,61}[a-z0-9]"),
     "give 3 to 63 lower-case letters, digits and single hyphens."),
    ("names", ENDPOINT, "name", matches("[A-Za-z][A-Za-z0-9-]{1,30}[A-Za-z0-9]"),
     "give 3 to 32 letters, digits and hyphens, beginning with a letter."),
    ("shm_size", JOBS, "trial.resources.shm_size", matches(r"[1-9]\d*[bkmg]", optional=True),
     "give a number with a unit b, k, m or g, such as 64g."),
    ("request_time", DEPLOYMENT, "request_settings.request_timeout_ms", between(1, 180_000), "the service allows 1 to 180000 ms."),
    ("probes", DEPLOYMENT, "liveness_probe", lambda v: v, "a slow start is taken for a failure; add initial_delay."),
    ("probes", DEPLOYMENT, "readiness_probe", lambda v: v, "requests arrive before the model is loaded; add initial_delay."),
    ("sweep_limits", SWEEP, "early_termination.delay_evaluation", between(0), "give at least 0."),
]  # fmt: skip


def value_problems(document: Document) -> Problems:
    """The rows of VALUES that do not hold."""
    for rule, kinds, key, holds, remedy in VALUES:
        value = document.get(key)
        if document.kind in kinds and not holds(value):
            yield rule, f"{key.removeprefix('trial.')}: {'missing' if value is None else value}; {remedy}"


def job_problems(job: Document) -> Problems:
    """A command job or a sweep: its command, machines, processes and places."""
    yield from _placeholders(job)
    yield from _machines(job)
    yield from _processes(job)
    yield from _inputs_and_outputs(job)
    try:
        for call in commands.calls_of(job):
            yield from (("settings", problem) for problem in commands.problems(call))
    except ValueError as error:
        yield "settings", f"command: {error}; nothing of it can be read."
    for config in commands.settings_of(job):
        yield from _training(job, config)


def _placeholders(job: Document) -> Problems:
    used = set(commands.PLACEHOLDER.findall(job.command))
    for what, name in sorted(used):
        if name not in job.names(what):
            there = ", ".join(sorted(job.names(what))) or "none"
            yield "placeholders", f"${{{{{what}.{name}}}}} is not declared; {what} of the file: {there}."
    for what in ("inputs", "outputs", "search_space"):
        for name in sorted(job.names(what)):
            if (what, name) not in used:
                yield "placeholders", f"{what}.{name} is not used; use ${{{{{what}.{name}}}}} or drop it."


def _machines(job: Document) -> Problems:
    compute, low = job.compute(), job.get("queue_settings.job_tier") == "spot"
    name = str(job.get("compute"))
    if not job.get("compute"):
        if not (job.get("trial.resources.instance_type") and job.get("queue_settings.job_tier")):
            yield "place", "no compute; add azureml:NAME, or resources.instance_type with queue_settings."
        if not job.get("identity.type"):
            yield "identity", "identity: missing; a serverless job reads data as its user: user_identity."
    elif job.get("queue_settings"):
        yield "place", "queue_settings is for serverless jobs, compute for clusters; drop one."
    elif compute is None:
        yield "place", f"compute: {name} is in no file beside this one{_near(name, job, *COMPUTE)}."
    if compute:
        low = compute.get("tier") == "low_priority"
        nodes, trials = job.get("trial.resources.instance_count") or 1, job.get("limits.max_concurrent_trials") or 1
        most = compute.get("max_instances")
        if isinstance(most, int) and nodes * trials > most:
            yield "place", f"{trials} x instance_count: {nodes}, but {compute.path.name} has max_instances: {most}."
    for key in ("timeout", "trial_timeout"):
        seconds, longest = job.get(f"limits.{key}"), (7 if low else 21) * DAY
        if isinstance(seconds, int) and seconds > longest:
            yield "time_limit", f"limits.{key}: {seconds} s; Azure allows {longest} s here ({LIMITS})."


def _processes(job: Document) -> Problems:
    nodes, processes, kind = job.processes()
    size = job.size()
    gpus, vcpus = gpus_of(size), vcpus_of(size)
    if kind in ("mpi", "pytorch") and processes is None:
        yield "processes", f"distribution.type: {kind} needs process_count_per_instance: the GPUs of a machine."
    if isinstance(processes, int) and gpus is not None and processes != gpus:
        yield "processes", f"process_count_per_instance: {processes}, but {size} has {gpus} GPUs."
    if nodes > 1 and not kind:
        yield "processes", f"instance_count: {nodes} without distribution starts one process; add type: mpi or pytorch."
    starters = {word for words in commands.simple_commands_of(job) for word in words} & STARTERS
    if kind and starters:
        yield "one_launcher", f"{starters.pop()} within distribution.type: {kind} starts all again; drop one."
    threads = str(job.get("trial.environment_variables.OMP_NUM_THREADS"))
    if threads.isdigit() and processes and vcpus and int(threads) * processes > vcpus:
        yield "threads", f"OMP_NUM_THREADS: {threads} x {processes} processes on {vcpus} vCPUs; give less."
    for config in commands.settings_of(job, "benchmark_scaling"):
        if gpus is not None and max(config.processes) > gpus:
            yield "processes", f"processes={config.processes} on {size}, which has {gpus} GPUs."
        if nodes > 1 or kind:
            yield "one_launcher", "benchmark scaling starts its own processes on one machine."


def _inputs_and_outputs(job: Document) -> Problems:
    for name in sorted(job.names("inputs")):
        path, mode = str(job.get(f"inputs.{name}.path") or ""), job.get(f"inputs.{name}.mode")
        asset = job.asset("data", path)
        if mode not in (None, "download", "ro_mount"):
            yield "input_mode", f"inputs.{name}.mode: {mode} gives no folder to read; give download or ro_mount."
        if asset and job.get(f"inputs.{name}.type") != asset.get("type"):
            yield "input_type", f"inputs.{name}.type is not that of {asset.path.name}, {asset.get('type')}."
    for name in sorted(job.names("outputs")):
        path, kind = job.get(f"outputs.{name}.path"), job.get(f"outputs.{name}.type")
        store = re.match(r"azureml://datastores/([^/]+)/", str(path or ""))
        if kind == "uri_file":
            yield "input_type", f"outputs.{name}.type: uri_file; checkpoints are a folder: give uri_folder."
        if path and not store:
            yield "datastore", f"outputs.{name}.path: {path} is no azureml://datastores/NAME/paths/FOLDER/."
        elif store and not job.has_datastore(store[1]):
            yield "datastore", f"outputs.{name}.path: no file beside this one describes the datastore {store[1]}."
        if job.kind == "sweepJob" and path:
            yield "own_folder", f"outputs.{name}.path: {path}: all trials would write there; drop path."
        if job.kind == "commandJob" and not path and commands.settings_of(job):
            yield "own_folder", f"outputs.{name}.path: missing, so a second start finds nothing."
        for other in (d for d in job.beside if d.kind in JOBS and d.path.resolve() != job.path.resolve()):
            if path and path in [other.get(f"outputs.{there}.path") for there in other.names("outputs")]:
                yield "own_folder", f"outputs.{name}.path: {path} is that of {other.path.name} too."


def _training(job: Document, config: Any) -> Problems:
    """One composition of the job's `retina_dist.train`."""
    from retina_dist.run.build import build_plan

    nodes, processes, kind = job.processes()
    size, trainer, processes = job.size() or "", config.trainer, processes or 1
    try:
        build_plan(config, NUM_IMAGES, max(1, nodes * processes))
    except ConfigError as error:
        yield "plan", f"on {nodes} x {processes} processes: {error}"
    if config.data.batch_size % max(1, nodes * processes):
        yield "plan", f"data.batch_size={config.data.batch_size} leaves GPUs of {nodes} x {processes} idle."
    wanted = {"mpi": "horovod", "pytorch": "ddp"}.get(kind, "single")
    if config.strategy.name not in ("auto", wanted):
        yield "strategy", f"strategy={config.strategy.name}; distribution {kind or 'none'} is for {wanted}."
    if gpus_of(size) and config.strategy.device != "cuda":
        yield "device", f"strategy.device={config.strategy.device} may use the CPU; give cuda."
    if job.get("trial.resources.shm_size") is None:
        yield "shm_size", "resources.shm_size: missing; its default of 2g is little for data workers: give 64g."
    infiniband, nccl = re.fullmatch(r"Standard_ND\d+[a-z]*r[a-z]*_.*", size, re.IGNORECASE), config.nccl.name
    if nccl == "ethernet" and infiniband:
        yield "network", f"nccl={nccl} on {size} does not use its InfiniBand; give nd_a100 or nd_h100."
    elif nccl.startswith("nd_") and size and not infiniband:
        yield "network", f"nccl={nccl} on {size}, which has no InfiniBand; give nccl=ethernet."
    elif nccl.startswith("nd_") and (nccl == "nd_h100") != bool(re.search("_H[12]00_", size, re.IGNORECASE)):
        yield "network", f"nccl={nccl} on {size} has the topology of another machine."
    yield from _restart(job, config)
    if config.dry_run or trainer.fast_dev_run or trainer.overfit_batches:
        yield "whole_training", "dry_run, fast_dev_run and overfit_batches train on nothing; drop them."
    root = re.fullmatch(r"/inputs/([\w.-]+).*", config.data.root or "")
    if not root and "://" not in (config.data.root or ""):
        yield "data", f"data.root={config.data.root} is no input of the job; give ${{{{inputs.NAME}}}}."
    elif root and (asset := job.asset("data", str(job.get(f"inputs.{root[1]}.path")))):
        yield from _format(asset, config.data.name)
    if job.kind in SWEEP:
        yield from _metric(job, config)


def _restart(job: Document, config: Any) -> Problems:
    trainer = config.trainer
    output = re.fullmatch(r"/outputs/([\w.-]+).*", trainer.checkpoint_dir or "")
    if config.resume != "auto":
        yield "restart", f"resume={config.resume}: a job that is started again begins anew; give resume=auto."
    if not output:
        yield "restart", "trainer.checkpoint_dir is no output of the job; give ${{outputs.NAME}}."
    elif (mode := job.get(f"outputs.{output[1]}.mode")) not in (None, "rw_mount"):
        yield "restart", f"outputs.{output[1]}.mode: {mode} writes at the end only; give rw_mount."
    if not trainer.checkpoint_minutes:
        yield "restart", "trainer.checkpoint_minutes is not given, so a lost machine may cost an epoch; give 10."
    if trainer.keep_last < 2:
        yield "restart", "trainer.keep_last=1: a lost machine may cut the last upload; give 2."
    if not (config.output_dir or "").startswith("outputs/"):
        yield "restart", f"output_dir={config.output_dir}: Azure keeps outputs/ only; give outputs/run."


def _format(asset: Document, name: str) -> Problems:
    """Whether the folder of a data asset holds what `data=NAME` reads, by the commands of the README beside it."""
    sources, shards = _uploads(asset)
    source = sources.get(asset.blob_folder() or "")
    if source and (source in shards) != (name == "shards"):
        yield "data", f"data={name} over {source}, which has {'shards' if source in shards else 'COCO files'}."


def _uploads(document: Document) -> tuple[dict[str, str], set[str]]:
    """What the README beside a file does: container/folder -> local folder of each azcopy upload, and the folders of shards."""
    readme = document.path.parent / "README.md"
    text = readme.read_text(encoding="utf-8").replace("\\\n", " ") if readme.is_file() else ""
    found = re.findall(r'azcopy copy "([^"*]+?)/?\*?" "https://\S+?\.blob\.core\.windows\.net/([^"]+?)/?"', text)
    return {folder: source for source, folder in found}, set(re.findall(r"retina_dist\.shards .*\boutput=(\S+)", text))


def _metric(job: Document, config: Any) -> Problems:
    metric, goal, trainer = job.get("objective.primary_metric"), str(job.get("objective.goal")).lower(), config.trainer
    mode = trainer.monitor_mode or default_mode(trainer.monitor)
    if metric != trainer.monitor:
        yield "metric", f"objective.primary_metric: {metric}, but trials watch {trainer.monitor}."
    elif goal != f"{mode}imize":
        yield "metric", f"objective.goal: {goal}, but of {metric} the {mode}imum is best."
    if config.logging.mlflow == "false" or trainer.validate_every.startswith("0"):
        yield "metric", "logging.mlflow=false or no validation: the sweep sees no metric of its trials."


def sweep_problems(sweep: Document) -> Problems:
    """Search space, sampling and limits of a sweep."""
    sampling, limits = sweep.get("sampling_algorithm"), sweep.get("limits") or {}
    sampling = str(sampling.get("type") if isinstance(sampling, dict) else sampling).lower()
    trials = 1
    for name in sorted(sweep.names("search_space")):
        parameter: Any = sweep.get(f"search_space.{name}")
        if not isinstance(parameter, dict):
            continue
        kind, low, high = str(parameter.get("type")), parameter.get("min_value"), parameter.get("max_value")
        trials *= len(parameter.get("values") or [1])
        if isinstance(low, (int, float)) and isinstance(high, (int, float)):
            if low >= high:
                yield "ranges", f"search_space.{name}: min_value {low} is not below max_value {high}."
            if kind.endswith("loguniform") and high > 0:
                values = ", ".join(commands.values_of(parameter))
                yield "ranges", f"search_space.{name}: bounds are powers of e: {low}, {high} mean {values}."
        if kind == "choice" and not parameter.get("values"):
            yield "ranges", f"search_space.{name} has no values to choose from."
        allowed = {"grid": ("choice",), "bayesian": ("choice", "uniform", "quniform")}.get(sampling)
        if allowed and kind not in allowed:
            yield "sampling", f"search_space.{name}: {sampling} sampling takes {', '.join(allowed)}, not {kind}."
    if sampling == "bayesian" and sweep.get("early_termination"):
        yield "sampling", "bayesian sampling takes no early_termination; drop it, or sample at random."
    most, at_once = limits.get("max_total_trials"), limits.get("max_concurrent_trials")
    if isinstance(most, int) and (at_once or 1) > most:
        yield "sweep_limits", f"max_concurrent_trials: {at_once} is above max_total_trials: {most}."
    if sampling == "grid" and isinstance(most, int) and most < trials:
        yield "sweep_limits", f"max_total_trials: {most} leaves out some of the grid's {trials} combinations."
    if isinstance(limits.get("timeout"), int) and (limits.get("trial_timeout") or 0) > limits["timeout"]:
        yield "sweep_limits", f"trial_timeout is above the timeout of the sweep, {limits['timeout']} s."
    ours = commands.space_by_setting(sweep)
    for experiment, theirs in commands.hydra_sweeps(sweep):
        for key in sorted(set(ours) | set(theirs)):
            if set(ours.get(key, [])) != set(theirs.get(key, [])):
                here, there = (", ".join(space.get(key, [])) or "nothing" for space in (ours, theirs))
                yield "same_space", f"{key} has {here}, conf/experiment/{experiment}.yaml {there}."


def asset_problems(document: Document) -> Problems:
    """Sizes, references to other files, paths and images of any kind of file."""
    kind = document.kind
    own = kind in (*COMPUTE, *DEPLOYMENT) or (kind in JOBS and document.get("trial.resources.instance_type"))
    size = document.size() if own else None  # the size of a job's compute is that file's matter
    if size and (day := retired(size)):
        yield "size", f"{size} was retired on {day}; take another, such as Standard_NC96ads_A100_v4."
    elif size and gpus_of(size) is None:
        near = difflib.get_close_matches(size, KNOWN, 1)
        yield "size", f"{size} is not in checker/sizes.py; " + (f"did you mean {near[0]}?" if near else "add it.")
    elif own and not size:
        yield "size", "no size is given; add one, such as Standard_NC96ads_A100_v4."
    for key, wanted, value in _references(document):
        yield from _pinned(document, key, wanted, value)
    build = document.build()
    if build and not build[1].is_file():
        yield "dockerfile", f"build: {build[0].name}/ has no {build[1].relative_to(build[0])}."
    path = str(document.get("path") or "")
    if kind in ("data", "model") and path:
        store = re.match(r"azureml://datastores/([^/]+)/", path)
        if "://" in path and not path.startswith(REMOTE):
            yield "path", f"path: {path}; Azure reads {', '.join(REMOTE)} and local paths."
        elif store and not document.has_datastore(store[1]):
            yield "datastore", f"path: no file beside this one describes the datastore {store[1]}."
        elif kind == "data" and not path.startswith(REMOTE) and not document.path_of(path).exists():
            yield "path", f"path: {path} does not exist here."
        uploads, folder = _uploads(document)[0], document.blob_folder()
        if kind == "data" and uploads and folder and folder not in uploads:
            yield "path", f"path: nothing is uploaded to {folder}; the README fills {', '.join(uploads)}."
        if kind == "data" and document.get("type") == "uri_file" and (path.endswith("/") or folder in uploads):
            yield "input_type", f"type: uri_file for the folder {path}; give uri_folder."


def _references(document: Document) -> Iterator[tuple[str, str, Any]]:
    """(key, kind of asset, value) of each asset that a job or a deployment names."""
    if document.kind in (*JOBS, *DEPLOYMENT):
        yield "environment", "environment", document.get("trial.environment")
    if document.kind in DEPLOYMENT:
        yield "model", "model", document.get("model")
    for name in sorted(document.names("inputs")):
        if str(document.get(f"inputs.{name}.path") or "").startswith("azureml:"):
            yield f"inputs.{name}.path", "data", document.get(f"inputs.{name}.path")


def _pinned(document: Document, key: str, kind: str, value: Any) -> Problems:
    if not isinstance(value, str) or value.startswith("azureml://"):
        return
    found, described = re.fullmatch(r"azureml:([\w.-]+):([\w.-]+)", value), document.asset(kind, value)
    if not found:
        yield "pinned", f"{key}: {value} may be another one tomorrow; give azureml:NAME:VERSION."
    elif described is None:
        yield "pinned", f"{key}: {value} is in no file beside this one{_near(value, document, kind)}."
    elif str(described.get("version")) != found[2]:
        yield "pinned", f"{key}: {value}, but {described.path.name} has version {described.get('version')}."


def _near(reference: str, document: Document, kind: str) -> str:
    """ " (did you mean NAME?)" for a name that is nearly that of a file of this kind."""
    names = [str(d.get("name")) for d in document.beside if d.kind == kind]
    near = difflib.get_close_matches(reference.removeprefix("azureml:").partition(":")[0], names, 1)
    return f"; did you mean {near[0]}?" if near else f" (there: {', '.join(names) or 'none'})"


def deployment_problems(deployment: Document) -> Problems:
    """Endpoint, scoring script, routes, ports, workers and packages of a deployment."""
    name, script = str(deployment.get("endpoint_name")), deployment.get("code_configuration.scoring_script")
    if not any(d.kind in ENDPOINT and d.get("name") == name for d in deployment.beside):
        yield "endpoint", f"endpoint_name: {name} is in no file beside this one{_near(name, deployment, *ENDPOINT)}."
    if script and not (deployment.path_of(deployment.get("code_configuration.code")) / str(script)).is_file():
        yield "script", f"code_configuration: {deployment.get('code_configuration.code')} has no {script}."
    routes, build = deployment.get("environment.inference_config") or {}, deployment.build()
    if not script and not routes:
        yield "routes", "environment.inference_config: missing; give the container's routes and port."
    image = build[1].read_text(encoding="utf-8") if build and build[1].is_file() else ""
    ports = {str((routes.get(route) or {}).get("port")) for route in SERVER} if routes else set()
    served = re.search(r"\bport=(\d+)", image)
    if routes and (len(ports) > 1 or (served and ports != {served[1]})):
        yield "routes", f"inference_config: ports {sorted(ports)}, the server has {served and served[1]}."
    for route, path in SERVER.items() if routes else ():
        if (given := (routes.get(route) or {}).get("path")) != path:
            yield "routes", f"inference_config.{route}.path: {given}; the server answers {path}."
    memory, workers = memory_gib_of(deployment.size()), deployment.get("environment_variables.WORKER_COUNT")
    if memory and str(workers).isdigit() and int(workers) * WORKER_GIB > memory:
        yield "workers", f"WORKER_COUNT: {workers} x about {WORKER_GIB} GiB in a GPU of {memory} GiB."
    yield from _packages(deployment)


def _packages(deployment: Document) -> Problems:
    """The ranges of the environment's conda file are those of setup.cfg."""
    conda = deployment.path_of(deployment.get("environment.conda_file") or "-")
    setup = next((folder / "setup.cfg" for folder in conda.parents if (folder / "setup.cfg").is_file()), Path("-"))
    if not conda.is_file() or not setup.is_file():
        return
    ours = dict(re.findall(r"^ +([\w-]+)([><=][^\s;#]*)$", setup.read_text(encoding="utf-8"), re.MULTILINE))
    for name, bounds in re.findall(r"^ +- ([\w-]+)([><=]\S+)$", conda.read_text(encoding="utf-8"), re.MULTILINE):
        if ours.get(name, bounds) != bounds:
            yield "packages", f"{conda.name}: {name}{bounds}, but setup.cfg has {name}{ours[name]}."


RULES = (
    [((*JOBS,), job_problems), (SWEEP, sweep_problems), (DEPLOYMENT, deployment_problems)]
    + [((*JOBS, *COMPUTE, *DEPLOYMENT, *DATA, "environment", "model"), asset_problems)]
)  # fmt: skip


def problems(document: Document) -> Problems:
    """Everything that is wrong with one file."""
    yield from value_problems(document)
    for kinds, rule in RULES:
        if document.kind in kinds:
            yield from rule(document)
