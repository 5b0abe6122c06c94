"""The session of a browser: login, logout, and the pages of problems, with a form where a key is missing."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, TypeVar
from urllib.parse import parse_qsl

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import HTMLResponse
from starlette.datastructures import Headers
from starlette.types import Scope

from tunewright.db.access import Key, KeyScope
from tunewright.db.keys import TOKEN

from ..client.loopback import is_this_machine
from ..http.access import COOKIE, KeyCache, RateLimits, needs
from ..http.openapi import WITH_BODY, problems
from ..http.paths import JOBS, LOGIN, LOGOUT
from ..http.problems import NO_KEY_SENT, ONLY_HERE, Problem, ProblemKind
from ..http.service import ServiceDep, in_thread
from .html import own_page, page, url

SESSION_S = 12 * 3600.0
"""How long a browser's session lasts."""

SESSION_SCOPES = frozenset(
    {KeyScope.JOBS_READ, KeyScope.JOBS_WRITE, KeyScope.RECORDS_READ, KeyScope.FLEET_WRITE, KeyScope.METRICS}
)
"""What a session by a link may do."""

KEY_SESSION_SCOPES = SESSION_SCOPES | {KeyScope.KEYS_WRITE}
"""What a session by a key may do, if the key may. A link, which stands in a log, leads to no lasting key."""

MOST_FIELDS = 10

FORM = {
    "required": True,
    "description": "An API key, and the page to go on to.",
    "content": {
        "application/x-www-form-urlencoded": {
            "schema": {
                "type": "object",
                "properties": {"key": {"type": "string"}, "to": {"type": "string", "default": JOBS}},
                "required": ["key"],
            }
        }
    },
}

router = APIRouter(default_response_class=HTMLResponse, tags=["pages"])


@router.get(
    "/problems/{name}",
    summary="What a problem means",
    responses=problems(ProblemKind.NOT_FOUND),
    dependencies=[needs()],
)
async def explain(name: Annotated[str, Path(description="What follows /problems/ in its type.")]) -> HTMLResponse:
    """What the `type` of a problem document leads to."""
    for kind in ProblemKind:
        if kind.slug == name:
            return page("problem.html", problem=kind, detail="", faults=())
    raise Problem(ProblemKind.NOT_FOUND, "there is no such kind of problem")


TO_LOGIN = (
    ProblemKind.NO_KEY,
    ProblemKind.INVALID,
    ProblemKind.RATE,
    ProblemKind.UNAVAILABLE,
    ProblemKind.WRONG_HOST,
    ProblemKind.CROSS_ORIGIN,
)


@router.get(
    LOGIN,
    summary="Open the dashboard by a one-time link",
    response_description="The browser has a session now, and is led to the dashboard; without a code, a form.",
    responses=problems(*TO_LOGIN),
)
async def login(
    request: Request,
    service: ServiceDep,
    code: Annotated[str, Query(max_length=200, description="What the link has. It opens once.")] = "",
) -> HTMLResponse:
    """Turn the code of a link into a session of this browser, which lasts 12 hours. Without a code, ask for a key."""
    if not code:
        return page("login.html", fault="", again="", to=JOBS)
    keys = service.store.keys
    link = await in_thread(partial(keys.check, code)) if TOKEN.fullmatch(code) else None
    is_link = link is not None and KeyScope.LOGIN in link.scopes  # any other key would be revoked by using it once
    if not is_link or await in_thread(partial(keys.use_once, code)) is None:
        raise _wrong(request, "the link was used before or is too old; `tunewright key link` prints a new one")
    await in_thread(keys.remove_expired)
    key, token = await in_thread(partial(keys.create, "browser session", SESSION_SCOPES, SESSION_S, passing=True))
    # A redirect would count as coming from where the link was clicked, and such a request gets no strict cookie.
    return _with_session(page("welcome.html", headers={"Refresh": "0; url=/"}), key, token, request)


@router.post(
    LOGIN,
    status_code=303,
    summary="Open the dashboard by a key",
    response_class=Response,
    response_description="The browser has a session now, and is led to the page it asked for.",
    responses=problems(*TO_LOGIN, *WITH_BODY, ProblemKind.MISSING_SCOPE),
    openapi_extra={"requestBody": FORM},
)
async def login_by_key(request: Request, service: ServiceDep) -> Response:
    """Begin a session of this browser with an API key, which lasts 12 hours, and no longer than the key does.

    The session may do what the key may, but not import records. It is counted as that key in every limit.
    """
    fields = await _form(request)
    to = request.scope["state"]["to"] = own_page(fields.get("to", JOBS))
    token, keys, client = fields.get("key", "").strip(), service.store.keys, request.client
    key = await in_thread(partial(keys.check, token)) if TOKEN.fullmatch(token) else None
    if key is None:
        raise _wrong(request, "this key is unknown, expired or revoked" if token else NO_KEY_SENT)
    if key.is_local and not is_this_machine(client.host if client else ""):
        raise Problem(ProblemKind.NO_KEY, ONLY_HERE)
    if KeyScope.JOBS_READ not in key.scopes:
        raise Problem(ProblemKind.MISSING_SCOPE, f"the dashboard needs a key that has the scope {KeyScope.JOBS_READ}")
    rates: RateLimits = request.app.state.rates
    rates.count_change(key.owner)
    await in_thread(keys.remove_expired)
    session = await in_thread(partial(keys.begin_session, token, KEY_SESSION_SCOPES, SESSION_S))
    if session is None:
        raise _wrong(request, "this key was revoked just now")
    return _with_session(Response(status_code=303, headers={"Location": to}), *session, request)


async def _form(request: Request) -> dict[str, str]:
    """The fields of a form as browsers send it; of one that comes twice the last. Raises Problem."""
    try:
        return dict(parse_qsl((await request.body()).decode(), max_num_fields=MOST_FIELDS))
    except ValueError:  # no UTF-8 too
        raise Problem(ProblemKind.UNREADABLE, "that is no form with a field `key`") from None


def _wrong(request: Request, detail: str) -> Problem:
    """The problem of a code or a key that is none. So many of an address are let through in a minute."""
    rates: RateLimits = request.app.state.rates
    rates.count_failure(request.scope["state"]["address"])
    return Problem(ProblemKind.NO_KEY, detail)


Sent = TypeVar("Sent", bound=Response)


def _with_session(answer: Sent, key: Key, token: str, request: Request) -> Sent:
    """The answer that gives a browser its session."""
    assert key.expires_at is not None  # a session has an end
    answer.set_cookie(
        COOKIE,
        token,
        max_age=max(1, int((key.expires_at - key.created_at).total_seconds())),
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return answer


@router.post(LOGOUT, summary="End the session", response_class=HTMLResponse)
async def logout(request: Request, service: ServiceDep, key: Annotated[Key, needs()]) -> HTMLResponse:
    """End the session of this browser. A key that is no session stays as it is."""
    if COOKIE in request.cookies and "authorization" not in request.headers:
        await in_thread(partial(service.store.keys.revoke, key.id, key.id))
        key_cache: KeyCache = request.app.state.keys
        key_cache.forget(request.cookies[COOKIE])
    answer = page("goodbye.html", headers={"Clear-Site-Data": '"cache"'})  # pages that the browser kept
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return answer


def problem_page(problem: Problem, scope: Scope, headers: Mapping[str, str]) -> Response:
    """The page that a browser gets for a request that failed."""
    status, answer_headers = problem.kind.status, dict(headers)
    if problem.kind is ProblemKind.NO_KEY or scope["path"] == LOGIN:
        return page("login.html", status, answer_headers, **_login(problem, scope))
    detail = "this service has no page there" if problem.kind is ProblemKind.NOT_FOUND else problem.detail
    faults = [{"name": fault["pointer"].removeprefix("#/"), "detail": fault["detail"]} for fault in problem.errors]
    return page("problem.html", status, answer_headers, problem=problem.kind, detail=detail, faults=faults)


def _login(problem: Problem, scope: Scope) -> dict[str, str]:
    """What the login form says: what was wrong with a key, and which page it leads to."""
    query = scope["query_string"].decode("latin-1")
    address = own_page(url(scope["path"]) + (f"?{query}" if query else ""))
    # A browser sends no session along with a link on another site.
    is_from_elsewhere = Headers(scope=scope).get("sec-fetch-site") == "cross-site"
    return {
        "fault": "" if problem.kind is ProblemKind.NO_KEY and problem.detail == NO_KEY_SENT else problem.detail,
        "again": address if problem.kind is ProblemKind.NO_KEY and is_from_elsewhere else "",
        "to": scope["state"].get("to", address),
    }
