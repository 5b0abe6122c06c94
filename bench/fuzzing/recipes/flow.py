"""Control flow, local functions and sequences: nodes that have graphs of their own, or hold several tensors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from onnx import AttributeProto, FunctionProto, NodeProto, TypeProto, helper

from ..draft import (
    OPSETS,
    DraftTensor,
    GraphContent,
    InvalidNode,
    ModelDraft,
    Shape,
    body_graph,
    reference_attribute,
    schema_of,
    tensor_kind,
)
from ..values import FLOATS, ValueDomain
from .elementwise import ELEMENTWISE
from .folds import FOLDS
from .movement import MOVEMENT
from .products import PRODUCTS
from .recipe import Recipes, is_non_scalar, pick_axis

BODY_RECIPES = {
    name: recipe
    for table, names in (
        (ELEMENTWISE, (
            "Add", "Cast", "Clip", "Div", "Elu", "Exp", "Gelu", "HardSigmoid", "LeakyRelu", "Max", "Mul", "Relu",
            "Selu", "Sub", "Swish", "Tanh",
        )),
        (MOVEMENT, ("Transpose", "Reshape", "Pad", "Slice", "Concat", "Unsqueeze")),
        (FOLDS, ("Softmax", "LogSoftmax", "ReduceMean", "ReduceSum", "LRN", "Hardmax", "LayerNormalization")),
        (PRODUCTS, ("MatMul", "Gemm")),
    )
    for name, recipe in table.items()
    if name in names
}  # fmt: skip
"""Recipes for bodies."""


def fill_body(d: ModelDraft, count: int) -> None:
    """Add some nodes to the open body."""
    for _ in range(count):
        for _ in range(4):
            content = d.content.copy()
            name = d.rng.choice(list(BODY_RECIPES))
            try:
                if schema_of(name, d.opset) is None:
                    raise InvalidNode(name)
                BODY_RECIPES[name](d)
                break
            except InvalidNode:
                d.content = content


def same_shape(d: ModelDraft, x: DraftTensor) -> DraftTensor:
    """An op that keeps type and shape."""
    match d.between(0, 3):
        case 0:
            return d.op(d.among("Relu", "Tanh", "Abs", "Neg"), x)
        case 1:
            return d.op(d.among("Add", "Mul", "Sub", "Div"), x, d.scalar(d.number(0.5, 2.0), x.dtype))
        case 2 if x.rank:
            return d.op("Add", x, d.op("Transpose", x, perm=list(range(x.rank))))
        case _:
            return d.op("Mul", x, x)


def _float(d: ModelDraft, *, ranked: bool = False) -> DraftTensor:
    dtype = d.main if d.main in ("float32", "float64", "float16") else "float32"
    x = d.pick(dtype, is_non_scalar if ranked else lambda shape: True, lambda: d.some_shape(low=int(ranked)))
    if x.shape is None:
        raise InvalidNode("shape")
    return x


def _body_tensors(body: GraphContent, dtype: str, among: Sequence[DraftTensor]) -> list[DraftTensor]:
    names = {name for node in body.nodes for name in node.output}
    return [t for t in body.tensors if t.name in names and t.dtype == dtype and t.shape is not None] or list(among)


def _condition(d: ModelDraft, x: DraftTensor) -> DraftTensor:
    match d.between(0, 2):
        case 0:
            return d.fresh("bool", (), constant=0.4)
        case 1:
            return d.fresh("bool", (1,) if d.chance(0.3) else (), constant=0.0)
    total = d.op("ReduceMax", x, keepdims=0)
    if not x.size:
        raise InvalidNode("empty")
    return d.op("Greater", total, d.scalar(0.0, x.dtype)) if x.dtype in FLOATS else total


def branches(d: ModelDraft) -> DraftTensor:
    """An If whose branches may have different shapes."""
    x = _float(d)
    condition = _condition(d, x)
    if condition.dtype != "bool":
        raise InvalidNode("condition")
    graphs, results = [], []
    for number in range(2):
        with d.body():
            fill_body(d, d.between(1, 2))
            result = d.op("Identity", d.rng.choice(_body_tensors(d.content, x.dtype, [x])))
            graphs.append(body_graph(d.content.nodes, [], [result], f"branch{number}"))
            results.append(result)
    node = helper.make_node("If", [condition.name], [d.name("t")], then_branch=graphs[0], else_branch=graphs[1])
    return d.add(node, [_branch_type(results)])[0]


def _branch_type(results: Sequence[DraftTensor]) -> TypeProto:
    shapes = {tensor.shape for tensor in results}
    return tensor_kind(results[0].dtype, results[0].shape if len(shapes) == 1 else None)


def loop(d: ModelDraft) -> tuple[DraftTensor, ...]:
    """A Loop of either kind."""
    return counted_loop(d) if d.chance(0.4) else free_loop(d)


def counted_loop(d: ModelDraft) -> tuple[DraftTensor, ...]:
    """A Loop over rows, in the form of exporters: a counter ends it, and what stays is carried along."""
    x, step = _float(d, ranked=True), d.among(1, 2)
    extent, *part = x.shape or ()
    if extent < step:
        raise InvalidNode("rows")
    trips, dtype = d.between(1, min(extent // step, 4)), d.among("int64", "int32")
    counter, most = d.constant(np.asarray(0, dtype), plain=True), d.ints(9) if d.chance(0.3) else None
    initial, weight = d.fresh(x.dtype, tuple(part)), d.fresh(x.dtype, tuple(part))
    with d.body():
        i, on, k, s, w = (
            d.parameter(*kind)
            for kind in (("int64", ()), ("bool", ()), (dtype, ()), (x.dtype, tuple(part)), (x.dtype, tuple(part)))
        )
        count = d.op("Add", k, d.constant(np.asarray(step, dtype), plain=True))
        total = d.op(d.among("Add", "Mul", "Sub"), s, d.op("Gather", x, k, axis=0))
        after = d.op(d.among("Add", "Max"), total, w)
        limit = np.asarray(step * trips - d.between(0, step - 1), dtype)
        if d.chance(0.5):
            stop = d.op("Less", count, d.constant(limit, plain=True))
        else:
            stop = d.op("Less", d.op("Cast", count, to=1), d.constant(limit.astype(np.float32), plain=True))
        graph = body_graph(d.content.nodes, [i, on, k, s, w], [stop, count, after, w, total], "body")
    inputs = [most.name if most else "", "", counter.name, initial.name, weight.name]
    node = helper.make_node("Loop", inputs, [d.name("t") for _ in range(4)], body=graph)
    kinds = [tensor_kind(dtype, ()), *(tensor_kind(x.dtype, part) for _ in range(2))]
    return d.add(node, [*kinds, tensor_kind(x.dtype, [trips, *part])])


def free_loop(d: ModelDraft) -> tuple[DraftTensor, ...]:
    """A Loop with a state, perhaps an output of each trip, and any number of trips."""
    state = _float(d)
    trips = d.between(0, 3)
    count = d.ints(trips) if d.chance(0.6) else d.fresh("int64", (), ValueDomain(0, 3), constant=0.0)
    go = d.constant(np.asarray(True), plain=True) if d.chance(0.5) else None
    with d.body():
        i, on, s = d.parameter("int64", ()), d.parameter("bool", ()), d.parameter(state.dtype, state.shape or ())
        after = same_shape(d, s)
        if d.chance(0.4):
            after = same_shape(d, after)
        if (
            after.shape != s.shape
        ):  # a scalar times a vector of one element is a vector: outputs of trips could not be stacked
            raise InvalidNode("state")
        stop = d.op("Less", i, d.ints(d.between(0, 4))) if d.chance(0.3) else d.op("Identity", on)
        outputs = [stop, after]
        if d.chance(0.6):
            output = d.op("Identity", d.among(after, s))
            outputs.append(output)
        graph = body_graph(d.content.nodes, [i, on, s], outputs, "body")
    node = helper.make_node(
        "Loop", [count.name, go.name if go else "", state.name], [d.name("t") for _ in outputs[1:]], body=graph
    )
    kinds = [tensor_kind(state.dtype, state.shape)]
    if len(outputs) > 2:
        kinds.append(tensor_kind(state.dtype, [None, *(state.shape or ())]))
    return d.add(node, kinds)


def scan(d: ModelDraft) -> tuple[DraftTensor, ...]:
    """A Scan along an axis, in either direction, with a state."""
    x = _float(d, ranked=True)
    shape = x.shape or ()
    axis = d.between(0, len(shape) - 1)
    if not shape[axis]:
        raise InvalidNode("empty")
    part: Shape = (*shape[:axis], *shape[axis + 1 :])
    initial = d.fresh(x.dtype, part)
    with d.body():
        s, e = d.parameter(x.dtype, part), d.parameter(x.dtype, part)
        total = d.op(d.among("Add", "Mul", "Max"), s, e)
        output = same_shape(d, d.among(total, e))
        graph = body_graph(d.content.nodes, [s, e], [total, output], "body")
    attrs: dict[str, Any] = {"scan_input_axes": [axis]} if axis or d.chance(0.3) else {}
    attrs |= {"scan_input_directions": [1]} if d.chance(0.3) else {}
    attrs |= {"scan_output_directions": [1]} if d.chance(0.3) else {}
    to = d.between(0, len(part)) if d.chance(0.3) else 0
    attrs |= {"scan_output_axes": [to]} if to else {}
    node = helper.make_node(
        "Scan", [initial.name, x.name], [d.name("t"), d.name("t")], body=graph, num_scan_inputs=1, **attrs
    )
    stacked = [*part[:to], shape[axis], *part[to:]]
    return d.add(node, [tensor_kind(x.dtype, part), tensor_kind(x.dtype, stacked)])


def call(d: ModelDraft) -> DraftTensor:
    """A local function: attributes with and without defaults, another opset, functions within, called twice."""
    operands = [_float(d) for _ in range(d.among(1, 1, 2))]
    opset = d.rng.choice([n for n in OPSETS if n <= d.opset]) if d.chance(0.4) else d.opset
    with d.body(apart=True, opset=opset):
        params = [d.parameter(x.dtype, x.shape or ()) for x in operands]
        fill_body(d, d.between(1, 3))
        if d.chance(0.15):
            call(d)
        result = d.op("Identity", d.rng.choice(_body_tensors(d.content, operands[0].dtype, params[:1])))
        nodes = list(d.content.nodes)
        used = d.opset
    name = d.name("F")
    required, defaults, arguments = _attributes(d, nodes)
    function = FunctionProto(domain="local", name=name)
    function.input.extend(tensor.name for tensor in params)
    function.output.append(result.name)
    function.node.extend(nodes)
    function.attribute.extend(required)
    function.attribute_proto.extend(defaults)
    function.opset_import.append(helper.make_opsetid("", used))
    if any(node.domain == "local" for node in nodes):
        function.opset_import.append(helper.make_opsetid("local", 1))
    d.content.functions.append(function)
    outputs = []
    for _ in range(d.among(1, 1, 2)):
        node = helper.make_node(name, [x.name for x in operands], [d.name("t")], domain="local")
        node.attribute.extend(arguments)
        outputs.append(d.add(node, [result.kind])[0])
        operands = [_pick_alike(d, tensor) for tensor in operands]
    return outputs[-1]


def _pick_alike(d: ModelDraft, tensor: DraftTensor) -> DraftTensor:
    shape = tensor.shape or ()
    return d.pick(tensor.dtype, lambda other: other == shape, lambda: shape)


def _attributes(
    d: ModelDraft, nodes: Sequence[NodeProto]
) -> tuple[list[str], list[AttributeProto], list[AttributeProto]]:
    """Turn attributes of nodes into the function's: required names, defaults, and arguments of a call."""
    required, defaults, arguments = [], [], []
    for node in nodes:
        for position, attribute in enumerate(list(node.attribute)):
            if node.op_type == "Constant" or attribute.type not in (
                AttributeProto.FLOAT,
                AttributeProto.INT,
                AttributeProto.INTS,
            ):
                continue
            if attribute.ref_attr_name or not d.chance(0.5):
                continue
            name = d.name("a")
            usual = AttributeProto()
            usual.CopyFrom(attribute)
            usual.name = name
            node.attribute[position].CopyFrom(reference_attribute(attribute.name, name, attribute.type))
            if d.chance(0.5):
                required.append(name)
                arguments.append(usual)
            else:
                defaults.append(usual)
    return required, defaults, arguments


def sequence(op: str, d: ModelDraft) -> DraftTensor:
    """A few tensors as a sequence, and an op on it."""
    x = _float(d, ranked=True)
    s = d.op("SequenceConstruct", x, *[same_shape(d, x) for _ in range(d.between(1, 2))])
    match op:
        case "SequenceAt":
            return d.op("SequenceAt", s, d.ints(d.among(0, 1, -1)))
        case "SequenceInsert":
            s = d.op("SequenceInsert", s, same_shape(d, x), d.ints(d.among(0, 1)) if d.chance(0.6) else None)
            return d.op("ConcatFromSequence", s, axis=pick_axis(d, x.rank))
        case "SequenceErase":
            s = d.op("SequenceErase", s, d.ints(d.among(0, -1)) if d.chance(0.7) else None)
            return d.op("ConcatFromSequence", s, axis=0)
        case "SequenceLength":
            return d.op("SequenceLength", s)
        case "SequenceEmpty":
            s = d.op(
                "SequenceInsert", d.op("SequenceEmpty", dtype=helper.np_dtype_to_tensor_dtype(np.dtype(x.dtype))), x
            )
            return d.op("SequenceAt", s, d.ints(0))
        case "ConcatFromSequence":
            axis = d.between(0, x.rank - 1)
            return d.op("ConcatFromSequence", s, axis=axis, new_axis=d.among(None, 0, 1))
        case _:
            parts = d.op(
                "SplitToSequence", x, d.ints(d.among(1, 2)) if d.chance(0.6) else None, axis=pick_axis(d, x.rank)
            )
            return d.op("SequenceAt", parts, d.ints(d.among(0, -1)))


def optional(d: ModelDraft) -> DraftTensor:
    """An optional tensor, and an op on it."""
    x = _float(d)
    optional_tensor = d.op("Optional", x)
    return d.op("OptionalGetElement", optional_tensor) if d.chance(0.7) else d.op("OptionalHasElement", optional_tensor)


FLOW: Recipes = {
    **{op: partial(sequence, op) for op in (
        "ConcatFromSequence", "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert",
        "SequenceLength", "SplitToSequence",
    )},
    "If": branches,
    "Loop": loop,
    "Optional": optional,
    "Scan": scan,
}  # fmt: skip

CALLS: Recipes = {"function": call}
