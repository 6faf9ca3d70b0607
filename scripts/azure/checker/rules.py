"""What Azure's SDK accepts and the service, the machines or this package do not: tables, then rules that need more than one value.

Each rule yields (its name, what is wrong). Keys are a command job's; a sweep has those of its `trial` too.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from retina_dist.engine.best import default_mode
from retina_dist.errors import ConfigError

from . import commands
from .documents import JOBS, Document
from .files import Problems
from .sizes import KNOWN, gpus_of, memory_gib_of, retired, vcpus_of

DAY = 24 * 3600
LIMITS = "https://learn.microsoft.com/azure/machine-learning/how-to-manage-quotas"
NUM_IMAGES = 117_266  # COCO train2017 without the images that have no object
WORKER_GIB = 3  # of a GPU, for one detector at 800 x 1333 px with its CUDA context; an estimate
LAUNCHERS = {"horovodrun", "mpirun", "mpiexec", "torchrun", "srun", "accelerate", "deepspeed"}
LAUNCHERS |= {"torch.distributed.run", "torch.distributed.launch"}
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
VALUES: list[tuple[str, tuple[str, ...], str, Callable[[Any], Any], str]] = [
    ("counts", JOBS, "resources.instance_count", between(1), "give at least 1."),
    ("counts", JOBS, "distribution.process_count_per_instance", between(1), "give the GPUs of a machine."),
    ("counts", DEPLOYMENT, "instance_count", between(1), "give at least 1."),
    ("counts", COMPUTE, "max_instances", between(1, optional=False), "no machine can start; give at least 1."),
    ("idle_cost", COMPUTE, "min_instances", between(0, 0), "machines that wait are billed; give 0."),
    ("idle_cost", COMPUTE, "idle_time_before_scale_down", between(0, 3600), "idle machines are billed; give at most 3600 s."),
    ("idle_cost", JOBS, "limits.timeout", between(1, optional=False), "a job that hangs is billed for days; give seconds."),
    ("identity", COMPUTE, "identity.type", bool, "the datastore has no key, so nodes cannot read; give system_assigned."),
    ("closed", COMPUTE, "ssh_public_access_enabled", absent, "SSH is open to the internet; give false."),
    ("no_keys", STORE, "credentials", absent, "a key in a file is a key in the repository; give roles (README, step 3)."),
    ("names", STORE, "account_name", matches("[a-z0-9]{3,24}"), "give 3 to 24 lower-case letters and digits."),
    ("names", STORE, "container_name", matches("(?!.*--)[a-z0-9][a-z0-9-]{1,61}[a-z0-9]"),
     "give 3 to 63 lower-case letters, digits and single hyphens."),
    ("shm_size", JOBS, "resources.shm_size", matches(r"[1-9]\d*[bkmg]", optional=True),
     "give a number with a unit b, k, m or g, such as 64g."),
    ("request_time", DEPLOYMENT, "request_settings.request_timeout_ms", between(1, 180_000), "the service allows 1 to 180000 ms."),
    ("probes", DEPLOYMENT, "liveness_probe", bool, "a slow start is taken for a failure; add initial_delay."),
    ("probes", DEPLOYMENT, "readiness_probe", bool, "requests arrive before the model is loaded; add initial_delay."),
    ("sweep_limits", SWEEP, "early_termination.delay_evaluation", between(0), "give at least 0."),
]  # fmt: skip

# Of each composition of a job's `retina_dist.train`: rule, when it is broken, the sentence; `_training` lists the names in both.
TRAINING: list[tuple[str, Callable[[Any], Any], str]] = [
    ("plan", lambda t: t.config.data.batch_size % t.world_size,
     "data.batch_size={config.data.batch_size} leaves GPUs of {nodes} x {processes} idle."),
    ("strategy", lambda t: t.config.strategy.name not in ("auto", t.strategy),
     "strategy={config.strategy.name}; distribution {kind} is for {strategy}."),
    ("device", lambda t: gpus_of(t.size) and t.config.strategy.device != "cuda",
     "strategy.device={config.strategy.device} may use the CPU; give cuda."),
    ("shm_size", lambda t: t.shm_size is None, "resources.shm_size: missing; its default, 2g, is too little: give 64g."),
    ("network", lambda t: t.nccl == "ethernet" and t.infiniband,
     "nccl={nccl} on {size} does not use its InfiniBand; give nd_a100 or nd_h100."),
    ("network", lambda t: t.nccl.startswith("nd_") and t.size and not t.infiniband,
     "nccl={nccl} on {size}, which has no InfiniBand; give nccl=ethernet."),
    ("network", lambda t: t.nccl.startswith("nd_") and t.infiniband and (t.nccl == "nd_h100") != t.hopper,
     "nccl={nccl} on {size} has the topology of another machine."),
    ("restart", lambda t: t.config.resume != "auto",
     "resume={config.resume}: a job that is started again begins anew; give resume=auto."),
    ("restart", lambda t: not t.output, "trainer.checkpoint_dir is no output of the job; give ${{{{outputs.NAME}}}}."),
    ("restart", lambda t: t.mode not in (None, "rw_mount"), "outputs.{output[1]}.mode: {mode} writes at the end; give rw_mount."),
    ("restart", lambda t: not t.trainer.checkpoint_minutes,
     "trainer.checkpoint_minutes is not given, so a lost machine may cost an epoch; give 10."),
    ("restart", lambda t: t.trainer.keep_last < 2, "trainer.keep_last=1: a lost machine may cut the last upload; give 2."),
    ("restart", lambda t: not (t.config.output_dir or "").startswith("outputs/"),
     "output_dir={config.output_dir}: Azure keeps outputs/ only; give outputs/run."),
    ("whole_training", lambda t: t.config.dry_run or t.trainer.fast_dev_run or t.trainer.overfit_batches,
     "dry_run, fast_dev_run and overfit_batches train on nothing; drop them."),
    ("data", lambda t: not t.input and "://" not in t.root,
     "data.root={config.data.root} is no input of the job; give ${{{{inputs.NAME}}}}."),
    ("metric", lambda t: t.sweep and t.metric != t.monitor,
     "objective.primary_metric: {metric}, but trials watch {monitor}."),
    ("metric", lambda t: t.sweep and t.metric == t.monitor and t.goal != f"{t.best}imize",
     "objective.goal: {goal}, but of {metric} the {best}imum is best."),
    ("metric", lambda t: t.sweep and (t.config.logging.mlflow == "false" or t.trainer.validate_every.startswith("0")),
     "logging.mlflow=false or no validation: the sweep sees no metric of its trials."),
]  # fmt: skip


def value_problems(document: Document) -> Problems:
    """The rows of VALUES that do not hold."""
    for rule, kinds, key, holds, remedy in VALUES:
        value = document.get(key)
        if document.kind in kinds and not holds(value):
            yield rule, f"{key}: {'missing' if value is None else value}; {remedy}"


def job_problems(job: Document) -> Problems:
    """A command job or a sweep: its command, machines, processes and paths."""
    yield from _placeholders(job)
    yield from _machines(job)
    yield from _processes(job)
    yield from _inputs(job)
    yield from _outputs(job)
    try:
        for call in commands.calls_of(job):
            yield from (("settings", problem) for problem in commands.problems(call))
    except ValueError as error:
        yield "settings", f"command: {error}; nothing of it can be read."
    for config in commands.settings_of(job):
        yield from _training(job, config)


def _placeholders(job: Document) -> Problems:
    used = set(commands.PLACEHOLDER.findall(job.command))
    declared = {(what, name) for what in ("inputs", "outputs", "search_space") for name in job.names(what)}
    for what, name in sorted(used - declared):
        there = ", ".join(job.names(what)) or "none"
        yield "placeholders", f"${{{{{what}.{name}}}}} is not declared; {what} of the file: {there}."
    for what, name in sorted(declared - used):
        yield "placeholders", f"{what}.{name} is not used; use ${{{{{what}.{name}}}}} or drop it."


def _machines(job: Document) -> Problems:
    name, serverless = job.get("compute"), job.get("queue_settings")
    compute = job.asset("amlCompute", name)
    if not name and not (job.get("resources.instance_type") and job.get("queue_settings.job_tier")):
        yield "place", "no compute; add azureml:NAME, or resources.instance_type with queue_settings."
    if not name and not job.get("identity.type"):
        yield "identity", "identity: missing; a serverless job reads data as its user: user_identity."
    if name and serverless:
        yield "place", "queue_settings is for serverless jobs, compute for clusters; drop one."
    elif name and compute is None:
        yield "place", f"compute: {name} is in no file beside this one{_near(name, job, *COMPUTE)}."
    if compute:
        nodes, trials = job.get("resources.instance_count") or 1, job.get("limits.max_concurrent_trials") or 1
        most = compute.get("max_instances")
        if isinstance(most, int) and nodes * trials > most:
            yield "place", f"{trials} x instance_count: {nodes}, but {compute.path.name} has max_instances: {most}."
    low = compute.get("tier") == "low_priority" if compute else job.get("queue_settings.job_tier") == "spot"
    for key in ("timeout", "trial_timeout"):
        seconds, longest = job.get(f"limits.{key}"), (7 if low else 21) * DAY
        if isinstance(seconds, int) and seconds > longest:
            yield "time_limit", f"limits.{key}: {seconds} s; Azure allows {longest} s here ({LIMITS})."


def _layout(job: Document) -> tuple[int, Any, str]:
    """Machines of a job, processes on each (None where not given) and the type of its distribution, or ""."""
    kind = str(job.get("distribution.type") or "").lower()
    return job.get("resources.instance_count") or 1, job.get("distribution.process_count_per_instance"), kind


def _processes(job: Document) -> Problems:
    nodes, processes, kind = _layout(job)
    gpus, vcpus = gpus_of(job.size), vcpus_of(job.size)
    if kind in ("mpi", "pytorch") and processes is None:
        yield "processes", f"distribution.type: {kind} needs process_count_per_instance: the GPUs of a machine."
    if isinstance(processes, int) and gpus is not None and processes != gpus:
        yield "processes", f"process_count_per_instance: {processes}, but {job.size} has {gpus} GPUs."
    if nodes > 1 and not kind:
        yield "processes", f"instance_count: {nodes} without distribution starts one process; add type: mpi or pytorch."
    launchers = LAUNCHERS & set(re.split(r"[\s;|&()]+", job.command))
    if kind and launchers:
        yield "one_launcher", f"{launchers.pop()} within distribution.type: {kind} starts all again; drop one."
    threads = str(job.get("environment_variables.OMP_NUM_THREADS"))
    if threads.isdigit() and processes and vcpus and int(threads) * processes > vcpus:
        yield "threads", f"OMP_NUM_THREADS: {threads} x {processes} processes on {vcpus} vCPUs; give less."
    for config in commands.settings_of(job, "benchmark_scaling"):
        if gpus is not None and max(config.processes) > gpus:
            yield "processes", f"processes={config.processes} on {job.size}, which has {gpus} GPUs."
        if nodes > 1 or kind:
            yield "one_launcher", "benchmark scaling starts its own processes on one machine."


def _inputs(job: Document) -> Problems:
    for name in job.names("inputs"):
        asset, mode = job.asset("data", job.get(f"inputs.{name}.path")), job.get(f"inputs.{name}.mode")
        if mode not in (None, "download", "ro_mount"):
            yield "input_mode", f"inputs.{name}.mode: {mode} gives no folder to read; give download or ro_mount."
        if asset and job.get(f"inputs.{name}.type") != asset.get("type"):
            yield "input_type", f"inputs.{name}.type is not that of {asset.path.name}, {asset.get('type')}."


def _outputs(job: Document) -> Problems:
    others = [other for other in job.beside if other.kind in JOBS and other.path.resolve() != job.path.resolve()]
    for name in job.names("outputs"):
        path = job.get(f"outputs.{name}.path")
        if job.get(f"outputs.{name}.type") == "uri_file":
            yield "input_type", f"outputs.{name}.type: uri_file; checkpoints are a folder: give uri_folder."
        if path and not re.match(r"azureml://datastores/([^/]+)/", str(path)):
            yield "datastore", f"outputs.{name}.path: {path} is no azureml://datastores/NAME/paths/FOLDER/."
        if store := job.undescribed_datastore(path):
            yield "datastore", f"outputs.{name}.path: no file beside this one describes the datastore {store}."
        if job.kind in SWEEP and path:
            yield "own_folder", f"outputs.{name}.path: {path}: all trials would write there; drop path."
        if job.kind not in SWEEP and not path and commands.settings_of(job):
            yield "own_folder", f"outputs.{name}.path: missing, so a second start finds nothing."
        for other in others:
            if path and path in [other.get(f"outputs.{there}.path") for there in other.names("outputs")]:
                yield "own_folder", f"outputs.{name}.path: {path} is that of {other.path.name} too."


def _training(job: Document, config: Any) -> Problems:
    """One composition of the job's `retina_dist.train`."""
    from retina_dist.run.build import build_plan, monitor_of

    nodes, processes, kind = _layout(job)
    size, processes, root = job.size or "", processes or 1, config.data.root or ""
    output = re.fullmatch(r"/outputs/([\w.-]+).*", config.trainer.checkpoint_dir or "")
    source = re.fullmatch(r"/inputs/([\w.-]+).*", root)
    monitor = monitor_of(config)
    facts = SimpleNamespace(
        config=config, trainer=config.trainer, nccl=config.nccl.name, nodes=nodes, processes=processes, kind=kind or "none",
        world_size=max(1, nodes * processes), strategy={"mpi": "horovod", "pytorch": "ddp"}.get(kind, "single"),
        size=size, hopper=bool(re.search("_H[12]00_", size, re.IGNORECASE)), shm_size=job.get("resources.shm_size"),
        infiniband=re.fullmatch(r"Standard_ND\d+[a-z]*r[a-z]*_.*", size, re.IGNORECASE),
        output=output, mode=job.get(f"outputs.{output[1]}.mode") if output else None, root=root, input=source,
        sweep=job.kind in SWEEP, metric=job.get("objective.primary_metric"), goal=str(job.get("objective.goal")).lower(),
        best=config.trainer.monitor_mode or default_mode(monitor), monitor=monitor,
    )  # fmt: skip
    try:
        build_plan(config, NUM_IMAGES, facts.world_size)
    except ConfigError as error:
        yield "plan", f"on {nodes} x {processes} processes: {error}"
    for rule, broken, text in TRAINING:
        if broken(facts):
            yield rule, text.format_map(vars(facts))
    if source and (asset := job.asset("data", job.get(f"inputs.{source[1]}.path"))):
        uploads, shards = _uploads(asset)
        folder, form = uploads.get(asset.blob_folder() or ""), config.data.name
        if folder and (folder in shards) != (form == "shards"):
            yield "data", f"data={form} over {folder}, which has {'shards' if folder in shards else 'COCO files'}."


def _uploads(document: Document) -> tuple[dict[str, str], set[str]]:
    """What the README beside a file does: container/folder -> local folder of each azcopy upload, and the folders of shards."""
    readme = document.path.parent / "README.md"
    text = readme.read_text(encoding="utf-8").replace("\\\n", " ") if readme.is_file() else ""
    found = re.findall(r'azcopy copy "([^"*]+?)/?\*?" "https://\S+?\.blob\.core\.windows\.net/([^"]+?)/?"', text)
    return {folder: source for source, folder in found}, set(re.findall(r"retina_dist\.shards .*\boutput=(\S+)", text))


def sweep_problems(sweep: Document) -> Problems:
    """Search space, sampling and limits of a sweep."""
    sampling, limits = sweep.get("sampling_algorithm"), sweep.get("limits") or {}
    sampling = str(sampling.get("type") if isinstance(sampling, dict) else sampling).lower()
    allowed = {"grid": ("choice",), "bayesian": ("choice", "uniform", "quniform")}.get(sampling)
    trials = 1
    for name in sweep.names("search_space"):
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
    yield from (("same_space", text) for text in commands.space_differences(sweep))


def asset_problems(document: Document) -> Problems:
    """Sizes, references to other files, paths and images of any kind of file."""
    size = document.size
    # the size of a job's compute is checked in that file
    if document.kind in (*COMPUTE, *DEPLOYMENT) or (document.kind in JOBS and document.get("resources.instance_type")):
        near = difflib.get_close_matches(size or "", KNOWN, 1)
        if not size:
            yield "size", "no size is given; add one, such as Standard_NC96ads_A100_v4."
        elif day := retired(size):
            yield "size", f"{size} was retired on {day}; take another, such as Standard_NC96ads_A100_v4."
        elif gpus_of(size) is None:
            yield "size", f"{size} is not in checker/sizes.py; " + (f"did you mean {near[0]}?" if near else "add it.")
    for key, wanted, value in _references(document):
        found = re.fullmatch(r"azureml:([\w.-]+):([\w.-]+)", value)
        described = document.asset(wanted, value)
        if not found:
            yield "pinned", f"{key}: {value} may be another one tomorrow; give azureml:NAME:VERSION."
        elif described is None:
            yield "pinned", f"{key}: {value} is in no file beside this one{_near(value, document, wanted)}."
        elif str(described.get("version")) != found[2]:
            yield "pinned", f"{key}: {value}, but {described.path.name} has version {described.get('version')}."
    build = document.build()
    if build and not build[1].is_file():
        yield "dockerfile", f"build: {build[0].name}/ has no {build[1].relative_to(build[0])}."
    if document.kind in ("data", "model") and document.get("path"):
        yield from _path(document, str(document.get("path")))


def _references(document: Document) -> Iterator[tuple[str, str, str]]:
    """(key, kind of asset, value) of each asset that a job or a deployment names, but for those of a registry."""
    keys = {"environment": "environment", "model": "model"}
    keys |= {f"inputs.{name}.path": "data" for name in document.names("inputs")}
    for key, kind in keys.items() if document.kind in (*JOBS, *DEPLOYMENT) else ():
        value = document.get(key)
        if (
            isinstance(value, str)
            and not value.startswith("azureml://")
            and (kind != "data" or value.startswith("azureml:"))
        ):
            yield key, kind, value


def _path(document: Document, path: str) -> Problems:
    """The path of a data asset or a model, by the files of the folder and what the README uploads."""
    uploads, folder = _uploads(document)[0], document.blob_folder()
    if "://" in path and not path.startswith(REMOTE):
        yield "path", f"path: {path}; Azure reads {', '.join(REMOTE)} and local paths."
    elif store := document.undescribed_datastore(path):
        yield "datastore", f"path: no file beside this one describes the datastore {store}."
    elif document.kind in DATA and not path.startswith(REMOTE) and not document.path_of(path).exists():
        yield "path", f"path: {path} does not exist here."
    if document.kind in DATA and uploads and folder and folder not in uploads:
        yield "path", f"path: nothing is uploaded to {folder}; the README fills {', '.join(uploads)}."
    if document.kind in DATA and document.get("type") == "uri_file" and (path.endswith("/") or folder in uploads):
        yield "input_type", f"type: uri_file for the folder {path}; give uri_folder."


def _near(reference: str, document: Document, kind: str) -> str:
    """ "; did you mean NAME?" for a name that is nearly that of a file of this kind, else those that there are."""
    names = [str(d.get("name")) for d in document.beside if d.kind == kind]
    near = difflib.get_close_matches(reference.removeprefix("azureml:").partition(":")[0], names, 1)
    return f"; did you mean {near[0]}?" if near else f" (there: {', '.join(names) or 'none'})"


def deployment_problems(deployment: Document) -> Problems:
    """Endpoint, scoring script, routes, ports, workers and packages of a deployment."""
    name, script = str(deployment.get("endpoint_name")), deployment.get("code_configuration.scoring_script")
    code, build = deployment.get("code_configuration.code"), deployment.build()
    if deployment.asset(*ENDPOINT, name) is None:
        yield "endpoint", f"endpoint_name: {name} is in no file beside this one{_near(name, deployment, *ENDPOINT)}."
    if script and not (deployment.path_of(code) / str(script)).is_file():
        yield "script", f"code_configuration: {code} has no {script}."
    routes = deployment.get("environment.inference_config") or {}
    if not script and not routes:
        yield "routes", "environment.inference_config: missing; give the container's routes and port."
    image = build[1].read_text(encoding="utf-8") if build and build[1].is_file() else ""
    served = re.search(r"\bport=(\d+)", image)
    ports = {str((routes.get(route) or {}).get("port")) for route in SERVER}
    if routes and (len(ports) > 1 or (served and ports != {served[1]})):
        yield "routes", f"inference_config: ports {sorted(ports)}, the server has {served and served[1]}."
    for route, path in SERVER.items() if routes else ():
        if (given := (routes.get(route) or {}).get("path")) != path:
            yield "routes", f"inference_config.{route}.path: {given}; the server answers {path}."
    memory, workers = memory_gib_of(deployment.size), deployment.get("environment_variables.WORKER_COUNT")
    if memory and str(workers).isdigit() and int(workers) * WORKER_GIB > memory:
        yield "workers", f"WORKER_COUNT: {workers} x about {WORKER_GIB} GiB in a GPU of {memory} GiB."
    conda = deployment.path_of(deployment.get("environment.conda_file") or "-")
    setup = next((folder / "setup.cfg" for folder in conda.parents if (folder / "setup.cfg").is_file()), Path("-"))
    if conda.is_file() and setup.is_file():  # the ranges of both are the same
        ours = dict(re.findall(r"^ +([\w-]+)([><=][^\s;#]*)$", setup.read_text("utf-8"), re.MULTILINE))
        for name, bounds in re.findall(r"^ +- ([\w-]+)([><=]\S+)$", conda.read_text("utf-8"), re.MULTILINE):
            if ours.get(name, bounds) != bounds:
                yield "packages", f"{conda.name}: {name}{bounds}, but setup.cfg has {name}{ours[name]}."


def problems(document: Document) -> Problems:
    """Everything that is wrong with one file."""
    yield from value_problems(document)
    for kinds, check in ((JOBS, job_problems), (SWEEP, sweep_problems), (DEPLOYMENT, deployment_problems)):
        if document.kind in kinds:
            yield from check(document)
    yield from asset_problems(document)
