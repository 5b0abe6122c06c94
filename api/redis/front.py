"""The front: a server for clients of Redis, on the log of a service."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any

import anyio

from tunewright.db.access import Key, KeyScope
from tunewright.db.errors import StoreError
from tunewright.db.keys import TOKEN
from tunewright.db.logs.entry import ANYWHERE
from tunewright.db.logs.logs import LogQuota
from tunewright.db.store import Store

from ..client.loopback import is_this_machine
from ..http.access import KeyCache, RateLimits, find_key, network_of
from ..http.problems import Problem
from .caches import entry_of, place_of
from .resp import COMMAND_BYTES, RespError, RespWriter, read_command

MOST_CLIENTS = 1000
"""Connections that are open at once."""

UNKNOWN_BYTES, UNKNOWN_IDLE_S = 128 << 10, 30.0
"""Longest command of a connection without a key, and how long it may be silent: its place is another one's then."""

IDLE_S = 600.0
"""How long one with a key may be silent."""

KEY_BEFORE = re.compile(rb"(?P<token>%s):(?P<name>.*)" % TOKEN.pattern.encode(), re.DOTALL)
"""A key of Redis that begins with one of the service: for clients that know no password."""

FACTS: Mapping[str, str | int] = {"server": "redis", "version": "7.4.0", "proto": 3, "mode": "standalone"}
"""What HELLO tells: the version is that whose commands these are."""

NO_PASSWORD = "Authentication required: the password is an API key"
"""What clients without one are told."""

_log = logging.getLogger("tunewright.redis")


class RedisFront:
    """Serves clients of Redis on a socket that listens, from the log of a store."""

    def __init__(
        self, listening: socket.socket, store: Store, keys: KeyCache, rates: RateLimits, quota: LogQuota
    ) -> None:
        self.store, self.keys, self.rates, self.quota = store, keys, rates, quota
        self._listening = listening
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Begin to serve."""
        self._server = await asyncio.start_server(self._serve, sock=self._listening)

    async def close(self) -> None:
        """End all connections."""
        if self._server is None:
            return
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # this is one
        self._tasks.add(task)
        address = str((writer.get_extra_info("peername") or ("",))[0])
        try:
            if len(self._tasks) <= MOST_CLIENTS:
                await _Client(self, address).talk(reader, writer)
        except (ConnectionError, asyncio.CancelledError):  # the client is gone, or the service ends
            pass
        finally:
            self._tasks.discard(task)
            writer.close()


class _Denied(Exception):
    """A client may not do this. It is told so as one without a password: to clients that is no server, not a fault."""


class _Client:
    """A connection."""

    def __init__(self, front: RedisFront, address: str) -> None:
        self._front, self._address = front, address
        self._token: str | None = None
        self._say = RespWriter()
        self._commands: dict[bytes, Callable[[list[bytes]], Coroutine[Any, Any, bytes]]] = {
            b"HELLO": self._hello,
            b"AUTH": self._auth,
            b"CLIENT": self._agree,
            b"SELECT": self._agree,
            b"PING": self._ping,
            b"GET": self._get,
            b"MGET": self._mget,
            b"SET": self._set,
        }

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer commands until the client leaves."""
        while True:
            limit_bytes, idle_s = (COMMAND_BYTES, IDLE_S) if self._token else (UNKNOWN_BYTES, UNKNOWN_IDLE_S)
            try:
                async with asyncio.timeout(idle_s):
                    parts = await read_command(reader, limit_bytes)
            except TimeoutError:  # clients connect again
                return
            except RespError as error:
                writer.write(self._say.error("ERR", f"Protocol error: {error}"))
                await writer.drain()
                return
            if parts is None:
                return
            writer.write(await self._answer(parts))
            await writer.drain()

    async def _answer(self, parts: list[bytes]) -> bytes:
        name = parts[0].upper() if parts else b""
        command = self._commands.get(name)
        if command is None:
            return self._say.error("ERR", "unknown command")
        try:
            return await command(parts[1:])
        except _Denied as error:
            return self._say.error("NOAUTH", str(error))

    async def _hello(self, arguments: list[bytes]) -> bytes:
        if arguments and arguments[0] not in (b"2", b"3"):
            return self._say.error("NOPROTO", "unsupported protocol version")
        words = [word.upper() for word in arguments]
        if b"AUTH" in words[1:]:
            at = words.index(b"AUTH", 1)
            await self._log_in(arguments[at + 1 : at + 3])
        self._say.version = int(arguments[0]) if arguments else self._say.version
        return self._say.facts(dict(FACTS) | {"proto": self._say.version})

    async def _auth(self, arguments: list[bytes]) -> bytes:
        await self._log_in(arguments)
        return self._say.text("OK")

    async def _log_in(self, names: list[bytes]) -> None:
        """Take the last of these for the key of the service."""
        token = names[-1].decode("ascii", "replace") if names else ""
        await self._key_of(token)
        self._token = token

    async def _agree(self, _: list[bytes]) -> bytes:
        return self._say.text("OK")

    async def _ping(self, _: list[bytes]) -> bytes:
        return self._say.text("PONG")

    async def _get(self, arguments: list[bytes]) -> bytes:
        if len(arguments) != 1:
            return self._say.error("ERR", "wrong number of arguments")
        [value] = await self._values(arguments)
        return self._say.value(value)

    async def _mget(self, arguments: list[bytes]) -> bytes:
        return self._say.values(await self._values(arguments))

    async def _set(self, arguments: list[bytes]) -> bytes:
        """Options are passed over: what is kept does not expire."""
        if len(arguments) < 2:
            return self._say.error("ERR", "wrong number of arguments")
        token, name = self._split(arguments[0])
        key, place = await self._key_of(token), place_of(name)
        entry = None if place is None else entry_of(*place, arguments[1])
        if place is not None and entry is not None:
            namespace, _ = place
            self._check(key, KeyScope.LOGS_WRITE, namespace)
            try:
                self._front.rates.count_change(key.owner)
            except Problem as error:
                raise _Denied("too many changes") from error
            try:
                await anyio.to_thread.run_sync(
                    partial(self._front.store.logs.write, namespace, [entry], key.owner, self._front.quota)
                )
            except StoreError as error:
                _log.warning("an entry is not kept", extra={"reason": str(error)})
        return self._say.text("OK")

    async def _values(self, names: Iterable[bytes]) -> list[bytes | None]:
        """What is served for these keys."""
        wanted: dict[tuple[str, str], list[str]] = defaultdict(list)  # by token and namespace
        others: set[str] = set()  # tokens that keys which are not kept are asked for with
        places: list[tuple[str, str] | None] = []
        for raw in names:
            token, name = self._split(raw)
            place = place_of(name)
            places.append(place)
            if place is None:
                others.add(token)
            else:
                wanted[token, place[0]].append(place[1])
        for token in others:
            await self._key_of(token)
        values: dict[tuple[str, str], bytes] = {}
        for (token, namespace), keys in wanted.items():
            self._check(await self._key_of(token), KeyScope.LOGS_READ, namespace)
            values |= await self._look_up(namespace, keys)
        return [None if place is None else values.get(place) for place in places]

    async def _look_up(self, namespace: str, keys: list[str]) -> dict[tuple[str, str], bytes]:
        try:
            find = partial(self._front.store.logs.look_up, namespace, keys, ANYWHERE)
            found = await anyio.to_thread.run_sync(find)
        except StoreError as error:
            _log.warning("keys are not looked up", extra={"reason": str(error)})
            return {}
        return {(namespace, key): hit.entry.value for key, hit in found.items()}

    def _split(self, name: bytes) -> tuple[str, bytes]:
        """The key of the service for a key of Redis, and that without it: its own in front, else the connection's."""
        match = KEY_BEFORE.fullmatch(name)
        if match is None:
            return self._token or "", name
        return match["token"].decode("ascii"), match["name"]

    async def _key_of(self, token: str) -> Key:
        """The key of the service that a token is. Raises _Denied."""
        if not token:
            raise _Denied(NO_PASSWORD)
        keys, rates = self._front.keys, self._front.rates
        try:
            key = await find_key(keys, rates, token, network_of(self._address))
        except (Problem, StoreError) as error:
            raise _Denied("no key can be checked now") from error
        if key is None:
            raise _Denied(NO_PASSWORD)
        if key.is_local and not is_this_machine(self._address):
            raise _Denied("this key is good on the server's own machine alone")
        try:
            rates.count(key.owner)
        except Problem as error:
            raise _Denied("too many requests") from error
        return key

    def _check(self, key: Key, scope: KeyScope, namespace: str) -> None:
        if scope not in key.scopes or not key.may_use(namespace):
            raise _Denied(f"the key does not allow {scope} of {namespace}")
