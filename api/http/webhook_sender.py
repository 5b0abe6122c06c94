"""Webhook sender: sends what is due to webhooks, as long as the service runs.

Any number of processes do so on one database: `db.webhooks` gives each delivery to one of them at a time.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import ssl
import time
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TypeVar

import anyio
import httpx
from prometheus_client import Counter

from tunewright.db.errors import StoreError
from tunewright.db.webhooks import SECRET_MARK, Attempt, Webhooks, is_success

from .webhook_hosts import TooManyNames, UnfitAddress, WebhookHosts, parse_url

Result = TypeVar("Result")

POLL_S = 1.0
"""How often to look for what is due."""

FAULT_S = 10.0
"""How long to look for nothing after a look that broke off."""

TIMEOUT_S = 10.0
"""How long an attempt may take, from the look-up of the name to the end of the answer."""

CONNECT_S = 3.0
"""How long a connection to one address may take: less than an attempt, so that another address is tried in time."""

MOST_ADDRESSES = 4
"""Addresses of a host that an attempt tries."""

SLOTS = 16
"""Attempts under way at once, each to another webhook: one that is slow keeps no other waiting."""

ANSWER_BYTES = 64 << 10
"""How much is read of an answer. Only its status counts."""

ERROR_LETTERS = 200
"""Of why a connection failed that are kept."""

_log = logging.getLogger("tunewright.api")


class WebhookSender:
    """Sends the deliveries of a database. `outcomes` counts what comes of attempts."""

    def __init__(self, webhooks: Webhooks, hosts: WebhookHosts, outcomes: Counter) -> None:
        self._webhooks = webhooks
        self._hosts = hosts
        self._outcomes = outcomes
        self._is_database_away = False
        self._threads = anyio.CapacityLimiter(2)  # apart from those of requests

    async def run(self) -> None:
        """Send what is due for ever. An attempt that is broken off is made again, by this process or another."""
        under_way: dict[asyncio.Task[None], Attempt] = {}
        try:
            while True:
                try:
                    await self._go_on(under_way)
                except Exception:  # noqa: BLE001 - a bug: what is due later is still sent
                    _log.exception("a look for what is due to webhooks broke off")
                    await asyncio.sleep(FAULT_S)
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    async def _go_on(self, under_way: dict[asyncio.Task[None], Attempt]) -> None:
        """Begin what is due, and wait a while for what is under way."""
        for attempt in await self._take(SLOTS - len(under_way), list(under_way.values())):
            under_way[asyncio.create_task(self._make(attempt))] = attempt
        if not under_way:
            await asyncio.sleep(POLL_S)
            return
        done, _ = await asyncio.wait(under_way, timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            del under_way[task]
            if (fault := task.exception()) is not None:  # of this program: the others are still sent
                _log.error("an attempt to call a webhook broke off", exc_info=fault)

    async def _take(self, limit: int, under_way: Sequence[Attempt]) -> list[Attempt]:
        if not limit:
            return []
        try:
            attempts = list(await self._in_thread(partial(self._webhooks.take, limit, under_way)))
        except StoreError as error:
            if not self._is_database_away:  # told once, not at each look
                _log.warning("webhooks are not sent", extra={"reason": str(error)})
            self._is_database_away = True
            return []
        self._is_database_away = False
        return attempts

    async def _make(self, attempt: Attempt) -> None:
        """Make an attempt, and store what came of it."""
        status, error = None, ""
        try:
            with anyio.fail_after(TIMEOUT_S):
                status = await self._send(attempt)
            if not is_success(status):
                error = f"it was answered with {status}" + ("; redirects are not followed" if status < 400 else "")
        except httpx.ConnectTimeout:
            error = f"no connection within {CONNECT_S:g} s"
        except (TimeoutError, httpx.TimeoutException):
            error = f"no answer within {TIMEOUT_S:g} s"
        except TooManyNames as fault:
            error = str(fault)
        except UnfitAddress as fault:
            error = str(fault)
        except httpx.ConnectError as fault:
            error = f"no connection: {fault}"[:ERROR_LETTERS]
        except (httpx.HTTPError, httpx.InvalidURL, OSError):
            error = "the answer is none of HTTP, or broke off"
        await self._settle(attempt, status, error)

    async def _settle(self, attempt: Attempt, status: int | None, error: str) -> None:
        try:
            state = await self._in_thread(partial(self._webhooks.settle, attempt, status, error))
        except StoreError as fault:  # it is due again in a while
            _log.warning("what came of a delivery is not stored", extra={"reason": str(fault)})
            return
        if state is not None:
            self._outcomes.labels(state.value).inc()
        extra = {"delivery": attempt.delivery.id, "attempt": attempt.delivery.attempts, "reason": error}
        _log.info("a webhook was called", extra=extra)

    async def _send(self, attempt: Attempt) -> int:
        """The status that a delivery is answered with. Raises UnfitAddress, httpx.HTTPError and OSError."""
        url = parse_url(attempt.url)
        *others, last = (await self._hosts.addresses(url))[:MOST_ADDRESSES]
        body = json.dumps(attempt.delivery.content(), ensure_ascii=True, separators=(",", ":")).encode()
        for address in others:
            try:
                return await self._post(attempt, url, address, body)
            except (httpx.ConnectError, httpx.ConnectTimeout):  # another one may answer
                continue
        return await self._post(attempt, url, last, body)

    async def _post(self, attempt: Attempt, url: httpx.URL, address: str, body: bytes) -> int:
        """Send to this very address, for the host of the URL."""
        headers = {
            "Host": url.netloc.decode(),
            "Content-Type": "application/json",
            "User-Agent": "tunewright",
            **signed_headers(attempt.secret, attempt.delivery.id, int(time.time()), body),
        }
        async with httpx.AsyncClient(
            verify=self._tls,
            trust_env=False,  # a proxy would look the name up anew
            follow_redirects=False,
            timeout=httpx.Timeout(TIMEOUT_S, connect=CONNECT_S),
        ) as client:
            request = client.build_request(
                "POST",
                url.copy_with(host=address),
                content=body,
                headers=headers,
                extensions={"sni_hostname": url.raw_host.decode().rstrip(".")},  # the certificate must be of this name
            )
            response = await client.send(request, stream=True)
            try:
                size_bytes = 0
                async for piece in response.aiter_raw():
                    size_bytes += len(piece)
                    if size_bytes > ANSWER_BYTES:
                        break
            finally:
                await response.aclose()
            return response.status_code

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return httpx.create_ssl_context()

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await anyio.to_thread.run_sync(work, limiter=self._threads)


def signed_headers(secret: str, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers by which a receiver knows who sent a body, as Standard Webhooks has them."""
    key = base64.b64decode(secret.removeprefix(SECRET_MARK))
    digest = hmac.new(key, f"{message_id}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }
