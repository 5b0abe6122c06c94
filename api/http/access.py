"""Access: who may do what. `Gate` lets in only requests with a key, and routes name the scope they need.

A request is refused, in this order, for the host it names, for the site that a browser sent it for, for want of a key,
and for the number of requests. What refuses is the same for every path, so paths that don't exist tell nothing either.
"""

from __future__ import annotations

import ipaddress
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from fnmatch import fnmatchcase
from http.cookies import CookieError, SimpleCookie
from typing import Annotated, Any

import anyio
from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer, SecurityScopes
from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import SlidingWindowCounterRateLimiter
from starlette.datastructures import Headers

from tunewright.db.access import Key, KeyScope
from tunewright.db.errors import StoreError
from tunewright.db.keys import TOKEN, Keys

from ..client.loopback import is_loopback
from .paths import is_page
from .problems import Problem, ProblemKind

COOKIE = "tunewright_session"
"""Name of the cookie that a browser's session is."""

OPEN = frozenset({"/livez", "/readyz"})
"""The only paths that need no key, nor the right host: what asks for them knows the machine by its number."""

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})

TRUST_S = 5.0
"""How long a key that was checked is taken for good: a revoked one is refused so much later."""

MOST_TRUSTED = 10_000


class Hosts:
    """The names that the service answers for.

    A page of another site can reach a service on this machine or in this network by a name that it resolves to its
    address (DNS rebinding), but then the request names that host. An address instead of a name can't be rebound: it is
    answered for if the service listens beyond loopback, or if it is a loopback address.
    """

    def __init__(self, listens_on: str, allowed: tuple[str, ...]) -> None:
        self._all_addresses = not is_loopback(listens_on)
        self._patterns = tuple(name.lower().rstrip(".") for name in ("localhost", listens_on, *allowed))

    def answers_for(self, header: str) -> bool:
        """Whether a header Host names this service."""
        name = _name_of(header)
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return any(fnmatchcase(name, pattern) for pattern in self._patterns if name)
        return self._all_addresses or address.is_loopback or name in self._patterns


def _name_of(header: str) -> str:
    """The host of a header Host, without its port; empty where it is malformed."""
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([A-Za-z0-9_.-]+))(?::\d{1,5})?", header)
    return (match[1] or match[2]).lower().rstrip(".") if match else ""


def check_site(method: str, path: str, headers: Headers) -> None:
    """Raises Problem for a request that a browser sends for another site."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site in ("cross-site", "same-site"):
        # Other sites may have links to pages, and can't read them.
        is_visit = method == "GET" and is_page(path) and headers.get("sec-fetch-mode") == "navigate" and origin is None
        if not is_visit:
            raise Problem(ProblemKind.CROSS_ORIGIN, f"the browser says that this request is {site}")
    if origin is not None and origin.partition("://")[2].lower() != headers.get("host", "").lower():
        raise Problem(ProblemKind.CROSS_ORIGIN, "the origin of this request is another site")


def check_own_page(method: str, headers: Headers) -> None:
    """Raises Problem for a change by the session cookie, which browsers add themselves, unless from a page here."""
    if method not in SAFE and headers.get("sec-fetch-site") != "same-origin" and headers.get("origin") is None:
        raise Problem(ProblemKind.CROSS_ORIGIN, "a session may change something only from a page of this service")


def request_token(headers: Headers) -> tuple[str | None, bool]:
    """The token that a request carries, and whether it came by the session cookie."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    if kind:
        return (token.strip() if kind.lower() == "bearer" else ""), False
    try:
        morsel = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return None, False
    return (morsel.value, True) if morsel is not None else (None, False)


class KeyCache:
    """The keys of tokens, remembered for `TRUST_S`: a lookup is too quick a thing to ask the database each time."""

    def __init__(self, keys: Keys, clock: Callable[[], float] = time.monotonic) -> None:
        self._keys = keys
        self._clock = clock
        self._known: OrderedDict[str, tuple[Key, float]] = OrderedDict()

    def recall(self, token: str) -> Key | None:
        """The key of a token that was checked a moment ago."""
        key, until_s = self._known.get(token, (None, 0.0))
        return key if self._clock() < until_s else None

    def was_good(self, token: str) -> bool:
        """Whether it was a key's when it was checked last: it is no guess then."""
        return token in self._known

    async def check(self, token: str) -> Key | None:
        """The key of a token, by the database; None where it is none. Raises StoreError."""
        key = await anyio.to_thread.run_sync(self._keys.check, token)
        if key is None:
            self._known.pop(token, None)
            return None
        self._known[token] = key, self._clock() + TRUST_S
        self._known.move_to_end(token)
        while len(self._known) > MOST_TRUSTED:
            self._known.popitem(last=False)
        return key

    def forget(self, token: str) -> None:
        """Have it checked again: it was revoked."""
        self._known.pop(token, None)


class RateLimits:
    """How many requests a key may send, and how many wrong keys an address, each a minute; counted in this process."""

    def __init__(self, requests: int, changes: int, failures: int) -> None:
        self._limiter = SlidingWindowCounterRateLimiter(MemoryStorage())
        self._requests = RateLimitItemPerMinute(requests, namespace="requests")
        self._changes = RateLimitItemPerMinute(changes, namespace="changes")
        self._failures = RateLimitItemPerMinute(failures, namespace="failures")

    def count(self, key_id: str) -> None:
        """A request of a key. Raises Problem."""
        self._hit(self._requests, key_id)

    def count_change(self, key_id: str) -> None:
        """A request of a key that changes something. Raises Problem."""
        self._hit(self._changes, key_id)

    def count_failure(self, address: str) -> None:
        """A wrong key from an address."""
        self._limiter.hit(self._failures, address)

    def check_failures(self, address: str) -> None:
        """Raises Problem where too many wrong keys came from there lately."""
        if not self._limiter.test(self._failures, address):
            raise self._problem(self._failures, address)

    def _hit(self, item: RateLimitItemPerMinute, name: str) -> None:
        if not self._limiter.hit(item, name):
            raise self._problem(item, name)

    def _problem(self, item: RateLimitItemPerMinute, name: str) -> Problem:
        wait_s = self._limiter.get_window_stats(item, name).reset_time - time.time()
        return Problem(
            ProblemKind.RATE,
            f"more than {item.amount} {item.namespace} a minute",
            retry_after_s=min(max(1, round(wait_s)), 60),
        )


async def find_key(keys: KeyCache, rates: RateLimits, token: str, address: str) -> Key | None:
    """The key of a token that came from an address, for which wrong ones are counted; None where it is none.

    Raises Problem where too many came from there, StoreError where it can't be known.
    """
    if (key := keys.recall(token)) is not None:
        return key
    if not keys.was_good(token):  # others at its address may send wrong ones
        rates.check_failures(address)
    key = await keys.check(token) if TOKEN.fullmatch(token) else None
    if key is None:
        rates.count_failure(address)
    return key


def network_of(address: str) -> str:
    """What wrong keys are counted for: an address; for IPv6 its network, as one client has all of that."""
    return ":".join(address.split(":")[:4]) + "::/64" if address.count(":") > 3 else address


bearer = HTTPBearer(
    scheme_name="key",
    description="An API key: `Authorization: Bearer tw_...`",
    bearerFormat="tw_ID_SECRET",
    auto_error=False,
)


async def check_scopes(
    request: Request, scopes: SecurityScopes, _: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]
) -> Key:
    """The key of the request, which `Gate` found. Raises Problem where it lacks a scope."""
    key: Key = request.scope["state"]["key"]
    for scope in scopes.scopes:
        if scope not in key.scopes:
            raise Problem(ProblemKind.MISSING_SCOPE, f"the scope {scope} is needed")
    return key


def needs(*scopes: KeyScope) -> Any:
    """A dependency: the key of the request, which must have these scopes."""
    return Security(check_scopes, scopes=[str(scope) for scope in scopes])


async def is_allowed(request: Request, scope: KeyScope) -> bool:
    """Whether the key of a request that goes on for long is still in force. Yes while the database is away."""
    keys: KeyCache = request.app.state.keys
    token = request_token(request.headers)[0] or ""
    try:
        key = keys.recall(token) or await keys.check(token)
    except StoreError:
        return True
    return key is not None and scope in key.scopes


async def count_as_change(request: Request, key: Annotated[Key, Depends(check_scopes)]) -> None:
    """A dependency of routes that change something: there is a limit to them, lower than that to all."""
    rates: RateLimits = request.app.state.rates
    rates.count_change(key.owner)
