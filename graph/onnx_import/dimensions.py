"""The dimensions that a model leaves open, bound to numbers by the user."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import ValueInfoProto

from tunewright.graph.inference import MAX_ELEMENTS, TypeFault, check_shape, tensor_type
from tunewright.graph.ir import TensorType

from .errors import ModelError, shown


class Dimensions:
    """Bindings by name ("batch") or by place ("input:0", the axis counted from 0)."""

    def __init__(self, bindings: Mapping[str, int]) -> None:
        for key, value in bindings.items():
            if not 1 <= value <= MAX_ELEMENTS:
                raise ModelError(f"dimension {shown(key)}: {value} is not between 1 and {MAX_ELEMENTS:,}")
        self._bindings = bindings
        self._unused = set(bindings)
        self._open: set[str] = set()

    def bound(self, value: ValueInfoProto) -> TensorType:
        """The type of an input of the model. Raises ModelError if it is open, or of a kind that is not supported."""
        place = f"input {shown(value.name)}"
        if value.type.WhichOneof("value") != "tensor_type":
            raise ModelError(f"{place} is no tensor; only tensors can enter a model")
        tensor = value.type.tensor_type
        if not tensor.HasField("shape"):
            raise ModelError(f"{place} has no shape, not even a rank; export the model with one")
        extents = []
        for axis, dim in enumerate(tensor.shape.dim):
            if dim.HasField("dim_value") and dim.dim_value >= 0:
                extents.append(dim.dim_value)
            else:
                extents.append(self._number(value.name, axis, dim.dim_param))
        try:
            check_shape(extents)
            static = ValueInfoProto.FromString(value.SerializeToString())
            for dim, extent in zip(static.type.tensor_type.shape.dim, extents, strict=True):
                dim.dim_value = extent
            return tensor_type(static.type)
        except TypeFault as fault:
            raise ModelError(f"{place}: {fault}") from fault

    def _number(self, label: str, axis: int, name: str) -> int:
        by_place = f"{label}:{axis}"
        self._open |= {name or by_place}
        for key in (by_place, name):
            if key and key in self._bindings:
                self._unused.discard(key)
                return self._bindings[key]
        what = f"dimension {shown(name)}" if name else f"dimension {axis}"
        example = _quoted(name or by_place)
        raise ModelError(f"{what} of input {shown(label)} is open; bind it to a number, for instance --dim {example}")

    def check_used(self) -> None:
        """Raises ModelError if a binding names nothing in the model."""
        if self._unused:
            there = ", ".join(map(shown, sorted(self._open))) or "none"
            raise ModelError(f"no dimension {shown(min(self._unused))} is open in the model; open ones: {there}")


def _quoted(key: str) -> str:
    return f"{key}=1" if key.replace("_", "a").isalnum() and key.isascii() else shown(f"{key}=1")
