"""The log of a server, for compilers that must go on without it: nothing here raises for what a server does.

Whatever is wrong with it costs at most one time limit, once: then it is left alone for a while (`breaker`). What was
not found is searched for, and what could not be written is lost to others, as if there were no server.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from tunewright.db.logs.entry import (
    ANYWHERE,
    LogEntry,
    LogEnvironment,
    LogHit,
    LogMatch,
    check_namespace,
    match_of,
)
from tunewright.db.logs.lines import entry_from_json, entry_to_json
from tunewright.tuner.settings import settings

from .address import normal
from .breaker import OPEN_S, QUICK_S, breaker_of
from .connection import key_for
from .conversation import Conversation, ExchangeError, NotAllowed, NothingKnown, Refusal

if TYPE_CHECKING:
    import httpx

TIMEOUT_S = 1.0
"""Most seconds that a call waits for a server."""

KEYS_AT_ONCE = 1024
"""Keys in one request."""

ENTRIES_AT_ONCE, ENTRIES_OF_A_PAGE = 500, 200
"""Entries that are written, and listed, in one request."""

ANSWER_BYTES = 1 << 26
"""How long any answer may be."""

ADDED_FIELDS = {"choice", "fingerprint", "served", "created_at"}
"""Fields of an entry in an answer that an import does not take."""

ELSEWHERE = "its answer has an entry of another environment"

Result = TypeVar("Result")

_log = logging.getLogger("tunewright.log")
_logged: set[str] = set()


class LogClient:
    """One namespace of the log of a server. Threads may share it.

    `server` is by default that of the setting; without one nothing is found and nothing kept. Raises Refused for what
    is no address, and ValueError for what is no namespace.
    """

    def __init__(self, namespace: str, server: str | None = None, timeout_s: float = TIMEOUT_S) -> None:
        self.namespace = check_namespace(namespace)
        address = server or settings().server
        self.server = normal(address) if address else None
        self._timeout_s = timeout_s
        self.key_fault = ""  # why the server does not allow what was asked for last; empty where it does
        self._rests_until_s = 0.0  # by time.monotonic: the server refused something a moment ago

    def look_up(
        self,
        keys: Iterable[str],
        environment: LogEnvironment = ANYWHERE,
        loose: Iterable[LogMatch] = (),
        release: str | None = None,
    ) -> dict[str, LogHit]:
        """What is served for each of these keys that the server knows anything of.

        `loose`: the nearest other environments that will do. `release`: the one to answer from, whichever is promoted.
        """
        names, others = list(dict.fromkeys(keys)), [match.value for match in loose]
        named = {} if release is None else {"release": release}

        def talk(conversation: _LogConversation, client: httpx.Client) -> dict[str, LogHit]:
            found: dict[str, LogHit] = {}
            for start in range(0, len(names), KEYS_AT_ONCE):
                asked = names[start : start + KEYS_AT_ONCE]
                body = {"keys": asked, "environment": environment.to_json(), "loose": others} | named
                data = conversation.ask(client, "POST", f"{self._path}:lookup", json=body)
                hits = (_hit(item, environment) for item in _items(data))
                found |= {hit.entry.key: hit for hit in hits if hit and hit.entry.key in asked}
            return found

        return self._converse(talk, {}) if names else {}

    def get(self, key: str, environment: LogEnvironment = ANYWHERE) -> bytes | None:
        """The value that is served for a key; None where nothing is known."""
        hit = self.look_up([key], environment).get(key)
        return None if hit is None else hit.entry.value

    def write(self, entries: Sequence[LogEntry]) -> bool:
        """Add entries. Whether the server has them all now."""

        def talk(conversation: _LogConversation, client: httpx.Client) -> bool:
            for start in range(0, len(entries), ENTRIES_AT_ONCE):
                lines = [json.dumps(entry_to_json(entry)) for entry in entries[start : start + ENTRIES_AT_ONCE]]
                conversation.ask(client, "POST", f"{self._path}:import", content="\n".join(lines))
            return True

        return self._converse(talk, False)

    def entries(self, most: int = 1000, environment: LogEnvironment | None = None) -> list[LogEntry]:
        """Entries, the last changed first, of one environment or of any. Those that lookups get say so."""
        return self._list(most, {}, environment)

    def values(
        self,
        key: str,
        environment: LogEnvironment = ANYWHERE,
        most: int = 1000,
        known: Container[str] = frozenset(),
    ) -> list[LogEntry]:
        """All values of a key, the last changed first, with those that are not served.

        `known`: choices that the caller has. What changed before a page of nothing else is not asked for again.
        """
        found = self._list(most, {"key": key}, environment, known)
        return [entry for entry in found if entry.key == key]

    def _list(
        self,
        most: int,
        query: dict[str, str],
        environment: LogEnvironment | None,
        known: Container[str] = frozenset(),
    ) -> list[LogEntry]:
        query |= {} if environment is None else {"environment": environment.fingerprint}

        def pages(conversation: _LogConversation, client: httpx.Client, found: list[LogEntry]) -> None:
            cursor: dict[str, str] = {}
            while len(found) < most:
                limit = {"limit": str(min(most - len(found), ENTRIES_OF_A_PAGE))}
                data = conversation.ask(client, "GET", self._path, params=limit | query | cursor)
                page = [_entry(item) for item in _items(data)]
                if environment is not None and any(entry.environment != environment for entry in page):
                    raise ExchangeError(ELSEWHERE)
                found += page
                if not isinstance(data.get("next"), str) or all(entry.choice in known for entry in page):
                    break
                cursor = {"cursor": data["next"]}

        def talk(conversation: _LogConversation, client: httpx.Client) -> list[LogEntry]:
            found: list[LogEntry] = []
            with suppress(NothingKnown):  # nobody wrote to the namespace yet
                pages(conversation, client, found)
            return found

        return self._converse(talk, [])

    @property
    def is_resting(self) -> bool:
        """Whether the server failed a moment ago, and is not asked for a while."""
        rests = time.monotonic() < self._rests_until_s
        return self.server is not None and (rests or breaker_of(self.server).rest_s > 0)

    @property
    def _path(self) -> str:
        return f"/v1/logs/{self.namespace}"

    def _converse(self, talk: Callable[[_LogConversation, httpx.Client], Result], otherwise: Result) -> Result:
        """What `talk` results in; `otherwise` where there is no server, or none that answers well and in time."""
        if self.server is None:
            return otherwise
        breaker = breaker_of(self.server)
        if breaker.rest_s or time.monotonic() < self._rests_until_s:
            return otherwise
        left_s = breaker.left_s(self._timeout_s)  # one time limit is for all answers of a minute that are slow
        if left_s <= QUICK_S:
            _note(f"{self.server}: its answers are slow; what it knows is not used for now")
            breaker.record_failure()
            return otherwise
        conversation = _LogConversation(self.server, key_for(self.server), breaker.limit_s(left_s))
        start_s = time.monotonic()
        try:
            result = conversation.talk(talk)
        except Refusal as error:  # of what this client may or sends, which says nothing of other clients
            self._rests_until_s = time.monotonic() + OPEN_S
            self.key_fault = str(error) if isinstance(error, NotAllowed) else ""
            _note(f"{self.server}: {error}; the namespace {self.namespace} is not used for now")
            return otherwise
        except ExchangeError as error:
            breaker.record_failure()
            _note(f"{self.server}: {error}; what it knows is not used for now")
            return otherwise
        breaker.record_slowness(time.monotonic() - start_s)
        breaker.record_answer()
        self.key_fault = ""
        return result


class _LogConversation(Conversation):
    """Requests for one namespace."""

    def talk(self, talk: Callable[[_LogConversation, httpx.Client], Result]) -> Result:
        """What `talk` results in, within the limit. Raises ExchangeError."""
        return self._within_limit(lambda client: talk(self, client))

    def ask(self, client: httpx.Client, method: str, path: str, **request: Any) -> dict[str, Any]:
        """The answer to one request, an object. Raises ExchangeError."""
        data = self._ask(client, method, path, ANSWER_BYTES, **request)
        if not isinstance(data, dict):
            raise ExchangeError("its answer is not what was asked for: is that a tunewright server?")
        return data


def _items(data: dict[str, Any]) -> Iterator[Any]:
    items = data.get("items")
    if not isinstance(items, list):
        raise ExchangeError("its answer is not what was asked for: is that a tunewright server?")
    yield from items


def _hit(item: Any, environment: LogEnvironment) -> LogHit | None:
    if not isinstance(item, dict) or item.get("entry") is None:
        return None
    try:
        hit = LogHit(_entry(item["entry"]), LogMatch(item["match"]))
    except (KeyError, ValueError) as error:
        raise ExchangeError("its answer has an entry that can't be read") from error
    if match_of(hit.entry.environment, environment) is not hit.match:
        raise ExchangeError(ELSEWHERE)
    return hit


def _entry(data: Any) -> LogEntry:
    try:
        entry = entry_from_json({name: value for name, value in dict(data).items() if name not in ADDED_FIELDS})
        return replace(entry, is_served=dict(data).get("served") is True)
    except (TypeError, ValueError) as error:
        raise ExchangeError("its answer has an entry that can't be read") from error


def _note(text: str) -> None:
    """Tell a reason once in this process."""
    if text not in _logged:
        _logged.add(text)
        _log.warning(text)
