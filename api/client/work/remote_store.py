"""RemoteStore: the store of a server, for a tuner process on another machine."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

from tunewright.codegen.closeable import Closeable
from tunewright.codegen.target import Target
from tunewright.db.database import new_write_id
from tunewright.db.errors import NotFound, StoreError, Unreachable
from tunewright.db.examples import read_examples
from tunewright.db.fleet import TunerOrders
from tunewright.db.job import LeaseLost
from tunewright.db.store import Store
from tunewright.search_space.measurement import Candidate, Measurement

from ..address import normal
from ..connection import PASSING, ServerConnection, ServiceError, key_for
from .call_form import from_json
from .operations import FORM, Operation, operations

TIMEOUT_S = 60.0
"""Seconds for the answer to one call to begin."""

_log = logging.getLogger("tunewright.work")

LONGEST_WAIT_S = 5.0
"""Seconds for which a tuner without a job lets the server hold its question for one."""


class Calls:
    """Calls of operations at a server, which may be away for `patience_s`. Threads may share it."""

    def __init__(self, server: str, key: str | None, patience_s: float) -> None:
        self._connection = ServerConnection(server, key, TIMEOUT_S, patience_s, self._note_away)
        self._patience_s = patience_s
        self._away_since: float | None = None
        # A server knows the newest write of a lease by its id: another one waits until this one is done, or given up.
        self._leased_write = threading.Lock()

    def call(self, operation: Operation, *args: Any, **kwargs: Any) -> Any:
        """What the method returns, or raises: NotFound, LeaseLost, ValueError, StoreError.

        Repeated while the server is away: a write under a lease with the same id, so that it is done once.
        """
        request = {"form": FORM, "arguments": operation.form.arguments_json(args, kwargs)}
        if not operation.is_leased_write:
            return from_json(operation.form.result, self.post(operation.name, request))
        with self._leased_write:
            answer = self.post(operation.name, request | {"write": new_write_id()})
        return from_json(operation.form.result, answer)

    def post(self, name: str, request: dict[str, Any]) -> Any:
        """The result in the answer to one request."""
        if self._away_since is not None:  # all that wait for it wait until the same moment
            self._connection.patience_s = max(0.0, self._patience_s - (time.monotonic() - self._away_since))
        try:
            result = self._connection.request("POST", f"/v1/work/{name}", json=request).data["result"]
        except ServiceError as error:
            raise _store_error(error) from error
        except (KeyError, TypeError) as error:
            raise StoreError(f"{self._connection.server} answers with something else than a result") from error
        self._note_back()
        return result

    def _note_away(self, error: ServiceError) -> None:
        """Log once that requests are repeated."""
        if self._away_since is None:
            self._away_since = time.monotonic()
            _log.warning("%s; it is asked again for %g s", error, self._patience_s)

    def _note_back(self) -> None:
        """Log that the server answers again."""
        if self._away_since is not None:
            self._away_since, self._connection.patience_s = None, self._patience_s
            _log.warning("%s answers again", self._connection.server)

    def close(self) -> None:
        self._connection.close()

    def __str__(self) -> str:
        return self._connection.server


def _store_error(error: ServiceError) -> Exception:
    """The error of a store that the problem of a server stands for."""
    match error.kind:
        case "lease-lost":
            return LeaseLost(error.detail)
        case "not-stored":
            return NotFound(error.detail)
        case "invalid-request":
            return ValueError(error.detail)
        case _ if error.status == 0 or error.status in PASSING:
            return Unreachable(str(error))
        case _:
            return StoreError(str(error))


class RemotePart:
    """A part of a store whose methods are the operations of that name."""

    def __init__(self, calls: Calls, part: str) -> None:
        self._calls, self._part = calls, part

    def __getattr__(self, method: str) -> Callable[..., Any]:
        operation = operations().get(f"{self._part}.{method}")
        if operation is None:
            raise AttributeError(f"{self._part}.{method} is no operation of tuner processes")
        return partial(self._calls.call, operation)


class RemoteJobs(RemotePart):
    """`Jobs` of a server."""

    look_s = 3.0  # each is a request

    def __init__(self, calls: Calls) -> None:
        super().__init__(calls, "jobs")
        self._seen: list[str | None] = []  # keys of the targets with queued jobs, as it was told last

    def queued_targets(self) -> list[Target | None]:
        """`Jobs.queued_targets`, of less than a second ago."""
        targets: list[Target | None] = self._calls.call(operations()["jobs.queued_targets"])
        self._seen = [None if target is None else target.key for target in targets]
        return targets

    def changes(self) -> int:
        """0: changes have no number over HTTP."""
        return 0

    def wait(self, timeout_s: float, since: int | None = None) -> bool:
        """Wait until other targets have queued jobs than `queued_targets` told, `LONGEST_WAIT_S` at most.

        Without `since`, for something else than a job, until the time is over. False on a timeout.
        """
        if since is None:
            time.sleep(timeout_s)
            return False
        answer = self._calls.post("wait", {"form": FORM, "seen": self._seen, "timeout_s": LONGEST_WAIT_S})
        return bool(answer)


class RemoteFleet(RemotePart):
    """`Fleet` of a server."""

    def __init__(self, calls: Calls) -> None:
        super().__init__(calls, "fleet")
        self._enlisted: tuple[Any, ...] = ()  # how the process was enlisted

    def enlist(self, *tuner: Any) -> None:
        """`Fleet.enlist`."""
        self._enlisted = tuner
        self._calls.call(operations()["fleet.enlist"], *tuner)

    def report(self, *report: Any) -> TunerOrders:
        """`Fleet.report`; one that the server has forgotten is enlisted again."""
        call: Callable[[], TunerOrders] = partial(self._calls.call, operations()["fleet.report"], *report)
        try:
            return call()
        except NotFound:
            self.enlist(*self._enlisted)
            return call()


class RemoteUploads(RemotePart):
    """`Uploads` of a server."""

    def read(self, sha256: str) -> Iterator[bytes]:
        """The bytes of a model, piece by piece. Raises NotFound."""
        self.get(sha256)
        position = 0
        while (piece := self.piece(sha256, position)) is not None:
            yield piece
            position += 1


class RemoteStore(RemotePart, Closeable):
    """What tuner processes need of a `Store`, at a server: methods of the same names do the same.

    The server checks each call: what is written belongs to a job that is leased to this process.
    """

    def __init__(self, calls: Calls) -> None:
        super().__init__(calls, "store")
        self.jobs = RemoteJobs(calls)
        self.trials = RemotePart(calls, "trials")
        self.catalog = RemotePart(calls, "catalog")
        self.fleet = RemoteFleet(calls)
        self.snapshots = RemotePart(calls, "snapshots")
        self.staleness = RemotePart(calls, "staleness")
        self.uploads = RemoteUploads(calls, "uploads")

    def examples(
        self, target_kind: str, after: int = 0, through: int | None = None
    ) -> Iterator[tuple[Candidate, Measurement]]:
        """`Store.examples`."""
        return read_examples(cast("Store", self), target_kind, after, through)

    def close(self) -> None:
        """Release the connections."""
        self._calls.close()

    def __str__(self) -> str:
        return str(self._calls)


def open_remote_store(server: str, patience_s: float) -> Store:
    """The store of a server, by the key of the environment with the scope `work`. Raises Refused.

    Calls are repeated for `patience_s` while the server is away.
    """
    address = normal(server)
    return cast("Store", RemoteStore(Calls(address, key_for(address), patience_s)))
