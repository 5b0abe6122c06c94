"""Folders of the benchmarks: results in the tree, and files that can be made again in build/bench."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tunewright.codegen.host import detect

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "bench"
RESULTS = ROOT / "bench" / "results"


def results_of_processor() -> Path:
    """The folder of results that depend on the instructions of a processor: one for each."""
    return RESULTS / detect().cpu


def stay_in_folder() -> None:
    """Keep built kernels and measured rates of this machine in `FOLDER`, unless TUNEWRIGHT_HOME is set."""
    os.environ.setdefault("TUNEWRIGHT_HOME", str(FOLDER))


def write_whole(path: Path, content: bytes) -> None:
    """Make or replace a file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.part")
    draft.write_bytes(content)
    draft.replace(path)


def model_file(folder: Path, name: str, build: Callable[[], bytes]) -> Path:
    """The path of a model's file, which is written anew: the model may have changed."""
    path = folder / f"{file_name(name)}.onnx"
    write_whole(path, build())
    return path


def file_name(name: str) -> str:
    """The name of a case as part of a path, without blanks and commas."""
    return name.replace(" ", "_").replace(",", "")
