"""`tunewright audit`: where machines of one fleet would not agree, of a server or of a database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import httpx
from rich.console import Console

from tunewright.tuner.cli.tables import new_table, print_table
from tunewright.tuner.errors import Refused
from tunewright.tuner.settings import settings
from tunewright.tuner.text import counted, printable

from .connection import ServerConnection
from .log_commands import connected, environment_text, namespace_path
from .releases import read_object

if TYPE_CHECKING:
    from tunewright.db.store import Store

SILENT_S = 600.0
"""How long an audit may say nothing: where a million entries agree, for long."""

MOST_FINDINGS = 100_000
"""Findings of a kind that are listed; all are counted."""

SHOWN = 50
"""Findings of a kind that are shown to people."""

HEADS = {
    "disagreement": "environments of one device and toolchain are served different values",
    "tie": "which value is served follows from digests: their times can't be told apart",
    "missing": "some environments of the device and toolchain have no value",
}
"""What people are told of each kind."""


class AuditSource(Protocol):
    """Where the lines of audits come from: each a finding, and the last one a summary."""

    def namespaces(self) -> list[str]:
        """The namespaces of the log."""

    def log(self, namespace: str) -> Iterator[dict[str, Any]]:
        """The audit of one of them."""

    def schedules(self) -> Iterator[dict[str, Any]]:
        """The audit of what was tuned here."""


class ServerSource:
    """A server. Raises ServiceError."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    def namespaces(self) -> list[str]:
        """Those that the key may read."""
        return [space["name"] for space in self._connection.request("GET", "/v1/logs").data]

    def log(self, namespace: str) -> Iterator[dict[str, Any]]:
        """See `AuditSource`."""
        return self._lines(f"{namespace_path(namespace)}:audit")

    def schedules(self) -> Iterator[dict[str, Any]]:
        """See `AuditSource`."""
        return self._lines("/v1/audit")

    def _lines(self, path: str) -> Iterator[dict[str, Any]]:
        try:
            with self._connection.stream(path, SILENT_S) as lines:
                for line in lines or ():
                    yield read_object(line)
        except (httpx.HTTPError, OSError) as error:
            raise self._connection.unreachable(error) from error


class DatabaseSource:
    """A database, read without a server. Raises StoreError."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def namespaces(self) -> list[str]:
        """All of them."""
        return [space.name for space in self._store.logs.namespaces()]

    def log(self, namespace: str) -> Iterator[dict[str, Any]]:
        """See `AuditSource`."""
        from tunewright.db.logs.audit import LogAudit

        return LogAudit(self._store.database, self._store.logs.namespace(namespace)).lines()

    def schedules(self) -> Iterator[dict[str, Any]]:
        """See `AuditSource`."""
        return self._store.schedule_audit.lines()


def audit(namespace: str | None, server: str | None, db: str | None) -> dict[str, Any]:
    """The findings of a namespace of the log, or of all and of what was tuned here."""
    with _source(server, db) as source:
        names = source.namespaces() if namespace is None else [namespace]
        logs = [{"namespace": name} | _collect(source.log(name)) for name in names]
        schedules = _collect(source.schedules()) if namespace is None else None
    parts = [*logs, *([] if schedules is None else [schedules])]
    return {
        "agree": not any(part["summary"]["disagreement"] for part in parts),
        "namespaces": logs,
        "schedules": schedules,
    }


@contextmanager
def _source(server: str | None, db: str | None) -> Iterator[AuditSource]:
    """The server named, else the database named, else the server of the environment, else the usual database."""
    if server is not None and db is not None:
        raise Refused("--server and --db: which of them?")
    if server is not None or (db is None and settings().server):
        with connected(server) as connection:
            yield ServerSource(connection)
        return
    from tunewright.db.reader import open_reader

    with open_reader(db or settings().db) as store:
        yield DatabaseSource(store)


def _collect(lines: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """Findings and the summary behind them, which says that none is missing. Raises Refused without it."""
    findings: list[dict[str, Any]] = []
    listed: dict[str, int] = {}
    for line in lines:
        if "summary" in line:
            return {"summary": line["summary"], "findings": findings}
        kind = str(line.get("kind"))
        listed[kind] = listed.get(kind, 0) + 1
        if listed[kind] <= MOST_FINDINGS:
            findings.append(line)
    raise Refused("the audit broke off")


def render(console: Console, data: dict[str, Any]) -> None:
    """Print a table of each kind of finding of each namespace, and one of the schedules."""
    for log in data["namespaces"]:
        summary = log["summary"]
        name = log["namespace"]
        console.print(
            f"{name}: of {counted(summary['keys'], 'key')} {summary['disagreement']:,} are served differently, "
            f"{summary['tie']:,} by a tie, and {summary['missing']:,} are missing somewhere",
            soft_wrap=True,
        )
        for kind, head in HEADS.items():
            _render_kind(console, [one for one in log["findings"] if one["kind"] == kind], head)
    if data["schedules"] is not None:
        _render_schedules(console, data["schedules"])
    console.print("the machines of each fleet agree" if data["agree"] else "machines of one fleet do not agree")


def _render_kind(console: Console, findings: list[dict[str, Any]], head: str) -> None:
    if not findings:
        return
    console.print(f"{head}:")
    table = new_table(console, ["device and toolchain", "key", "versions", "choice"], ["ms"])
    for finding in findings[:SHOWN]:
        fleet = ", ".join(filter(None, (finding["device"], finding["toolchain"])))
        first = printable(fleet), printable(finding["key"])
        for place in (*finding["served"], *finding["lacking"]):
            versions = environment_text({"device": "", "toolchain": "", "versions": place["versions"]})
            time_s = place.get("time_s")
            choice = place.get("choice", "none")
            table.add_row(*first, printable(versions), choice, "" if time_s is None else f"{1e3 * time_s:.4g}")
            first = "", ""
    print_table(console, table)
    if len(findings) > SHOWN:
        console.print(f"there are more: --json lists {len(findings):,}")


def _render_schedules(console: Console, data: dict[str, Any]) -> None:
    count = data["summary"]["disagreement"]
    tasks = counted(count, "task has", "tasks have")
    console.print(f"{tasks} different schedules on targets with the same processor")
    if not count:
        return
    table = new_table(console, ["processor", "task", "differ in", "target", "sketch"], ["ms"])
    for finding in data["findings"][:SHOWN]:
        task = f"{finding['op']} {finding['shape']} {finding['task'][:12]}"
        first = finding["processor"], task, ", ".join(finding["differences"])
        for best in finding["bests"]:
            row = map(printable, (*first, best["name"], best["schedule"]["sketch"]))
            table.add_row(*row, f"{1e3 * best['median_s']:.4g}")
            first = "", "", ""
    print_table(console, table)
    if len(data["findings"]) > SHOWN:
        console.print(f"there are more: --json lists {len(data['findings']):,}")
