"""Shrink a case that shows a fault to a smaller one that shows the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, helper, numpy_helper

from tunewright.graph.ir import Array

from .case import Feeds, FuzzCase, RunPlan
from .values import FLOATS

Shows = Callable[[FuzzCase], bool]
"""Whether a case still shows the fault."""

Values = Callable[[FuzzCase], Mapping[str, Any]]
"""Computes the values of all tensors of a case; empty where that fails."""

ROUNDS = 6
"""The most rounds of all steps."""


def shrink(case: FuzzCase, shows: Shows, values: Values) -> FuzzCase:
    """The smallest case that the steps reach. It shows the fault if `case` does."""
    steps: tuple[Step, ...] = (
        keep_feed, simplify_plan, keep_output, lambda case: cut_graph(case, values(case)), bypass, drop_operands,
        drop_trees, drop_attributes, shrink_extents, simplify_values,
    )  # fmt: skip
    for _ in range(ROUNDS):
        before = case
        for step in steps:
            case = _repeat_step(case, step, shows)
        if case is before:
            break
    return case


Step = Callable[[FuzzCase], Iterator[FuzzCase]]
"""Yields smaller cases, the boldest first. Each is smaller by the step's own measure, so that steps terminate."""


def _repeat_step(case: FuzzCase, step: Step, shows: Shows) -> FuzzCase:
    """Repeat a step while one of its cases shows the fault."""
    smaller_case: FuzzCase | None = case
    while smaller_case is not None:
        case = smaller_case
        smaller_case = next((smaller for smaller in step(case) if shows(smaller)), None)
    return case


def keep_feed(case: FuzzCase) -> Iterator[FuzzCase]:
    """Keep one of the feeds."""
    if len(case.feeds) > 1:
        for feeds in case.feeds:
            yield replace(case, feeds=(feeds,))


def simplify_plan(case: FuzzCase) -> Iterator[FuzzCase]:
    """Use default schedules, one thread, the widest vectors, no precision but the model's own."""
    usual = RunPlan(case.plan.seed)
    plans = [
        usual,
        replace(case.plan, precision=usual.precision),
        replace(usual, precision=case.plan.precision),
        replace(case.plan, is_random=False),
        replace(case.plan, threads=1),
        replace(case.plan, vector_bits=0),
    ]
    for plan in plans:
        if plan != case.plan:
            yield replace(case, plan=plan)


def keep_output(case: FuzzCase) -> Iterator[FuzzCase]:
    """Keep one of the outputs."""
    model = case.proto()
    if len(model.graph.output) > 1:
        for output in list(model.graph.output):
            smaller = case.proto()
            del smaller.graph.output[:]
            smaller.graph.output.append(output)
            yield _clean(case, smaller)


def cut_graph(case: FuzzCase, values: Mapping[str, Any]) -> Iterator[FuzzCase]:
    """Make computed tensors inputs with their values, or an intermediate one the only output."""
    model = case.proto()
    makers = {name: node for node in model.graph.node for name in node.output}
    frontier = [name for node in reversed(model.graph.node) for name in node.input if name in makers]
    last = [name for value in model.graph.output if value.name in makers for name in makers[value.name].input]
    for names in ([n for n in last if n in makers], *([name] for name in dict.fromkeys(frontier))):
        computed = [name for name in names if isinstance(values.get(name), np.ndarray)]
        if computed and len(computed) == len(names):
            yield _with_inputs(case, {name: values[name] for name in computed})
    for name in dict.fromkeys(frontier):  # an intermediate result as the only output
        if makers[name].op_type != "Constant":
            smaller = case.proto()
            del smaller.graph.output[:]
            smaller.graph.output.append(helper.make_empty_tensor_value_info(name))
            yield _clean(case, smaller)


def bypass(case: FuzzCase) -> Iterator[FuzzCase]:
    """Replace the result of a node by one of its operands."""
    model = case.proto()
    for number, node in reversed(list(enumerate(model.graph.node))):
        for operand in dict.fromkeys(node.input):
            if operand and len(node.output) == 1:
                smaller = case.proto()
                del smaller.graph.node[number]
                _rename(smaller.graph, node.output[0], operand)
                yield _clean(case, smaller)


def drop_attributes(case: FuzzCase) -> Iterator[FuzzCase]:
    """Drop an attribute."""
    model = case.proto()
    for number, node in enumerate(model.graph.node):
        for name in [attribute.name for attribute in node.attribute if not attribute.HasField("g")]:
            smaller = case.proto()
            attributes = [a for a in smaller.graph.node[number].attribute if a.name != name]
            del smaller.graph.node[number].attribute[:]
            smaller.graph.node[number].attribute.extend(attributes)
            yield replace(case, model=smaller.SerializeToString())


def drop_trees(case: FuzzCase) -> Iterator[FuzzCase]:
    """Drop a tree of an ensemble: its nodes, and the weights of its leaves."""
    for number, node in enumerate(case.proto().graph.node):
        owners = {a.name.removesuffix("treeids"): list(a.ints) for a in node.attribute if a.name.endswith("_treeids")}
        trees = sorted(set(owners.get("nodes_", ())))
        for tree in trees if len(trees) > 1 else ():
            smaller = case.proto()
            for attribute in smaller.graph.node[number].attribute:
                prefix = next((prefix for prefix in owners if attribute.name.startswith(prefix)), None)
                if prefix is not None:
                    _keep_rows(attribute, [owner != tree for owner in owners[prefix]])
            yield replace(case, model=smaller.SerializeToString())


def _keep_rows(attribute: AttributeProto, is_kept: Sequence[bool]) -> None:
    """Keep some elements of an attribute of several, if it has as many."""
    if attribute.HasField("t"):
        array = numpy_helper.to_array(attribute.t)
        if len(array) == len(is_kept):
            attribute.t.CopyFrom(numpy_helper.from_array(array[np.asarray(is_kept)]))
        return
    for values in (attribute.ints, attribute.floats, attribute.strings):
        if len(values) == len(is_kept):
            kept = [value for value, is_one in zip(values, is_kept, strict=True) if is_one]
            del values[:]
            values.extend(kept)


def drop_operands(case: FuzzCase) -> Iterator[FuzzCase]:
    """Drop the last operand of a node."""
    for number, node in enumerate(case.proto().graph.node):
        if len(node.input) > 1:
            smaller = case.proto()
            smaller.graph.node[number].input.pop()
            yield _clean(case, smaller)


def shrink_extents(case: FuzzCase) -> Iterator[FuzzCase]:
    """Reduce an extent wherever it occurs, in inputs, constants and parameters."""
    model = case.proto()
    arrays = _arrays(model) | dict(case.feeds[0] if case.feeds else {})
    extents = sorted({e for array in arrays.values() for e in array.shape if e > 1}, reverse=True)
    for extent in extents:
        for smaller in dict.fromkeys((1, 2, extent // 2, extent - 1)):
            if 0 < smaller < extent:
                yield _resize(case, extent, smaller)
    for name, array in arrays.items():
        for axis, extent in enumerate(array.shape):
            half = extent // 2
            for part in (slice(half), slice(half, extent), slice(extent - 1), slice(1, extent)):
                if extent > 1:
                    yield _slice(case, name, axis, part)


def simplify_values(case: FuzzCase) -> Iterator[FuzzCase]:
    """Simplify values of inputs and constants: zeros, ones, one number, whole or rounded ones."""
    feeds = case.feeds[0] if case.feeds else {}
    for name, array in feeds.items():
        for simpler in _simpler_arrays(array):
            yield replace(case, feeds=({**feeds, name: simpler},))
    for number, tensor in enumerate(case.proto().graph.initializer):
        array = numpy_helper.to_array(tensor)
        for simpler in _simpler_arrays(array) if array.dtype.name in FLOATS else ():
            smaller = case.proto()
            smaller.graph.initializer[number].CopyFrom(numpy_helper.from_array(simpler, tensor.name))
            yield replace(case, model=smaller.SerializeToString())


def _simpler_arrays(array: Array) -> Iterator[Array]:
    """Simpler arrays of the same shape, the simplest first."""
    if not array.size or array.dtype.kind in "OUS":
        return
    with np.errstate(all="ignore"):
        wide = array.astype(np.float64)
        for change in (
            np.zeros_like(wide),
            np.ones_like(wide),
            np.full_like(wide, wide.flat[0]),
            wide.round(),
            wide.round(2),
        ):
            simpler = change.astype(array.dtype)
            if simpler.tobytes() == array.tobytes():
                return
            yield simpler


def _arrays(model: ModelProto) -> dict[str, Array]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def _with_inputs(case: FuzzCase, values: Mapping[str, Array]) -> FuzzCase:
    model = case.proto()
    for node in model.graph.node:
        for position, name in enumerate(node.output):
            if name in values:
                node.output[position] = f"{name}_unused"
    for name, value in values.items():
        kind = helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        model.graph.input.append(helper.make_value_info(name, kind))
    feeds = tuple({**feeds, **values} for feeds in case.feeds)
    return _clean(replace(case, feeds=feeds), model)


def _rename(graph: GraphProto, old: str, new: str) -> None:
    for node in graph.node:
        for position, name in enumerate(node.input):
            if name == old:
                node.input[position] = new
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _rename(attribute.g, old, new)
    for value in graph.output:
        if value.name == old:
            value.name = new


def _clean(case: FuzzCase, model: ModelProto) -> FuzzCase:
    """The case with a model reduced to what its outputs need, and the feeds of its remaining inputs."""
    graph = model.graph
    needed = {value.name for value in graph.output}
    nodes: list[NodeProto] = []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            nodes.insert(0, node)
            needed |= _reads(node)
    del graph.node[:]
    graph.node.extend(nodes)
    for sparse in list(graph.sparse_initializer):
        if sparse.values.name not in needed:
            graph.sparse_initializer.remove(sparse)
    for field in (graph.initializer, graph.input):
        items = [item for item in field if item.name in needed]
        del field[:]
        field.extend(items)
    called_ops = {node.op_type for node in graph.node} | {node.op_type for f in model.functions for node in f.node}
    functions = [function for function in model.functions if function.name in called_ops]
    del model.functions[:]
    model.functions.extend(functions)
    names = {value.name for value in graph.input}
    feeds = tuple({name: array for name, array in feeds.items() if name in names} for feeds in case.feeds)
    return replace(case, model=model.SerializeToString(), feeds=feeds)


def _reads(node: NodeProto) -> set[str]:
    names = {name for name in node.input if name}
    for attribute in node.attribute:
        if attribute.HasField("g"):
            inner = attribute.g
            names.update(*(_reads(body_node) for body_node in inner.node), (value.name for value in inner.output))
    return names


def _resize(case: FuzzCase, extent: int, smaller: int) -> FuzzCase:
    """The case with every axis of that extent cut, and every equal number in integer parameters."""

    def cut_all(array: Array) -> Array:
        resized = array[tuple(slice(smaller if e == extent else None) for e in array.shape)]
        is_parameter = array.dtype.name == "int64" and array.ndim <= 1
        return np.where(resized == extent, smaller, resized).astype(array.dtype) if is_parameter else resized

    return _map_arrays(case, lambda name, array: cut_all(array))


def _slice(case: FuzzCase, name: str, axis: int, part: slice) -> FuzzCase:
    def cut_one(array_name: str, array: Array) -> Array:
        return array[(*[slice(None)] * axis, part)] if array_name == name else array

    return _map_arrays(case, cut_one)


def _map_arrays(case: FuzzCase, change: Callable[[str, Array], Array]) -> FuzzCase:
    """The case with all inputs and initialisers changed. Declared shapes of outputs are dropped."""
    model = case.proto()
    feeds: list[Feeds] = [{name: change(name, array) for name, array in feeds.items()} for feeds in case.feeds]
    for tensor in model.graph.initializer:
        tensor.CopyFrom(
            numpy_helper.from_array(
                np.ascontiguousarray(change(tensor.name, numpy_helper.to_array(tensor))), tensor.name
            )
        )
    shapes = {t.name: tuple(t.dims) for t in model.graph.initializer} | {
        n: a.shape for n, a in (feeds[0] if feeds else {}).items()
    }
    for value in model.graph.input:
        if value.name in shapes:
            kind = helper.make_tensor_type_proto(value.type.tensor_type.elem_type, shapes[value.name])
            value.type.CopyFrom(kind)
    outputs = [helper.make_empty_tensor_value_info(value.name) for value in model.graph.output]
    del model.graph.output[:]
    model.graph.output.extend(outputs)
    return replace(case, model=model.SerializeToString(), feeds=tuple(feeds))
