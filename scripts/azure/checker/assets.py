"""Rules for everything beside the jobs: computes, data, environments, models, endpoints, deployments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from .documents import JOBS, Document
from .registry import rule
from .sizes import gpus_of, known, retired

LONGEST_REQUEST_MS = 180_000  # https://learn.microsoft.com/azure/machine-learning/how-to-manage-quotas
SYSTEM_DATASTORES = ("workspaceblobstore", "workspacefilestore", "workspaceartifactstore", "workspaceworkingdirectory")
REMOTE = ("azureml://", "azureml:", "https://", "wasbs://", "abfss://")


@rule("amlCompute", "managedOnlineDeployment", *JOBS)
def the_size_exists(document: Document) -> Iterator[str]:
    """A virtual machine's size is one that Azure still has."""
    own = document.kind not in JOBS or document.trial("resources", "instance_type")
    size = document.size() if own else None  # a job on a compute: that file's matter
    if size and (day := retired(size)):
        yield f"{size} was retired on {day}; take another, such as Standard_NC96ads_A100_v4."
    elif size and gpus_of(size) is None:
        import difflib

        near = difflib.get_close_matches(size, known(), 1)
        yield f"{size} is not in checker/sizes.py" + (
            f"; did you mean {near[0]}?" if near else "; add it with its GPUs."
        )
    elif own and not size:
        yield "no size is given; add one, such as Standard_NC96ads_A100_v4."


@rule("amlCompute")
def a_compute_can_grow(compute: Document) -> Iterator[str]:
    """A compute's least number of machines is not above its most, and the most is at least one."""
    least, most = compute.get("min_instances") or 0, compute.get("max_instances")
    if not isinstance(most, int) or most < 1:
        yield f"max_instances: {most} leaves no machine; give at least 1."
    elif least > most:
        yield f"min_instances: {least} is above max_instances: {most}."


def _references(document: Document) -> Iterator[tuple[str, str, Any]]:
    """(where it stands, kind of asset, value) of each asset that is referred to."""
    yield "environment", "environment", document.trial("environment")
    if document.kind == "managedOnlineDeployment":
        yield "model", "model", document.get("model")
    for name in sorted(document.names("inputs")):
        if str(document.get("inputs", name, "path") or "").startswith("azureml:"):
            yield f"inputs.{name}.path", "data", document.get("inputs", name, "path")


@rule("managedOnlineDeployment", *JOBS)
def assets_are_pinned(document: Document) -> Iterator[str]:
    """Environments, data and models are referred to by the version that the file beside has, never by @latest."""
    for place, kind, value in _references(document):
        if not isinstance(value, str) or value.startswith("azureml://"):
            continue
        found = re.fullmatch(r"azureml:([\w.-]+)(?::([\w.-]+))?(@\w+)?", value)
        if not found or found[3] or not found[2]:
            yield f"{place}: {value} may be another one tomorrow; give azureml:NAME:VERSION."
            continue
        if kind == "model" and document.find(kind, found[1]) is None:
            continue  # registered from a training
        described = document.find(kind, found[1])
        if described is None:
            yield f"{place}: {value} is described by no file beside this one; create it by such a file."
        elif str(described.get("version")) != found[2]:
            yield f"{place}: {value}, but {described.path.name} has version {described.get('version')}."


@rule("environment", "managedOnlineDeployment", *JOBS)
def the_dockerfile_is_there(document: Document) -> Iterator[str]:
    """An environment that is to be built has its Dockerfile."""
    build = document.build()
    if build and not build[1].is_file():
        yield f"build: {build[0].name}/ has no {build[1].relative_to(build[0])}."


@rule("data", "model")
def the_path_can_be_read(document: Document) -> Iterator[str]:
    """Data lies where Azure can read it, on a datastore that is there; a model too, or in a file yet to be made."""
    path = str(document.get("path") or "")
    if "://" in path and not path.startswith(REMOTE):
        yield f"path: {path}; Azure reads {', '.join(REMOTE)} and local paths."
    elif found := re.match(r"azureml://datastores/([^/]+)/", path):
        if found[1] not in SYSTEM_DATASTORES and document.find("azureBlob", found[1]) is None:
            yield f"path: no file beside this one describes the datastore {found[1]}."
    elif document.kind == "data" and not path.startswith(REMOTE) and not document.path_of(path).exists():
        yield f"path: {path} does not exist here."


@rule(*JOBS)
def outputs_have_a_datastore(job: Document) -> Iterator[str]:
    """Outputs are written to a datastore that is there."""
    for name in sorted(job.names("outputs")):
        path = job.get("outputs", name, "path")
        found = re.match(r"azureml://datastores/([^/]+)/", str(path or ""))
        if path and not found:
            yield f"outputs.{name}.path: {path} is no azureml://datastores/NAME/paths/FOLDER/."
        elif found and found[1] not in SYSTEM_DATASTORES and job.find("azureBlob", found[1]) is None:
            yield f"outputs.{name}.path: no file beside this one describes the datastore {found[1]}."


@rule("azureBlob")
def no_keys_in_files(datastore: Document) -> Iterator[str]:
    """A datastore holds no key: roles say who may read."""
    if datastore.get("credentials"):
        yield "credentials: a key in a file is a key in the repository; drop it and give roles (README, step 3)."


@rule("azureBlob")
def the_account_name_can_be(datastore: Document) -> Iterator[str]:
    """A storage account's name has 3 to 24 small letters and digits."""
    if not re.fullmatch(r"[a-z0-9]{3,24}", str(datastore.get("account_name"))):
        yield f"account_name: {datastore.get('account_name')} is not of 3 to 24 small letters and digits."


@rule("managedOnlineEndpoint")
def the_endpoint_name_can_be(endpoint: Document) -> Iterator[str]:
    """An endpoint's name has 3 to 32 letters, digits and hyphens, and begins with a letter."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]{1,30}[A-Za-z0-9]", str(endpoint.get("name"))):
        yield f"name: {endpoint.get('name')} is not of 3 to 32 letters, digits and hyphens, beginning with a letter."


@rule("managedOnlineDeployment")
def the_endpoint_is_there(deployment: Document) -> Iterator[str]:
    """A deployment's endpoint is the one that a file beside it creates."""
    name = str(deployment.get("endpoint_name"))
    if deployment.find("managedOnlineEndpoint", name) is None:
        yield f"endpoint_name: no file beside this one creates the endpoint {name}."


@rule("managedOnlineDeployment")
def the_scoring_script_is_there(deployment: Document) -> Iterator[str]:
    """The scoring script is in the folder of the code."""
    code, script = (deployment.get("code_configuration", key) for key in ("code", "scoring_script"))
    if code and script and not (deployment.path_of(code) / str(script)).is_file():
        yield f"code_configuration: {code} has no {script}."


@rule("managedOnlineDeployment")
def requests_end_in_time(deployment: Document) -> Iterator[str]:
    """A request may take 180 seconds at most."""
    limit = deployment.get("request_settings", "request_timeout_ms")
    if isinstance(limit, int) and not 0 < limit <= LONGEST_REQUEST_MS:
        yield f"request_settings.request_timeout_ms: {limit}; the service allows 1 to {LONGEST_REQUEST_MS}."


@rule("managedOnlineDeployment")
def instances_are_positive(deployment: Document) -> Iterator[str]:
    """A deployment has at least one machine."""
    count = deployment.get("instance_count")
    if isinstance(count, int) and count < 1:
        yield f"instance_count: {count} must be at least 1."
