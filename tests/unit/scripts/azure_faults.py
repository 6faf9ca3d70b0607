"""Wrong Azure ML files, made of the right ones by one edit each, with the rule that must name each."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Fault:
    """In `file`, the only `old` becomes `new`; or something is `done` to the copy. `checked`: the file to check instead."""

    rule: str
    file: str
    old: str = ""
    new: str = ""
    done: Callable[[Path], None] | None = None
    checked: str = ""


def a_large_file(root: Path) -> None:
    """a file of 301 MB beside the code"""
    with (root / "weights.bin").open("wb") as file:
        os.truncate(file.fileno(), 301 * 10**6)


def many_files(root: Path) -> None:
    """2001 more files beside the code"""
    (root / "notes").mkdir()
    for i in range(2001):
        (root / "notes" / str(i)).touch()


HOROVOD, DDP, SPOT, SWEEP, FIGURE = (
    "train-horovod.yml",
    "train-ddp.yml",
    "train-ddp-spot.yml",
    "sweep.yml",
    "figure10.yml",
)
DEDICATED, PINNED = "compute-dedicated.yml", "environment: azureml:retina-dist:1"
SCORE, CONTAINER = "deployment.yml", "deployment-container.yml"
ROUTES = """\
  inference_config:
    liveness_route: {path: /healthz, port: 5001}
    readiness_route: {path: /readyz, port: 5001}
    scoring_route: {path: /score, port: 5001}
"""
DISTRIBUTION = """\
distribution:
  type: pytorch # Azure sets RANK, WORLD_SIZE and the like; no torchrun
  process_count_per_instance: 4
"""
BAYESIAN = "sampling_algorithm: bayesian\nearly_termination: {type: bandit, slack_factor: 0.1}"
LR = "    type: choice\n    values: [3.0e-4, 1.0e-3, 3.0e-3]"

FAULTS = [
    Fault("file", HOROVOD, "commandJob.schema", "kommandJob.schema"),
    Fault("file", HOROVOD, "resources:", "resources: ["),
    Fault("azure-ai-ml", HOROVOD, "compute: azureml", "comput: azureml"),
    Fault("azure-ai-ml", HOROVOD, "type: mpi", "type: horovod"),
    Fault("azure-ai-ml", HOROVOD, "process_count_per_instance", "process_count_per_node"),
    Fault("azure-ai-ml", HOROVOD, "timeout: 172800", "timeout: 2d"),
    Fault("azure-ai-ml", HOROVOD, "code: ../..", "code: ../../nowhere"),
    Fault("azure-ai-ml", DEDICATED, "tier: dedicated", "tier: spot"),
    Fault("placeholders", HOROVOD, "${{inputs.coco}}", "${{inputs.data}}"),
    Fault("placeholders", HOROVOD, "${{outputs.checkpoints}}", "${{outputs.model}}"),
    Fault("placeholders", SWEEP, "${{search_space.lr}}", "${{search_space.rate}}"),
    Fault("placeholders", HOROVOD, " data.batch_size=${{inputs.batch_size}}"),
    Fault("placeholders", FIGURE, "${{inputs.coco}}", "/data/coco"),
    Fault("counts", HOROVOD, "instance_count: 2", "instance_count: 0"),
    Fault("counts", DDP, "process_count_per_instance: 4", "process_count_per_instance: -4"),
    Fault("processes", HOROVOD, "  process_count_per_instance: 4\n"),
    Fault("processes", HOROVOD, "process_count_per_instance: 4", "process_count_per_instance: 8"),
    Fault("processes", SPOT, "Standard_NC96ads_A100_v4", "Standard_NC48ads_A100_v4"),
    Fault("processes", SWEEP, "process_count_per_instance: 4", "process_count_per_instance: 2"),
    Fault("processes", FIGURE, "processes=[1,2,4]", "processes=[1,2,4,8]"),
    Fault("one_launcher", FIGURE, "instance_count: 1", "instance_count: 2"),
    Fault("place", HOROVOD, "compute: azureml:gpu-cluster\n"),
    Fault("place", HOROVOD, "azureml:gpu-cluster", "azureml:gpu-claster"),
    Fault("place", SPOT, "identity:", "compute: azureml:gpu-cluster\nidentity:"),
    Fault("place", HOROVOD, "instance_count: 2", "instance_count: 4"),
    Fault("place", SWEEP, "max_concurrent_trials: 2", "max_concurrent_trials: 3"),
    Fault("time_limit", HOROVOD, "timeout: 172800", "timeout: 2000000"),
    Fault("time_limit", SPOT, "timeout: 172800", "timeout: 1000000"),
    Fault("time_limit", SWEEP, "trial_timeout: 28800", "trial_timeout: 2000000"),
    Fault("shm_size", HOROVOD, "shm_size: 64g", "shm_size: 64gigs"),
    Fault("shm_size", HOROVOD, "  shm_size: 64g # data workers hand their images over here\n"),
    Fault("settings", HOROVOD, "trainer.checkpoint_minutes=10", "trainer.checkpoint_minuts=10"),
    Fault("settings", DDP, "recipe: torchvision_v1", "recipe: torchvision_v9"),
    Fault("settings", DDP, "retina_dist.train ", "retina_dist.trian "),
    Fault("settings", HOROVOD, "batch_size: 16", "batch_size: 0"),
    Fault("settings", DDP, "resume=auto", "resume='auto"),
    Fault("plan", HOROVOD, "batch_size: 16", "batch_size: 12"),
    Fault("plan", SWEEP, "values: [8, 16]", "values: [8, 18]"),
    Fault("strategy", HOROVOD, "strategy=horovod", "strategy=ddp"),
    Fault("strategy", DDP, "type: pytorch", "type: mpi"),
    Fault("network", HOROVOD, "nccl=ethernet", "nccl=nd_h100"),
    Fault("network", SPOT, "Standard_NC96ads_A100_v4", "Standard_ND96asr_v4"),
    Fault("restart", HOROVOD, " resume=auto"),
    Fault("restart", HOROVOD, " trainer.checkpoint_minutes=10"),
    Fault("restart", HOROVOD, "${{outputs.checkpoints}}", "outputs/checkpoints"),
    Fault("restart", HOROVOD, "mode: rw_mount", "mode: upload"),
    Fault("own_folder", DDP, "paths/runs/ddp/", "paths/runs/horovod/"),
    Fault("own_folder", DDP, "    path: azureml://datastores/coco/paths/runs/ddp/\n"),
    Fault(
        "own_folder",
        SWEEP,
        "mode: rw_mount",
        "mode: rw_mount\n    path: azureml://datastores/coco/paths/runs/sweep/",
    ),
    Fault("ranges", SWEEP, LR, "    type: loguniform\n    min_value: 0.0003\n    max_value: 0.003"),
    Fault("ranges", SWEEP, LR, "    type: loguniform\n    min_value: -5.8\n    max_value: -8.1"),
    Fault("ranges", SWEEP, "values: [8, 16]", "values: []"),
    Fault("same_space", SWEEP, "[3.0e-4, 1.0e-3, 3.0e-3]", "[3.0e-4, 1.0e-2, 3.0e-3]"),
    Fault("same_space", SWEEP, "values: [8, 16]", "values: [16]"),
    Fault("metric", SWEEP, "primary_metric: coco/AP", "primary_metric: val/mAP"),
    Fault("metric", SWEEP, "goal: maximize", "goal: minimize"),
    Fault("size", DEDICATED, "Standard_NC96ads_A100_v4", "Standard_NC24"),
    Fault("size", DEDICATED, "Standard_NC96ads_A100_v4", "Standard_NC96ads_A100_v5"),
    Fault("size", DEDICATED, "size: Standard_NC96ads_A100_v4 "),
    Fault("size", SPOT, "Standard_NC96ads_A100_v4", "Standard_NC24rs_v3"),
    Fault("idle_cost", DEDICATED, "min_instances: 0", "min_instances: 3"),
    Fault("counts", DEDICATED, "max_instances: 2", "max_instances: 0"),
    Fault("pinned", HOROVOD, PINNED, "environment: azureml:retina-dist@latest"),
    Fault("pinned", HOROVOD, PINNED, "environment: azureml:retina-dist"),
    Fault("pinned", SWEEP, PINNED, "environment: azureml:retina-dist:2"),
    Fault("pinned", HOROVOD, "azureml:coco2017:1", "azureml:coco2017@latest"),
    Fault("datastore", HOROVOD, "azureml://datastores/coco/", "azureml://datastores/koko/"),
    Fault("datastore", HOROVOD, "azureml://datastores/coco/paths/", "/mnt/"),
    Fault("dockerfile", "environment.yml", "train.Dockerfile", "gpu.Dockerfile"),
    Fault("dockerfile", DDP, PINNED, "environment: {build: {path: ., dockerfile_path: Dockerfile}}"),
    Fault("path", "data.yml", "azureml://datastores/coco/", "s3://coco/"),
    Fault("datastore", "data.yml", "azureml://datastores/coco/", "azureml://datastores/koko/"),
    Fault("path", "data.yml", "azureml://datastores/coco/paths/", "./"),
    Fault("no_keys", "datastore.yml", "container_name:", "credentials: {account_key: c2VjcmV0}\ncontainer_name:"),
    Fault("names", "datastore.yml", "account_name: retinadist", "account_name: retina-dist"),
    Fault("azure-ai-ml", "endpoint.yml", "name: retina-dist", "name: 2018_retina"),
    Fault("endpoint", SCORE, "endpoint_name: retina-dist", "endpoint_name: other"),
    Fault("script", SCORE, "score.py\n", "skore.py\n"),
    Fault("request_time", SCORE, "30000", "300000"),
    Fault("counts", SCORE, "instance_count: 1", "instance_count: 0"),
    Fault("size", SCORE, "Standard_NC4as_T4_v3", "Standard_NC6s_v3"),
    Fault("pinned", SCORE, "retinanet-coco:1", "retinanet-coco@latest"),
    Fault("dockerfile", CONTAINER, "serve.Dockerfile", "serve.Containerfile"),
    Fault("code", HOROVOD, done=a_large_file),
    Fault("code", "../../.amlignore", done=many_files),
    Fault("code", "../../.amlignore", "/tests/", "/conf/"),
    Fault("shell", "README.md", "sleep 20; done", "sleep 20"),
    Fault("variables", "README.md", "SA=retina", "ACCOUNT=retina"),
    Fault("commands", "README.md", "create scripts/azure/figure10.yml", "create scripts/azure/figure11.yml"),
    Fault("commands", "README.md", '"gpus=[1,2,4,8]"', '"gpu=[1,2,4,8]"'),
    # what the first checker let through
    Fault("path", "data.yml", "coco2017-shards", "coco2017"),
    Fault("probes", SCORE, "liveness_probe:\n  initial_delay: 60\n  failure_threshold: 30\n"),
    Fault("probes", CONTAINER, "readiness_probe:\n  initial_delay: 60\n  failure_threshold: 30\n"),
    Fault("routes", CONTAINER, ROUTES),
    Fault("identity", SPOT, "identity:\n  type: user_identity # there is no cluster whose identity could read the data\n"),
    Fault("identity", DEDICATED, "type: system_assigned", "name: system_assigned"),
    Fault("one_launcher", HOROVOD, "python -m retina_dist.train", "horovodrun -np 8 python -m retina_dist.train"),
    Fault("one_launcher", DDP, "python -m retina_dist.train", "torchrun --nproc-per-node 4 -m retina_dist.train"),
    Fault("one_launcher", DDP, "python -m retina_dist.train", "python -m torch.distributed.run -m retina_dist.train"),
    Fault("pinned", SCORE, "azureml:retinanet-coco:1", "azureml:retinanet-cocco:1"),
    Fault("routes", CONTAINER, "liveness_route: {path: /healthz", "liveness_route: {path: /health"),
    Fault("routes", CONTAINER, "scoring_route: {path: /score, port: 5001}", "scoring_route: {path: /score, port: 8080}"),
    Fault("routes", "../image/serve.Dockerfile", "port=5001", "port=8080", checked=CONTAINER),
    Fault("sampling", SWEEP, "sampling_algorithm: grid", BAYESIAN),
    Fault("input_type", "data.yml", "uri_folder", "uri_file"),
    Fault("input_type", HOROVOD, "uri_folder\n    path: azureml:coco", "uri_file\n    path: azureml:coco"),
    Fault("device", HOROVOD, "strategy.device=cuda", "strategy.device=cpu"),
    Fault("device", DDP, " strategy.device=cuda"),
    Fault("workers", SCORE, 'WORKER_COUNT: "1"', 'WORKER_COUNT: "8"'),
    Fault("data", HOROVOD, "format: shards", "format: coco"),
    # more of that kind
    Fault("idle_cost", DEDICATED, "idle_time_before_scale_down: 600", "idle_time_before_scale_down: 86400"),
    Fault("idle_cost", HOROVOD, "limits:\n  timeout: 172800\n"),
    Fault("closed", DEDICATED, "ssh_public_access_enabled: false", "ssh_public_access_enabled: true"),
    Fault("names", "datastore.yml", "container_name: coco", "container_name: COCO_2017"),
    Fault("processes", DDP, DISTRIBUTION),
    Fault("threads", DDP, 'OMP_NUM_THREADS: "8"', 'OMP_NUM_THREADS: "96"'),
    Fault("input_mode", HOROVOD, "mode: download", "mode: direct"),
    Fault("input_type", HOROVOD, "checkpoints:\n    type: uri_folder", "checkpoints:\n    type: uri_file"),
    Fault("plan", HOROVOD, "batch_size: 16", "batch_size: 6"),
    Fault("restart", HOROVOD, " trainer.keep_last=2"),
    Fault("restart", HOROVOD, "output_dir=outputs/run", "output_dir=runs/mine"),
    Fault("whole_training", HOROVOD, "nccl=ethernet", "nccl=ethernet trainer.fast_dev_run=true"),
    Fault("data", DDP, "data.root=${{inputs.coco}}", "data.root=/mnt/${{inputs.coco}}"),
    Fault("network", SPOT, "nccl=ethernet", "nccl=nd_h100"),
    Fault("metric", SWEEP, "resume=auto", "resume=auto logging.mlflow=false"),
    Fault("sampling", SWEEP, LR, "    type: uniform\n    min_value: 0.0003\n    max_value: 0.003"),
    Fault("sweep_limits", SWEEP, "max_total_trials: 6", "max_total_trials: 4"),
    Fault("sweep_limits", SWEEP, "max_concurrent_trials: 2", "max_concurrent_trials: 7"),
    Fault("sweep_limits", SWEEP, "trial_timeout: 28800", "trial_timeout: 200000"),
    Fault("packages", "serve/conda.yml", "torch>=2.11,<2.16", "torch>=2.4", checked=SCORE),
    Fault("size", DEDICATED, "Standard_NC96ads_A100_v4", "Standard_ND96is_H100_v4"),
]  # fmt: skip


def copy(here: Path, root: Path) -> Path:
    """A repository that has what is checked; its scripts/azure."""
    folder, repository = root / "scripts" / "azure", here.parents[1]
    shutil.copytree(here, folder, ignore=shutil.ignore_patterns("checker", "__pycache__"))
    for name in (".amlignore", "setup.cfg"):
        shutil.copy(repository / name, root)
    for name in ("retina_dist", "conf"):
        shutil.copytree(repository / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(here.parent / "image", root / "scripts" / "image")
    for file in (repository / "scripts").glob("*.*"):
        shutil.copy(file, root / "scripts")
    return folder
