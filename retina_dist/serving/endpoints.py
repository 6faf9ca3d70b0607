"""The REST endpoint: `POST /score` for images.

Without a key: `/`, a page to try it, `/healthz`, `/readyz` and `/metrics`.
"""

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from types import GenericAlias
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from fastapi_offline import FastAPIOffline
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from pydantic import create_model
from starlette.requests import ClientDisconnect

from retina_dist.base import __version__
from retina_dist.serving.batcher import Batcher
from retina_dist.serving.scoring import RequestError, Scorer, check_names, read_images
from retina_dist.serving.settings import ServeConfig
from retina_dist.task.model_card import model_card

# Content-Security-Policy of the page, which may ask this server only.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data:; connect-src 'self'"
)
PREPARE_THREADS = 2  # they read bodies, decode and resize
HEADERS = {
    401: {"WWW-Authenticate": "Bearer"},
    429: {"Retry-After": "1"},
    503: {"Retry-After": "1"},
}
Result = TypeVar("Result")


class Endpoint:
    """What the server answers, with the limits and metrics of `POST /score`."""

    def __init__(self, scorer: Scorer, config: ServeConfig) -> None:
        self.scorer = scorer
        self.config = config
        self.num_queued = 0
        self.threads = ThreadPoolExecutor(PREPARE_THREADS, "prepare")
        self.batcher = Batcher(self._predict, config.max_batch or 1, config.wait_ms / 1e3)

        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "retina_dist_requests", "/score by status code", ["code"], registry=registry
        )
        self.latency = Histogram(
            "retina_dist_request_seconds", "From a request to its response", registry=registry
        )
        sizes = (1, 2, 4, 8, 16, 32)
        self.batches = Histogram(
            "retina_dist_batch_images", "Images of a batch", buckets=sizes, registry=registry
        )
        queue = Gauge(
            "retina_dist_queue_images", "Images accepted but not answered", registry=registry
        )
        queue.set_function(lambda: self.num_queued)

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """The batcher's task, while the server runs."""
        self.worker = asyncio.create_task(self.batcher.run())
        yield
        self.worker.cancel()
        self.threads.shutdown(wait=False, cancel_futures=True)

    async def score(self, request: Request) -> JSONResponse:
        """Send a JPEG, PNG or WebP image, a form with such files, or {"images": [base64, ...]}.

        The answer has one entry for each, in their order. Errors: 400 unreadable, 401 wrong API
        key, 413 too large, 415 another content type, 429 full queue, 503 shutdown.
        """
        status = 500
        content: dict[str, object]
        with self.latency.time():
            try:
                content = {"images": await self._answer(request)}
                status = 200
            except RequestError as error:
                status = error.status
                content = {"detail": str(error)}
            except asyncio.CancelledError:  # uvicorn would answer 500 and log a traceback
                status = 503
                content = {"detail": "the server is shutting down; try again."}
            finally:
                self.requests.labels(status).inc()
        return JSONResponse(content, status, HEADERS.get(status))

    async def show_page(self) -> HTMLResponse:
        """The page to try the model; with a key it does not say where model and data lie."""
        checkpoint = self.config.checkpoint
        if self.config.api_key is None:
            card = model_card(self.scorer.predictor, checkpoint)
        else:
            card = model_card(self.scorer.predictor, Path(checkpoint).name)
            card.get("Training data", {}).pop("root", None)
            card.pop("Model settings", None)  # the path of its weights
            card.get("Starting weights", {}).pop("weights", None)
        page = files("retina_dist.serving").joinpath("page.html").read_text("utf-8")
        page = page.replace("{{ card }}", json.dumps(card).replace("<", "\\u003c"))
        return HTMLResponse(page, headers={"Content-Security-Policy": POLICY})

    async def healthz(self) -> str:
        """Liveness: the process answers."""
        return "ok"

    async def readyz(self) -> Response:
        """Readiness: 200 if images are accepted, else 503."""
        if self.worker.done():
            return PlainTextResponse("not ready", 503)
        return PlainTextResponse("ready")

    async def show_metrics(self) -> Response:
        """Prometheus's text format."""
        return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST)

    async def _answer(self, request: Request) -> list[dict[str, object]]:
        key = self.config.api_key
        if key is not None:
            given = request.headers.get("authorization", "").encode("latin-1")
            if not hmac.compare_digest(given, f"Bearer {key}".encode()):
                raise RequestError(
                    401,
                    "the API key is missing or wrong; send Bearer KEY as the header Authorization.",
                )
        check_names(request.query_params)
        body = await read_body(request, int(self.config.max_body_mb * 1e6))
        kind = request.headers.get("content-type", "")
        return await self._while_connected(request, self._score(kind, body))

    async def _while_connected(
        self, request: Request, work: Coroutine[object, object, Result]
    ) -> Result:
        """The result of `work`. Where the client goes it is dropped, and RequestError raised."""
        task = asyncio.create_task(work)
        gone = asyncio.ensure_future(request.receive())
        try:
            await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise RequestError(499, "the connection was closed before the answer.")
            return task.result()
        finally:
            task.cancel()
            gone.cancel()

    async def _score(self, kind: str, body: bytes) -> list[dict[str, Any]]:
        limit = self.config.max_queue
        images = await self._in_thread(read_images, kind, body, self.config.max_images)
        if self.num_queued + len(images) > limit:
            raise RequestError(
                429, f"{self.num_queued} images are waiting and max_queue={limit}; retry."
            )
        self.num_queued += len(images)
        tasks = [asyncio.create_task(self._one(data, i)) for i, data in enumerate(images)]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            self.num_queued -= len(images)

    async def _one(self, data: bytes, i: int) -> Any:
        return await self.batcher.submit(await self._in_thread(self.scorer.prepare, data, i))

    async def _in_thread(self, function: Callable[..., object], *arguments: object) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self.threads, function, *arguments)

    def _predict(self, images: Sequence[Any]) -> list[dict[str, object]]:
        self.batches.observe(len(images))
        return self.scorer.predict(images)


def create_app(scorer: Scorer, config: ServeConfig) -> FastAPI:
    """The server; with an `api_key`, /score requires it as `Authorization: Bearer KEY`."""
    endpoint = Endpoint(scorer, config)
    app = FastAPIOffline(
        redoc_url=None,
        title="retina_dist",
        version=__version__,
        lifespan=endpoint.lifespan,
        redirect_slashes=False,  # a redirect would go to any host that a request names
        swagger_ui_parameters={"validatorUrl": None},  # the validator would be sent our address
    )
    answers: Any = GenericAlias(list, scorer.Answer)
    response = create_model("ScoreResponse", images=(answers, ...))
    for status in (404, 405):
        app.add_exception_handler(status, _other_route)
    app.get("/", include_in_schema=False)(endpoint.show_page)
    app.post("/score", response_model=response)(endpoint.score)
    app.get("/healthz", response_class=PlainTextResponse)(endpoint.healthz)
    app.get("/readyz", response_class=PlainTextResponse)(endpoint.readyz)
    app.get("/metrics", response_class=PlainTextResponse)(endpoint.show_metrics)
    return app


async def _other_route(request: Request, error: Exception) -> JSONResponse:
    """The answer to another path or method than those of `create_app`."""
    detail = "no such path or method; POST images to /score, or GET /, /healthz or /readyz."
    return JSONResponse(
        {"detail": detail},
        vars(error).get("status_code", 404),
        vars(error).get("headers"),
    )


async def read_body(request: Request, limit: int) -> bytes:
    """A body of at most `limit` bytes. Raises RequestError: 413 once it is larger."""
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise RequestError(
                    413, f"the body is larger than {limit} bytes; send fewer or smaller images."
                )
    except ClientDisconnect as error:
        raise RequestError(400, "the connection was closed before the end of the body.") from error
    return bytes(body)
