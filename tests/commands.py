"""Commands in the process of the test, and what they leave behind."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest


@dataclass(frozen=True)
class Answer:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """The JSON object that is all of standard output."""
        return json.loads(self.out)


Command = Callable[..., Answer]


def commands(execute: Callable[[Sequence[str]], int], capfd: pytest.CaptureFixture[str]) -> Command:
    """`command("tune", model, "--json")` runs it in this process."""

    def run(*arguments: object) -> Answer:
        capfd.readouterr()
        code = execute([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return Answer(code, out, err)

    return run
