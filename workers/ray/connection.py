"""RayConnection: this process's connection to a Ray cluster. All calls go through it, and it notices a lost cluster.

Ray does not report that itself. When its head process (GCS) is killed, calls block for a minute, and then Ray ends the
process without a word. When the raylet of this machine is killed, nothing happens for 15 s, and then calls fail with
vague errors. So a thread here connects to both every second. Calls run on a thread of their own: waiting for one ends
as soon as the cluster is lost, even if the call itself hangs.

A lost cluster stays lost. A process opens another one, or ends and is started again.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from ..pool import ClusterLost

LOOK_S = 1.0
"""Between two checks whether the cluster answers."""

CONNECT_S = 2.0
"""Time limit of a process of the cluster to accept a connection."""

SILENT_S = 5.0
"""A process of the cluster that accepts no connection for so long is gone."""

HUNG_S = 30.0
"""How long a call may exceed its timeout. After a minute Ray would end this process."""

CLOSE_S = 5.0
"""Time limit of a running call when the connection is closed."""

MARK = "TUNEWRIGHT_CLUSTER"
"""Environment variable of all processes of a cluster that is started here, by which they are ended."""


class RayConnection:
    """The connection of `ray`. `address` is what was joined, None where the cluster was started here."""

    def __init__(self, ray: Any, address: str | None = None) -> None:
        self.exceptions = ray.exceptions
        self.module = ray  # whose functions go through `call`
        self._node = ""
        self._endpoints: dict[tuple[str, int], str] = {}  # what is there, by host and port
        self._loss = ""  # the cluster is lost
        self._closed = threading.Event()
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._caller = threading.Thread(target=self._make_calls, name="tunewright-ray-calls", daemon=True)
        self._caller.start()
        try:
            self._endpoints = self._find_endpoints(address)
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._watch, name="tunewright-ray-watch", daemon=True).start()

    def _find_endpoints(self, address: str | None) -> dict[tuple[str, int], str]:
        if address is not None and address.startswith("ray://"):  # all goes through that one
            return {_host_and_port(address.removeprefix("ray://")): "its server for clients"}
        context = self.call(self.module.get_runtime_context)
        self._node = self.call(context.get_node_id)
        own_node = next(node for node in self.nodes() if node["NodeID"] == self._node)
        return {
            _host_and_port(context.gcs_address): "its head process (GCS)",
            (own_node["NodeManagerAddress"], own_node["NodeManagerPort"]): "the raylet of this machine",
        }

    @property
    def is_lost(self) -> bool:
        return bool(self._loss)

    def check(self) -> None:
        """Raises ClusterLost where the cluster is known to be lost."""
        if self._loss:
            raise ClusterLost(f"the Ray cluster is lost: {self._loss}; a new process can start or join one")

    def confirm(self) -> None:
        """Return as soon as the cluster answers. Raises ClusterLost where it doesn't."""
        self.check()
        while self._silent_process() and not self._closed.wait(LOOK_S / 4):
            self.check()

    def call(self, function: Callable[..., Any], *arguments: Any, waits_s: float = 0.0, **options: Any) -> Any:
        """Call a function of Ray, whose own timeout is `waits_s`. Raises ClusterLost.

        Ray's errors are raised once it is clear that the cluster is not to blame.
        """
        self.check()
        result: Future[Any] = Future()
        if not self._caller.is_alive():
            raise RuntimeError("a call through a connection that is closed")
        self._calls.put((result, partial(function, *arguments, **options)))
        deadline_s = time.monotonic() + waits_s + HUNG_S
        while not wait([result], LOOK_S / 4).done:
            self.check()
            if time.monotonic() > deadline_s:
                self._loss = self._loss or f"it does not answer within {waits_s + HUNG_S:g} s"
        try:
            return result.result()
        except (self.exceptions.RayTaskError, self.exceptions.GetTimeoutError):
            raise
        except self.exceptions.LocalRayletDiedError:
            self._loss = self._loss or "the raylet of this machine died"
            self.check()
        except self.exceptions.RayError:
            self.confirm()
            raise

    def nodes(self) -> list[dict[str, Any]]:
        """As `ray.nodes`. Raises ClusterLost also where the cluster has given up the node of this machine."""
        nodes: list[dict[str, Any]] = self.call(self.module.nodes)
        if any(node["NodeID"] == self._node and not node["Alive"] for node in nodes):
            self._loss = self._loss or "it takes the node of this machine for dead"
            self.check()
        return nodes

    def wait(self, references: Sequence[Any], *, num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        """As `ray.wait`."""
        result: tuple[list[Any], list[Any]] = self.call(
            self.module.wait, list(references), num_returns=num_returns, timeout=timeout, waits_s=timeout
        )
        return result

    def close(self) -> None:
        """End the threads, but for a call that hangs. Later calls are refused, as Ray would connect again."""
        self._closed.set()
        self._calls.put(None)
        self._caller.join(0.0 if self.is_lost else CLOSE_S)

    def _make_calls(self) -> None:
        while (request := self._calls.get()) is not None:
            result, call = request
            try:
                if self._closed.is_set():
                    raise RuntimeError("a call through a connection that is closed")
                result.set_result(call())
            except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
                result.set_exception(error)

    def _watch(self) -> None:
        answered_s = time.monotonic()
        while not self._closed.wait(LOOK_S):
            silent_process = self._silent_process()
            now_s = time.monotonic()
            if not silent_process:
                answered_s = now_s
            elif now_s - answered_s >= SILENT_S:
                self._loss = self._loss or f"{silent_process} has not answered for {SILENT_S:g} s"
                return

    def _silent_process(self) -> str:
        """The process of the cluster that accepts no connection; empty: all do."""
        for (host, port), name in self._endpoints.items():
            try:
                socket.create_connection((host, port), CONNECT_S).close()
            except OSError:
                return f"{name} at {host}:{port}"
        return ""


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def kill_marked(mark: str) -> None:
    """Kill all processes of this user that have `MARK` with this value in their environment, but for this one."""
    entry = f"{MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is somebody else's
            if entry in (folder / "environ").read_bytes().split(b"\0") and int(folder.name) != os.getpid():
                os.kill(int(folder.name), signal.SIGKILL)
