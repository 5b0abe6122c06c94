"""A full disk is told of with the name of the file, which the system does not tell."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunewright.api.dashboard.report import command as report
from tunewright.api.http import local_key
from tunewright.codegen.write_faults import naming
from tunewright.tuner.cli import run
from tunewright.tuner.errors import message

FULL = Path("/dev/full")

PROGRAM = "from tunewright.tuner.cli.app import main; import tunewright.tuner.cli.database; main()"


def full(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


def said(path: Path | str) -> str:
    return f"{str(path)!r}: No space left on device"


def test_the_number_of_an_error_is_not_told() -> None:
    assert message(OSError(errno.ENOSPC, "No space left on device")) == "No space left on device"


def test_what_numpy_says_is_kept() -> None:
    with pytest.raises(OSError) as caught, naming("y.npy"):
        raise OSError("24 requested and 0 written")
    assert message(caught.value) == "'y.npy': 24 requested and 0 written"


def test_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np, "save", full)
    data = {"outputs": [{"dtype": "float32"}]}
    with pytest.raises(OSError) as caught:
        run._save(tmp_path / "o", data, [np.zeros(3, np.float32)])
    assert message(caught.value) == said(tmp_path / "o" / "output_0.npy")


def test_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError) as caught:
        report._write(tmp_path / "job-1.html", b"x")
    assert message(caught.value) == said(tmp_path / "job-1.html")


def test_the_key_of_a_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fdopen", full)
    with pytest.raises(OSError) as caught:
        local_key._write(tmp_path / "local_key")
    assert message(caught.value) == said(tmp_path / "local_key")


@pytest.mark.slow
@pytest.mark.skipif(not FULL.exists(), reason="it is a device of Linux")
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_standard_output(tmp_path: Path, options: list[str]) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    arguments = [sys.executable, "-P", "-c", PROGRAM, "db", "upgrade", "--db", url, *options]
    subprocess.run(arguments, check=True, capture_output=True)
    with FULL.open("w") as sink:
        ended = subprocess.run(arguments, stdout=sink, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr == f"error: {said('standard output')}\n"
