"""Handlers: exceptions of the framework and of the layers below, answered as problems."""

from __future__ import annotations

from http import HTTPStatus

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.routing import Match
from starlette.types import Scope

from tunewright.db.errors import StoreError
from tunewright.db.job import QuotaExceeded

from .problems import Problem, ProblemKind, ProblemPage, internal, response, unavailable
from .request_faults import unreadable_body, untyped_body_problem, validation_problem

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


def install(app: FastAPI, page: ProblemPage) -> None:
    """Answer failures with problem documents, or with `page` in browsers. `middleware.Envelope` does so for bugs."""
    app.state.problem_page = page

    @app.exception_handler(StarletteHTTPException)
    async def http(request: Request, error: StarletteHTTPException) -> Response:
        return response(_http_problem(app, request, error), request.scope)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return response(untyped_body_problem(request, error) or validation_problem(error), request.scope)

    @app.exception_handler(QuotaExceeded)
    async def quota(request: Request, _: QuotaExceeded) -> Response:
        most = request.app.state.service.options.most_unfinished
        problem = Problem(ProblemKind.QUOTA, f"{most} are queued, running or paused", retry_after_s=60)
        return response(problem, request.scope)

    @app.exception_handler(StoreError)
    async def store(request: Request, error: StoreError) -> Response:
        return response(unavailable(error), request.scope)


def _http_problem(app: FastAPI, request: Request, error: StarletteHTTPException) -> Problem:
    """The problem that an exception of the framework is."""
    match error:
        case Problem():
            return error
        case StarletteHTTPException(status_code=404):
            return Problem(ProblemKind.NOT_FOUND, "`GET /v1/openapi.json` lists those there are")
        case StarletteHTTPException(status_code=405):
            allowed = ", ".join(_path_methods(app, request.scope))
            return Problem(ProblemKind.METHOD, f"this path has {allowed}", headers={"Allow": allowed})
        case StarletteHTTPException(status_code=413):
            return Problem(ProblemKind.TOO_LARGE, "its route takes fewer bytes")
        case StarletteHTTPException(status_code=status) if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return internal()
        case _ if error.__cause__ is not None:
            return unreadable_body(error.__cause__)
        case _:
            return Problem(ProblemKind.UNREADABLE, str(error.detail))


def _path_methods(app: FastAPI, scope: Scope) -> list[str]:
    """The methods of a path. A route knows only its own, and a path has several routes."""
    return [
        method
        for method in METHODS
        if any(route.matches({**scope, "method": method})[0] is Match.FULL for route in app.router.routes)
    ]
