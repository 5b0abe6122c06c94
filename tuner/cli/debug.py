"""The DEBUG ladder: loggers that tell what happens, switched on step by step."""

from __future__ import annotations

import logging
import sys
from typing import TextIO

from ..settings import DEBUG_LADDER


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to what sys.stderr is at that moment."""

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, value: TextIO) -> None:
        """The base class assigns one."""


def switch_on(level: int) -> None:
    """Make the loggers of the first `level` steps of DEBUG_LADDER write to standard error. Twice does no harm."""
    for name in DEBUG_LADDER[1 : level + 1]:
        logger = logging.getLogger(f"tunewright.{name}")
        logger.setLevel(logging.DEBUG)
        if not any(isinstance(handler, _StderrHandler) for handler in logger.handlers):
            handler = _StderrHandler()
            handler.setFormatter(logging.Formatter(f"{name}: %(message)s"))
            logger.addHandler(handler)
        logger.propagate = False
