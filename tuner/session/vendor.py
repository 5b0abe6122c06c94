"""A whole model in a vendor's runtime, in the place of our kernels."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..arguments import sizes_of
from ..lookup.verdict import VendorTime
from .execution import CompiledModel
from .image import Array, Image, ImagePort
from .ort_session import is_installed
from .stand_in import StandIn

ABSENT = "it is not installed"

RELEASE = re.compile(r"\d+")


class VendorFault(Exception):
    """A vendor's runtime can't run a model in the place of our kernels: why, on one line."""


@dataclass(frozen=True, slots=True)
class VendorModel:
    """A model as a vendor's runtime is given it: a file or bytes, and what its open dimensions are bound to."""

    model: Path | bytes
    dims: Mapping[str, int]

    def open(self, threads: int, image: Image, opened: StandIn | None = None) -> StandIn:
        """The model in the runtime on so many threads, which may be `opened` already.

        Raises VendorFault where its inputs and outputs there are not those of the image.
        """
        if not is_installed():
            raise VendorFault(ABSENT)
        if len(sizes_of(self.dims)) < len(self.dims):
            raise VendorFault("it does not take values for inputs that are bound")
        stand_in = opened or StandIn.of(self.model, self.dims, threads)
        if stand_in is None:
            raise VendorFault(self._refusal())
        ours, theirs = ([*map(_facts, ports)] for ports in ((*image.inputs, *image.outputs), stand_in.ports))
        if ours != theirs:
            raise VendorFault("the model has other inputs or outputs there")
        return stand_in

    def _refusal(self) -> str:
        """Why the runtime refused the model: a structure is no fault of its."""
        from tunewright.graph.onnx_import.outline import outline  # takes long to import, and is seldom needed

        is_whole = outline(self.model).is_whole
        return "it does not take the model" if is_whole else "it needs the model with its weights"

    @property
    def size_bytes(self) -> int:
        """The size of the file, about what its weights take."""
        return len(self.model) if isinstance(self.model, bytes) else self.model.stat().st_size


def _facts(port: ImagePort) -> tuple[Any, ...]:
    kind = replace(port.kind, shape=None) if port.sizes else port.kind  # a size that a run tells
    return port.label, kind, bool(port.keys)


class VendorRunner:
    """Runs a model in a vendor's runtime; inputs on which that fails go through the kernels."""

    def __init__(self, stand_in: StandIn, kernels: CompiledModel) -> None:
        self._stand_in, self._kernels = stand_in, kernels

    def run(self, arrays: Sequence[Array]) -> list[Any]:
        """The outputs for values of the inputs, in order."""
        results = self._stand_in.run(arrays)
        return self._kernels.run(arrays) if results is None else results

    def times_s(self, arrays: Sequence[Array], samples: int, repeats: int = 1) -> list[float]:
        """Seconds of a run of our kernels, by sample."""
        return self._kernels.times_s(arrays, samples, repeats)

    def close(self) -> None:
        """Unload our code."""
        self._kernels.close()


def taken_vendor(
    told: Mapping[str, Any], model: VendorModel, threads: int, image: Image, opened: StandIn | None = None
) -> tuple[StandIn | None, str]:
    """The model in the runtime that its last job took, by a `VendorTime` as plain data; None where that can't be.

    And the note on what runs the model. An older version of the runtime is not taken: nobody knows how fast that is.
    """
    time = VendorTime.read(told)
    assert time is not None
    try:
        stand_in = model.open(threads, image, opened)
        if _line(stand_in.version) < _line(time.version):
            raise VendorFault(f"only {stand_in.version} is installed")
    except VendorFault as fault:
        return None, replace(time, fault=str(fault)).note
    return stand_in, time.note


def _line(version: str) -> tuple[int, ...]:
    """The version line: 1.31 of 1.31.1."""
    return tuple(int(number) for number in RELEASE.findall(version)[:2])
