"""The Kubernetes files, without a cluster: fields and types, what they refer to, and counts that must agree.

Pods, volumes and claims are held against Kubernetes' own schemas, every field known; Trainer's resources against the models
that Kubeflow publishes. The other operators publish none, so their fields are written down here.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from kubeflow_trainer_api import models as trainer_models

FOLDER = Path(__file__).resolve().parents[3] / "scripts" / "kubernetes"
KUBERNETES = "1.34"
GPU = "nvidia.com/gpu"
SPOT = {"key": "kubernetes.azure.com/scalesetpriority", "operator": "Equal", "value": "spot", "effect": "NoSchedule"}

Document = dict[str, Any]


def fields(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required or [], "additionalProperties": False}


COUNT = {"type": "integer", "minimum": 0}
TEMPLATE = fields(["spec"], metadata={"type": "object"}, spec={"type": "object"})  # the pod is checked for itself
POLICY = {
    "cleanPodPolicy": {"enum": ["All", "Running", "None"]},
    "ttlSecondsAfterFinished": COUNT,
    "activeDeadlineSeconds": COUNT,
    "backoffLimit": COUNT,
    "schedulingPolicy": {"type": "object"},
    "suspend": {"type": "boolean"},
    "managedBy": {"type": "string"},
}


def replica(*policies: str) -> dict[str, Any]:
    return fields(["template"], replicas=COUNT, restartPolicy={"enum": list(policies)}, template=TEMPLATE)


SCHEMAS = {
    # https://github.com/kubeflow/mpi-operator/blob/master/pkg/apis/kubeflow/v2beta1/types.go
    ("kubeflow.org/v2beta1", "MPIJob"): fields(
        ["mpiReplicaSpecs"],
        slotsPerWorker=COUNT,
        runLauncherAsWorker={"type": "boolean"},
        sshAuthMountPath={"type": "string"},
        launcherCreationPolicy={"enum": ["AtStartup", "WaitForWorkersReady"]},
        mpiImplementation={"enum": ["OpenMPI", "Intel", "MPICH"]},
        runPolicy=fields(**POLICY),
        mpiReplicaSpecs=fields(
            ["Launcher", "Worker"], Launcher=replica("Never", "OnFailure"), Worker=replica("Never", "OnFailure")
        ),
    ),
    # https://github.com/kubeflow/trainer/blob/release-1.9/pkg/apis/kubeflow.org/v1/pytorch_types.go
    ("kubeflow.org/v1", "PyTorchJob"): fields(
        ["pytorchReplicaSpecs"],
        nprocPerNode={"type": "string"},
        runPolicy=fields(**POLICY),
        elasticPolicy=fields(
            minReplicas=COUNT,
            maxReplicas=COUNT,
            maxRestarts=COUNT,
            metrics={"type": "array"},
            nProcPerNode=COUNT,
            rdzvBackend={"type": "string"},
            rdzvConf={"type": "array"},
            rdzvHost={"type": "string"},
            rdzvId={"type": "string"},
            rdzvPort=COUNT,
            standalone={"type": "boolean"},
        ),
        pytorchReplicaSpecs=fields(
            Master=replica("Always", "OnFailure", "Never", "ExitCode"),
            Worker=replica("Always", "OnFailure", "Never", "ExitCode"),
        ),
    ),
}
TRAINER = "trainer.kubeflow.org/v1alpha1"


def read_all() -> list[Document]:
    return [d for file in sorted(FOLDER.glob("*.yaml")) for d in yaml.safe_load_all(file.read_text())]


def pods(node: Any, name: str = "") -> Iterator[tuple[str, Document]]:
    """Each pod of a document, by the name of what holds it: whatever has containers."""
    if isinstance(node, dict):
        if "containers" in node:
            yield name, node
        for key, value in node.items():
            yield from pods(value, name if key in ("template", "spec") else key)
    elif isinstance(node, list):
        for value in node:
            yield from pods(value, value.get("name", name) if isinstance(value, dict) else name)


def check(documents: list[Document], only: str = "") -> list[str]:
    """What is wrong with the files, taken together, or with the documents of one kind; nothing when all is well."""
    found: list[str] = []
    for document in documents:
        kind = document["kind"]
        if only not in ("", kind):
            continue
        try:
            _check_fields(document)
        except (jsonschema.ValidationError, kubernetes_validate.ValidationError, ValueError) as error:
            found.append(f"{kind}: {getattr(error, 'message', error)}")
            continue
        found += [f"{kind}: {wrong}" for wrong in _check_volumes(document, documents)]
        found += [f"{kind}: {wrong}" for wrong in _RULES.get(kind, lambda *_: [])(document, documents)]
    return found


def _check_fields(document: Document) -> None:
    """Raise an error that names the first field that is unknown or of another type."""
    version, kind = document["apiVersion"], document["kind"]
    if version == TRAINER:
        model = getattr(trainer_models, f"TrainerV1alpha1{kind}")
        kept = model.from_dict(copy.deepcopy(document)).to_dict()
        if kept != document:  # the model drops what it does not know
            raise ValueError(f"unknown: {_first_difference(document, kept)}")
    elif version == "v1":
        kubernetes_validate.validate(document, KUBERNETES, strict=True)
    else:
        jsonschema.validate(document["spec"], SCHEMAS[version, kind])
    for name, pod in pods(document):
        pod = {"image": "filled-in-by-trainer", **pod} if version == "v1" else pod
        wrapped = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name.lower()}, "spec": pod}
        kubernetes_validate.validate(wrapped, KUBERNETES, strict=True)


def _first_difference(ours: Any, theirs: Any, path: str = "") -> str:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in ours:
            if key not in theirs:
                return f"{path}.{key}"
            if ours[key] != theirs[key]:
                return _first_difference(ours[key], theirs[key], f"{path}.{key}")
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        index = next(i for i in range(len(ours)) if ours[i] != theirs[i])
        return _first_difference(ours[index], theirs[index], f"{path}[{index}]")
    return path


def _check_volumes(document: Document, documents: list[Document]) -> list[str]:
    found = []
    named = {(d["kind"], d["metadata"]["name"]): d["spec"] for d in documents}
    if document["kind"] == "PersistentVolumeClaim":
        claim = document["spec"]
        volume = named.get(("PersistentVolume", claim["volumeName"]))
        if volume is None:
            return [f"there is no volume {claim['volumeName']}"]
        for key in ("accessModes", "storageClassName"):
            if claim[key] != volume[key]:
                found.append(f"{key} is {claim[key]}, the volume's is {volume[key]}")
    for _, pod in pods(document):
        volumes = {v["name"]: v for v in pod.get("volumes", [])}
        for container in pod["containers"]:
            mounts = {m["mountPath"]: m for m in container.get("volumeMounts", [])}
            found += [f"no volume {m['name']}" for m in mounts.values() if m["name"] not in volumes]
            if mounts and "/dev/shm" not in mounts:
                found.append("data workers need more than a container's own /dev/shm")
        for claim in (v["persistentVolumeClaim"] for v in volumes.values() if "persistentVolumeClaim" in v):
            spec = named.get(("PersistentVolumeClaim", claim["claimName"]))
            if spec is None:
                found.append(f"there is no claim {claim['claimName']}")
            elif spec["accessModes"] == ["ReadOnlyMany"] and not claim.get("readOnly"):
                found.append(f"claim {claim['claimName']} can only be read; say readOnly")
        if volumes and SPOT not in pod.get("tolerations", []):
            found.append("its pods do not tolerate spot nodes")
    return found


def gpus(container: Document) -> int:
    return int(container.get("resources", {}).get("limits", {}).get(GPU, 0))


def settings_of(words: list[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words[words.index("retina_dist.train") + 1 :])


def _check_places(words: list[str], pod: Document) -> list[str]:
    """Data and run lie on volumes, the run on one that can be written, and a restart resumes it."""
    given = settings_of(words)
    mounts = {m["mountPath"]: m for m in pod["containers"][0]["volumeMounts"]}
    found = [] if given.get("resume") == "auto" else ["a pod that is started again must resume: resume=auto"]
    for key in ("trainer.checkpoint_minutes", "trainer.keep_last"):
        found += [] if key in given else [f"a pod may vanish, and its last upload with it: {key}"]
    for key, writes in (("data.root", False), ("output_dir", True)):
        mount = next((m for path, m in mounts.items() if Path(given[key]).is_relative_to(path)), None)
        if mount is None or (writes and mount.get("readOnly")):
            found.append(f"{key}={given[key]} is on no volume{' that can be written' if writes else ''}")
    return found


def _mpi_counts(job: Document, _: list[Document]) -> list[str]:
    spec, roles = job["spec"], job["spec"]["mpiReplicaSpecs"]
    launcher, worker = (roles[role]["template"]["spec"] for role in ("Launcher", "Worker"))
    words = launcher["containers"][0]["command"] + launcher["containers"][0]["args"]
    started, slots, cards = int(words[words.index("-np") + 1]), spec["slotsPerWorker"], gpus(worker["containers"][0])
    found = _check_places(words, worker)
    if slots != cards:
        found.append(f"slotsPerWorker is {slots}, but a worker has {cards} GPUs")
    if started != slots * roles["Worker"]["replicas"]:
        found.append(f"mpirun starts {started} processes on {roles['Worker']['replicas']} x {slots} slots")
    if gpus(launcher["containers"][0]):
        found.append("the launcher holds a GPU that it does not use")
    return found


def _pytorch_counts(job: Document, _: list[Document]) -> list[str]:
    spec = job["spec"]
    worker, elastic = spec["pytorchReplicaSpecs"]["Worker"], spec["elasticPolicy"]
    pod = worker["template"]["spec"]
    [container] = pod["containers"]
    found = _check_places(container["command"] + container["args"], pod)
    if int(spec["nprocPerNode"]) != gpus(container):
        found.append(f"nprocPerNode is {spec['nprocPerNode']}, but a pod has {gpus(container)} GPUs")
    if not elastic["minReplicas"] <= worker["replicas"] <= elastic["maxReplicas"]:
        found.append(
            f"{worker['replicas']} replicas are not within {elastic['minReplicas']} to {elastic['maxReplicas']}"
        )
    if container["name"] != "pytorch":
        found.append("the operator looks for a container called pytorch")
    return found


def _train_counts(job: Document, documents: list[Document]) -> list[str]:
    trainer, wanted = job["spec"]["trainer"], job["spec"]["runtimeRef"]
    runtime = next(
        (d for d in documents if (d["kind"], d["metadata"]["name"]) == (wanted["kind"], wanted["name"])), None
    )
    if runtime is None:
        return [f"there is no {wanted['kind']} {wanted['name']}"]
    [(_, pod)] = pods(runtime)
    found = _check_places(trainer["command"] + trainer["args"], pod)
    cards = int(trainer["resourcesPerNode"]["limits"][GPU])
    if trainer["numProcPerNode"] != cards:
        found.append(f"numProcPerNode is {trainer['numProcPerNode']}, but a node has {cards} GPUs")
    return found


def _runtime_names(runtime: Document, _: list[Document]) -> list[str]:
    [(job, pod)] = pods(runtime)
    names = (job, pod["containers"][0]["name"])
    return [] if names == ("node", "node") else ["Trainer looks for a job and a container called node"]


_RULES: dict[str, Callable[[Document, list[Document]], list[str]]] = {
    "MPIJob": _mpi_counts,
    "PyTorchJob": _pytorch_counts,
    "TrainJob": _train_counts,
    "TrainingRuntime": _runtime_names,
}


def test_the_files_are_right() -> None:
    documents = read_all()
    assert {d["kind"] for d in documents} >= {"MPIJob", "TrainJob", "PyTorchJob", "PersistentVolume"}
    assert check(documents) == []


WORKER = "spec.mpiReplicaSpecs.Worker.template.spec"
MOUNTS = f"{WORKER}.containers.0.volumeMounts"
CONTAINER = "spec.pytorchReplicaSpecs.Worker.template.spec.containers.0"
FRESH = ["data.root=/mnt/coco", "output_dir=/mnt/runs/x"]
WRONG = [
    ("MPIJob", "spec.slotPerWorker", 4, "slotPerWorker"),
    ("MPIJob", "spec.slotsPerWorker", "4", "is not of type 'integer'"),
    ("MPIJob", "spec.slotsPerWorker", 8, "slotsPerWorker is 8, but a worker has 4 GPUs"),
    ("MPIJob", "spec.runPolicy.cleanPodPolicy", "Sometimes", "Sometimes"),
    ("MPIJob", "spec.mpiReplicaSpecs.Worker.replicas", 3, "mpirun starts 8 processes on 3 x 4 slots"),
    ("MPIJob", "spec.mpiReplicaSpecs.Workers", {}, "Workers"),
    ("MPIJob", f"{WORKER}.containers.0.imag", "x", "imag"),
    ("MPIJob", f"{WORKER}.containers.0.resources.limits", {GPU: 2}, "slotsPerWorker is 4, but a worker has 2 GPUs"),
    ("MPIJob", f"{WORKER}.volumes.0.persistentVolumeClaim.claimName", "cocoa", "there is no claim cocoa"),
    ("MPIJob", f"{WORKER}.volumes.0.persistentVolumeClaim.readOnly", False, "claim coco can only be read"),
    ("MPIJob", f"{WORKER}.volumes.0.name", "cocoa", "no volume coco"),
    ("MPIJob", f"{WORKER}.tolerations", [], "do not tolerate spot nodes"),
    ("MPIJob", f"{MOUNTS}.2.mountPath", "/dev/shmem", "/dev/shm"),
    ("MPIJob", f"{MOUNTS}.1.readOnly", True, "output_dir=/mnt/runs/horovod is on no volume that can be written"),
    ("PyTorchJob", "spec.nprocPerNode", 4, "is not of type 'string'"),
    ("PyTorchJob", "spec.nProcPerNode", "4", "nProcPerNode"),
    ("PyTorchJob", "spec.nprocPerNode", "8", "nprocPerNode is 8, but a pod has 4 GPUs"),
    ("PyTorchJob", "spec.elasticPolicy.maxReplicas", 1, "2 replicas are not within 1 to 1"),
    ("PyTorchJob", f"{CONTAINER}.name", "train", "a container called pytorch"),
    ("PyTorchJob", f"{CONTAINER}.args", FRESH, "must resume: resume=auto"),
    ("TrainJob", "spec.trainer.numNode", 2, "numNode"),
    ("TrainJob", "spec.trainer.numProcPerNode", "auto", "numProcPerNode"),
    ("TrainJob", "spec.trainer.numProcPerNode", 8, "numProcPerNode is 8, but a node has 4 GPUs"),
    ("TrainJob", "spec.runtimeRef.name", "torch", "there is no TrainingRuntime torch"),
    ("TrainingRuntime", "spec.template.spec.failurePolicy.maxRestart", 3, "maxRestart"),
    ("TrainingRuntime", "spec.template.spec.replicatedJobs.0.name", "nodes", "a job and a container called node"),
    ("PersistentVolume", "spec.csi.volumeHandel", "x", "volumeHandel"),
    ("PersistentVolume", "spec.capacity", "100Gi", "is not of type 'object'"),
    ("PersistentVolumeClaim", "spec.accessModes", ["ReadWriteMany"], "accessModes is ['ReadWriteMany'], the volume's is"),
    ("PersistentVolumeClaim", "spec.volumeName", "cocos", "there is no volume cocos"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "path", "value", "reason"), WRONG, ids=lambda x: str(x)[-40:] if isinstance(x, str) else ""
)
def test_what_is_wrong_is_named(kind: str, path: str, value: Any, reason: str) -> None:
    documents = read_all()
    node: Any = next(d for d in documents if d["kind"] == kind)
    *parts, last = path.split(".")
    for part in parts:
        node = node[int(part)] if isinstance(node, list) else node[part]
    node[last] = value
    found = check(documents, kind)
    assert any(reason in wrong for wrong in found), found
