"""What ONNX declares an op to take: how many operands, of which element types, and which attributes.

ONNX's own check asks for the same, in words of its own implementation.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import onnx
from onnx import AttributeProto, NodeProto

from tunewright.graph.ir import TensorType

from .errors import NeverFits, shown

_KINDS = {
    "FLOAT": "a float", "FLOATS": "floats", "INT": "an integer", "INTS": "integers", "STRING": "a text",
    "STRINGS": "texts", "TENSOR": "a tensor", "TENSORS": "tensors", "GRAPH": "a graph", "GRAPHS": "graphs",
    "SPARSE_TENSOR": "a sparse tensor", "SPARSE_TENSORS": "sparse tensors", "TYPE_PROTO": "a type",
    "TYPE_PROTOS": "types", "UNDEFINED": "nothing",
}  # fmt: skip
"""What attributes hold, by ONNX's names of their kinds."""

_ELEMENTS = {"float": "float32", "double": "float64"}
"""Element types that ONNX calls something else than numpy does."""


@dataclass(frozen=True, slots=True)
class Operand:
    """One that an op declares: what goes by the same `letter` has the same element type."""

    name: str
    letter: str
    elements: Collection[str]  # empty: any
    is_needed: bool
    is_repeated: bool
    is_alike: bool  # whether all that a repeated one stands for have one type


@dataclass(frozen=True, slots=True)
class Signature:
    """An op as of one version."""

    name: str  # with the opset
    inputs: Sequence[Operand]
    counts: tuple[tuple[int, int], tuple[int, int]]  # least and most inputs and outputs
    attributes: Mapping[str, tuple[int, bool]]  # name -> kind, and whether it must be there


@cache
def signature(op: str, version: int, domain: str) -> Signature:
    """The signature of an op that ONNX has."""
    schema: Any = onnx.defs.get_schema(op, version, domain)
    allowed = {item.type_param_str: _elements(item.allowed_type_strs) for item in schema.type_constraints}
    options = onnx.defs.OpSchema.FormalParameterOption
    inputs = [
        Operand(
            item.name,
            item.type_str,
            allowed.get(item.type_str, _elements([item.type_str])),
            item.option == options.Single,
            item.option == options.Variadic,
            item.is_homogeneous,
        )
        for item in schema.inputs
    ]
    counts = (schema.min_input, schema.max_input), (schema.min_output, schema.max_output)
    attributes = {name: (item.type.value, item.required) for name, item in schema.attributes.items()}
    return Signature(f"{op} of opset {version}", inputs, counts, attributes)


def _elements(types: Collection[str]) -> frozenset[str]:
    """The element types of what must be a tensor; nothing where it may be anything else."""
    if not all(kind.startswith("tensor(") for kind in types):
        return frozenset()
    names = (kind.removeprefix("tensor(").removesuffix(")") for kind in types)
    return frozenset(_ELEMENTS.get(name, name) for name in names)


def check_call(proto: NodeProto, called: Signature) -> None:
    """Raises NeverFits for operands and attributes that the op does not have, or lacks."""
    for what, given, (least, most) in zip(("input", "output"), (proto.input, proto.output), called.counts, strict=True):
        if not least <= len(given) <= most:
            wanted = str(least) if least == most else f"at least {least}" if most > 1 << 20 else f"{least} to {most}"
            number = f"{len(given)} {what}{'s' * (len(given) != 1)}"
            raise NeverFits(f"{number} where {called.name} has {wanted}")
    for position, (name, operand) in enumerate(zip(proto.input, called.inputs, strict=False)):
        if operand.is_needed and not name:
            raise NeverFits(f"input {position} ({operand.name}) is left out; {called.name} needs it")
    _check_attributes(proto.attribute, called)


def _check_attributes(given: Collection[AttributeProto], called: Signature) -> None:
    seen = set()
    for attribute in given:
        name = attribute.name
        if name in seen:
            raise NeverFits(f"attribute {shown(name)} is given twice")
        seen.add(name)
        if name not in called.attributes:
            known = ", ".join(sorted(called.attributes)) or "none"
            raise NeverFits(f"{called.name} has no attribute {shown(name)}; its attributes: {known}")
        kind = called.attributes[name][0]
        if attribute.type != kind:
            found, wanted = (_KINDS[AttributeProto.AttributeType.Name(one)] for one in (attribute.type, kind))
            raise NeverFits(f"attribute {shown(name)} is {found}; {called.name} has {wanted} there")
    missing = [name for name, (_, is_needed) in called.attributes.items() if is_needed and name not in seen]
    if missing:
        raise NeverFits(f"attribute {missing[0]} is missing; {called.name} needs it")


def check_elements(kinds: Sequence[TensorType | None], called: Signature) -> None:
    """Raises NeverFits for operands of element types that the op does not take, or that differ and must not."""
    found: dict[str, tuple[str, str]] = {}  # letter -> an operand, and its element type
    if not called.inputs:
        return
    last = called.inputs[-1]
    for position, kind in enumerate(kinds):
        operand = called.inputs[position] if position < len(called.inputs) else last
        if kind is None or kind.dtype == "object" or not operand.elements:
            continue
        name = f"{position} ({operand.name})"
        if kind.dtype not in operand.elements:
            wanted = ", ".join(sorted(operand.elements))
            raise NeverFits(f"input {name} holds {kind.dtype}; {called.name} takes {wanted} there")
        if operand.is_repeated and not operand.is_alike:
            continue
        other, dtype = found.setdefault(operand.letter, (name, kind.dtype))
        if dtype != kind.dtype:
            raise NeverFits(f"input {other} holds {dtype} and input {name} {kind.dtype}; both must be of one type")
