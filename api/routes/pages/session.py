"""The session of a browser: how it begins and ends; and what the problems mean that one may meet."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import HTMLResponse

from tunewright.db.access import Key, Scope
from tunewright.db.sql_access import TOKEN

from ...access import COOKIE, KnownKeys, Rates, needs
from ...html import page
from ...openapi import problems
from ...problems import Kind, Problem
from ...service import Here, in_thread

SESSION_S = 12 * 3600.0
"""How long a browser's session lasts."""

SESSION_SCOPES = frozenset({Scope.JOBS_READ, Scope.JOBS_WRITE, Scope.RECORDS_READ, Scope.METRICS})

router = APIRouter(default_response_class=HTMLResponse, tags=["pages"])


@router.get(
    "/problems/{name}", summary="What a problem means", responses=problems(Kind.NOT_FOUND), dependencies=[needs()]
)
async def explain(name: Annotated[str, Path(description="What follows /problems/ in its type.")]) -> HTMLResponse:
    """What the `type` of a problem document leads to."""
    for kind in Kind:
        if kind.slug == name:
            return page("problem.html", problem=kind, detail="", again="")
    raise Problem(Kind.NOT_FOUND, "there is no such kind of problem")


@router.get(
    "/login",
    summary="Open the dashboard by a one-time link",
    response_description="The browser has a session now, and is led to the dashboard.",
    responses=problems(Kind.NO_KEY, Kind.INVALID, Kind.RATE, Kind.UNAVAILABLE, Kind.WRONG_HOST, Kind.CROSS_ORIGIN),
)
async def login(
    request: Request,
    here: Here,
    code: Annotated[str, Query(max_length=200, description="What the link has. It opens once.")],
) -> HTMLResponse:
    """Turn the code of a link into a session of this browser, which lasts 12 hours."""
    keys = here.store.keys
    link = await in_thread(partial(keys.check, code)) if TOKEN.fullmatch(code) else None
    is_link = link is not None and Scope.LOGIN in link.scopes  # any other key would be revoked by using it once
    if not is_link or await in_thread(partial(keys.use_once, code)) is None:
        rates: Rates = request.app.state.rates
        rates.count_failure(request.scope["state"]["address"])
        raise Problem(Kind.NO_KEY, "the link was used before or is too old; `tunewright key link` prints a new one")
    await in_thread(keys.remove_expired)
    _, token = await in_thread(partial(keys.create, "browser session", SESSION_SCOPES, SESSION_S, passing=True))
    # A redirect would count as coming from where the link was clicked, and such a request gets no strict cookie.
    answer = page("welcome.html", headers={"Refresh": "0; url=/"})
    answer.set_cookie(
        COOKIE,
        token,
        max_age=int(SESSION_S),
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return answer


@router.post("/logout", summary="End the session", response_class=HTMLResponse)
async def logout(request: Request, here: Here, key: Annotated[Key, needs()]) -> HTMLResponse:
    """End the session of this browser. A key that is no session stays as it is."""
    if COOKIE in request.cookies and "authorization" not in request.headers:
        await in_thread(partial(here.store.keys.revoke, key.id))
        known: KnownKeys = request.app.state.keys
        known.forget(request.cookies[COOKIE])
    answer = page("goodbye.html", headers={"Clear-Site-Data": '"cache"'})  # pages that the browser kept
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return answer
