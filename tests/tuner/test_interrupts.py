"""Ctrl-C at any moment: one line, and exit code 130."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tunewright.tuner.interrupts import INTERRUPTED

from .processes import python_path

AT = """
import os, signal, sys

class At:
    '''Interrupts the program where it is about to import a module.'''

    def find_spec(self, name, *rest):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, At())
from tunewright.api.cli import main
main()
"""

RUN = "from tunewright.tuner import interrupts; interrupts.run(load)"

LOST = f"""
import gc, os, signal, threading, weakref

class Dropped:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(9):  # Python hears of signals where a loop goes round
            pass

def load():
    def work(arguments):
        {{}}
        threading.Event().wait(60)
    return work

{RUN}
"""


def said(code: str, *arguments: str, heard: signal.Handlers = signal.SIG_DFL) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *arguments],
        env={**os.environ, **python_path()},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, heard) and None,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("module", ["typer", "rich.console", "tunewright.tuner.cli.keys"])
def test_while_the_program_is_imported(module: str) -> None:
    assert said(AT.format(module=module), "doctor") == (INTERRUPTED, "", "interrupted\n")


@pytest.mark.slow
@pytest.mark.parametrize("module", ["sqlalchemy", "onnx", "llvmlite", "tunewright.tuner.search.job"])
def test_while_a_command_imports_what_it_needs(module: str, model: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/tuning.db"
    code, out, err = said(AT.format(module=module), "tune", str(model), "--db", url, "--json")
    assert code == INTERRUPTED and "Traceback" not in err, err
    assert err.splitlines()[-1].startswith("stopped;")
    assert json.loads(out)["error"]["message"].startswith("stopped;")


def test_json_from_the_first_moment_on() -> None:
    code, out, err = said(AT.format(module="typer"), "doctor", "--json")
    assert (code, json.loads(out), err) == (INTERRUPTED, {"error": {"message": "interrupted"}}, "interrupted\n")


@pytest.mark.parametrize(
    "lost",
    ["dropped = Dropped(); del dropped", "ref = weakref.ref(load := type('One', (), {})(), Dropped.__del__); del load"],
    ids=["where an object is dropped", "in a callback of a weak reference"],
)
def test_where_nobody_would_hear_of_it(lost: str) -> None:
    assert said(LOST.format(lost)) == (INTERRUPTED, "", "interrupted\n")


def test_other_faults_there_are_still_told() -> None:
    code, _, err = said(LOST.format("Dropped.__del__ = lambda self: 1 / 0; Dropped(); return 3"))
    assert code == 3 and "ZeroDivisionError" in err


def test_in_the_background_of_a_shell_it_is_ignored() -> None:
    code, _, err = said(AT.format(module="typer"), "--version", heard=signal.SIG_IGN)
    assert (code, err) == (0, "")
