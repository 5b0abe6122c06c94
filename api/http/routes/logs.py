"""Routes of the log of other compilers: values by namespace and key."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import IO, Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from tunewright.db.access import Key, KeyScope
from tunewright.db.bounds import LARGEST_ID
from tunewright.db.database import batches
from tunewright.db.errors import NotFound
from tunewright.db.logs.entry import ANYWHERE, LINE, LONGEST_KEY, NAMESPACE, LogEntry, LogMatch
from tunewright.db.logs.lines import entry_to_json, parse_line
from tunewright.db.logs.logs import MOST_AT_ONCE, LogFull, Namespace, WriteCounts
from tunewright.db.logs.release import ReleaseConflict
from tunewright.db.store import Store

from ..access import count_as_change, needs
from ..etags import NOT_MODIFIED, IfNoneMatch, cache_headers, not_modified
from ..openapi import json_lines_answer, json_lines_body, problems
from ..paging import Cursor, Limit, Page, cut, number_of
from ..problems import Problem, ProblemKind, invalid
from ..schemas.base import DIGITS
from ..schemas.logs import (
    DecisionAsked,
    DeletedShown,
    EntryAsked,
    EntryShown,
    LogItem,
    LogLookupAnswer,
    LogLookupAsked,
    NamespaceShown,
    WrittenShown,
    item_to_json,
)
from ..service import Service, ServiceDep, in_thread
from .models import place_to_receive, receive
from .records import export_slot, streamed

PAGE = 500
"""Entries that are read at once."""

LINE_BYTES = 1 << 20
"""The longest line of an import."""

FORM = "1"
"""Part of the ETag: it changes when lines are put otherwise."""

NamespaceInPath = Annotated[
    str,
    Path(
        max_length=64,
        pattern=f"^{NAMESPACE}$",
        description="Name of a compiler, and what tells several logs of it apart.",
    ),
]
KeyInPath = Annotated[
    str,
    Path(min_length=1, max_length=LONGEST_KEY, pattern=f"^{LINE}$", description="Any line of ASCII, percent-encoded."),
]
Fingerprint = Annotated[
    str, Query(pattern=f"^({DIGITS})?$", description="Of the environment; empty: that of keys which tell everything.")
]

LINES = json_lines_answer("An entry a line, with the fields that `PUT` has, its `key` and its `state`.")

BODY = json_lines_body("An entry a line, with the fields that `PUT` has and its `key`.")

router = APIRouter(prefix="/v1/logs", tags=["logs"])


def check_use(key: Key, namespace: str) -> str:
    """The namespace, if a key may use it. Raises Problem: the same whether there is such a namespace or not."""
    if not key.may_use(namespace):
        raise Problem(ProblemKind.MISSING_SCOPE, f"this key is not for the namespace {namespace}")
    return namespace


async def readable(namespace: NamespaceInPath, key: Annotated[Key, needs(KeyScope.LOGS_READ)]) -> str:
    """A dependency: the namespace, which the key may read."""
    return check_use(key, namespace)


async def writable(namespace: NamespaceInPath, key: Annotated[Key, needs(KeyScope.LOGS_WRITE)]) -> str:
    """A dependency: the namespace, which the key may add to."""
    return check_use(key, namespace)


async def decidable(namespace: NamespaceInPath, key: Annotated[Key, needs(KeyScope.LOGS_DECIDE)]) -> str:
    """A dependency: the namespace, whose entries the key may decide about."""
    return check_use(key, namespace)


Readable = Annotated[str, Depends(readable)]
Writable = Annotated[str, Depends(writable)]
Decidable = Annotated[str, Depends(decidable)]


@router.get("", summary="List the namespaces")
async def list_namespaces(service: ServiceDep, key: Annotated[Key, needs(KeyScope.LOGS_READ)]) -> list[NamespaceShown]:
    """Those that the key may read."""
    spaces = await in_thread(service.store.logs.namespaces)
    return [NamespaceShown.show(space) for space in spaces if key.may_use(space.name)]


@router.post(
    "/{namespace}:lookup",
    summary="Look values up",
    responses=problems(ProblemKind.INVALID, ProblemKind.NO_SUCH_RELEASE),
    response_model=LogLookupAnswer,
)
async def look_up_values(lookup: LogLookupAsked, service: ServiceDep, namespace: Readable) -> Response:
    """What is served for each key in an environment: the same to everybody who asks.

    The least cost wins, of confirmed ones if there are any. Of values whose intervals overlap an approved one is
    served, else the one of the lowest `choice`. Where no cost is known it is the newest. Where a release is promoted
    all of the answer is from it: what was written since is served when another one is promoted, or none.
    """
    loose = [LogMatch(name) for name in lookup.loose]
    environment = lookup.environment.environment
    find = partial(service.store.logs.answer, namespace, lookup.keys, environment, loose, lookup.release)
    try:
        answer = await in_thread(find)
    except NotFound as error:
        raise no_such_release(namespace, lookup.release) from error
    items = [item_to_json(key, answer.hits.get(key)) for key in lookup.keys]
    for match, count in Counter(item["match"] for item in items).items():
        service.metrics.log_lookups.labels(match).inc(count)
    return Response(json.dumps({"items": items, "release": answer.release}), media_type="application/json")


@router.post(
    "/{namespace}:decide",
    summary="Approve or retire a value",
    responses=problems(ProblemKind.INVALID, ProblemKind.NO_SUCH_ENTRY),
    dependencies=[Depends(count_as_change)],
)
def decide(decision: DecisionAsked, service: ServiceDep, namespace: Decidable) -> LogItem:
    """An approved value is served where its cost may be as low as any other's; one that is retired never is."""
    logs, environment = service.store.logs, decision.environment.environment
    try:
        logs.decide(namespace, decision.key, environment, decision.choice, decision.state)
    except NotFound as error:
        raise Problem(ProblemKind.NO_SUCH_ENTRY, "the namespace has no such entry") from error
    return LogItem.of(decision.key, logs.look_up(namespace, [decision.key], environment).get(decision.key))


@router.get(
    "/{namespace}:export",
    summary="Export entries",
    response_class=StreamingResponse,
    responses=LINES | problems(ProblemKind.INVALID, ProblemKind.NO_SUCH_NAMESPACE, ProblemKind.BUSY),
    dependencies=[Depends(export_slot)],
)
async def export_entries(
    service: ServiceDep,
    namespace: Readable,
    since: Annotated[int, Query(ge=0, le=LARGEST_ID, description="Only what changed after this revision.")] = 0,
) -> StreamingResponse:
    """All of them, those that changed first ahead; `POST .../{namespace}:import` takes them."""
    await in_thread(partial(find_namespace, service, namespace))
    return await streamed(service, _lines(service.store, namespace, since))


@router.post(
    "/{namespace}:import",
    summary="Import entries",
    responses=problems(ProblemKind.BAD_RECORDS, ProblemKind.BUSY, ProblemKind.LOG_FULL),
    openapi_extra={"requestBody": BODY},
    dependencies=[Depends(count_as_change)],
)
async def import_entries(
    request: Request, service: ServiceDep, namespace: Writable, key: Annotated[Key, needs(KeyScope.LOGS_WRITE)]
) -> WrittenShown:
    """Add what another database or a tool knows. States of values that are new here count with `logs:decide`.

    Sending it again adds nothing; where no value of a key has a cost, the one that is sent last is the newest.
    """
    with place_to_receive(service), tempfile.TemporaryFile(prefix="tunewright-", dir=service.options.folder) as file:
        await receive(request, file)
        file.seek(0)
        return await in_thread(partial(_import, service, namespace, key, file))


@router.get(
    "/{namespace}:snapshot",
    summary="All that is served in an environment",
    response_class=StreamingResponse,
    responses=LINES | NOT_MODIFIED | problems(ProblemKind.INVALID, ProblemKind.NO_SUCH_NAMESPACE),
)
async def take_log_snapshot(
    service: ServiceDep, namespace: Readable, environment: Fingerprint = "", if_none_match: IfNoneMatch = None
) -> Response:
    """For use where no server can be reached. Where a release is promoted it is what that has of the environment."""
    space = await in_thread(partial(find_namespace, service, namespace))
    fingerprint = environment or ANYWHERE.fingerprint
    headers = cache_headers(" ".join([FORM, namespace, fingerprint, str(space.revision)]).encode())
    if same := not_modified(if_none_match, headers):
        return same
    lines = _lines(service.store, space, 0, fingerprint, served=True)
    return await streamed(service, lines, headers)


@router.get(
    "/{namespace}",
    summary="List entries",
    responses=problems(ProblemKind.INVALID, ProblemKind.NO_SUCH_NAMESPACE),
)
def list_entries(
    service: ServiceDep,
    namespace: Readable,
    environment: Annotated[
        str | None, Query(pattern=f"^{DIGITS}$", description="Fingerprint of the only one; left out: any.")
    ] = None,
    key: Annotated[
        str | None, Query(pattern=f"^{LINE}$", max_length=LONGEST_KEY, description="The only one; left out: any.")
    ] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[EntryShown]:
    """The last changed first."""
    before = number_of(cursor)
    try:
        rows = service.store.logs.list(namespace, key=key, fingerprint=environment, before=before, limit=limit + 1)
    except NotFound as error:
        raise no_such_namespace(namespace) from error
    page, following = cut(rows, limit, lambda entry: entry.revision)
    return Page[EntryShown](items=[EntryShown.of(entry) for entry in page], next=following)


@router.delete(
    "/{namespace}",
    summary="Delete a namespace",
    responses=problems(ProblemKind.INVALID, ProblemKind.NO_SUCH_NAMESPACE, ProblemKind.RELEASE_CONFLICT),
    dependencies=[Depends(count_as_change)],
)
def delete_namespace(service: ServiceDep, namespace: Decidable) -> DeletedShown:
    """With all of its entries. One that has releases stays: delete these first.

    Nobody finds them from then on; their rows go within minutes.
    """
    try:
        count = service.store.logs.delete(namespace)
    except ReleaseConflict as error:
        raise Problem(ProblemKind.RELEASE_CONFLICT, str(error)) from error
    except NotFound as error:
        raise no_such_namespace(namespace) from error
    service.pruner.sweep_log()
    return DeletedShown(entries=count)


@router.get(
    "/{namespace}/{log_key:path}",
    summary="The value of a key",
    responses=NOT_MODIFIED | problems(ProblemKind.INVALID, ProblemKind.NO_SUCH_ENTRY),
    response_model=EntryShown,
)
async def find_value(
    service: ServiceDep,
    namespace: Readable,
    log_key: KeyInPath,
    environment: Fingerprint = "",
    if_none_match: IfNoneMatch = None,
) -> Response:
    """What is served for a key in an environment."""
    find = partial(
        service.store.logs.list, namespace, key=log_key, fingerprint=environment or ANYWHERE.fingerprint, served=True
    )
    try:
        entries = await in_thread(find)
    except NotFound:
        entries = []
    if not entries:
        raise Problem(ProblemKind.NO_SUCH_ENTRY, "nothing is known of this key in this environment")
    content = EntryShown.of(entries[0]).model_dump_json().encode()
    headers = cache_headers(content)
    return not_modified(if_none_match, headers) or Response(content, media_type="application/json", headers=headers)


@router.put(
    "/{namespace}/{log_key:path}",
    summary="Add a value for a key",
    responses=problems(ProblemKind.INVALID, ProblemKind.LOG_FULL, ProblemKind.NOT_FOUND),  # no path has line ends
    dependencies=[Depends(count_as_change)],
)
async def write_value(
    entry: EntryAsked,
    service: ServiceDep,
    namespace: Writable,
    log_key: KeyInPath,
    key: Annotated[Key, needs(KeyScope.LOGS_WRITE)],
) -> WrittenShown:
    """Add a value, or what is known of one that is there.

    Sending it again adds nothing; where no value of its key has a cost, the one that is sent last is the newest.
    """
    return WrittenShown.show(await in_thread(partial(_write, service, namespace, [entry.entry(log_key)], key)))


def _write(service: Service, namespace: str, entries: list[LogEntry], key: Key) -> WriteCounts:
    """Add entries. Raises Problem."""
    try:
        return service.store.logs.write(namespace, entries, key.owner, service.options.log_quota)
    except LogFull as error:
        raise Problem(ProblemKind.LOG_FULL, str(error)) from error
    except ValueError as error:
        raise invalid("body", ["value"], str(error)) from error


def find_namespace(service: Service, name: str) -> Namespace:
    """A namespace. Raises Problem."""
    try:
        return service.store.logs.namespace(name)
    except NotFound as error:
        raise no_such_namespace(name) from error


def no_such_namespace(name: str) -> Problem:
    """The problem of a namespace that nobody wrote to."""
    return Problem(ProblemKind.NO_SUCH_NAMESPACE, f"nothing was written to {name}")


def no_such_release(namespace: str, name: str | None) -> Problem:
    """The problem of a release that a namespace has not."""
    return Problem(ProblemKind.NO_SUCH_RELEASE, f"{namespace} has no release {name}")


def _lines(
    store: Store, namespace: str | Namespace, since: int, fingerprint: str | None = None, *, served: bool = False
) -> Iterator[bytes]:
    while page := store.logs.list(namespace, fingerprint=fingerprint, served=served, since=since, limit=PAGE):
        yield b"".join(json.dumps(entry_to_json(entry)).encode() + b"\n" for entry in page)
        since = page[-1].revision


def _import(service: Service, namespace: str, key: Key, file: IO[bytes]) -> WrittenShown:
    """Store the lines of a file. Raises Problem for the first one that is none."""
    done = WriteCounts(0, 0, 0)
    for numbered in batches(enumerate(file, 1), MOST_AT_ONCE):
        entries = [_parse(number, line, key) for number, line in numbered if line.strip()]
        counts = _write(service, namespace, entries, key)
        done = WriteCounts(done.added + counts.added, done.improved + counts.improved, done.known + counts.known)
    return WrittenShown.show(done)


def _parse(number: int, line: bytes, key: Key) -> LogEntry:
    """The entry of a line. Raises Problem."""
    try:
        if len(line) > LINE_BYTES:
            raise ValueError(f"it has more than {LINE_BYTES:,} bytes")
        entry = parse_line(line.decode())
    except ValueError as error:
        why = "it is no text in UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        raise Problem(ProblemKind.BAD_RECORDS, f"line {number}: {why}") from error
    may_decide = KeyScope.LOGS_DECIDE in key.scopes
    return (
        entry if may_decide else LogEntry(entry.key, entry.value, entry.environment, entry.cost, machine=entry.machine)
    )
