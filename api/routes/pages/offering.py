"""Offering: one function makes what a page says, and both the page and its twin, the same as JSON, are made of that.

How to add a page, say of the fleet:

1. `api/views/fleet.py`: `class FleetPage(Answer)`, which has all that the page says as plain data (`*_ms`, `*_s`,
   shares 0..1, moments in UTC, no formatted text), and `fleet_page(store) -> FleetPage`. What is too much is cut here.
2. `api/templates/fleet.html`, which is given that as `view`:

       {% extends "base.html" %}
       {% import "parts.html" as parts %}
       {% set place = "fleet" %}                       {# which entry of the navigation this is #}
       {% block title %}Fleet{% endblock %}
       {% block stream %}/v1/changes{% endblock %}     {# what tells that it changed; leave it out for a still page #}
       {% block main %}
       <h1>Fleet</h1>
       <div id="tuners" data-live> ... {{ tuner.seen_at | ago }} ... </div>
       {% endblock %}

   Elements with an `id` and `data-live` are renewed as the page changes. The filters are in `api/html.py`, shared
   pieces (states, buttons, times, what to say where there is nothing) in `parts.html`, addresses of pages are made by
   `api/addresses.py`.
3. `api/routes/pages/fleet.py`:

       router = APIRouter(tags=["pages"])

       def fleet(here: Here) -> FleetPage:
           # its docstring is the description in the OpenAPI document
           return fleet_page(here.store)

       offer(router, "/fleet", "fleet.html", fleet, summary="The fleet", refusals=(Kind.INVALID,))

   The function takes what any route of FastAPI may take, and may be async. Add the router to `ROUTERS` of this
   package, and the path to `addresses.is_page` where it is a new one. `docs/openapi.json` is renewed by
   `pytest --update-golden tests/api/test_openapi.py`.
4. A row in the table of `docs/api.md`, and tests over HTTP in `tests/api/`.

A page with pictures has `api/charts/fleet.py` too: `fleet_charts(view) -> dict[str, Markup]`, made by `api/drawing` of
what the view says. With `offer(..., charts=fleet_charts)` the template is given them as `charts`.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, get_type_hints

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from tunewright.db.access import Scope

from ...access import needs
from ...addresses import twin_url
from ...etags import UNCHANGED, headers_of, unchanged
from ...html import render
from ...openapi import problems
from ...problems import Kind
from ...rendered import Rendered
from ...schemas import Answer
from ...service import in_thread

View = Callable[..., Answer] | Callable[..., Awaitable[Answer]]
"""What makes a view: a function as those that FastAPI takes for a route."""

Charts = Callable[[Any], Mapping[str, Markup]]
"""What draws a view: its pictures by name."""

FRESH = {"Cache-Control": "private, no-cache"}
"""A browser may keep a page, but asks each time whether it is still the same."""


def offer(
    router: APIRouter,
    path: str,
    template: str,
    build: View,
    *,
    summary: str,
    charts: Charts = lambda view: {},
    refusals: Sequence[Kind] = (),
    scope: Scope = Scope.JOBS_READ,
) -> None:
    """Offer what `build` makes as a page at `path`, and as JSON at its `twin_url`.

    `refusals` are the problems that `build` may raise, besides those that any
    route may come to. The routes are called by the name of `build`: `NAME_page` and `NAME_view`.
    """
    name = getattr(build, "__name__", "")
    view = get_type_hints(build, include_extras=True)["return"]
    told = UNCHANGED | problems(*refusals)
    router.add_api_route(
        path,
        _endpoint(
            build,
            lambda made: render(template, view=made, charts=charts(made)).encode(),
            "text/html; charset=utf-8",
        ),
        name=f"{name}_page",
        summary=summary,
        description=inspect.getdoc(build),
        response_class=HTMLResponse,
        responses=told,
        dependencies=[needs(scope)],
    )
    router.add_api_route(
        twin_url(path),
        _endpoint(build, lambda made: made.model_dump_json().encode(), "application/json"),
        name=f"{name}_view",
        summary=f"{summary}, as data",
        description=f"What the page `{path}` says.",
        response_model=view,
        responses=told,
        dependencies=[needs(scope)],
    )


def _endpoint(build: View, write: Callable[[Answer], bytes], media_type: str) -> Callable[..., Awaitable[Response]]:
    """The function of a route that has the parameters of `build`, and answers with what is written of its view."""

    async def endpoint(request: Request, **values: Any) -> Response:
        async def make() -> bytes:
            if inspect.iscoroutinefunction(build):
                return await in_thread(partial(write, await build(**values)))
            return await in_thread(lambda: write(build(**values)))  # type: ignore[arg-type]

        kept: Rendered = request.app.state.rendered
        anew = "no-cache" in request.headers.get("cache-control", "")
        content = await kept.get(f"{request.url.path}?{request.url.query}", make, anew=anew)
        headers = headers_of(content) | FRESH | {"Content-Type": media_type}
        return unchanged(request.headers.get("if-none-match"), headers) or Response(content, headers=headers)

    hints = get_type_hints(build, include_extras=True)
    own = [one.replace(annotation=hints[one.name]) for one in inspect.signature(build).parameters.values()]
    first = inspect.Parameter("request", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Request)
    keywords = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own]
    endpoint.__signature__ = inspect.Signature([first, *keywords])  # type: ignore[attr-defined]
    return endpoint
