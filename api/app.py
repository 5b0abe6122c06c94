"""The app: puts the service together. Read `create_app` first.

Envelope -> Gate -> routes (models, jobs, events, changes, lookups, snapshots, records, logs, fleet, ...) -> store
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache, partial
from importlib import metadata
from typing import TYPE_CHECKING, Any, cast

import anyio
from fastapi import APIRouter, Depends, FastAPI
from starlette.middleware import Middleware
from starlette.routing import BaseRoute

from tunewright.db.store import Store, open_store
from tunewright.tuner.settings import settings

from .dashboard.job.history import Histories
from .dashboard.page import MOST_KEPT
from .dashboard.routers import ROUTERS
from .dashboard.session import problem_page
from .http import openapi, problem_handlers
from .http.access import KeyCache, RateLimits
from .http.async_cache import AsyncCache
from .http.changes import Changes
from .http.descriptions import Descriptions
from .http.health import ServiceHealth
from .http.metrics import Metrics
from .http.middleware import QUIET, Envelope, Gate
from .http.paths import LOGIN
from .http.pruner import Pruner
from .http.query import only_known_query
from .http.queue_watch import QueueWatch
from .http.readers import Readers
from .http.release_key import ReleaseKey
from .http.routes import (
    audits,
    changes,
    events,
    fleet,
    jobs,
    keys,
    launchables,
    logs,
    lookups,
    models,
    operations,
    records,
    releases,
    retimings,
    snapshots,
    voids,
    webhooks,
    work,
)
from .http.routes.lookup_service import LookupService
from .http.service import Options, Service, in_thread
from .http.webhook_sender import WebhookSender

if TYPE_CHECKING:
    from tunewright.tuner.models.reader import Reader

PARTS = (
    lookups,
    work,
    models,
    jobs,
    retimings,
    events,
    changes,
    webhooks,
    keys,
    launchables,
    snapshots,
    records,
    voids,
    releases,
    audits,
    logs,
    fleet,
    operations,
)
"""What has the routes of programs, those that are asked most often first: paths are tried in this order."""

_log = logging.getLogger("tunewright.api")


def version() -> str:
    """The installed version of Tunewright."""
    try:
        return metadata.version("tunewright")
    except metadata.PackageNotFoundError:
        return "0"


def create_app(
    store_url: str, options: Options | None = None, make_reader: Callable[[], Reader] | None = None
) -> FastAPI:
    """The service on a database, ready to be served. Its store is open, and closed when the app ends.

    Raises StoreError where the database can't be used.
    """
    return assemble(open_store(store_url), options or Options(), make_reader)


def assemble(store: Store, options: Options, make_reader: Callable[[], Reader] | None = None) -> FastAPI:
    """`create_app` on a store that is open."""
    metrics = Metrics(store)
    service = Service(
        store=store,
        options=options,
        changes=Changes(store.jobs),
        queue=QueueWatch(partial(in_thread, store.jobs.queued_targets)),
        readers=Readers(make_reader or _model_reader, options.readers),
        metrics=metrics,
        health=ServiceHealth(store, metrics.lag),
        pruner=Pruner(store, options.retention, metrics.pruned),
        upload_slots=anyio.CapacityLimiter(options.bodies),
        stream_slots=anyio.CapacityLimiter(options.streams),
        stream_threads=anyio.CapacityLimiter(events.STREAM_THREADS),
        work_threads=anyio.CapacityLimiter(work.WORK_THREADS),
        release_key=ReleaseKey(settings().release_key, makes=not settings().release_key_file),
    )
    keys = KeyCache(store.keys)
    rates = RateLimits(options.requests_per_minute, options.changes_per_minute, options.failures_per_minute)
    app = FastAPI(
        title="Tunewright",
        version=version(),
        description=openapi.DESCRIPTION,
        routes=[*_routes()],
        openapi_url=None,  # a route that needs a key has it
        docs_url=None,
        redirect_slashes=False,
        redoc_url=None,
        lifespan=_life,
        middleware=[Middleware(Envelope, service=service), Middleware(Gate, service=service, keys=keys, rates=rates)],
        telemetry=_telemetry(),
    )
    app.state.service, app.state.keys, app.state.rates = service, keys, rates
    app.state.lookup_service, app.state.pages = (
        LookupService(store, options.most_unfinished),
        AsyncCache[bytes](MOST_KEPT),
    )
    app.state.descriptions, app.state.histories = Descriptions(), Histories()
    app.state.webhook_sender = WebhookSender(store.webhooks, options.webhook_hosts, metrics.deliveries)
    problem_handlers.install(app, problem_page)
    events.install(app)
    app.openapi = lambda: openapi.complete(app)  # type: ignore[method-assign]
    return app


@cache
def _routes() -> tuple[BaseRoute, ...]:
    """The routes of every app of this process: what they take is read out of signatures, once, at the first request."""
    router = APIRouter(generate_unique_id_function=lambda route: route.name)
    for part in (*(part.router for part in PARTS), *ROUTERS):
        router.include_router(part, dependencies=[Depends(only_known_query)])
    return tuple(router.routes)


def _model_reader() -> Reader:
    from tunewright.tuner.models.reader import Reader  # takes a while to import

    return Reader()


@asynccontextmanager
async def _life(app: FastAPI) -> AsyncIterator[None]:
    """Start what runs beside the requests, and end it behind the last one."""
    service = cast("Service", app.state.service)
    service.changes.start()
    lasting = [asyncio.create_task(work) for work in (service.health.watch(), app.state.webhook_sender.run())]
    service.pruner.start()
    try:
        yield
    finally:
        service.drain()
        for task in lasting:
            task.cancel()
        for end in await asyncio.gather(*lasting, return_exceptions=True):
            if isinstance(end, Exception):  # not CancelledError; the rest is closed all the same
                _log.error("what runs beside the requests broke off", exc_info=end)
        service.readers.close()
        await in_thread(service.pruner.close)
        await app.state.descriptions.close()
        service.store.close()  # ends the wait that `changes` may be in
        await service.changes.close()


def _telemetry() -> Any:
    """Traces by OpenTelemetry, where its exporter is installed and the environment says where they go.

    Metrics are Prometheus's. Logs stay here: records of exceptions would hold what clients sent.
    """
    is_enabled = bool(
        os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    )
    if is_enabled and importlib.util.find_spec("opentelemetry.exporter") is None:
        _log.warning("no traces: pip install 'tunewright[otel]'")
        is_enabled = False
    return {
        "tracing": is_enabled,
        "metrics": False,
        "logs": False,
        "operation_spans": False,
        "auto_configure": is_enabled,
        "exclude": lambda scope: scope.get("path") in QUIET | {LOGIN},  # the query of the latter is a secret
    }
