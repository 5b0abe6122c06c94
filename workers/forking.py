"""The process that forks children: `python -m tunewright.workers.forking SETTINGS`. `nursery` is the other side.

It has one thread and opens nothing, so that a child has no more than what it is given.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import socket
import sys
import traceback
from contextlib import suppress
from typing import Any

from .child import MEASURING, die_with, serve
from .nursery import MESSAGE_BYTES

DESCRIPTORS = 3

GARBAGE = 50_000
"""Objects between two collections: some tens of builds, which otherwise take a thirtieth longer."""


def main() -> None:
    """Settings: descriptor `socket`, process id `parent`."""
    settings = json.loads(sys.argv[1])
    die_with(settings["parent"])
    _prepare()
    gc.collect()
    gc.freeze()  # pages that no collection writes to are shared with the children
    gc.set_threshold(GARBAGE)
    with socket.socket(fileno=settings["socket"]) as parent:
        while True:
            message, descriptors, _, _ = socket.recv_fds(parent, MESSAGE_BYTES, DESCRIPTORS)
            if not message:
                return
            request = json.loads(message)
            reply = _answer(request, descriptors, parent)
            parent.send(json.dumps(reply | {"number": request["number"]}).encode())


def _prepare() -> None:
    """What each child would do by itself."""
    importlib.import_module(MEASURING)
    from tunewright.codegen.host import machine
    from tunewright.codegen.runtime.library import pool_object

    machine()
    with suppress(OSError):  # then it is for the first candidate to say so
        pool_object()


def _answer(request: dict[str, Any], descriptors: list[int], parent: socket.socket) -> dict[str, Any]:
    """What was asked for, or why the system refused: with this process, all that it forked would end."""
    try:
        if "reap" in request:
            _, status = os.waitpid(request["reap"], 0)
            return {"code": os.waitstatus_to_exitcode(status)}
        return {"pid": _forked(request["settings"], descriptors, parent)}
    except OSError as error:
        return {"error": str(error)}
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _forked(settings: dict[str, Any], descriptors: list[int], parent: socket.socket) -> int:
    """The process id of a child."""
    own = os.getpid()
    pid = os.fork()
    if pid == 0:
        parent.close()
        _be_child(settings | {"parent": own}, *descriptors)
    return pid


def _be_child(settings: dict[str, Any], requests: int, replies: int, log: int) -> None:
    """Serve, and end as an interpreter ends."""
    code = 1
    try:
        os.setsid()
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        serve(settings | {"requests": requests, "replies": replies})
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:  # noqa: BLE001 - the interpreter would print it too
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


if __name__ == "__main__":
    main()
