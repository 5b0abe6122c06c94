"""The peak rates of this machine: the highest that it was ever found to reach.

A rate can only be underestimated, by what else the machine did meanwhile. So what was measured once holds for the same
target, processor and code.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from tunewright.codegen.host import machine
from tunewright.codegen.private_folder import PrivateFolder
from tunewright.codegen.target import Target
from tunewright.workers.measure.rates import PeakRates, measure

from .files import code_digest
from .settings import settings

SOURCES = ("codegen", "workers")
"""The folders whose code decides what rates are measured."""

LIMIT_BYTES = 1 << 20
"""Bytes of all files: each has some hundred."""


def machine_rates(target: Target) -> PeakRates:
    """The rates of this machine, on which code for the target can run.

    Measured once in a process, or until that was in a good moment. Waits and raises as `measure` does.
    """
    key = settings().rates, target
    known = _known.get(key)
    if known is None or known.noise:
        _known[key] = known = _highest(target, measure(target, settings().objects).highest(known))
    return known


_known: dict[tuple[Path, Target], PeakRates] = {}
"""By the folder in which they are kept, too: where another one can't be used, that shows."""


def _highest(target: Target, measured: PeakRates) -> PeakRates:
    """The highest of what was measured now and of what is kept, which is kept then."""
    folder = settings().rates
    path = _path(folder, target)
    if path is None:
        return measured
    rates = measured.highest(_read(path))
    with suppress(OSError):  # nothing is lost but what others measured
        files = PrivateFolder(folder)
        files.tidy(LIMIT_BYTES)
        files.write(path, [json.dumps(asdict(rates)).encode()])
    return rates


def _path(folder: Path, target: Target) -> Path | None:
    """The file of what was measured; None where the code can't be read."""
    code = code_digest(SOURCES)
    if code is None:
        return None
    key = json.dumps([code, target.key, machine()["processor"]])
    return folder / f"{hashlib.sha256(key.encode()).hexdigest()}.json"


def _read(path: Path) -> PeakRates | None:
    try:
        data = json.loads(path.read_bytes())
        return PeakRates(float(data["peak_flops_s"]), float(data["bandwidth_bytes_s"]), str(data["noise"]))
    except (OSError, ValueError, LookupError, TypeError):
        return None
