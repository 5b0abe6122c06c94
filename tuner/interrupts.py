"""Interrupts: Ctrl-C ends the program in one line, whenever it comes. What is here comes first, so it imports little.

Python raises KeyboardInterrupt wherever it is at. Amid an import that is in code of others, some of which goes on as if
a module were missing; in a callback of a weak reference, or where an object is dropped, nobody hears of it. So an
interrupt waits until what is being imported is there, and one that was lost is raised again.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130
"""The exit code that shells give to what Ctrl-C ended."""

DRAINED = 3
"""The exit code of a tuner process that ended as people ordered over the service: nothing starts it again."""

SOON_S = 0.02
"""After this long an interrupt is tried again."""

IMPORTING = "<frozen importlib."
"""Prefix of the file names of Python's import system in a stack."""


def run(load: Callable[[], Callable[[Sequence[str]], int]]) -> NoReturn:
    """Be the program that `load` imports: a function from arguments to an exit code."""
    heeds = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # what shells start behind them ignores it
    if heeds:
        heed()
    try:
        code = load()(sys.argv[1:])
    except KeyboardInterrupt:  # before there was anything to stop
        code = INTERRUPTED
        print("interrupted", file=sys.stderr)
        if "--json" in sys.argv:
            print('{"error": {"message": "interrupted"}}')
    if heeds:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # all is said: another one has nothing to tell
    sys.exit(code)


def heed() -> None:
    """From now on SIGINT raises KeyboardInterrupt where somebody can catch it, and no earlier."""
    signal.signal(signal.SIGINT, _hear)
    sys.unraisablehook = _raise_again


def _hear(number: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_code.co_filename.startswith(IMPORTING):
            _try_again()
            return
        frame = frame.f_back
    raise KeyboardInterrupt


def _raise_again(lost: sys.UnraisableHookArgs) -> None:
    if lost.exc_type is KeyboardInterrupt:
        _try_again()
    else:
        sys.__unraisablehook__(lost)


def _try_again() -> None:
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(SOON_S, signal.pthread_kill, (main, signal.SIGINT))
    timer.daemon = True
    timer.start()
