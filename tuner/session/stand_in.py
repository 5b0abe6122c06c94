"""StandIn: a whole model in ONNX Runtime, in the place of kernels: until they are compiled, or where it is faster.

Light to import.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tunewright.graph.ir import TensorType

from ..text import ONNX_RUNTIME
from .evaluation import VendorSession, is_installed, vendor_errors
from .image import Array, ImagePort, TensorValue

ELEMENTS = {
    "float": "float32", "double": "float64", "float16": "float16", "bool": "bool",
    **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip
"""ONNX Runtime's names of element types that it takes as arrays -> numpy's."""


class StandIn:
    """Runs a model on the processor, with its inputs and outputs as a session of kernels has them."""

    def __init__(self, session: VendorSession, inputs: Sequence[ImagePort], outputs: Sequence[ImagePort]) -> None:
        self._session = session
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)

    @staticmethod
    def of(model: Path | bytes, dims: Mapping[str, int], threads: int) -> StandIn | None:
        """A model with its open dimensions bound.

        None where ONNX Runtime is not there or refuses the model, and where it leaves a size open or a type is none of
        ELEMENTS: nothing is promised that the kernels might not keep.
        """
        if not is_installed():
            return None
        try:
            session = VendorSession(model, threads, dims)
        except vendor_errors():
            return None
        inputs, outputs = ([_port(argument) for argument in arguments] for arguments in session.arguments())
        known = [port for port in (*inputs, *outputs) if port is not None]
        if len(known) < len(inputs) + len(outputs):
            return None
        return StandIn(session, known[: len(inputs)], known[len(inputs) :])

    @property
    def version(self) -> str:
        """The version of ONNX Runtime."""
        return self._session.version

    @property
    def name(self) -> str:
        """The runtime with its version, for people."""
        return f"{ONNX_RUNTIME} {self.version}"

    @property
    def ports(self) -> tuple[ImagePort, ...]:
        """The inputs, then the outputs."""
        return (*self.inputs, *self.outputs)

    def run(self, arrays: Sequence[Array]) -> list[Any] | None:
        """The outputs for values of the inputs, in order; None where ONNX Runtime fails on these."""
        labels = (port.label for port in self.inputs)
        results = self._session.run(dict(zip(labels, arrays, strict=True)))
        if results is None or any(
            result.shape != port.value.kind.shape for result, port in zip(results, self.outputs, strict=True)
        ):
            return None
        return results


def _port(argument: Any) -> ImagePort | None:
    """An input or output; None where its size is open, or its type is none of ELEMENTS."""
    dtype = ELEMENTS.get(argument.type.removeprefix("tensor(").removesuffix(")"))
    if dtype is None or not all(isinstance(extent, int) for extent in argument.shape):
        return None
    return ImagePort(argument.name, "", TensorValue(TensorType(dtype, tuple(argument.shape)), None))
