"""Routes for those who operate the service: health, which needs no key, metrics, and the description of all routes."""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter, Request, Response
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from tunewright.db.access import KeyScope

from ..access import needs
from ..etags import FRESH, NOT_MODIFIED, IfNoneMatch, cache_headers, not_modified
from ..schemas.fleet import Alive, Ready
from ..service import ServiceDep

router = APIRouter(tags=["operating"])


@router.get(
    "/livez",
    summary="Whether the process lives",
    responses={503: {"model": Alive, "description": "The event loop is held up."}},
)
async def livez(service: ServiceDep, answer: Response) -> Alive:
    """Restart the process when this fails."""
    health = service.health
    if health.is_late:
        answer.status_code = 503
    return Alive(status="late" if health.is_late else "ok", loop_lag_ms=round(1e3 * health.lag_s, 3))


@router.get(
    "/readyz",
    summary="Whether requests should be sent here",
    responses={503: {"model": Ready, "description": "Send them to another process."}},
)
async def readyz(service: ServiceDep, answer: Response) -> Ready:
    """The database answers, takes what is stored and has this version's schema; the process was not asked to end.

    Lookups are answered and jobs are queued without any device, so that takes no requests away: it is told.
    """
    status = Ready(status="draining") if service.draining.is_set() else await service.health.database()
    if not status.is_ready:
        answer.status_code = 503
    return status


@router.get(
    "/metrics",
    summary="Numbers for Prometheus",
    response_class=Response,
    responses={200: {"description": "The text format.", "content": {"text/plain": {"schema": {"type": "string"}}}}},
    dependencies=[needs(KeyScope.METRICS)],
)
def metrics(service: ServiceDep) -> Response:
    """Metrics of this process, and of what all processes share."""
    return Response(generate_latest(service.metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


@router.get(
    "/v1/openapi.json",
    summary="The description of all routes",
    response_description="An OpenAPI document.",
    response_model=dict[str, Any],
    responses=NOT_MODIFIED,
    dependencies=[needs()],
)
async def openapi(request: Request, if_none_match: IfNoneMatch = None) -> Response:
    """This document."""
    text = json.dumps(request.app.openapi(), ensure_ascii=False, separators=(",", ":")).encode()
    headers = cache_headers(text) | FRESH
    return not_modified(if_none_match, headers) or Response(text, media_type="application/json", headers=headers)
