"""The side of a served process: calls come in as JSON lines, events and results go out.

It imports nothing but the standard library, for it runs in the environments of others too.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

PR_SET_PDEATHSIG = 1

REST_S, AWAKE, PATIENCE_S = 0.02, 0.1, 3.0
"""How long threads are watched to see whether they rest, processors in use above which they don't, and the longest that
they are waited for.
"""

Tell = Callable[[Mapping[str, Any]], None]
"""Sends an event: what a call has to say before its result."""

Call = Callable[..., Any]
"""Takes a `Tell` and named plain data, returns plain data."""


def serve(calls: Mapping[str, Call]) -> None:
    """Answer requests until there are no more. Arguments of the program: cores joined by commas, the parent's id.

    A request is `{"call", "arguments"}`; each event is `{"event"}`, and the last line of an answer `{"result"}`.
    What else is printed goes to standard error. A call that raises ends the process, and its traceback says why.
    """
    cores, parent = sys.argv[1:3]
    os.sched_setaffinity(0, map(int, cores.split(",")))  # before anything counts cores, or starts threads
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):  # it ended before we asked
        return
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as replies:
        os.dup2(2, 1)
        for line in sys.stdin:
            request = json.loads(line)
            result = calls[request["call"]](lambda event: _send(replies, {"event": event}), **request["arguments"])
            _send(replies, {"result": result})


def rest() -> None:
    """Wait until the threads of this process have come to rest, so that they take no core from another process.

    TVM's stay awake for a fifth of a second or more after a kernel.
    """
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        before_s = time.process_time()
        time.sleep(REST_S)
        if time.process_time() - before_s < AWAKE * REST_S:
            return


def _send(replies: Any, message: Mapping[str, Any]) -> None:
    replies.write(json.dumps(message) + "\n")
    replies.flush()
