"""The dimensions that a model leaves open, bound to numbers by the user."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from onnx import TensorShapeProto, ValueInfoProto

from tunewright.graph.inference import MAX_ELEMENTS, TypeFault, check_shape, tensor_type
from tunewright.graph.ir import TensorType

from .errors import ModelError, shown


class Dimensions:
    """Bindings by name ("batch") or by place ("input:0", the axis counted from 0)."""

    def __init__(self, bindings: Mapping[str, int], inputs: Iterable[ValueInfoProto]) -> None:
        """Raises ModelError where a binding is no size, or names nothing that the inputs leave open."""
        for key, value in bindings.items():
            if not 1 <= value <= MAX_ELEMENTS:
                raise ModelError(f"dimension {shown(key)}: {value} is not between 1 and {MAX_ELEMENTS:,}")
        self._bindings = bindings
        found = [place for value in inputs for place in _open(value)]
        unknown = bindings.keys() - {key for place in found for key in place}
        if unknown:
            there = ", ".join(sorted({shown(name or place) for place, name in found})) or "none"
            raise ModelError(f"no dimension {shown(min(unknown))} is open in the model; open ones: {there}")

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
            if _is_bound(dim):
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
        for key in (by_place, name):
            if key and key in self._bindings:
                return self._bindings[key]
        what = f"dimension {shown(name)}" if name else f"dimension {axis}"
        key = name or by_place
        raise ModelError(
            f"{what} of input {shown(label)} is open; bind it to a number, for instance --dim {_quoted(key)}, "
            f"in Python dims={{{shown(key)}: 1}}"
        )


def _is_bound(dim: TensorShapeProto.Dimension) -> bool:
    return dim.HasField("dim_value") and dim.dim_value >= 0


def _open(value: ValueInfoProto) -> list[tuple[str, str]]:
    """The dimensions that an input leaves open, each by its place and its name, which may be empty."""
    dims = value.type.tensor_type.shape.dim
    return [(f"{value.name}:{axis}", dim.dim_param) for axis, dim in enumerate(dims) if not _is_bound(dim)]


def _quoted(key: str) -> str:
    return f"{key}=1" if key.replace("_", "a").isalnum() and key.isascii() else shown(f"{key}=1")
