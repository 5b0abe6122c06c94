"""The tour of docs/tour.md works as it stands there: all of its code and commands, one after the other."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest

from tunewright.api import program

from .commands import Command, commands

ROOT = Path(__file__).parent.parent
TOUR = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
STEPS = re.findall(r"^```python\n(.*?)^```|^    tunewright ([^\n]*)$", TOUR, re.MULTILINE | re.DOTALL)
"""Python and commands, in their order: pairs of which one is empty."""

SERVER = next(n for n, (_, line) in enumerate(STEPS) if line.startswith("serve "))
"""The step that starts the server of the second terminal."""

ADDRESS = "http://127.0.0.1:8433"

pytest.importorskip("onnxruntime")


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Of a new user: an empty folder and no database."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TUNEWRIGHT_HOME", str(tmp_path / "home"))
    return commands(program.execute, capfd)


@contextmanager
def served(line: str) -> Iterator[dict[str, str]]:
    """A server on a free port, and what it says of itself."""
    program = [sys.executable, "-P", "-m", "tunewright.api.cli", *shlex.split(line), "--port", "0", "--json"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / ".types")}
    with subprocess.Popen(program, stdout=subprocess.PIPE, env=environment, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())
            process.terminate()
            assert process.wait(60) == 0
        finally:
            process.kill()


def walk(command: Command, steps: list[tuple[str, str]], names: dict[str, str]) -> dict[str, str]:
    """Take the steps; what stands for something else is replaced by `names`. Standard output of each command."""
    outputs = {}
    for code, line in steps:
        if code:
            exec(compile(code, "docs/tour.md", "exec"), {})  # noqa: S102
            continue
        for name, value in names.items():
            line = line.replace(name, value)
        answer = command(*shlex.split(line))
        assert answer.code == 0, answer.err
        outputs[line.split()[0]] = answer.out
        if line.startswith("tasks "):
            names["TASK"] = re.findall(r"\b[0-9a-f]{12}\b", answer.out)[0]
    return outputs


@pytest.mark.slow
def test_the_tour(command: Command) -> None:
    names: dict[str, str] = {}
    outputs = walk(command, STEPS[:SERVER], names)
    assert "MatMul+Relu" in outputs["tasks"]
    tune = next(line for _, line in STEPS if line.startswith("tune "))
    assert "8 trials" in outputs["tune"] and "8 trials" in command(*shlex.split(tune)).out  # a job of its own
    assert sum(json.loads(line)["kind"] == "trial" for line in command("export").out.splitlines()) == 16
    assert "tunewright, default" in outputs["bench"]
    assert "register" in outputs["show"]  # the loop IR has register tiles
    assert np.load("out/output_0.npy").shape == (64, 512)
    with served(STEPS[SERVER][1]) as server:
        outputs = walk(command, STEPS[SERVER + 1 :], {ADDRESS: server["url"]})
        assert "16 trials" in outputs["submit"]
        with httpx.Client(trust_env=False) as browser:
            assert browser.get(outputs["key"].strip()).status_code == 200
            assert "model.onnx" in browser.get(server["url"]).text
