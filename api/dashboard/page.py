"""Pages: `add_page` registers one function as two routes, the page for people and its twin: the same as JSON.

How to add a page, say of the fleet:

1. `fleet.py` is all of it but for the markup: `class FleetPage(Answer)`, which has what the page says as plain data
   (`*_ms`, `*_s`, shares 0..1, moments in UTC, no formatted text; what is too much is cut), and its route:

       router = APIRouter(tags=["pages"])

       @add_page(router, "/fleet", "fleet.html", summary="The fleet", refusals=(ProblemKind.INVALID,))
       def fleet(service: ServiceDep) -> FleetPage:
           # its docstring is the description in the OpenAPI document
           return FleetPage(...)

   The function has the parameters that any route of FastAPI may have, and may be async. `Answer.show` makes a view of
   an object; what is asked for by a query is a `PageQuery`. Add the module to `PAGES` in `routers.py`, and the path to
   `http/paths.py` where it is a new one.
   `docs/openapi.json` is renewed by `pytest --update-golden tests/api/test_openapi.py`.
2. `fleet.html`, the template, which has that as `view`:

       {% extends "base.html" %}
       {% import "parts.html" as parts %}
       {% set place = "fleet" %}                       {# its entry in the navigation of base.html #}
       {% block title %}Fleet{% endblock %}
       {% block stream %}/v1/changes{% endblock %}     {# what tells that it changed; leave it out for a still page #}
       {% block main %}
       <h1>Fleet</h1>
       <div id="tuners" data-live> ... {{ tuner.seen_at | ago }} ... </div>
       {% endblock %}

   Elements with an `id` and `data-live` are renewed as the page changes. The filters and the addresses of pages are in
   `html.py`, shared pieces (sections, tables, states, buttons, times, what to say of nothing) in `parts.html`.
   What only a key with the scope `jobs:write` may do stands in `{% if may_steer %}`; others are in `RIGHTS`.
3. A row in the table of `docs/api.md`, and tests over HTTP in `tests/api/`.

A page with charts has a function for them too: `fleet_charts(view) -> dict[str, Markup]`, made by `drawing` of what the
view says. With `add_page(..., charts=fleet_charts)` the template has them as `charts`.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast, get_type_hints

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from tunewright.db.access import KeyScope

from ..http.access import needs
from ..http.async_cache import AsyncCache
from ..http.etags import FRESH, NOT_MODIFIED, cache_headers, not_modified
from ..http.openapi import problems
from ..http.problems import ProblemKind
from ..http.schemas.base import Answer
from ..http.service import in_thread
from .html import render, twin_url

Build = Callable[..., Answer] | Callable[..., Awaitable[Answer]]
"""A function that makes a view, with parameters as a route of FastAPI has them."""

BuildView = TypeVar("BuildView", bound=Build)

Charts = Callable[[Any], Mapping[str, Markup]]
"""A function that draws a view: its charts by name."""

RIGHTS = {
    "may_steer": KeyScope.JOBS_WRITE,
    "may_tend": KeyScope.FLEET_WRITE,
    "may_give_keys": KeyScope.KEYS_WRITE,
}
"""What templates know of who looks -> the scope that the key has then."""

KEEP_S = 1.0
"""How long a page is shown again, from when it was begun. `live.js` waits as long before it looks at what changed."""

MOST_KEPT = 64
"""Pages of one service that are kept: many viewers of one page cost as much as one."""


def add_page(
    router: APIRouter,
    path: str,
    template: str,
    *,
    summary: str,
    charts: Charts = lambda view: {},
    refusals: Sequence[ProblemKind] = (),
    scope: KeyScope = KeyScope.JOBS_READ,
) -> Callable[[BuildView], BuildView]:
    """Register the view that a function makes as a page at `path`, and as JSON at its `twin_url`.

    `refusals` are the problems that the function may raise, besides those of any route. The routes are called by its
    name: `NAME_page` and `NAME_view`.
    """
    responses = NOT_MODIFIED | problems(*refusals)

    def register(build: BuildView) -> BuildView:
        name = getattr(build, "__name__", "")
        router.add_api_route(
            path,
            _endpoint(
                build,
                lambda view, rights: render(template, view=view, charts=charts(view), **rights).encode(),
                "text/html; charset=utf-8",
            ),
            name=f"{name}_page",
            summary=summary,
            description=inspect.getdoc(build),
            response_class=HTMLResponse,
            responses=responses,
            dependencies=[needs(scope)],
        )
        router.add_api_route(
            twin_url(path),
            _endpoint(build, lambda view, rights: view.model_dump_json().encode(), "application/json"),
            name=f"{name}_view",
            summary=f"{summary}, as data",
            description=f"What the page `{path}` says.",
            response_model=get_type_hints(build, include_extras=True)["return"],
            responses=responses,
            dependencies=[needs(scope)],
        )
        return build

    return register


def _endpoint(
    build: Build, write: Callable[[Answer, Mapping[str, bool]], bytes], media_type: str
) -> Callable[..., Awaitable[Response]]:
    """A route with the parameters of `build`, which answers with the view as `write` makes it bytes.

    `write` is told what the key of the request may do, by the names of `RIGHTS`. A view that differs by who asks has a
    parameter `viewer`, which says who that is.
    """

    async def endpoint(request: Request, **values: Any) -> Response:
        scopes = request.scope["state"]["key"].scopes
        rights = {name: scope in scopes for name, scope in RIGHTS.items()}

        async def make() -> bytes:
            if inspect.iscoroutinefunction(build):
                return await in_thread(partial(write, await build(**values), rights))
            return await in_thread(lambda: write(build(**values), rights))  # type: ignore[arg-type]

        anew = "no-cache" in request.headers.get("cache-control", "")
        allowed = "+".join(name for name, is_allowed in rights.items() if is_allowed)
        shown_to = f"{allowed} {values.get('viewer', '')}"  # what one key is shown another may not be
        address = f"{request.url.path}?{request.url.query}#{shown_to}"
        content = await cached_page(request.app.state.pages, address, make, anew=anew)
        headers = cache_headers(content) | FRESH | {"Content-Type": media_type}
        return not_modified(request.headers.get("if-none-match"), headers) or Response(content, headers=headers)

    hints = get_type_hints(build, include_extras=True)
    first = inspect.Parameter("request", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Request)
    keywords = [
        parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(build).parameters.items()
    ]
    endpoint.__signature__ = inspect.Signature([first, *keywords])  # type: ignore[attr-defined]
    return endpoint


async def cached_page(
    pages: AsyncCache[bytes], address: str, make: Callable[[], Awaitable[bytes]], *, anew: bool = False
) -> bytes:
    """The page that `make` makes, or made a moment ago; all who ask meanwhile wait for the same.

    One that was begun longer ago is old, even if it is still being made: it may lack what changed since. `anew`: made
    now in any case.
    """
    return cast("bytes", await pages.get(address, make, anew=anew or pages.age_s(address) >= KEEP_S))
