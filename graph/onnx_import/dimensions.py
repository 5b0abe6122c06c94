"""Open dimensions of a model, and the user's bindings of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from onnx import ValueInfoProto

from tunewright.graph.ir import TensorType

from ..evaluation.onnx_form import MAX_ELEMENTS, TypeFault, check_shape, tensor_type
from .protobuf import ModelError, OpenDimensionsError, quote

MAX_NAMED = 50
"""Most dimensions that a message names."""


class OpenDimension(NamedTuple):
    """A dimension that an input leaves open."""

    label: str  # of the input
    axis: int
    name: str  # may be empty

    @property
    def place(self) -> str:
        """The key that binds this dimension alone."""
        return f"{self.label}:{self.axis}"

    @property
    def key(self) -> str:
        """The key that binds this dimension and all of the same name."""
        return self.name or self.place

    def number(self, bindings: Mapping[str, int]) -> int | None:
        """The number that it is bound to, by place before name."""
        return bindings.get(self.place, bindings.get(self.name) if self.name else None)


def unbound_dimensions(bindings: Mapping[str, int], inputs: Iterable[ValueInfoProto]) -> tuple[OpenDimension, ...]:
    """The dimensions of the inputs that nothing binds.

    Raises ModelError for an input without a rank, where a binding is no size or names nothing that is open, and where
    one dimension is bound twice.
    """
    for key, value in bindings.items():
        if not 0 <= value <= MAX_ELEMENTS:
            raise ModelError(f"dimension {quote(key)}: {value} is not between 0 and {MAX_ELEMENTS:,}")
    inputs = list(inputs)
    for value in inputs:  # before bindings that mean one of its dimensions are said to mean nothing
        _check_has_rank(value)
    dimensions = [dimension for value in inputs for dimension in open_dimensions(value)]
    unknown = bindings.keys() - {key for dimension in dimensions for key in (dimension.place, dimension.name)}
    if unknown:
        names = join_some(sorted({quote(dimension.key) for dimension in dimensions})) or "none"
        raise ModelError(f"no dimension {quote(min(unknown))} is open in the model; open ones: {names}")
    _check_agreement(bindings, dimensions)
    return tuple(dimension for dimension in dimensions if dimension.number(bindings) is None)


def _check_agreement(bindings: Mapping[str, int], dimensions: Iterable[OpenDimension]) -> None:
    """Raises ModelError where dimensions of one name, which are one dimension, are bound to different numbers."""
    first: dict[str, tuple[str, int]] = {}  # name -> the binding that was met first, and its number
    for dimension in dimensions:
        for key in (dimension.name, dimension.place):
            number = bindings.get(key)
            if not dimension.name or number is None:
                continue
            other, known = first.setdefault(dimension.name, (key, number))
            if known != number:
                raise ModelError(
                    f"dimension {quote(dimension.name)} is bound to {known} by {quote(other)} and to {number} by "
                    f"{quote(key)}; give it one number"
                )


class Dimensions:
    """Bindings by name ("batch") or by place ("input:0", the axis counted from 0)."""

    def __init__(self, bindings: Mapping[str, int], inputs: Iterable[ValueInfoProto]) -> None:
        """Raises ModelError where a binding is no size or names nothing that is open; OpenDimensionsError where
        something stays open.
        """
        self._bindings = bindings
        unbound = unbound_dimensions(bindings, inputs)
        if unbound:
            raise OpenDimensionsError(_how_to_bind(unbound))

    def bind(self, value: ValueInfoProto) -> TensorType:
        """The type of an input of the model. Raises ModelError if it is beyond the limits."""
        static = ValueInfoProto.FromString(value.SerializeToString())
        dims = static.type.tensor_type.shape.dim
        for dimension in open_dimensions(value):
            dims[dimension.axis].dim_value = dimension.number(self._bindings) or 0
        try:
            check_shape([dim.dim_value for dim in dims])
            return tensor_type(static.type)
        except TypeFault as fault:
            raise ModelError(f"input {quote(value.name)}: {fault}") from fault


def _check_has_rank(value: ValueInfoProto) -> None:
    place = f"input {quote(value.name)}"
    if value.type.WhichOneof("value") != "tensor_type":
        raise ModelError(
            f"{place} is no tensor; only tensors, and maps for a DictVectorizer or CastMap, can enter a model"
        )
    if not value.type.tensor_type.HasField("shape"):
        raise ModelError(f"{place} has no shape, not even a rank; export the model with one")


def open_dimensions(value: ValueInfoProto) -> list[OpenDimension]:
    """The dimensions that an input leaves open."""
    dims = value.type.tensor_type.shape.dim
    return [
        OpenDimension(value.name, axis, dim.dim_param) for axis, dim in enumerate(dims) if not dim.HasField("dim_value")
    ]


def _how_to_bind(dimensions: Iterable[OpenDimension]) -> str:
    """A message that names the open dimensions and an example of a command that binds them."""
    groups: dict[str, list[OpenDimension]] = {}
    for dimension in dimensions:
        groups.setdefault(dimension.key, []).append(dimension)
    descriptions = [_describe(group) for group in groups.values()]
    plain = {key: key.replace("_", "a").isalnum() and key.isascii() for key in groups}
    options = [f"--dim {key}=1" if is_plain else f"--dim {quote(f'{key}=1')}" for key, is_plain in plain.items()]
    items = [f"{quote(key)}: 1" for key in groups]
    python = f'in Python dims={{{join_some(items)}}}, in a request "dims" likewise'
    example = f"for instance {join_some(options, ' ')}, {python}"
    if len(groups) == 1:
        return f"dimension {descriptions[0]} is open; bind it to a number, {example}"
    return f"{len(groups)} dimensions are open: {join_some(descriptions)}; bind each to a number, {example}"


def _describe(dimensions: Collection[OpenDimension]) -> str:
    """A dimension, and where it is: the first of several places."""
    first, *others = dimensions
    place = f"{quote(first.name) if first.name else first.axis} of input {quote(first.label)}"
    return f"{place} (and at {len(others)} more place{'s' * (len(others) > 1)})" if others else place


def join_some(items: Collection[str], separator: str = ", ") -> str:
    """The first MAX_NAMED items as one text, and how many more there are."""
    head = list(items)[:MAX_NAMED]
    more = len(items) - len(head)
    return separator.join(head) + (f"{separator}and {more} more" if more else "")
