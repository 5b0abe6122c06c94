"""What a contributed op is (`contrib_op`), and one call of it while ONNX's ops are put in its place (`ContribCall`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import NodeProto, helper, numpy_helper
from onnx.defs import OpSchema, get_schema

from tunewright.graph.ir import Array, Node, TensorType

from ..evaluation.onnx_form import NORMAL_VERSION, element_type

DOMAIN = "com.microsoft"

CLASSIC = "ai.onnx.ml"
"""ONNX's domain of classic machine learning."""

CLASSIC_OPSET = 5
"""Its newest version."""

OPSET = 24
"""The version of ONNX's ops that stand in for a call."""

FLOATS = "float float16 bfloat16 double"
BYTES = "uint8 int8"


class Unsupported(Exception):
    """A call that can't be written in ONNX's ops; says what it has that is in the way."""


Writer = Callable[["ContribCall"], str | Sequence[str]]
"""What puts ONNX's ops in the place of a call, and returns the names of its results."""


@dataclass(frozen=True, slots=True)
class ContribOp:
    """An op: its signature in ONNX's form, and what writes a call in ONNX's ops and returns the results' names.

    A result that is not computed is the empty string.
    """

    schema: OpSchema
    write: Writer


OPS: dict[tuple[str, str], ContribOp] = {}
"""Domain and name -> the op."""

STANDARD: dict[tuple[str, str], Writer] = {}
"""Domain and name of ONNX's own op -> what writes it in others, for the calls that its function covers."""


def standard_op(name: str, domain: str = "") -> Callable[[Writer], Writer]:
    """Declare the op of ONNX that a function writes."""

    def declare(write: Writer) -> Writer:
        STANDARD[domain, name] = write
        return write

    return declare


def contrib_op(
    signature: str,
    types: Mapping[str, str] | None = None,
    attributes: Mapping[str, object] | None = None,
    domain: str = DOMAIN,
) -> Callable[[Writer], Writer]:
    """Declare the op that a function writes.

    `signature`: as in `Gemm(A:T, B:T, C?:T, rest*:T) -> Y:T`; `?` marks what may be left out, `*` any number.
    `types` has the element types that each of its type parameters may stand for. `attributes`: a type where it must be
    given, a list of a type or a type or None where it may be left out, else the default.
    """

    def declare(write: Writer) -> Writer:
        # Not registered with onnx: its evaluator can't be imported where two domains have an op of one name.
        schema = _schema(signature, types or {}, attributes or {}, domain)
        OPS[domain, schema.name] = ContribOp(schema, write)
        return write

    return declare


def _schema(signature: str, types: Mapping[str, str], attributes: Mapping[str, object], domain: str) -> OpSchema:
    name, inputs, outputs = re.fullmatch(r"(\w+)\((.*)\) -> (.*)", signature).groups()  # type: ignore[union-attr]
    return OpSchema(
        name,
        domain,
        1,
        inputs=[_parameter(item, types) for item in inputs.split(", ")],
        outputs=[_parameter(item, types) for item in outputs.split(", ")],
        type_constraints=[
            (parameter, [f"tensor({kind})" for kind in kinds.split()], "") for parameter, kinds in types.items()
        ],
        attributes=[_attribute(attribute, kind) for attribute, kind in attributes.items()],
    )


def _parameter(item: str, types: Mapping[str, str]) -> OpSchema.FormalParameter:
    name, kind = item.split(":")
    options = OpSchema.FormalParameterOption
    option = {"?": options.Optional, "*": options.Variadic}.get(name[-1], options.Single)
    type_name = kind if kind in types else f"tensor({kind})"
    return OpSchema.FormalParameter(name.rstrip("?*"), type_name, param_option=option, is_homogeneous=name[-1] != "*")


_KINDS: Mapping[Any, OpSchema.AttrType] = {
    int: OpSchema.AttrType.INT,
    float: OpSchema.AttrType.FLOAT,
    str: OpSchema.AttrType.STRING,
    int | None: OpSchema.AttrType.INT,
    float | None: OpSchema.AttrType.FLOAT,
    list[int]: OpSchema.AttrType.INTS,
    list[float]: OpSchema.AttrType.FLOATS,
    list[str]: OpSchema.AttrType.STRINGS,
}


def _attribute(name: str, kind: object) -> OpSchema.Attribute:
    if kind in _KINDS:
        return OpSchema.Attribute(name, _KINDS[kind], required=isinstance(kind, type))
    return OpSchema.Attribute(name, helper.make_attribute(name, kind))


def _op_of(node: Node) -> ContribOp:
    found = OPS.get((node.domain, node.op))
    return found or ContribOp(get_schema(node.op, node.version, node.domain), STANDARD[node.domain, node.op])


class ContribCall:
    """One call of a contributed op, whose operands are called `i0, i1, ...`.

    `add` puts a node into the model at once, `put` one that ONNX does not have; `kind_of` and `value_of` tell the type
    of what it makes, and its value if that is known, by the names in here.
    """

    def __init__(
        self,
        node: Node,
        add: Callable[[NodeProto], None],
        put: Callable[[Node, TensorType], None],
        kind_of: Callable[[str], TensorType],
        value_of: Callable[[str], Array | None],
    ) -> None:
        self._op = _op_of(node)
        schema = self._op.schema
        names = [f"i{k}" if name else "" for k, name in enumerate(node.inputs)]
        formal = [parameter.name for parameter in schema.inputs]
        self._operands = dict(zip(formal, names, strict=False))
        self.rest = names[len(formal) - 1 :]
        """The operands of a variadic last parameter."""
        self._wanted = {item.name for item, name in zip(schema.outputs, node.outputs, strict=False) if name}
        self._node = node
        self._add = add
        self._put = put
        self._kind_of = kind_of
        self._value_of = value_of
        self._count = 0

    def write(self) -> Sequence[str]:
        """Emit what computes the results; returns their names, "" for what is not computed. Raises Unsupported."""
        results = self._op.write(self)
        return [results] if isinstance(results, str) else results

    def operand(self, parameter: str) -> str:
        """The operand of a formal parameter; the empty string if it is left out."""
        return self._operands.get(parameter, "")

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute as it is given, else as the schema has it, else `default`."""
        return self._node.attrs.get(name, default)

    @property
    def version(self) -> int:
        """The opset version that the call is of."""
        return self._node.version

    def wants(self, result: str) -> bool:
        """Whether the model uses the result of this formal parameter."""
        return result in self._wanted

    def kind(self, name: str) -> TensorType:
        """The type of an operand, or of what an emitted node makes."""
        return self._kind_of(name)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor. Raises Unsupported where only a run tells."""
        shape = self.kind(name).shape
        if shape is None:
            raise Unsupported("an operand whose shape only a run tells")
        return shape

    def count(self, name: str, default: int | None = None) -> int:
        """An attribute that counts something. Raises Unsupported unless it is positive."""
        value = self.attr(name, default)
        if value is None or value < 1:
            raise Unsupported(f"{name} of {value}")
        return int(value)

    def number(self, parameter: str) -> int:
        """The value of an operand of one integer. Raises Unsupported where only a run tells."""
        numbers = self.numbers(parameter)
        if len(numbers) != 1:
            raise Unsupported(f"a {parameter} of {len(numbers)} numbers")
        return numbers[0]

    def numbers(self, parameter: str) -> list[int]:
        """The values of an operand of integers. Raises Unsupported where only a run tells."""
        value = self._value_of(self.operand(parameter))
        if value is None:
            raise Unsupported(f"a {parameter} that only a run tells")
        return [int(number) for number in value.reshape(-1)]

    def emit(self, op: str, *inputs: str, **attrs: Any) -> str:
        """Add a node of ONNX of one result; returns its name. An attribute that is None is left out."""
        return self.emit_all(op, inputs, 1, **attrs)[0]

    def emit_classic(self, op: str, *inputs: str, **attrs: Any) -> str:
        """Add a node of ONNX's classic machine learning of one result; returns its name."""
        output = self._new_name()
        self._add(helper.make_node(op, inputs, [output], domain=CLASSIC, **attrs))
        return output

    def emit_own(self, op: str, inputs: Sequence[str], kind: TensorType, **attrs: Any) -> str:
        """Add a node of an op that only this package has, whose result is of this type; returns its name."""
        output = self._new_name()
        self._put(Node(op, tuple(inputs), (output,), attrs, version=NORMAL_VERSION), kind)
        return output

    def emit_all(self, op: str, inputs: Sequence[str], count: int, **attrs: Any) -> list[str]:
        """Add a node of `count` results; returns their names."""
        outputs = [self._new_name() for _ in range(count)]
        given = {name: value for name, value in attrs.items() if value is not None}
        self._add(helper.make_node(op, inputs, outputs, **given))
        return outputs

    def constant(self, value: Any, dtype: str) -> str:
        """A tensor of known value."""
        array: Array = np.asarray(value, helper.tensor_dtype_to_np_dtype(element_type(dtype)))
        return self.emit("Constant", value=numpy_helper.from_array(array))

    def like(self, name: str, value: float) -> str:
        """A constant scalar of the element type of `name`."""
        return self.constant(value, self.kind(name).dtype)

    def cast(self, name: str, dtype: str) -> str:
        """The tensor in another element type."""
        return name if self.kind(name).dtype == dtype else self.emit("Cast", name, to=element_type(dtype))

    def reshape(self, name: str, *extents: int) -> str:
        """The tensor in another shape; as in ONNX, 0 is the extent that there was, and -1 what is left."""
        return self.emit("Reshape", name, self.constant(extents, "int64"))

    def slice(self, name: str, axis: int, start: int, end: int) -> str:
        """The part of a tensor from `start` to before `end` along an axis."""
        bounds = (self.constant([number], "int64") for number in (start, end, axis))
        return self.emit("Slice", name, *bounds)

    def unsqueeze(self, name: str, *axes: int) -> str:
        """The tensor with new axes of extent 1."""
        return self.emit("Unsqueeze", name, self.constant(axes, "int64"))

    def sum(self, *terms: str) -> str:
        """The sum of those terms that there are. At least one is."""
        first, *others = filter(None, terms)
        for term in others:
            first = self.emit("Add", first, term)
        return first

    def _new_name(self) -> str:
        self._count += 1
        return f"t{self._count}"
