"""StandIn: a whole model in ONNX Runtime, in the place of kernels: until they are compiled, or where it is faster.

Light to import.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tunewright.graph.ir import TensorType

from ..text import ONNX_RUNTIME
from .image import Array, ImagePort, TensorValue
from .ort_session import OrtSession, is_installed, ort_errors

ELEMENTS = {
    "float": "float32", "double": "float64", "float16": "float16", "bool": "bool",
    **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip
"""ONNX Runtime's names of element types that it takes as arrays -> numpy's."""


class StandIn:
    """Runs a model on the processor, with its inputs and outputs as a session of kernels has them."""

    def __init__(self, session: OrtSession, inputs: Sequence[ImagePort], outputs: Sequence[ImagePort]) -> None:
        self._session = session
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)

    @staticmethod
    def of(model: Path | bytes, dims: Mapping[str, int], threads: int) -> StandIn | None:
        """A model with its open dimensions bound.

        None where ONNX Runtime is not there or refuses the model, and where it leaves an input's size open or a type is
        none of ELEMENTS: nothing is promised that the kernels might not keep. An output whose size it leaves open has
        no shape.
        """
        if not is_installed():
            return None
        try:
            session = OrtSession(model, threads, dims)
        except ort_errors():
            return None
        inputs, outputs = ([_port(argument) for argument in arguments] for arguments in session.arguments())
        known = [port for port in (*inputs, *outputs) if port is not None]
        if len(known) < len(inputs) + len(outputs) or any(port.kind.shape is None for port in known[: len(inputs)]):
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

    @property
    def has_open_outputs(self) -> bool:
        """Whether there are outputs whose size ONNX Runtime leaves open."""
        return any(port.kind.shape is None for port in self.outputs)

    def run(self, arrays: Sequence[Array]) -> list[Any] | None:
        """The outputs for values of the inputs, in order; None where ONNX Runtime fails on these."""
        labels = (port.label for port in self.inputs)
        results = self._session.run(dict(zip(labels, arrays, strict=True)))
        if results is None or any(
            port.kind.shape not in (None, result.shape) for result, port in zip(results, self.outputs, strict=True)
        ):
            return None
        return results


def _port(argument: Any) -> ImagePort | None:
    """An input or output, without a shape where its size is open; None where its type is none of ELEMENTS."""
    dtype = ELEMENTS.get(argument.type.removeprefix("tensor(").removesuffix(")"))
    if dtype is None:
        return None
    shape = tuple(argument.shape) if all(isinstance(extent, int) for extent in argument.shape) else None
    return ImagePort(argument.name, "", TensorValue(TensorType(dtype, shape), None))
