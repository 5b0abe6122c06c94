"""What keeps a session from being as fast as it can be, a line each. Light to import."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from tunewright.codegen.host import available_cores

from ..text import ONNX_RUNTIME, counted, op_counts
from .image_store import Coverage
from .ort_session import is_installed


def coverage_notes(coverage: Coverage) -> Iterator[str]:
    """Notes on untuned tasks and on nodes without a kernel; none where another runtime runs the model."""
    if coverage.runtime:
        return
    tasks = coverage.tuned + coverage.transferred + coverage.untuned + coverage.kept
    if coverage.untuned:
        which = f"{coverage.untuned} of {counted(tasks, 'task runs', 'tasks run')} untuned"
        yield f"{which}; tuning for these dims and threads may make them faster"
    if coverage.vendor:
        yield _fallback_note(coverage.vendor, ONNX_RUNTIME)
    if others := Counter(coverage.fallback) - Counter(coverage.vendor):
        advice = "" if is_installed() else "; where the package onnxruntime is installed, that runs them"
        yield _fallback_note(others, "ONNX's reference evaluator, slowly") + advice


def _fallback_note(nodes: Mapping[str, int], runtime: str) -> str:
    count = sum(nodes.values())
    have, are = counted(count, "node has", "nodes have"), "is" if count == 1 else "are"
    return f"{have} no kernel and {are} run by {runtime}: {op_counts(nodes)}"


def thread_notes(threads: int) -> Iterator[str]:
    """A note on more threads than there are processors."""
    cores = len(available_cores())
    if threads > cores:
        yield f"threads={threads} is more than the {counted(cores, 'processor')} that this process may use"
