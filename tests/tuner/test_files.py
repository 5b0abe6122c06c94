"""Files of the code as what tells one version of it from another."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tunewright.tuner import files

ONE_S = 1_000_000_000


def code_digest() -> str | None:
    files.code_digest.cache_clear()
    return files.code_digest(("one",))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(files, "import_module", lambda _: SimpleNamespace(__path__=[str(tmp_path)]))
    yield tmp_path
    files.code_digest.cache_clear()


def test_code_that_changes_has_another_digest(folder: Path) -> None:
    assert code_digest() is None
    module = folder / "inner" / "module.py"
    module.parent.mkdir()
    module.write_text("x = 1")
    first = code_digest()
    assert first is not None and code_digest() == first
    status = module.stat()
    module.write_text("x = 2")
    os.utime(module, ns=(status.st_atime_ns, status.st_mtime_ns + ONE_S))
    second = code_digest()
    module.with_suffix(".ll").write_text("")
    assert len({first, second, code_digest()}) == 3


def test_times_that_are_all_the_same_tell_nothing(folder: Path) -> None:
    """As where a build sets them: what the files say is read then."""
    digests = set()
    for text in ("x = 1", "x = 2"):
        for name in ("one.py", "other.py"):
            (folder / name).write_text(text)
            os.utime(folder / name, ns=(ONE_S, ONE_S))
        digests.add(code_digest())
    assert len(digests) == 2


def test_code_in_no_folder_has_no_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (tmp_path / "none", tmp_path / "package.zip" / "inner"):
        (tmp_path / "package.zip").write_bytes(b"")
        monkeypatch.setattr(files, "import_module", lambda _, path=path: SimpleNamespace(__path__=[str(path)]))
        assert code_digest() is None
    files.code_digest.cache_clear()


def test_what_is_no_code_changes_nothing(folder: Path) -> None:
    (folder / "module.py").write_text("x = 1")
    digest = code_digest()
    cache = folder / "__pycache__"
    cache.mkdir()
    for file in (cache / "module.py", folder / "notes.txt"):
        file.write_text("")
    assert code_digest() == digest


def test_a_file_is_there_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("before")
    with pytest.raises(KeyboardInterrupt), files.whole_file(path) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert [path.read_text(), *tmp_path.iterdir()] == ["before", path]
    with files.whole_file(path) as file:
        file.write(b"after")
        file.flush()
        assert path.read_text() == "before"
    assert [path.read_text(), *tmp_path.iterdir()] == ["after", path]


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        files.write_whole(path, b"text")
        assert os.read(reader, 9) == b"text"
    finally:
        os.close(reader)
    assert path.is_fifo()
