"""The child: `python -m tunewright.workers.child SETTINGS` serves requests until its parent hangs up or dies.

Most are forked instead: see `nursery`.

Candidates run in here, so nothing in here is trusted to survive: `process.Child` is the other side. Requests and
replies have descriptors of their own; what native code prints goes to the log, which is standard output and error.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from math import ceil
from typing import Any

from .confine import confine, give_up_privileges
from .frames import frame, read

PR_SET_PDEATHSIG = 1

MEASURING = "tunewright.workers.measure"
"""What most children serve."""


def serve(settings: Mapping[str, Any]) -> None:
    """Settings: descriptors `requests` and `replies`, process id `parent`, modules `plugins` and `calls`.

    And of `process.ChildLimits` `memory_bytes`, `cpu_s` and `confined`.
    """
    die_with(settings["parent"])
    give_up_privileges()
    _limit(settings["memory_bytes"])
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


def _limit(memory_bytes: int) -> None:
    """Memory that can be written is limited, mere address space is not: allocators reserve a lot of that."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    limit_bytes = _within(memory_bytes, most)
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))


def _limit_time(cpu_s: float | None) -> None:
    """Processor time of a request. What was spent before it counts in the system's eyes, so the limit moves on."""
    if cpu_s is not None:
        _, most = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (_within(ceil(time.process_time() + cpu_s), most), most))


def _within(wanted: int, most: int) -> int:
    """A limit, or the one that this process was given if that is lower."""
    return wanted if most == resource.RLIM_INFINITY else min(wanted, most)


def _answer(calls: Mapping[str, Any], request: dict[str, Any]) -> bytes:
    """The reply to one request: its `result`, or the reason why there is none."""
    from tunewright.search_space.schedule import Illegal

    from .pool import Unfit

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
