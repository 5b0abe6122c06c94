"""The command line: `tunewright COMMAND`.

A command is a module that declares its options and does its work, or imports what does it when it is called: the
program starts without anything heavy. Importing a module adds its commands to `app`. `tunewright.api.cli`, which is the
whole program, adds those that need the service.

Answers go to standard output, progress and messages to standard error. With `--json` the answer is one JSON object,
and nothing else is on standard output. Exit codes: 0 done, 1 something that is needed does not work, 2 the input or
the options can't be used, 3 a tuner process that people drained, 130 interrupted.
"""

from __future__ import annotations

from . import bench, compile_library, database, doctor, keys, lookup, retime, run, show, tune, void, work
from .answers import messages
from .app import app, execute, exit_code, main

__all__ = [
    "app",
    "bench",
    "compile_library",
    "database",
    "doctor",
    "execute",
    "exit_code",
    "keys",
    "lookup",
    "main",
    "messages",
    "retime",
    "run",
    "show",
    "tune",
    "void",
    "work",
]
