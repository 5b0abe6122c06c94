"""What counts as passed, and that an open passes the files that do it."""

from __future__ import annotations

import sys

import pytest

from tunewright.bench import passes
from tunewright.bench.passes import PassedFiles
from tunewright.tuner.arguments import real_number, whole_number


def test_calls_count_for_the_file_of_a_function() -> None:
    passed = PassedFiles()
    sys.setprofile(passed.note)
    try:
        whole_number(3)
        whole_number(4)
        real_number(0.5)

        class Local:
            """A body that runs, but is no call."""

    finally:
        sys.setprofile(None)
    assert passed.calls == {"tuner/arguments.py": {"whole_number": 2, "real_number": 1}}


@pytest.mark.slow
def test_an_open_passes_what_makes_kernels(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: object
) -> None:
    monkeypatch.setenv("TUNEWRIGHT_HOME", str(tmp_path))  # restored after the test, as is the next
    monkeypatch.setenv("TUNEWRIGHT_DB", "")
    monkeypatch.setattr(sys, "argv", ["passes", "--list"])
    assert passes.main() == 0
    head, *lines = capsys.readouterr().out.splitlines()
    files = [line.partition(":")[0] for line in lines]
    assert head.startswith(f"{len(files)} files, ")
    assert files[0] == "tuner/session/session.py"
    assert {"graph/onnx_import/walk.py", "search_space/sketches.py", "codegen/llvm/emit.py"} <= set(files)
    assert not any(file.startswith("search_space/cuda") for file in files)  # nobody asks sketches of other targets
