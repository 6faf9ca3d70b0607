"""The REST endpoint: FastAPI over a scorer and a batcher.

`POST /score` for images; `/healthz`, `/readyz` and `/metrics`, which need no key, for the server's operator.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, PlainTextResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from fastapi_offline import FastAPIOffline
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from pydantic import BaseModel, create_model
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retina_dist import __version__
from retina_dist.serving.batcher import Batcher
from retina_dist.serving.scoring import RequestError, Scorer, answer

GRACE_S = 0.5  # at shutdown, for the responses to interrupted requests


@dataclass(frozen=True)
class Limits:
    """Limits on requests, and settings of the batches."""

    max_body: int = 20_000_000  # bytes of a request
    max_queue: int = 64  # images accepted and not yet answered
    max_batch: int = 1  # images in a forward pass
    wait_s: float = 0.005  # how long a batch waits for more images
    prepare_threads: int = 2  # threads that decode and resize


class ErrorResponse(BaseModel):
    """Why there is no answer."""

    detail: str


_BINARY = {"schema": {"type": "string", "format": "binary"}}
_BODY = {
    "required": True,
    "content": {
        "image/*": _BINARY,
        "application/octet-stream": _BINARY,
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "properties": {"images": {"type": "array", "items": {"type": "string", "format": "binary"}}},
            }
        },
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["images"],
                "properties": {"images": {"type": "array", "items": {"type": "string", "format": "byte"}}},
            }
        },
    },
}
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorResponse, "description": "An image or the body cannot be read"},
    401: {"model": ErrorResponse, "description": "The API key is missing or wrong"},
    413: {"model": ErrorResponse, "description": "The body is too large, or has too many images or pixels"},
    415: {"model": ErrorResponse, "description": "The content type is none of those above"},
    429: {"model": ErrorResponse, "description": "The queue is full; try again"},
    503: {"model": ErrorResponse, "description": "The server is shutting down"},
}


@dataclass
class Metrics:
    """The Prometheus metrics of an app."""

    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def __post_init__(self) -> None:
        registry = self.registry
        self.requests = Counter(
            "retina_dist_requests", "Requests to /score by status code", ["code"], registry=registry
        )
        self.latency = Histogram("retina_dist_request_seconds", "From a request to its response", registry=registry)
        self.batch = Histogram(
            "retina_dist_batch_images", "Images of a batch", buckets=(1, 2, 4, 8, 16, 32), registry=registry
        )
        self.predict = Histogram("retina_dist_predict_seconds", "A batch in the network", registry=registry)
        self.queue = Gauge("retina_dist_queue_images", "Images accepted and not yet answered", registry=registry)


class Queue:
    """Counts the images accepted and not yet answered; used on the event loop's thread only."""

    def __init__(self, most: int, gauge: Gauge) -> None:
        self.most, self.gauge, self.taken = most, gauge, 0

    def take(self, count: int, held: int = 0) -> None:
        """Reserve `count` images for a request that already has `held`. Raises RequestError: 429, or 413 if it can never fit."""
        if count > self.most:
            raise RequestError(
                413, f"the request has {count} images, more than max_queue={self.most}; send fewer at once."
            )
        if self.taken - held + count > self.most:
            raise RequestError(
                429, f"{self.taken} images are waiting and max_queue={self.most}; try again in a second."
            )
        self._add(count - held)

    def give_back(self, count: int) -> None:
        """Release images that are answered."""
        self._add(-count)

    def _add(self, count: int) -> None:
        self.taken += count
        self.gauge.set(self.taken)


class Measured:
    """Middleware that counts and times the requests to /score, and answers 503 to requests that a shutdown interrupts."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != "/score":
            await self.app(scope, receive, send)
            return
        start, code = time.perf_counter(), 0

        async def note(message: Message) -> None:
            nonlocal code
            code = message.get("status", code)
            await send(message)

        try:
            await self.app(scope, receive, note)
        except asyncio.CancelledError:  # uvicorn would answer 500 and log a traceback
            if code:
                raise
            late = JSONResponse({"detail": "the server is shutting down; try again."}, 503, {"Retry-After": "1"})
            await late(scope, receive, note)
        finally:
            self.metrics.requests.labels(code or 500).inc()
            self.metrics.latency.observe(time.perf_counter() - start)


def create_app(scorer: Scorer[Any], limits: Limits = Limits(), api_key: str | None = None) -> FastAPI:  # noqa: B008 - frozen
    """The server; with an `api_key`, /score requires it as `Authorization: Bearer KEY`."""
    metrics = Metrics()
    queue = Queue(limits.max_queue, metrics.queue)
    bearer = HTTPBearer(auto_error=False, description="The server's API key, if it was started with one")

    def predict(images: Sequence[Any]) -> list[dict[str, Any]]:
        metrics.batch.observe(len(images))
        with metrics.predict.time():
            return scorer.predict(images)

    def run(jobs: Sequence[Callable[[], Any]]) -> list[Any]:
        return [job() for job in jobs]

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.batcher = Batcher(predict, max_batch=limits.max_batch, wait_s=limits.wait_s)
        app.state.readers = Batcher(run, max_batch=1, wait_s=0, threads=limits.prepare_threads)
        yield
        # Every request is answered or interrupted. A running decode or forward pass cannot be: the server must not wait for it.
        ended = [await run_in_threadpool(pool.close, GRACE_S) for pool in (app.state.readers, app.state.batcher)]
        app.state.busy = not all(ended)

    app = FastAPIOffline(
        redoc_url=None,
        title="retina_dist",
        version=__version__,
        lifespan=lifespan,
        redirect_slashes=False,  # a redirect would go to any host that a request names
        swagger_ui_parameters={"validatorUrl": None},  # the validator would be sent our address
    )
    app.state.busy = False
    app.add_middleware(Measured, metrics=metrics)

    @app.exception_handler(RequestError)
    async def refuse(request: Request, error: RequestError) -> JSONResponse:
        headers = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "1"}}.get(error.status)
        return JSONResponse({"detail": str(error)}, error.status, headers)

    async def check_key(credentials: HTTPAuthorizationCredentials | None = Depends(bearer)) -> None:  # noqa: B008 - FastAPI's way
        given = credentials.credentials if credentials else ""
        if api_key is not None and not hmac.compare_digest(given.encode("latin-1"), api_key.encode()):
            raise RequestError(401, "the API key is missing or wrong; send it as Authorization: Bearer KEY.")

    @app.post(
        "/score",
        response_model=create_model("ScoreResponse", images=(list[scorer.result], ...)),  # type: ignore[name-defined]
        responses=_PROBLEMS,
        openapi_extra={"requestBody": _BODY},
        dependencies=[Depends(check_key)],
    )
    async def score(request: Request) -> JSONResponse:
        """One entry for each image of the body, in its order."""
        body = await read_body(request, limits.max_body)
        readers, batcher, owner = request.app.state.readers, request.app.state.batcher, object()

        async def find(data: bytes, i: int) -> dict[str, Any]:
            prepared = await asyncio.wrap_future(readers.submit(partial(scorer.prepare, data, i), owner))
            return await asyncio.wrap_future(batcher.submit(prepared, owner))

        taken = 1
        queue.take(taken)
        found: list[asyncio.Task[dict[str, Any]]] = []
        try:
            read = partial(scorer.read, request.headers.get("content-type", ""), body)
            images = await asyncio.wrap_future(readers.submit(read, owner))
            queue.take(len(images), held=taken)
            taken = len(images)
            found = [asyncio.create_task(find(data, i)) for i, data in enumerate(images)]
            return JSONResponse(answer(await asyncio.gather(*found)))
        finally:
            for task in found:
                task.cancel()
            queue.give_back(taken)

    @app.get("/healthz", response_class=PlainTextResponse)
    async def healthz() -> str:
        """Liveness: the process answers."""
        return "ok"

    @app.get("/readyz", response_class=PlainTextResponse)
    async def readyz(request: Request) -> Response:
        """Readiness: 200 if images are accepted, else 503."""
        ready = request.app.state.batcher.alive
        return PlainTextResponse("ready" if ready else "not ready", 200 if ready else 503)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def show_metrics() -> Response:
        """Prometheus's text format."""
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return app


async def read_body(request: Request, most: int) -> bytes:
    """A body of at most `most` bytes. Raises RequestError (413), before reading if Content-Length is given."""
    too_large = RequestError(413, f"the body is larger than {most} bytes; send fewer or smaller images.")
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > most:
        raise too_large
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > most:
                raise too_large
    except ClientDisconnect as error:
        raise RequestError(400, "the connection was closed before the end of the body.") from error
    return bytes(body)
