"""RayCluster: the machines of a Ray cluster that is joined, or started on this machine."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tunewright.codegen.closeable import Closeable
from tunewright.codegen.host import available_cores
from tunewright.codegen.target import Target

from ..device.builder import Setup
from ..pool import DeviceState, Limits, PoolError
from .connection import MARK, RayConnection, kill_marked
from .nodes import START_S, Nodes
from .pool import RayPool

STORE_BYTES = 128 << 20
"""Size of Ray's object store in a cluster that is started here. By default it takes a third of memory; messages are
small."""

ANSWER_S = 10.0
"""Time limit for a cluster to answer. Ray itself would try for minutes, and print its errors meanwhile."""


class RayCluster(Closeable):
    """A cluster that is joined, or started on this machine, as `Machines`; `nodes` are the cluster's.

    Without an `address` it starts a cluster on this machine, which ends with it. Nodes of a cluster that is joined must
    have the same tunewright installed; the folder `objects` is made on each. Joining takes the cluster's token
    (RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH), unless RAY_AUTH_MODE=disabled says that it has none. If this process is
    connected to a cluster already, that one is used and left running.

    Raises PoolError without Ray, and if the cluster can't be joined.
    """

    def __init__(
        self,
        objects: Path,
        limits: Limits | None = None,
        plugins: Sequence[str] = (),
        *,
        address: str | None = None,
    ) -> None:
        self._ray = _import_ray()
        self._connected = not self._ray.is_initialized()
        self._mark = secrets.token_hex(8) if self._connected and address is None else ""
        self._connection: RayConnection | None = None
        try:
            if self._connected:
                with _keep_signal_handler(), _mark_environment(self._mark):
                    _connect(self._ray, address)
            self._connection = RayConnection(self._ray, address)
            self.nodes = Nodes(self._connection, Setup(objects, limits or Limits(), tuple(plugins)))
            self.nodes.refresh(START_S)
        except BaseException:
            self.close()
            raise

    def targets(self) -> list[Target]:
        self.nodes.refresh()
        self.nodes.release_idle()
        return self.nodes.targets()

    def devices(self) -> list[DeviceState]:
        return self.nodes.devices()

    def rest(self, device: str, reason: str, left_s: float) -> None:
        self.nodes.rest(device, reason, left_s)

    def pool(self, target: Target) -> RayPool:
        self.nodes.refresh()
        return RayPool(target, self.nodes)

    def close(self) -> None:
        """See `Machines.close`. Our keepers end with this process's connection."""
        if self._connection is not None:
            self._connection.close()
            if self._connection.is_lost:  # what is left of it answers nobody
                self._end_processes()
        if self._connected:
            self._connected = False
            self._ray.shutdown()
            self._end_processes()

    def _end_processes(self) -> None:
        """Kill the processes of a cluster that was started here. Ray forgets some if one of them was killed."""
        if self._mark:
            kill_marked(self._mark)


def open_ray_pool(
    target: Target,
    objects: Path,
    limits: Limits | None = None,
    plugins: Sequence[str] = (),
    *,
    address: str | None = None,
) -> RayPool:
    """A pool with a `RayCluster` of its own, which is joined or started for it. Raises PoolError."""
    cluster = RayCluster(objects, limits, plugins, address=address)
    try:
        return RayPool(target, cluster.nodes, leave=cluster.close)
    except BaseException:
        cluster.close()
        raise


def _import_ray() -> Any:
    """The module. Raises PoolError where it is not installed."""
    if "ray" not in sys.modules:  # which reads them as it is imported
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ModuleNotFoundError as error:
        raise PoolError("the Ray pool needs Ray: pip install 'tunewright[ray]'") from error
    return ray


@contextmanager
def _keep_signal_handler() -> Iterator[None]:
    """Restore the handler of SIGTERM: Ray would end the process at once."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


@contextmanager
def _mark_environment(mark: str) -> Iterator[None]:
    """Processes that start in the block have a mark in their environment."""
    os.environ[MARK] = mark
    try:
        yield
    finally:
        del os.environ[MARK]


def _connect(ray: Any, address: str | None) -> None:
    """Start a cluster on this machine, or join one. Both need a token: who can talk to Ray can run anything."""
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        if "RAY_AUTH_TOKEN_PATH" not in os.environ:  # else Ray writes one to the home folder, for all to read
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        cores = len(available_cores())
        ray.init("local", num_cpus=cores, object_store_memory=STORE_BYTES, include_dashboard=False, **quiet)
        return
    _check_answers(address)
    try:
        ray.init(address, **quiet)
    except ray.exceptions.AuthenticationError as error:
        raise PoolError(
            f"the Ray cluster at {address} wants its token: set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
        ) from error
    except ValueError as error:
        raise PoolError(f"no address of a Ray cluster is like {address}: {error}") from error
    except ConnectionError as error:
        raise PoolError(f"no Ray cluster answers at {address}: {error}") from error


def _check_answers(address: str) -> None:
    """Raises PoolError where nobody listens at HOST:PORT. Ray looks up other forms itself."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_S).close()
    except (OSError, OverflowError) as error:
        raise PoolError(f"no Ray cluster answers at {address}: {error}") from error
