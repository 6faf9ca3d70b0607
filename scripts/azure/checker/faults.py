"""Wrong files, made of the right ones by one edit each; the rule that a fault is for must find it.

`check.py --self-test` prints them all, and the tests go through them one by one: a rule that finds nothing any more is seen.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from . import Finding, check_file

ENDPOINT = """\
$schema: https://azuremlschemas.azureedge.net/latest/managedOnlineEndpoint.schema.json
name: example
auth_mode: key
"""
DEPLOYMENT = """\
$schema: https://azuremlschemas.azureedge.net/latest/managedOnlineDeployment.schema.json
name: blue
endpoint_name: example
model: azureml:retinanet-coco:1
code_configuration:
  code: .
  scoring_script: example.py
environment:
  build: {path: image, dockerfile_path: Dockerfile}
instance_type: Standard_NC4as_T4_v3
instance_count: 1
request_settings:
  request_timeout_ms: 60000
"""
EXAMPLES = {"example-endpoint.yml": ENDPOINT, "example-deployment.yml": DEPLOYMENT, "example.py": ""}


@dataclass(frozen=True)
class Fault:
    """In `file`, the only `old` becomes `new`; or something is `done` to the repository's copy. `rule` must say so."""

    rule: str
    file: str
    old: str = ""
    new: str = ""
    done: Callable[[Path], None] | None = None

    @property
    def edit(self) -> str:
        """The fault in words."""
        if self.done:
            return str(self.done.__doc__)
        old, new = (" ".join(text.split()) for text in (self.old, self.new))
        return f"{old} => {new}" if new else f"without {old}"


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
DEDICATED, PINNED, MODEL = "compute-dedicated.yml", "environment: azureml:retina-dist:1", "model.yml"
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
    Fault("placeholders_are_declared", HOROVOD, "${{inputs.coco}}", "${{inputs.data}}"),
    Fault("placeholders_are_declared", HOROVOD, "${{outputs.checkpoints}}", "${{outputs.model}}"),
    Fault("placeholders_are_declared", SWEEP, "${{search_space.lr}}", "${{search_space.rate}}"),
    Fault("declarations_are_used", HOROVOD, " data.batch_size=${{inputs.batch_size}}"),
    Fault("declarations_are_used", FIGURE, "${{inputs.coco}}", "/data/coco"),
    Fault("counts_are_positive", HOROVOD, "instance_count: 2", "instance_count: 0"),
    Fault("counts_are_positive", DDP, "process_count_per_instance: 4", "process_count_per_instance: -4"),
    Fault("processes_are_counted", HOROVOD, "  process_count_per_instance: 4\n"),
    Fault("a_process_for_each_gpu", HOROVOD, "process_count_per_instance: 4", "process_count_per_instance: 8"),
    Fault("a_process_for_each_gpu", SPOT, "Standard_NC96ads_A100_v4", "Standard_NC48ads_A100_v4"),
    Fault("a_process_for_each_gpu", SWEEP, "process_count_per_instance: 4", "process_count_per_instance: 2"),
    Fault("the_benchmark_fits_the_machine", FIGURE, "processes=[1,2,4]", "processes=[1,2,4,8]"),
    Fault("the_benchmark_fits_the_machine", FIGURE, "instance_count: 1", "instance_count: 2"),
    Fault("a_place_to_run", HOROVOD, "compute: azureml:gpu-cluster\n"),
    Fault("a_place_to_run", HOROVOD, "azureml:gpu-cluster", "azureml:gpu-claster"),
    Fault("a_place_to_run", SPOT, "identity:", "compute: azureml:gpu-cluster\nidentity:"),
    Fault("the_compute_has_the_machines", HOROVOD, "instance_count: 2", "instance_count: 4"),
    Fault("the_compute_has_the_machines", SWEEP, "max_concurrent_trials: 2", "max_concurrent_trials: 3"),
    Fault("time_limits_are_the_services", HOROVOD, "timeout: 172800", "timeout: 2000000"),
    Fault("time_limits_are_the_services", SPOT, "timeout: 172800", "timeout: 1000000"),
    Fault("time_limits_are_the_services", SWEEP, "trial_timeout: 28800", "trial_timeout: 2000000"),
    Fault("shared_memory_has_a_unit", HOROVOD, "shm_size: 64g", "shm_size: 64gigs"),
    Fault("shared_memory_has_a_unit", HOROVOD, "  shm_size: 64g # data workers hand their images over here\n"),
    Fault("settings_are_known", HOROVOD, "trainer.checkpoint_minutes=10", "trainer.checkpoint_minuts=10"),
    Fault("settings_are_known", DDP, "experiment=torchvision_v1", "experiment=torchvision_v9"),
    Fault("settings_are_known", DDP, "retina_dist.train ", "retina_dist.trian "),
    Fault("settings_are_known", HOROVOD, "batch_size: 16", "batch_size: 0"),
    Fault("settings_are_known", DDP, "resume=auto", "resume='auto"),
    Fault("batches_divide", HOROVOD, "batch_size: 16", "batch_size: 12"),
    Fault("batches_divide", SWEEP, "values: [8, 16]", "values: [8, 18]"),
    Fault("the_launcher_fits_the_strategy", HOROVOD, "strategy=horovod", "strategy=ddp"),
    Fault("the_launcher_fits_the_strategy", DDP, "type: pytorch", "type: mpi"),
    Fault("the_network_is_the_machines", HOROVOD, "nccl=ethernet", "nccl=nd_h100"),
    Fault("the_network_is_the_machines", SPOT, "Standard_NC96ads_A100_v4", "Standard_ND96asr_v4"),
    Fault("a_second_start_goes_on", HOROVOD, " resume=auto"),
    Fault("a_second_start_goes_on", HOROVOD, " trainer.checkpoint_minutes=10"),
    Fault("a_second_start_goes_on", HOROVOD, "${{outputs.checkpoints}}", "outputs/checkpoints"),
    Fault("a_second_start_goes_on", HOROVOD, "mode: rw_mount", "mode: upload"),
    Fault("checkpoints_have_a_place_of_their_own", DDP, "paths/runs/ddp/", "paths/runs/horovod/"),
    Fault("checkpoints_have_a_place_of_their_own", DDP, "    path: azureml://datastores/coco/paths/runs/ddp/\n"),
    Fault(
        "checkpoints_have_a_place_of_their_own",
        SWEEP,
        "mode: rw_mount",
        "mode: rw_mount\n    path: azureml://datastores/coco/paths/runs/sweep/",
    ),
    Fault("log_ranges_are_exponents", SWEEP, LR, "    type: loguniform\n    min_value: 0.0003\n    max_value: 0.003"),
    Fault("ranges_rise", SWEEP, LR, "    type: loguniform\n    min_value: -5.8\n    max_value: -8.1"),
    Fault("ranges_rise", SWEEP, "values: [8, 16]", "values: []"),
    Fault("the_space_is_hydras", SWEEP, "[3.0e-4, 1.0e-3, 3.0e-3]", "[3.0e-4, 1.0e-2, 3.0e-3]"),
    Fault("the_space_is_hydras", SWEEP, "values: [8, 16]", "values: [16]"),
    Fault("the_metric_is_logged", SWEEP, "primary_metric: coco/AP", "primary_metric: val/mAP"),
    Fault("the_metric_is_logged", SWEEP, "goal: maximize", "goal: minimize"),
    Fault("the_size_exists", DEDICATED, "Standard_NC96ads_A100_v4", "Standard_NC24"),
    Fault("the_size_exists", DEDICATED, "Standard_NC96ads_A100_v4", "Standard_NC96ads_A100_v5"),
    Fault("the_size_exists", DEDICATED, "size: Standard_NC96ads_A100_v4 "),
    Fault("the_size_exists", SPOT, "Standard_NC96ads_A100_v4", "Standard_NC24rs_v3"),
    Fault("a_compute_can_grow", DEDICATED, "min_instances: 0", "min_instances: 3"),
    Fault("a_compute_can_grow", DEDICATED, "max_instances: 2", "max_instances: 0"),
    Fault("assets_are_pinned", HOROVOD, PINNED, "environment: azureml:retina-dist@latest"),
    Fault("assets_are_pinned", HOROVOD, PINNED, "environment: azureml:retina-dist"),
    Fault("assets_are_pinned", SWEEP, PINNED, "environment: azureml:retina-dist:2"),
    Fault("assets_are_pinned", HOROVOD, "azureml:coco2017:1", "azureml:coco2017@latest"),
    Fault("outputs_have_a_datastore", HOROVOD, "azureml://datastores/coco/", "azureml://datastores/koko/"),
    Fault("outputs_have_a_datastore", HOROVOD, "azureml://datastores/coco/paths/", "/mnt/"),
    Fault("the_dockerfile_is_there", "environment.yml", "dockerfile_path: Dockerfile", "dockerfile_path: Dockerfile.gpu"),
    Fault("the_dockerfile_is_there", DDP, PINNED, "environment: {build: {path: ., dockerfile_path: Dockerfile}}"),
    Fault("the_path_can_be_read", "data.yml", "azureml://datastores/coco/", "s3://coco/"),
    Fault("the_path_can_be_read", "data.yml", "azureml://datastores/coco/", "azureml://datastores/koko/"),
    Fault("the_path_can_be_read", "data.yml", "azureml://datastores/coco/paths/", "./"),
    Fault("no_keys_in_files", "datastore.yml", "container_name:", "credentials: {account_key: c2VjcmV0}\ncontainer_name:"),
    Fault("the_account_name_can_be", "datastore.yml", "account_name: retinadist", "account_name: retina-dist"),
    Fault("the_endpoint_name_can_be", "example-endpoint.yml", "name: example", "name: 2018_example"),
    Fault("the_endpoint_is_there", "example-deployment.yml", "endpoint_name: example", "endpoint_name: other"),
    Fault("the_scoring_script_is_there", "example-deployment.yml", "example.py", "skore.py"),
    Fault("requests_end_in_time", "example-deployment.yml", "60000", "600000"),
    Fault("instances_are_positive", "example-deployment.yml", "instance_count: 1", "instance_count: 0"),
    Fault("the_size_exists", "example-deployment.yml", "Standard_NC4as_T4_v3", "Standard_NC6s_v3"),
    Fault("assets_are_pinned", "example-deployment.yml", "retinanet-coco:1", "retinanet-coco@latest"),
    Fault("the_dockerfile_is_there", "example-deployment.yml", "dockerfile_path: Dockerfile", "dockerfile_path: serve"),
    Fault("the_code_fits", HOROVOD, done=a_large_file),
    Fault("the_code_fits", "../../.amlignore", done=many_files),
    Fault("the_code_fits", "../../.amlignore", "/tests/", "/conf/"),
    Fault("the_base_is_pinned", "image/Dockerfile", ":${BASE_TAG}"),
    Fault("the_base_is_pinned", "image/Dockerfile", "BASE_TAG=20260901.v1", "BASE_TAG=latest"),
    Fault("what_is_copied_is_there", "image/Dockerfile", "COPY setup.cfg", "COPY setup.py"),
    Fault("hadolint", "image/Dockerfile", " --no-install-recommends"),
    Fault("blocks_are_shell", "README.md", "sleep 20; done", "sleep 20"),
    Fault("variables_are_set", "README.md", "SA=retina", "ACCOUNT=retina"),
    Fault("commands_are_ours", "README.md", "create scripts/azure/figure10.yml", "create scripts/azure/figure11.yml"),
    Fault("commands_are_ours", "README.md", '"gpus=[1,2,4,8]"', '"gpu=[1,2,4,8]"'),
]  # fmt: skip


def copy(here: Path, root: Path) -> Path:
    """A repository that has of the right one what is checked, and examples of an endpoint and a deployment; its scripts/azure."""
    folder = root / "scripts" / "azure"
    shutil.copytree(here, folder, ignore=shutil.ignore_patterns("checker", "__pycache__"))
    repository = here.parents[1]
    shutil.copy(repository / ".amlignore", root)
    for name in ("retina_dist", "conf"):
        shutil.copytree(repository / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in (repository / "scripts").glob("*.*"):
        shutil.copy(file, root / "scripts")
    for name, text in EXAMPLES.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def find(fault: Fault, here: Path, root: Path) -> list[Finding]:
    """Make a copy in `root`, which is empty, put the fault in, and check the file."""
    path = copy(here, root) / fault.file
    if fault.done:
        fault.done(root)
    else:
        text = path.read_text(encoding="utf-8")
        if text.count(fault.old) != 1:
            raise ValueError(
                f"{fault.file} has {text.count(fault.old)} times {fault.old!r}; a fault is an edit of one place."
            )
        path.write_text(text.replace(fault.old, fault.new), encoding="utf-8")
    return check_file(path.resolve())[1]


def usable() -> list[Fault]:
    """The faults that can be tried here: hadolint's needs it."""
    return [fault for fault in FAULTS if fault.rule != "hadolint" or shutil.which("hadolint")]


def tried(here: Path) -> Iterator[tuple[Fault, list[Finding]]]:
    """Each fault with what was found in its file."""
    for fault in usable():
        with tempfile.TemporaryDirectory() as folder:
            yield fault, find(fault, here, Path(folder))
