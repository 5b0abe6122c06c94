"""Peak memory of a process that loads a model and runs it once.

Each runtime is measured in a process of its own, `python -m tunewright.tuner.peers.peak_memory TASK`, ours too. What is
reported is all that the process has in memory, its code and libraries too, which `libraries_bytes` tells apart.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

LIMIT_S = 300.0
"""Time limit of loading a model and running it once."""

OURS = "tunewright"
"""Our name among the peers."""

STATUS = Path("/proc/self/status")
"""Memory use of this process on Linux."""


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """Resident memory of a process at its most, and before it had seen the model."""

    peak_bytes: int
    libraries_bytes: int


def peak_memory(
    runtime: str, model: Path, feeds: Mapping[str, Any], threads: int, options: Mapping[str, Any]
) -> PeakMemory | None:
    """The memory of `runtime`, a peer or "tunewright", for a model; None where it can't be measured.

    `options` is `dims` and, for ours, `db`, `server`, `lock` and `precision`, as `InferenceSession` takes them.
    """
    with TemporaryDirectory(prefix="tunewright-") as folder:
        arrays = Path(folder) / "feeds.npz"
        np.savez(arrays, **{f"_{n}": a.astype(str) if a.dtype == object else a for n, a in enumerate(feeds.values())})
        task = {"runtime": runtime, "model": str(model), "feeds": list(feeds), "arrays": str(arrays)}
        try:
            done = subprocess.run(
                [sys.executable, "-m", __name__, json.dumps({**task, "threads": threads, "options": options})],
                stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S, check=True,
            )  # fmt: skip
            return PeakMemory(**json.loads(done.stdout.splitlines()[-1]))
        except (subprocess.SubprocessError, ValueError, IndexError, TypeError):
            return None


def resident_peak_bytes() -> int:
    """The most that this process had in memory. Raises OSError or ValueError where the system doesn't say."""
    match = re.search(r"^VmHWM:\s+(\d+) kB$", STATUS.read_text(encoding="ascii"), re.MULTILINE)
    if match is None:
        raise ValueError(f"{STATUS} has no VmHWM")
    return int(match[1]) << 10


def main() -> None:
    """In the measured process: print `PeakMemory` as JSON."""
    task = json.loads(sys.argv[1])
    with np.load(task["arrays"], allow_pickle=False) as arrays:
        values = [arrays[f"_{number}"] for number in range(len(task["feeds"]))]
    entries = zip(task["feeds"], values, strict=True)
    feeds = {name: value.astype(object) if value.dtype.kind == "U" else value for name, value in entries}
    model, threads, options = Path(task["model"]), task["threads"], task["options"]
    if task["runtime"] == OURS:
        libraries_bytes = _run_ours(model, feeds, threads, options)
    else:
        libraries_bytes = _run_peer(task["runtime"], model, feeds, threads, options["dims"])
    print(json.dumps(asdict(PeakMemory(resident_peak_bytes(), libraries_bytes))))


def _run_ours(model: Path, feeds: Mapping[str, Any], threads: int, options: Mapping[str, Any]) -> int:
    from ..session.session import InferenceSession

    libraries_bytes = resident_peak_bytes()
    with InferenceSession(model, threads=threads, **options) as session:
        session.run(None, feeds)
    return libraries_bytes


def _run_peer(name: str, model: Path, feeds: Mapping[str, Any], threads: int, dims: Mapping[str, int]) -> int:
    from ..foreign import import_silent
    from .runtimes import PEERS, module_of

    import_silent(module_of(name))
    libraries_bytes = resident_peak_bytes()
    PEERS[name](model, feeds, threads, dims).run()
    return libraries_bytes


if __name__ == "__main__":
    main()
