"""The command line: `tunewright COMMAND`. What the commands do is in `commands`, imported when one is called.

Each module here declares the commands of one group; importing it adds them to `app`. Those that need the service are
added by `tunewright.api.cli`, which is the whole program.

Answers go to standard output, progress and messages to standard error. With `--json` the answer is one JSON object,
and nothing else is on standard output. Exit codes: 0 done, 1 something that is needed does not work, 2 the input or
the options can't be used, 130 interrupted.
"""

from __future__ import annotations

from . import database, keys, knowledge, operate, tuning, work
from .answers import answer, messages, quiet_stdout
from .app import app, execute, guarded, main

__all__ = [
    "answer",
    "app",
    "database",
    "execute",
    "guarded",
    "keys",
    "knowledge",
    "main",
    "messages",
    "operate",
    "quiet_stdout",
    "tuning",
    "work",
]
