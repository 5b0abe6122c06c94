"""The app: puts the service together. Read `create_app` first.

Envelope -> Gate -> routes (models, jobs, events, changes, lookups, snapshots, records, fleet, ...) -> store
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from importlib import metadata
from typing import Any, cast

import anyio
from fastapi import Depends, FastAPI
from starlette.middleware import Middleware

from tunewright.db.sql_store import SqlStore, open_store

from . import openapi, problems
from .access import KnownKeys, Rates
from .addresses import LOGIN
from .changes import Changes
from .gate import QUIET, Envelope, Gate
from .health import Health
from .looks import Looks
from .metrics import Metrics
from .query import only_known_query
from .readers import ModelReader, Readers
from .rendered import Rendered
from .routes import (
    changes,
    events,
    fleet,
    jobs,
    launching,
    lookups,
    models,
    operating,
    pages,
    records,
    snapshots,
    voiding,
)
from .routes.answering import Answering
from .service import Options, Service

_log = logging.getLogger("tunewright.api")


def version() -> str:
    """Of Tunewright."""
    try:
        return metadata.version("tunewright")
    except metadata.PackageNotFoundError:
        return "0"


def create_app(
    store_url: str, options: Options | None = None, make_reader: Callable[[], ModelReader] | None = None
) -> FastAPI:
    """The service on a database, ready to be served. Its store is open, and closed when the app ends.

    Raises StoreError where the database can't be used.
    """
    return assemble(open_store(store_url), options or Options(), make_reader)


def assemble(store: SqlStore, options: Options, make_reader: Callable[[], ModelReader] | None = None) -> FastAPI:
    """`create_app` on a store that is open."""
    metrics = Metrics(store)
    service = Service(
        store=store,
        options=options,
        changes=Changes(store.jobs),
        readers=Readers(make_reader or _model_reader, options.readers),
        metrics=metrics,
        health=Health(store, metrics.lag),
        receiving=anyio.CapacityLimiter(options.bodies),
        following=anyio.CapacityLimiter(options.streams),
        reading=anyio.CapacityLimiter(events.READING),
    )
    keys = KnownKeys(store.keys)
    rates = Rates(options.requests_per_minute, options.changes_per_minute, options.failures_per_minute)
    app = FastAPI(
        title="Tunewright",
        version=version(),
        description=openapi.DESCRIPTION,
        generate_unique_id_function=lambda route: route.name,
        openapi_url=None,  # a route that needs a key has it
        docs_url=None,
        redirect_slashes=False,
        redoc_url=None,
        lifespan=_life,
        middleware=[Middleware(Envelope, service=service), Middleware(Gate, service=service, keys=keys, rates=rates)],
        telemetry=_telemetry(),
    )
    app.state.service, app.state.keys, app.state.rates = service, keys, rates
    app.state.answering, app.state.rendered = Answering(store, options.most_unfinished), Rendered()
    app.state.looks = Looks()
    parts = (models, jobs, events, changes, lookups, launching, snapshots, records, voiding, fleet, operating)
    for router in (*(part.router for part in parts), *pages.ROUTERS):
        app.include_router(router, dependencies=[Depends(only_known_query)])
    problems.install(app)
    events.install(app)
    app.openapi = lambda: openapi.complete(app)  # type: ignore[method-assign]
    return app


def _model_reader() -> ModelReader:
    from tunewright.tuner.models.reading import Reader  # takes a while to import

    return Reader()


@asynccontextmanager
async def _life(app: FastAPI) -> AsyncIterator[None]:
    """Start what runs beside the requests, and end it behind the last one."""
    service = cast("Service", app.state.service)
    service.changes.start()
    watching = asyncio.create_task(service.health.watch())
    try:
        yield
    finally:
        service.drain()
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        service.readers.close()
        await app.state.looks.close()
        service.store.close()  # ends the wait that `changes` may be in
        await service.changes.close()


def _telemetry() -> Any:
    """Traces by OpenTelemetry, where its exporter is installed and the environment says where they go.

    Metrics are Prometheus's. Logs stay here: records of exceptions would hold what clients sent.
    """
    wanted = bool(os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"))
    if wanted and importlib.util.find_spec("opentelemetry.exporter") is None:
        _log.warning("no traces: pip install 'tunewright[otel]'")
        wanted = False
    return {
        "tracing": wanted,
        "metrics": False,
        "logs": False,
        "operation_spans": False,
        "auto_configure": wanted,
        "exclude": lambda scope: scope.get("path") in QUIET | {LOGIN},  # the query of the latter is a secret
    }
