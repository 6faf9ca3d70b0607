"""The scoring script of an Azure ML managed online endpoint (deployment.yml): the answers of `python -m retina_dist.serve`.

Azure's server, https://github.com/microsoft/azureml-inference-server-http, calls `init` once and `run` for each
request, one by one.
It has neither batches nor limits; Azure checks the keys. The checkpoint is best.pt of the model's folder, or
$RETINA_DIST_CHECKPOINT there.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

from azureml_inference_server_http.api.aml_request import AMLRequest, rawhttp
from azureml_inference_server_http.api.aml_response import AMLResponse
from werkzeug.exceptions import RequestEntityTooLarge

# The deployment's code is the repository, and servers start in various folders of it.
if importlib.util.find_spec("retina_dist") is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from retina_dist.detection.detector import Detector
from retina_dist.serving.scoring import RequestError, Scorer
from retina_dist.serving.settings import ServeConfig
from retina_dist.strategies.single_device import SingleDeviceStrategy

LIMITS = ServeConfig()  # the defaults of the other server
scorer: Scorer


def init() -> None:
    """Load the detector; what goes wrong here stops the deployment."""
    global scorer
    checkpoint = Path(os.environ["AZUREML_MODEL_DIR"]) / os.environ.get("RETINA_DIST_CHECKPOINT", "best.pt")
    device = SingleDeviceStrategy("auto").device
    scorer = Scorer(Detector.from_checkpoint(checkpoint, device=str(device)), max_pixels=LIMITS.max_pixels)


@rawhttp
def run(request: AMLRequest) -> AMLResponse:
    """The answer to a POST with images."""
    try:
        if request.method != "POST":
            raise RequestError(405, "send a POST.")
        return answered(scorer.score(request.headers.get("Content-Type", ""), body_of(request), LIMITS.max_images), 200)
    except RequestError as error:
        return answered({"detail": str(error)}, error.status)


def body_of(request: AMLRequest) -> bytes:
    """At most as many bytes as the other server takes. Raises RequestError (413)."""
    request.max_content_length = most = int(LIMITS.max_body_mb * 1e6)
    try:
        body: bytes = request.get_data(cache=False)
    except RequestEntityTooLarge as error:
        raise RequestError(413, f"the body is larger than {most} bytes; send fewer or smaller images.") from error
    return body


def answered(content: dict[str, Any], status: int) -> AMLResponse:
    """As JSON."""
    response = AMLResponse(json.dumps(content), status)
    response.content_type = "application/json"
    return response
