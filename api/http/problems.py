"""Problems: everything that a request can come to besides an answer, as RFC 9457 documents.

`ProblemKind` is the whole list. A kind's name is stable: clients tell problems apart by it, not by the texts. Routes
raise `Problem`; errors of the layers below are translated in `problem_handlers`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

from fastapi import HTTPException, Response
from starlette.datastructures import Headers
from starlette.types import Scope

from tunewright.codegen.fields import abridge
from tunewright.db.errors import Damaged, StoreError, Unreachable, Unreadable, Unwritable

from .paths import is_for_people

MEDIA_TYPE = "application/problem+json"

MOST_LETTERS = 300
"""Longest message of one fault, in characters."""

NO_KEY_SENT = "send an API key in the header `Authorization: Bearer KEY`"
"""The detail where there is none, which is no fault of people who come for the first time."""

ONLY_HERE = "this key is good on the service's own machine alone; `tunewright key create` makes others"
"""The detail where a local key comes from elsewhere."""

_log = logging.getLogger("tunewright.api")


class ProblemKind(Enum):
    """A kind of problem: its name, its status, its title, and what to do about it."""

    UNREADABLE = ("unreadable-request", 400, "The request can't be read", "Send what the route's description says.")
    NO_KEY = (
        "no-key",
        401,
        "A key is needed",
        "`tunewright key create` makes one for `Authorization: Bearer`; `tunewright key link` a link for browsers.",
    )
    MISSING_SCOPE = (
        "missing-scope",
        403,
        "The key does not allow this",
        "Use a key that has the scope named in the detail: `tunewright key create --scope`.",
    )
    NOT_GRANTED = (
        "not-granted",
        403,
        "A key can neither give nor revoke what it lacks",
        "Leave out what the detail names, or do it where the database is: `tunewright key create`, `key revoke`.",
    )
    CROSS_ORIGIN = (
        "cross-origin",
        403,
        "Other sites may not call this service",
        "A browser sent this request for another site. Use the service's own pages, or a key from a program.",
    )
    NOT_FOUND = ("not-found", 404, "There is no such route", "`GET /v1/openapi.json` lists the routes.")
    NO_SUCH_MODEL = ("no-such-model", 404, "The model is not here", "Send it first: `PUT /v1/models/{sha256}`.")
    NO_SUCH_JOB = ("no-such-job", 404, "There is no such job", "`GET /v1/jobs` lists the jobs.")
    NO_SUCH_TASK = ("no-such-task", 404, "The task is not known", "Send its definition with the lookup, or tune it.")
    NO_SUCH_SCHEDULE = (
        "no-such-schedule",
        404,
        "The schedule is not known",
        "The page of the task lists those that were tried there.",
    )
    NO_SUCH_TARGET = ("no-such-target", 404, "The target is not known", "`GET /v1/targets` lists those at work.")
    NO_SUCH_NAMESPACE = (
        "no-such-namespace",
        404,
        "There is no such namespace",
        "`GET /v1/logs` lists those that the key may read; the first entry that is written makes one.",
    )
    NO_SUCH_ENTRY = ("no-such-entry", 404, "Nothing is known of that key", "`GET /v1/logs/{namespace}` lists the keys.")
    NOT_STORED = ("not-stored", 404, "That is not in the database", "The detail says what was asked for.")
    NO_SUCH_WEBHOOK = (
        "no-such-webhook",
        404,
        "The key has no such webhook",
        "`GET /v1/webhooks` lists those of the key.",
    )
    NO_SUCH_WORKER = (
        "no-such-worker",
        404,
        "There is no such tuner process or device",
        "`GET /v1/workers` lists those that were heard of in the last minute.",
    )
    NO_SUCH_KEY = ("no-such-key", 404, "There is no such key", "`GET /v1/keys` lists the keys.")
    NO_SUCH_RELEASE = (
        "no-such-release",
        404,
        "There is no such release",
        "`GET /v1/logs/{namespace}:releases` lists those of a namespace.",
    )
    METHOD = ("method-not-allowed", 405, "The route has no such method", "The header Allow lists those it has.")
    TOO_SLOW = ("too-slow", 408, "The body came too slowly", "Send it again over a better line.")
    FINISHED = ("job-finished", 409, "The job is finished", "Extend it, which makes another, or submit one.")
    LEASE_LOST = ("lease-lost", 409, "Another process has the job", "Stop working on it: nothing of this was stored.")
    OTHER_VERSION = (
        "other-version",
        409,
        "The tuner is of another version",
        "Install the version of the server on its machine.",
    )
    UNFINISHED = (
        "job-unfinished",
        409,
        "The job is not finished",
        "Cancel it first: `POST /v1/jobs/{job_id}:cancel`; one that is being worked on ends soon after.",
    )
    MODEL_NEEDED = (
        "model-needed",
        409,
        "An unfinished job needs the model",
        "Wait for the end of the job, or cancel it first.",
    )
    NOT_LAUNCHABLE = (
        "not-launchable",
        409,
        "It can't be made of this record",
        "Code of GPUs is `launchable`, where there is NVRTC, that of processors `linkable`; else use the schedule.",
    )
    SEVERAL_TARGETS = (
        "several-targets",
        409,
        "There are several kinds of machines",
        "Name one of them as `target`; `GET /v1/targets` lists them.",
    )
    LOG_FULL = (
        "log-full",
        409,
        "The namespace is full",
        "Delete a namespace that is not needed, or have the limit raised where the service is started.",
    )
    TOO_MANY_WEBHOOKS = (
        "too-many-webhooks",
        409,
        "The key has as many webhooks as it may have",
        "Delete one that is not needed: `DELETE /v1/webhooks/{id}`.",
    )
    TOO_MANY_DELIVERIES = (
        "too-many-deliveries",
        409,
        "The webhook has as many waiting deliveries as it may have",
        "Wait until its receiver took some: `GET /v1/webhooks/{id}/deliveries` has why it did not.",
    )
    RELEASE_CONFLICT = (
        "release-conflict",
        409,
        "A release is in the way",
        "The detail says which; `GET /v1/logs/{namespace}:releases` says which one is promoted.",
    )
    TOO_LARGE = (
        "too-large",
        413,
        "The body is too large",
        "Send the structure without weights, or have the limit raised where the service is started.",
    )
    PACKED = (
        "unsupported-encoding",
        415,
        "The body is packed",
        "Send it as it is, without the header Content-Encoding.",
    )
    WRONG_HOST = (
        "wrong-host",
        421,
        "This service does not answer for that host",
        "Use the address that `tunewright serve` printed, or start it with `--allow-host NAME`.",
    )
    INVALID = ("invalid-request", 422, "The request has faults", "`errors` says where and what they are.")
    DIGEST_MISMATCH = (
        "digest-mismatch",
        422,
        "The body has another digest",
        "What arrived is not what the path or the header Content-Digest says. Send it again.",
    )
    BAD_MODEL = ("bad-model", 422, "The model can't be read", "The detail says why, as the model's reader put it.")
    BAD_RECORDS = (
        "bad-records",
        422,
        "A line is no record",
        "The lines before it are stored. Mend it and send all of them again: those that are known are passed over.",
    )
    NOTHING_TO_TUNE = (
        "nothing-to-tune",
        422,
        "No part of the model has a native kernel",
        "Tuning can't make this model faster; `tunewright tasks MODEL` says which operators are missing.",
    )
    KEY_REUSED = (
        "idempotency-key-reused",
        422,
        "The idempotency key came with another request before",
        "Take a new Idempotency-Key for a new request.",
    )
    RATE = ("rate-limited", 429, "Too many requests", "Wait as long as the header Retry-After says.")
    QUOTA = (
        "quota-exceeded",
        429,
        "The key has as many unfinished jobs as it may have",
        "Wait until one has finished, or cancel one.",
    )
    INTERNAL = (
        "internal",
        500,
        "Something is wrong with the service",
        "This is a fault of Tunewright. Its log has the details under the request's id.",
    )
    UNSIGNED = (
        "no-release-key",
        503,
        "This service can't sign releases",
        "Who runs the service has to mend its key, or `tunewright log release key --make FILE`: its log says which.",
    )
    UNAVAILABLE = ("database-unavailable", 503, "The database can't be used now", "Try again later.")
    UNWRITABLE = (
        "database-unwritable",
        503,
        "Nothing can be stored now",
        "What is known can still be read. Who runs the service has to mend the disk: `GET /readyz` says what it lacks.",
    )
    BUSY = ("busy", 503, "Too much is asked at once", "Wait as long as the header Retry-After says.")

    def __init__(self, slug: str, status: int, title: str, remedy: str) -> None:
        self.slug = slug
        self.status = status
        self.title = title
        self.remedy = remedy

    @property
    def type(self) -> str:
        """The reference that identifies the kind: a path of this service, where it is explained."""
        return f"/problems/{self.slug}"


class Problem(HTTPException):
    """A request that gets a problem document. `errors` says of each fault where it is and what is wrong there."""

    def __init__(
        self,
        kind: ProblemKind,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        errors: Sequence[Mapping[str, str]] = (),
        retry_after_s: int | None = None,
    ) -> None:
        all_headers = dict(headers or {})
        if retry_after_s is not None:
            all_headers["Retry-After"] = str(retry_after_s)
        super().__init__(kind.status, detail, all_headers)
        self.kind = kind
        self.errors = list(errors)


def no_key(detail: str) -> Problem:
    """The problem of a request without a key that is good for it."""
    return Problem(ProblemKind.NO_KEY, detail, headers={"WWW-Authenticate": 'Bearer realm="tunewright"'})


def invalid(place: str, parts: Iterable[int | str], detail: str) -> Problem:
    """The problem of one fault: `place` is body, query, path or header, `parts` leads to it in there."""
    where, detail = pointer(parts), abridge(" ".join(detail.split()), MOST_LETTERS)
    fault = {"in": place, "pointer": where, "detail": detail}
    return Problem(ProblemKind.INVALID, f"{place} {where}: {detail}", errors=[fault])


def pointer(parts: Iterable[int | str]) -> str:
    """A JSON pointer as a fragment (RFC 6901), with what is too long for people cut off."""
    return "#" + "".join("/" + str(part)[:100].replace("~", "~0").replace("/", "~1") for part in parts)


ProblemPage = Callable[[Problem, Scope, Mapping[str, str]], Response]
"""What draws a problem as a page for people, with the headers given: see `problem_handlers`."""


def document(problem: Problem, scope: Scope) -> dict[str, Any]:
    """The problem as JSON data."""
    data: dict[str, Any] = {
        "type": problem.kind.type,
        "title": problem.kind.title,
        "status": problem.kind.status,
        "detail": problem.detail,
        "instance": scope["path"][:1000],
        "request_id": scope.get("state", {}).get("request_id", ""),
    }
    return data | ({"errors": problem.errors} if problem.errors else {})


def response(problem: Problem, scope: Scope) -> Response:
    """The response to a failed request: a page where a browser asks for one, else the document."""
    scope.setdefault("state", {})["problem"] = problem.kind.slug  # for the log and the metrics
    headers = dict(problem.headers or {}) | {"Cache-Control": "no-store"}
    if is_for_people(scope["path"]) and "text/html" in Headers(scope=scope).get("accept", ""):
        page: ProblemPage = scope["app"].state.problem_page
        return page(problem, scope, headers)
    # ASCII alone: a path or a name may hold what UTF-8 can't.
    text = json.dumps(document(problem, scope), ensure_ascii=True)
    return Response(text, problem.kind.status, headers, MEDIA_TYPE)


def unavailable(error: StoreError) -> Problem:
    """The problem that a database's error is. What it said may name machines, so that is for the log alone."""
    _log.warning("the database can't be used", extra={"reason": str(error)})
    if isinstance(error, Unwritable):
        return Problem(ProblemKind.UNWRITABLE, f"nothing was stored: {error.reason}", retry_after_s=30)
    match error:
        case Unreachable():
            detail = "the database can't be reached"
        case Damaged() | Unreadable():
            detail = "the database is damaged where the answer is stored; the log says where"
        case _:
            detail = "the database refused the request"
    return Problem(ProblemKind.UNAVAILABLE, detail, retry_after_s=5)


def internal() -> Problem:
    """The problem of a request that meets a fault of the service."""
    return Problem(ProblemKind.INTERNAL, "the log has the details under this request's id")
