"""A model while it is drawn: its tensors, and nodes over them that are valid by construction.

An op is drawn by a function that picks or makes fitting operands and adds nodes. Types come from ONNX's own
inference, node by node, so that the next node knows what it stands on. Nothing of Tunewright takes part: what a seed
stands for does not change with the code that is tried.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, TensorProto, TypeProto, helper, numpy_helper

from tunewright.graph.ir import Array

from .case import op_name
from .values import ANY, ValueDomain, dtype_of, ordinary_values, special_values

OPSETS = range(9, 25)
MAX_ELEMENTS = 6000
"""The most elements of a tensor: small models are quick, and show all faults."""

MAX_RANK = 6
MAX_KNOWN = 64
"""The most elements of a constant whose values inference gets."""

PREFIXES = ("v", "a b/", "é:0.", "<b>'\"", "%s;\\", "node")
"""Prefixes of names: hostile ones, and those that look like ours."""

LEARNED, CONTRIBUTED = "ai.onnx.ml", "com.microsoft"
"""Domains of classic machine learning, and of ONNX Runtime's own ops, of which ONNX has no schemas."""

LEARNED_VERSIONS = (3, 5)

Shape = tuple[int, ...]


class InvalidNode(Exception):
    """A drawn node is not valid; the step is undone."""


DraftResult = tuple[str, Shape]
"""The element type and shape of an output."""


@dataclass(frozen=True, slots=True)
class DraftTensor:
    """A tensor of the model; its shape is None where only running shows it. `kind` is ONNX's type."""

    name: str
    dtype: str  # numpy's name; "" if it is no tensor
    shape: Shape | None
    kind: TypeProto
    domain: ValueDomain = ANY

    @property
    def rank(self) -> int:
        """Number of dimensions; -1 where the shape is not known."""
        return -1 if self.shape is None else len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape or ())


@dataclass
class GraphContent:
    """The drawn content of one graph."""

    tensors: list[DraftTensor] = field(default_factory=list)
    nodes: list[NodeProto] = field(default_factory=list)
    inputs: dict[str, DraftTensor] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    overridable: set[str] = field(default_factory=set)  # constants that are inputs too
    functions: list[FunctionProto] = field(default_factory=list)

    def copy(self) -> GraphContent:
        """A shallow copy, to restore the content."""
        return GraphContent(
            list(self.tensors), list(self.nodes), dict(self.inputs), dict(self.constants), set(self.overridable),
            list(self.functions),
        )  # fmt: skip


class ModelDraft:
    """A model in one opset that is being drawn."""

    def __init__(self, rng: random.Random, opset: int, main: str = "float32") -> None:
        self.rng, self.opset, self.main = rng, opset, main
        self.learned = rng.choice(LEARNED_VERSIONS)
        self.array_rng = np.random.default_rng(rng.getrandbits(32))
        self.content = GraphContent()
        self.op_names: list[str] = []  # ops, in the order in which they were added, those in bodies too
        self._count = 0
        self._prefix = rng.choice(PREFIXES) if rng.random() < 0.1 else ""
        self._body_depth = 0  # bodies have neither inputs nor initialisers of the model

    # Chance

    def chance(self, share: float) -> bool:
        """True with that probability."""
        return self.rng.random() < share

    def among(self, *values: Any) -> Any:
        """One of the values."""
        return self.rng.choice(values)

    def between(self, low: int, high: int) -> int:
        """A whole number in low .. high."""
        return self.rng.randint(low, high)

    def some_shape(self, rank: int | None = None, low: int = 0, high: int = 4) -> Shape:
        """A random shape: extents are odd, prime, one, rarely zero."""
        if rank is None:
            rank = self.rng.choice([n for n in (0, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 5) if low <= n <= high])
        limit = 1 + int(MAX_ELEMENTS ** (1 / max(rank, 1)))
        extents = [e for e in (1, 1, 2, 2, 3, 3, 4, 5, 5, 6, 7, 7, 8, 9, 11, 13, 16, 17, 19, 31, 33, 37) if e <= limit]
        shape = [self.rng.choice(extents) for _ in range(rank)]
        if rank and self.chance(0.02):
            shape[self.rng.randrange(rank)] = 0
        while prod(shape) > MAX_ELEMENTS // 2:
            shape[shape.index(max(shape))] //= 2
        return tuple(shape)

    def number(self, *usual: float) -> float:
        """A float32 for an attribute or constant: a usual number, one near it, or any."""
        if usual and self.chance(0.6):
            value = self.rng.choice(usual)
            if self.chance(0.4):
                value *= 1 + self.rng.choice([1e-7, -1e-7, 1e-5, 1e-4, 1e-3, -1e-3, -0.1])
        else:
            value = self.rng.choice([0.0, 1.0, -1.0, 0.5, 3.0, 41.0, 1 / 3, 0.1, 1e-5, 6.0, 0.044715, -2.5, 1e3, 7.0])
        return float(np.float32(value))

    # Tensors

    def name(self, letter: str) -> str:
        """A new name."""
        self._count += 1
        return f"{self._prefix}{letter}{self._count}"

    def dtypes(self, op: str, position: int = 0, domain: str = "") -> list[str]:
        """The element types that an operand may have in this opset."""
        return element_types(op, self.version(domain), position, domain)

    def version(self, domain: str = "") -> int:
        """The version of a domain that the model imports."""
        return {"": self.opset, LEARNED: self.learned}.get(domain, 1)

    def dtype_for(self, op: str, position: int = 0, among: Sequence[str] = (), domain: str = "") -> str:
        """One of these types, mostly the model's own."""
        types = [t for t in self.dtypes(op, position, domain) if not among or t in among]
        if not types:
            raise InvalidNode(op)
        if self.main in types and self.chance(0.8):
            return self.main
        return self.rng.choice(types)

    def pick(
        self,
        dtype: str | Sequence[str],
        fits: Callable[[Shape], bool] = lambda shape: True,
        shape: Callable[[], Shape] | None = None,
        known: bool = True,
    ) -> DraftTensor:
        """A tensor of the type whose shape fits: mostly an existing one, rather a later one; else a new one.

        Without `known` the shape may be unknown.
        """
        dtypes = (dtype,) if isinstance(dtype, str) else dtype
        candidates = [
            t for t in self.content.tensors
            if t.dtype in dtypes and (fits(t.shape) if t.shape is not None else not known)
        ]  # fmt: skip
        if candidates and self.chance(0.85):
            return candidates[-1] if self.chance(0.5) else self.rng.choice(candidates)
        new_dtype = self.main if self.main in dtypes else self.rng.choice(dtypes)
        for _ in range(20):
            extents = shape() if shape else self.some_shape()
            if fits(extents):
                return self.fresh(new_dtype, extents)
        if candidates:
            return self.rng.choice(candidates)
        raise InvalidNode("no shape fits")

    def fresh(self, dtype: str, shape: Shape, domain: ValueDomain = ANY, constant: float = 0.35) -> DraftTensor:
        """A new input, or with probability `constant` a constant."""
        if self._body_depth or self.chance(constant) or len(self.content.inputs) >= 6:
            return self.constant(self._values(dtype, shape, domain), plain=domain is not ANY)
        tensor = DraftTensor(self.name("x"), dtype, shape, tensor_kind(dtype, shape), domain)
        self.content.inputs[tensor.name] = tensor
        self.content.tensors.append(tensor)
        return tensor

    def _values(self, dtype: str, shape: Shape, domain: ValueDomain) -> Array:
        make = special_values if self.chance(0.1) else ordinary_values
        return make(self.array_rng, dtype, shape, domain)

    def constant(self, value: Any, dtype: str | None = None, *, plain: bool = False) -> DraftTensor:
        """A constant: an initialiser, perhaps an input too unless `plain`, or a Constant node."""
        array = np.asarray(value, dtype_of(dtype) if dtype else None)
        kind = tensor_kind(array.dtype.name, array.shape)
        tensor = DraftTensor(self.name("c"), array.dtype.name, array.shape, kind)
        if self._body_depth or self.chance(0.15):
            self.content.nodes.append(constant_node(array, tensor.name, self))
        elif not plain and self.chance(0.04):
            self.content.overridable.add(tensor.name)
        self.content.constants[tensor.name] = array
        self.content.tensors.append(tensor)
        return tensor

    def ints(self, values: Sequence[int] | int, dtype: str = "int64") -> DraftTensor:
        """An integer parameter."""
        return self.constant(np.asarray(values, dtype), plain=True)

    def scalar(self, value: float, dtype: str | None = None) -> DraftTensor:
        """A constant of rank 0, sometimes of shape (1,)."""
        array = np.asarray(value).astype(dtype_of(dtype or self.main))
        return self.constant(array.reshape(1) if self.chance(0.1) else array)

    # Nodes

    def op(self, op: str, *inputs: DraftTensor | None, outputs: int = 1, domain: str = "", **attrs: Any) -> DraftTensor:
        """Add a node. Returns its first output. Attributes that are None are left out."""
        return self.ops(op, *inputs, outputs=outputs, domain=domain, **attrs)[0]

    def ops(
        self, op: str, *inputs: DraftTensor | None, outputs: int = 1, domain: str = "", **attrs: Any
    ) -> tuple[DraftTensor, ...]:
        """Add a node. Returns its outputs. Raises InvalidNode where ONNX's inference refuses it."""
        node = self._node(op, inputs, outputs, domain, attrs)
        return self.add(node, self._infer_types(node, inputs, domain))

    def call(
        self, domain: str, op: str, inputs: Sequence[DraftTensor | None], *results: DraftResult | None, **attrs: Any
    ) -> tuple[DraftTensor, ...]:
        """Add a node of an op that inference does not know. Returns its outputs.

        `results` are the types and shapes of its outputs, None for one that is left out.
        """
        node = self._node(op, inputs, len(results), domain, attrs)
        for position, result in enumerate(results):
            if result is None:
                node.output[position] = ""
        return self.add(node, [tensor_kind(*result) if result else None for result in results])

    def shape(self, op: str, *operands: DraftResult, **attrs: Any) -> Shape:
        """The shape of the result that an op would have of operands of these types and shapes."""
        tensors = [tensor_of(f"o{k}", tensor_kind(*operand)) for k, operand in enumerate(operands)]
        node = self._node(op, tensors, 1, "", attrs)
        return tensor_of("", self._infer_types(node, tensors, "")[0]).shape or ()

    def _node(
        self, op: str, inputs: Sequence[DraftTensor | None], outputs: int, domain: str, attrs: Mapping[str, Any]
    ) -> NodeProto:
        """A node with new names for its outputs, without operands that are left out at the end."""
        names = [operand.name if operand else "" for operand in inputs]
        while names and not names[-1]:
            names.pop()
        output_names = [self.name("t") for _ in range(outputs)]
        given = {name: value for name, value in attrs.items() if value is not None}
        return helper.make_node(op, names, output_names, domain=domain, **given)

    def add(self, node: NodeProto, kinds: Sequence[TypeProto | None]) -> tuple[DraftTensor, ...]:
        """Add a node whose outputs have these types. Returns those that are not left out."""
        results = []
        for name, kind in zip(node.output, kinds, strict=True):
            if kind is None:
                continue
            tensor = tensor_of(name, kind)
            if tensor.size > MAX_ELEMENTS or tensor.rank > MAX_RANK:
                raise InvalidNode("too large")
            results.append(tensor)
        self.content.nodes.append(node)
        self.content.tensors.extend(results)
        self.op_names.append(op_name(node))
        return tuple(results)

    def _infer_types(self, node: NodeProto, inputs: Sequence[DraftTensor | None], domain: str) -> list[TypeProto]:
        schema = schema_of(node.op_type, self.version(domain), domain)
        if schema is None:
            raise InvalidNode(node.op_type)
        for position, tensor in enumerate(inputs):
            if tensor and tensor.dtype and tensor.dtype not in self.dtypes(node.op_type, position, domain):
                raise InvalidNode(f"{node.op_type} of {tensor.dtype}")
        constants = {
            tensor.name: numpy_helper.from_array(self.content.constants[tensor.name], tensor.name)
            for tensor in inputs
            if tensor and tensor.name in self.content.constants and tensor.size <= MAX_KNOWN
        }
        kinds = {tensor.name: tensor.kind for tensor in inputs if tensor}
        opsets = [helper.make_opsetid(name, self.version(name)) for name in ("", LEARNED)]
        try:
            types = onnx.shape_inference.infer_node_outputs(schema, node, kinds, constants, opset_imports=opsets)
        except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, ValueError, RuntimeError) as error:
            raise InvalidNode(str(error)) from error
        if any(name not in types for name in node.output):
            raise InvalidNode("no type")
        kinds_made = [types[name] for name in node.output]
        if any(dim.dim_value < 0 for kind in kinds_made for dim in kind.tensor_type.shape.dim):
            raise InvalidNode("nothing is left, as inference doesn't say of windows beyond their input")
        return kinds_made

    # Bodies

    @contextmanager
    def body(self, apart: bool = False, opset: int | None = None) -> Iterator[GraphContent]:
        """Draw into a content of its own within the block, which sees the outer tensors unless `apart`."""
        outer, before = self.content, self.opset
        self.content = GraphContent(tensors=[] if apart else list(outer.tensors), constants=dict(outer.constants))
        self._body_depth += 1
        self.opset = opset or before
        try:
            yield self.content
        finally:
            outer.functions.extend(self.content.functions)
            self.content, self.opset = outer, before
            self._body_depth -= 1

    def parameter(self, dtype: str, shape: Shape) -> DraftTensor:
        """A new input of the current body."""
        tensor = DraftTensor(self.name("p"), dtype, shape, tensor_kind(dtype, shape))
        self.content.tensors.append(tensor)
        return tensor


@cache
def schema_of(op: str, opset: int, domain: str = "") -> Any:
    """ONNX's schema of an op in an opset; None where it isn't part of it."""
    try:
        schema: Any = onnx.defs.get_schema(op, opset, domain)
    except onnx.defs.SchemaError:
        return None
    return None if schema.deprecated else schema


@cache
def element_types(op: str, opset: int, position: int = 0, domain: str = "") -> list[str]:
    """The drawn element types of an operand."""
    schema = schema_of(op, opset, domain)
    if schema is None:
        return []
    formal = schema.inputs[min(position, len(schema.inputs) - 1)]
    return [name for name, text in _TYPE_TEXTS.items() if text in formal.types]


_TYPE_TEXTS = {
    "float32": "tensor(float)", "float64": "tensor(double)",
    **{name: f"tensor({name})" for name in (
        "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"
    )},
}  # fmt: skip


def element_type(dtype: str) -> int:
    """ONNX's number of an element type."""
    return int(helper.np_dtype_to_tensor_dtype(dtype_of(dtype)))


def tensor_kind(dtype: str, shape: Sequence[int | str | None] | None) -> TypeProto:
    """ONNX's type of a tensor."""
    return helper.make_tensor_type_proto(element_type(dtype), shape)


def tensor_of(name: str, kind: TypeProto) -> DraftTensor:
    """The tensor of a name and ONNX's type."""
    if kind.WhichOneof("value") != "tensor_type":
        return DraftTensor(name, "", None, kind)
    tensor_type = kind.tensor_type
    dims = list(tensor_type.shape.dim)
    is_known = tensor_type.HasField("shape") and all(dim.HasField("dim_value") for dim in dims)
    number = tensor_type.elem_type
    if number in (TensorProto.UNDEFINED, TensorProto.STRING):
        raise InvalidNode("an element type that is not drawn")
    dtype = helper.tensor_dtype_to_np_dtype(number).name
    return DraftTensor(name, dtype, tuple(dim.dim_value for dim in dims) if is_known else None, kind)


def constant_node(array: Array, name: str, d: ModelDraft) -> NodeProto:
    """A Constant in one of the forms that the opset has."""
    if d.opset >= 12 and array.ndim <= 1 and array.dtype.name in ("int64", "float32") and d.chance(0.5):
        kind = "int" if array.dtype.name == "int64" else "float"
        value = array.tolist()
        if not (array.ndim and not array.size):
            suffix = f"{kind}s" if array.ndim else kind
            return helper.make_node("Constant", [], [name], **{f"value_{suffix}": value})
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array, name))


def body_graph(
    nodes: Sequence[NodeProto], inputs: Sequence[DraftTensor], outputs: Sequence[DraftTensor], name: str
) -> GraphProto:
    """A graph as the value of an attribute."""
    return helper.make_graph(
        list(nodes), name,
        [helper.make_value_info(tensor.name, tensor.kind) for tensor in inputs],
        [helper.make_value_info(tensor.name, tensor.kind) for tensor in outputs],
    )  # fmt: skip


def reference_attribute(name: str, reference: str, kind: Any) -> AttributeProto:
    """A node's attribute that refers to one of its function's."""
    return AttributeProto(name=name, ref_attr_name=reference, type=kind)
