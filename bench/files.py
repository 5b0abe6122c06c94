"""Where benchmarks keep what they make: results in the tree, and in build/bench what can be made again."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "bench"
RESULTS = ROOT / "bench" / "results"


def stay_in_folder() -> None:
    """Keep built kernels and what is known of this machine in `FOLDER` too, unless the user has named another place."""
    os.environ.setdefault("TUNEWRIGHT_HOME", str(FOLDER))


def write_whole(path: Path, content: bytes) -> None:
    """Make or replace a file, so that whoever reads it finds all of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.part")
    draft.write_bytes(content)
    draft.replace(path)


def model_file(folder: Path, name: str, build: Callable[[], bytes]) -> Path:
    """A model as a file, built anew: it may have changed."""
    path = folder / f"{file_name(name)}.onnx"
    write_whole(path, build())
    return path


def file_name(name: str) -> str:
    """The name of a case without what is awkward in paths."""
    return name.replace(" ", "_").replace(",", "")
