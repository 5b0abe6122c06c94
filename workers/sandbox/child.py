"""The child: `python -m tunewright.workers.sandbox.child SETTINGS` serves requests until its parent hangs up or dies.

Most children are forked instead, by `fork_server`. `process.Child` is the parent's side.

Candidates run here, so this process may crash at any time. Requests and replies have descriptors of their own; output
of native code goes to the log, which is standard output and error.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import resource
import signal
import struct
import sys
import time
import traceback
from collections.abc import Mapping
from math import ceil
from typing import Any, BinaryIO

from .confine import confine, give_up_privileges

LENGTH = struct.Struct(">I")

LARGEST_BYTES = 256 << 20
"""Upper bound of a message; a larger length is an error."""


class BrokenFrame(Exception):
    """Bytes that are no frame."""


def frame(message: dict[str, Any]) -> bytes:
    """The message as bytes."""
    body = json.dumps(message, allow_nan=False, separators=(",", ":")).encode()
    return LENGTH.pack(len(body)) + body


def take(buffer: bytearray, largest_bytes: int = LARGEST_BYTES) -> dict[str, Any] | None:
    """Remove the first message from the buffer; None if it is incomplete. Raises BrokenFrame."""
    if len(buffer) < LENGTH.size:
        return None
    [size_bytes] = LENGTH.unpack_from(buffer)
    if size_bytes > largest_bytes:
        raise BrokenFrame(f"a message of {size_bytes} bytes")
    end = LENGTH.size + size_bytes
    if len(buffer) < end:
        return None
    body = bytes(buffer[LENGTH.size : end])
    del buffer[:end]
    return _decode(body)


def read(stream: BinaryIO) -> dict[str, Any] | None:
    """Wait for the next message; None at the end of the stream. Raises BrokenFrame."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    [size_bytes] = LENGTH.unpack(head)
    body = stream.read(size_bytes)
    return _decode(body) if len(body) == size_bytes else None


def _decode(body: bytes) -> dict[str, Any]:
    try:
        message = json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise BrokenFrame("a message that is not JSON") from error
    if not isinstance(message, dict):
        raise BrokenFrame("a message that is no object")
    return message


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


PR_SET_PDEATHSIG = 1

MEASURE_CALLS = "tunewright.workers.measure.measure"
"""The module whose calls most children serve."""


def serve(settings: Mapping[str, Any]) -> None:
    """Serve requests until the parent hangs up.

    Settings: descriptors `requests` and `replies`, process id `parent`, modules `plugins` and `calls`, and
    `memory_bytes`, `cpu_s` and `confined` of `process.ChildLimits`.
    """
    die_with(settings["parent"])
    give_up_privileges()
    _limit_memory(settings["memory_bytes"])
    if settings["confined"]:
        confine()  # before what is imported starts threads
    from tunewright.codegen.host import machine

    for plugin in settings["plugins"]:
        importlib.import_module(plugin)
    calls = importlib.import_module(settings["calls"]).CALLS
    with os.fdopen(settings["requests"], "rb") as requests, os.fdopen(settings["replies"], "wb") as replies:
        replies.write(frame({"provenance": machine()}))
        replies.flush()
        while (request := read(requests)) is not None:
            _limit_time(settings["cpu_s"])
            replies.write(_answer(calls, request))
            replies.flush()


def die_with(parent: int) -> None:
    """End this process as soon as its parent ends, however that happens."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before we asked
        os._exit(1)


def _limit_memory(memory_bytes: int) -> None:
    """Limit writable memory. Address space is not limited, as allocators reserve a lot of it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard_limit = resource.getrlimit(resource.RLIMIT_DATA)
    limit_bytes = _at_most(memory_bytes, hard_limit)
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))


def _limit_time(cpu_s: float | None) -> None:
    """Limit the processor time of a request. The system counts earlier requests too, so the limit grows."""
    if cpu_s is not None:
        _, hard_limit = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (_at_most(ceil(time.process_time() + cpu_s), hard_limit), hard_limit))


def _at_most(limit: int, hard_limit: int) -> int:
    """The lower of a limit and the hard limit of this process."""
    return limit if hard_limit == resource.RLIM_INFINITY else min(limit, hard_limit)


def _answer(calls: Mapping[str, Any], request: dict[str, Any]) -> bytes:
    """The reply to one request: its `result`, or the reason why there is none."""
    from tunewright.search_space.schedule import Illegal

    from ..pool import Unfit

    try:
        return frame({"result": calls[request["call"]](**request["arguments"])})
    except MemoryError as error:
        return frame({"out_of_memory": str(error) or "no memory left"})
    except Illegal as error:
        return frame({"illegal": str(error)})
    except Unfit as error:
        return frame({"unfit": str(error)})
    except Exception:  # noqa: BLE001 - a bug: it propagates, in the parent
        return frame({"bug": traceback.format_exc()})


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
