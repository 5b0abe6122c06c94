"""The dimensions that a model leaves open, bound to numbers by the user."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from onnx import TensorShapeProto, ValueInfoProto

from tunewright.graph.inference import MAX_ELEMENTS, TypeFault, check_shape, tensor_type
from tunewright.graph.ir import TensorType

from .errors import ModelError, shown

MAX_NAMED = 50
"""Most dimensions that a message names."""


class _Open(NamedTuple):
    """A dimension that an input leaves open."""

    label: str  # of the input
    axis: int
    name: str  # may be empty

    @property
    def place(self) -> str:
        """What binds this one alone."""
        return f"{self.label}:{self.axis}"

    @property
    def key(self) -> str:
        """What binds it and all that go by the same name."""
        return self.name or self.place


class Dimensions:
    """Bindings by name ("batch") or by place ("input:0", the axis counted from 0)."""

    def __init__(self, bindings: Mapping[str, int], inputs: Iterable[ValueInfoProto]) -> None:
        """Raises ModelError where a binding is no size or names nothing that is open, or something stays open."""
        for key, value in bindings.items():
            if not 0 <= value <= MAX_ELEMENTS:
                raise ModelError(f"dimension {shown(key)}: {value} is not between 0 and {MAX_ELEMENTS:,}")
        self._bindings = bindings
        inputs = list(inputs)
        for value in inputs:  # before bindings that mean one of its dimensions are said to mean nothing
            _check_has_rank(value)
        found = [dimension for value in inputs for dimension in _open(value)]
        unknown = bindings.keys() - {key for one in found for key in (one.place, one.name)}
        if unknown:
            there = _listed(sorted({shown(one.key) for one in found})) or "none"
            raise ModelError(f"no dimension {shown(min(unknown))} is open in the model; open ones: {there}")
        self._check_agreement(found)
        left = [one for one in found if self._number(one) is None]
        if left:
            raise ModelError(_how_to_bind(left))

    def _check_agreement(self, found: Iterable[_Open]) -> None:
        """Raises ModelError where dimensions of one name, which are one dimension, are bound to different numbers."""
        first: dict[str, tuple[str, int]] = {}  # name -> the binding that was met first, and its number
        for one in found:
            for key in (one.name, one.place):
                number = self._bindings.get(key)
                if not one.name or number is None:
                    continue
                other, known = first.setdefault(one.name, (key, number))
                if known != number:
                    raise ModelError(
                        f"dimension {shown(one.name)} is bound to {known} by {shown(other)} and to {number} by "
                        f"{shown(key)}; give it one number"
                    )

    def bound(self, value: ValueInfoProto) -> TensorType:
        """The type of an input of the model. Raises ModelError if it is beyond the limits."""
        static = ValueInfoProto.FromString(value.SerializeToString())
        dims = static.type.tensor_type.shape.dim
        for one in _open(value):
            dims[one.axis].dim_value = self._number(one) or 0
        try:
            check_shape([dim.dim_value for dim in dims])
            return tensor_type(static.type)
        except TypeFault as fault:
            raise ModelError(f"input {shown(value.name)}: {fault}") from fault

    def _number(self, dimension: _Open) -> int | None:
        """What it is bound to: by its place before its name."""
        return self._bindings.get(dimension.place, self._bindings.get(dimension.name) if dimension.name else None)


def _check_has_rank(value: ValueInfoProto) -> None:
    place = f"input {shown(value.name)}"
    if value.type.WhichOneof("value") != "tensor_type":
        raise ModelError(f"{place} is no tensor; only tensors can enter a model")
    if not value.type.tensor_type.HasField("shape"):
        raise ModelError(f"{place} has no shape, not even a rank; export the model with one")


def _open(value: ValueInfoProto) -> list[_Open]:
    """The dimensions that an input leaves open."""
    dims = value.type.tensor_type.shape.dim
    return [_Open(value.name, axis, dim.dim_param) for axis, dim in enumerate(dims) if not _is_bound(dim)]


def _is_bound(dim: TensorShapeProto.Dimension) -> bool:
    return dim.HasField("dim_value") and dim.dim_value >= 0


def _how_to_bind(dimensions: Iterable[_Open]) -> str:
    """What is open, and the whole command that binds it."""
    alike: dict[str, list[_Open]] = {}
    for one in dimensions:
        alike.setdefault(one.key, []).append(one)
    what = [_described(ones) for ones in alike.values()]
    options = [f"--dim {_quoted(key)}" for key in alike]
    items = [f"{shown(key)}: 1" for key in alike]
    example = f"for instance {_listed(options, ' ')}, in Python dims={{{_listed(items)}}}"
    if len(alike) == 1:
        return f"dimension {what[0]} is open; bind it to a number, {example}"
    return f"{len(alike)} dimensions are open: {_listed(what)}; bind each to a number, {example}"


def _described(alike: Collection[_Open]) -> str:
    """A dimension, and where it is: the first of several places."""
    first, *others = alike
    where = f"{shown(first.name) if first.name else first.axis} of input {shown(first.label)}"
    return f"{where} (and at {len(others)} more place{'s' * (len(others) > 1)})" if others else where


def _listed(items: Collection[str], separator: str = ", ") -> str:
    kept = list(items)[:MAX_NAMED]
    more = len(items) - len(kept)
    return separator.join(kept) + (f"{separator}and {more} more" if more else "")


def _quoted(key: str) -> str:
    return f"{key}=1" if key.replace("_", "a").isalnum() and key.isascii() else shown(f"{key}=1")
