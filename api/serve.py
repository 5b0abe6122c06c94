"""`tunewright serve`: the service as a process, with its tuner processes, until it is asked to end."""

from __future__ import annotations

import errno
import logging
import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType

import uvicorn

from tunewright.db.errors import StoreError
from tunewright.db.store import Store, open_store
from tunewright.tuner.errors import Refused
from tunewright.tuner.settings import PATIENCE_S, settings, store_url
from tunewright.tuner.text import counted

from .app import assemble
from .client.loopback import is_loopback
from .dashboard.links import LINK_S, make_link
from .http.fleet import strike_off
from .http.local_key import local_key
from .http.logs import configure
from .http.protocol import BoundedProtocol
from .http.service import Options, Service
from .redis.front import RedisFront
from .tuners import Tuners

PORT = 8433

REQUESTS_S = 10
"""How long requests under way may take when the service is asked to end."""

TUNERS_S = 25.0
"""How long tuner processes may take to finish the candidate in hand, from when they are asked to end."""

_log = logging.getLogger("tunewright.api")


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Options of `serve`."""

    db: str | None = None  # SQLAlchemy URL; None: the default database
    port: int = PORT  # 0: one that is free
    redis_port: int | None = None  # for clients of Redis, likewise; None: they are not served
    tuners: int = 1  # tuner processes beside the service; 0: others are at work on the database
    pool: str = "ray"  # where they measure
    ray_address: str | None = None  # the cluster to join
    linger_s: float = 0.0  # how long to go on answering when asked to end, until nobody sends requests here any more
    proxies: str = ""  # addresses of proxies, with commas, whose word on who asks is taken
    service: Options = field(default_factory=Options)


@dataclass(frozen=True, slots=True)
class ServiceAddress:
    """The address of the service, and how to log in."""

    url: str
    db: str  # without its password
    key_file: Path | None  # of the local key; None beyond loopback
    login_url: str | None  # opens the dashboard, once
    db_option: str = ""  # what names the database to other commands, where they would take another one
    redis_url: str | None = None  # for clients of Redis, without the key that is their password

    def lines(self) -> list[str]:
        """For people."""
        texts = [f"tunewright serves {self.url} from {self.db}"]
        if self.key_file is not None:
            texts.append(f"key: in {self.key_file}; commands of this account find it by themselves")
        else:
            texts.append(f"more keys: tunewright key create NAME{self.db_option}")
            texts.append(f"links to the dashboard: tunewright key link --server {self.url}{self.db_option}")
        if self.redis_url is not None:
            texts.append(f"for clients of Redis: {self.redis_url}, with a key as the password")
        if self.login_url is not None:
            texts.append(f"dashboard, opens once within {counted(LINK_S // 60, 'minute')}: {self.login_url}")
        return texts


def _print_address(address: ServiceAddress) -> None:
    print(*address.lines(), sep="\n", flush=True)


def serve(options: ServeOptions, announce: Callable[[ServiceAddress], None] = _print_address) -> None:
    """Serve until SIGTERM or SIGINT. In the main thread. `announce` is called when requests are answered.

    A database server that is away is waited for at first, as other commands do. Raises Refused where that would be
    unsafe or the port is taken, StoreError where the database can't be used.
    """
    store = open_store(store_url(options.db), patience_s=PATIENCE_S)  # its server may be starting too
    try:
        db_option = f" --db {shlex.quote(str(store))}" if options.db else ""
        key_file = _local_key_file(store, options, db_option)
        listening = _listen(options.service.host, options.port)
        redis = None if options.redis_port is None else _listen(options.service.host, options.redis_port, "--redis")
    except BaseException:
        store.close()
        raise
    # On a terminal a line for each request would bury what matters.
    configure(logging.WARNING if sys.stderr.isatty() else logging.INFO)
    app = assemble(store, options.service)
    tuners = Tuners(options.tuners, _work(options), _tuner_env(options), partial(_strike_off, store))
    server = Server(_config(app, options), app.state.service, tuners, options.linger_s)
    host = _shown_host(options.service)
    url = f"http://{host}:{listening.getsockname()[1]}"
    redis_url = None if redis is None else f"redis://{host}:{redis.getsockname()[1]}"
    if redis is not None:
        server.redis = RedisFront(redis, store, app.state.keys, app.state.rates, options.service.log_quota)
    login_url = make_link(store, url).url if key_file is not None else None
    store.database.patience_s = 0.0  # who asks is told at once, and asks again
    address = ServiceAddress(url, str(store), key_file, login_url, db_option, redis_url)
    server.when_started = lambda: announce(address)
    with server.signals():
        tuners.start()
        try:
            server.run(sockets=[listening])
        finally:
            tuners.close(max(0.0, server.end_requested_at_s + TUNERS_S - time.monotonic()))
            listening.close()


def _strike_off(store: Store) -> None:
    """A tuner process has ended, which may have had no time to say so."""
    try:
        strike_off(store)
    except StoreError as error:  # it is forgotten before long
        _log.warning("a tuner process that ended is not struck off", extra={"reason": str(error)})


def _local_key_file(store: Store, options: ServeOptions, db_option: str) -> Path | None:
    """The file of the local key. Raises Refused where others can reach the service and have no key."""
    host = options.service.host
    if is_loopback(host):
        return local_key(settings().local_key, store)
    if not store.keys.any():
        raise Refused(
            f"others could reach {host}, and there is no key that lets them in: "
            f"tunewright key create NAME{db_option} makes one"
        )
    return None


def _listen(host: str, port: int, option: str = "--port") -> socket.socket:
    """A socket that listens. Raises Refused; `option` is what chooses another port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise Refused(f"port {port} of {host} is taken: {option} 0 finds one that is free") from error
        raise Refused(f"can't listen on {host}, port {port}: {error.strerror or error}") from error


def _shown_host(service: Options) -> str:
    """The host of the service in URLs."""
    names = [name for name in service.allow_hosts if not set(name) & set("*?[")]
    host = service.host
    if host in ("0.0.0.0", "::"):
        host = names[0] if names else _own_address(host)
    return f"[{host}]" if ":" in host else host


def _own_address(listens_on: str) -> str:
    """The address of this machine that others see, going by its routes; nothing is sent. Without a route, localhost."""
    family, elsewhere = (socket.AF_INET6, "2001:db8::1") if ":" in listens_on else (socket.AF_INET, "192.0.2.1")
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((elsewhere, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return "localhost"


def _work(options: ServeOptions) -> list[str]:
    """The command of a tuner process."""
    address = ["--ray-address", options.ray_address] if options.ray_address else []
    return ["work", "--pool", options.pool, *address]


def _tuner_env(options: ServeOptions) -> dict[str, str]:
    """Its environment. The database's URL may have a password in it, and arguments can be seen by all."""
    return dict(os.environ) | {"TUNEWRIGHT_DB": options.db or settings().db}


def _config(app: object, options: ServeOptions) -> uvicorn.Config:
    return uvicorn.Config(
        app,  # type: ignore[arg-type]  # an ASGI app of whatever kind
        http=BoundedProtocol,
        log_config=None,
        access_log=False,  # Envelope writes what is worth it
        server_header=False,
        timeout_graceful_shutdown=REQUESTS_S,
        proxy_headers=bool(options.proxies),
        forwarded_allow_ips=options.proxies or None,
        ws="none",
    )


class Server(uvicorn.Server):
    """uvicorn that tells the service and its tuners when it is asked to end, and lets them end first."""

    def __init__(self, config: uvicorn.Config, service: Service, tuners: Tuners, linger_s: float) -> None:
        super().__init__(config)
        self.when_started: Callable[[], None] = lambda: None
        self.end_requested_at_s = float("inf")
        self.redis: RedisFront | None = None
        self._service = service
        self._tuners = tuners
        self._linger_s = linger_s

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start as uvicorn does, and announce it."""
        await super().startup(sockets)
        if self.started:
            if self.redis is not None:
                await self.redis.start()
            self.when_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down as uvicorn does; where forced, end the app too: uvicorn would break it off and log a traceback."""
        if self.redis is not None:
            await self.redis.close()
        await super().shutdown(sockets)
        if self.force_exit:
            await self.lifespan.shutdown()

    async def on_tick(self, counter: int) -> bool:
        """Whether to end now."""
        over = time.monotonic() >= self.end_requested_at_s + self._linger_s
        return await super().on_tick(counter) or over

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to `signals`: uvicorn would raise them again before the tuners have ended."""
        yield

    @contextmanager
    def signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT end the service while the block lasts; a second one ends it at once."""
        before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, _: int, __: FrameType | None) -> None:
        if self.end_requested_at_s < float("inf"):
            self.should_exit = self.force_exit = True
            self.end_requested_at_s = time.monotonic() - TUNERS_S
            return
        self.end_requested_at_s = time.monotonic()
        self._service.drain()
        self._tuners.stop()
