"""From a case that shows a fault to a smaller one that shows the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, helper, numpy_helper

from tunewright.graph.ir import Array

from .case import Case, Feeds, Plan
from .values import FLOATS

Shows = Callable[[Case], bool]
"""Whether a case still shows the fault."""

Values = Callable[[Case], Mapping[str, Any]]
"""The value of every tensor of a case; empty where it could not be computed."""

ROUNDS = 6
"""How often all steps are gone through at most."""


def shrunk(case: Case, shows: Shows, values: Values) -> Case:
    """The smallest case that was found. It shows the fault if `case` does."""
    steps: tuple[Step, ...] = (
        one_feed, plain_plan, one_output, lambda one: cut(one, values(one)), bypass, fewer_operands, plain_attributes,
        smaller_extents, simpler_values,
    )  # fmt: skip
    for _ in range(ROUNDS):
        before = case
        for step in steps:
            case = _exhausted(case, step, shows)
        if case is before:
            break
    return case


Step = Callable[[Case], Iterator[Case]]
"""Smaller cases, the boldest first. Each is smaller by the measure of its step, so that it comes to an end."""


def _exhausted(case: Case, step: Step, shows: Shows) -> Case:
    """A step taken again and again while it leads to something."""
    found: Case | None = case
    while found is not None:
        case = found
        found = next((smaller for smaller in step(case) if shows(smaller)), None)
    return case


def one_feed(case: Case) -> Iterator[Case]:
    """One of the inputs alone."""
    if len(case.feeds) > 1:
        for feeds in case.feeds:
            yield replace(case, feeds=(feeds,))


def plain_plan(case: Case) -> Iterator[Case]:
    """Default schedules, one thread, the widest vectors."""
    usual = Plan(case.plan.seed)
    plans = [
        usual,
        replace(case.plan, is_random=False),
        replace(case.plan, threads=1),
        replace(case.plan, vector_bits=0),
    ]
    for plan in plans:
        if plan != case.plan:
            yield replace(case, plan=plan)


def one_output(case: Case) -> Iterator[Case]:
    """One of the outputs alone."""
    model = case.proto()
    if len(model.graph.output) > 1:
        for output in list(model.graph.output):
            smaller = case.proto()
            del smaller.graph.output[:]
            smaller.graph.output.append(output)
            yield _cleaned(case, smaller)


def cut(case: Case, values: Mapping[str, Any]) -> Iterator[Case]:
    """A tensor that nodes make as an input, with the value that it has: what makes it goes."""
    model = case.proto()
    makers = {name: node for node in model.graph.node for name in node.output}
    frontier = [name for node in reversed(model.graph.node) for name in node.input if name in makers]
    last = [name for value in model.graph.output if value.name in makers for name in makers[value.name].input]
    for names in ([n for n in last if n in makers], *([name] for name in dict.fromkeys(frontier))):
        known = [name for name in names if isinstance(values.get(name), np.ndarray)]
        if known and len(known) == len(names):
            yield _with_inputs(case, {name: values[name] for name in known})
    for name in dict.fromkeys(frontier):  # a result in the midst as the only output
        if makers[name].op_type != "Constant":
            smaller = case.proto()
            del smaller.graph.output[:]
            smaller.graph.output.append(helper.make_empty_tensor_value_info(name))
            yield _cleaned(case, smaller)


def bypass(case: Case) -> Iterator[Case]:
    """What reads the result of a node reads one of its operands instead."""
    model = case.proto()
    for number, node in reversed(list(enumerate(model.graph.node))):
        for operand in dict.fromkeys(node.input):
            if operand and len(node.output) == 1:
                smaller = case.proto()
                del smaller.graph.node[number]
                _renamed(smaller.graph, node.output[0], operand)
                yield _cleaned(case, smaller)


def plain_attributes(case: Case) -> Iterator[Case]:
    """An attribute less."""
    model = case.proto()
    for number, node in enumerate(model.graph.node):
        for name in [attribute.name for attribute in node.attribute if not attribute.HasField("g")]:
            smaller = case.proto()
            kept = [a for a in smaller.graph.node[number].attribute if a.name != name]
            del smaller.graph.node[number].attribute[:]
            smaller.graph.node[number].attribute.extend(kept)
            yield replace(case, model=smaller.SerializeToString())


def fewer_operands(case: Case) -> Iterator[Case]:
    """The last operand of a node less."""
    for number, node in enumerate(case.proto().graph.node):
        if len(node.input) > 1:
            smaller = case.proto()
            smaller.graph.node[number].input.pop()
            yield _cleaned(case, smaller)


def smaller_extents(case: Case) -> Iterator[Case]:
    """An extent wherever it is, in inputs, constants and parameters: one, two, half."""
    model = case.proto()
    arrays = _arrays(model) | dict(case.feeds[0] if case.feeds else {})
    extents = sorted({e for array in arrays.values() for e in array.shape if e > 1}, reverse=True)
    for extent in extents:
        for smaller in dict.fromkeys((1, 2, extent // 2, extent - 1)):
            if 0 < smaller < extent:
                yield _resized(case, extent, smaller)
    for name, array in arrays.items():
        for axis, extent in enumerate(array.shape):
            half = extent // 2
            for part in (slice(half), slice(half, extent), slice(extent - 1), slice(1, extent)):
                if extent > 1:
                    yield _sliced(case, name, axis, part)


def simpler_values(case: Case) -> Iterator[Case]:
    """Inputs and constants of zeros, ones, one number, whole or rounded ones."""
    feeds = case.feeds[0] if case.feeds else {}
    for name, array in feeds.items():
        for made in _simpler(array):
            yield replace(case, feeds=({**feeds, name: made},))
    for number, tensor in enumerate(case.proto().graph.initializer):
        array = numpy_helper.to_array(tensor)
        for made in _simpler(array) if array.dtype.name in FLOATS else ():
            smaller = case.proto()
            smaller.graph.initializer[number].CopyFrom(numpy_helper.from_array(made, tensor.name))
            yield replace(case, model=smaller.SerializeToString())


def _simpler(array: Array) -> Iterator[Array]:
    """Arrays in its place, the simplest first, as far as they are simpler than it is."""
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
            made = change.astype(array.dtype)
            if made.tobytes() == array.tobytes():
                return
            yield made


def _arrays(model: ModelProto) -> dict[str, Array]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def _with_inputs(case: Case, values: Mapping[str, Array]) -> Case:
    model = case.proto()
    for node in model.graph.node:
        for position, name in enumerate(node.output):
            if name in values:
                node.output[position] = f"{name}_unused"
    for name, value in values.items():
        kind = helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        model.graph.input.append(helper.make_value_info(name, kind))
    feeds = tuple({**feeds, **values} for feeds in case.feeds)
    return _cleaned(replace(case, feeds=feeds), model)


def _renamed(graph: GraphProto, old: str, new: str) -> None:
    for node in graph.node:
        for position, name in enumerate(node.input):
            if name == old:
                node.input[position] = new
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _renamed(attribute.g, old, new)
    for value in graph.output:
        if value.name == old:
            value.name = new


def _cleaned(case: Case, model: ModelProto) -> Case:
    """A model without what its outputs don't need, and the inputs that it still has."""
    graph = model.graph
    wanted = {value.name for value in graph.output}
    nodes: list[NodeProto] = []
    for node in reversed(graph.node):
        if wanted.intersection(node.output):
            nodes.insert(0, node)
            wanted |= _reads(node)
    del graph.node[:]
    graph.node.extend(nodes)
    for sparse in list(graph.sparse_initializer):
        if sparse.values.name not in wanted:
            graph.sparse_initializer.remove(sparse)
    for field in (graph.initializer, graph.input):
        kept = [one for one in field if one.name in wanted]
        del field[:]
        field.extend(kept)
    called = {node.op_type for node in graph.node} | {node.op_type for f in model.functions for node in f.node}
    functions = [function for function in model.functions if function.name in called]
    del model.functions[:]
    model.functions.extend(functions)
    names = {value.name for value in graph.input}
    feeds = tuple({name: array for name, array in feeds.items() if name in names} for feeds in case.feeds)
    return replace(case, model=model.SerializeToString(), feeds=feeds)


def _reads(node: NodeProto) -> set[str]:
    found = {name for name in node.input if name}
    for attribute in node.attribute:
        if attribute.HasField("g"):
            inner = attribute.g
            found.update(*(_reads(one) for one in inner.node), (value.name for value in inner.output))
    return found


def _resized(case: Case, extent: int, smaller: int) -> Case:
    """Every axis of that extent cut, and every whole number in a parameter that is the same."""

    def cut_all(array: Array) -> Array:
        kept = array[tuple(slice(smaller if e == extent else None) for e in array.shape)]
        is_parameter = array.dtype.name == "int64" and array.ndim <= 1
        return np.where(kept == extent, smaller, kept).astype(array.dtype) if is_parameter else kept

    return _mapped(case, lambda name, array: cut_all(array))


def _sliced(case: Case, name: str, axis: int, part: slice) -> Case:
    def cut_one(found: str, array: Array) -> Array:
        return array[(*[slice(None)] * axis, part)] if found == name else array

    return _mapped(case, cut_one)


def _mapped(case: Case, change: Callable[[str, Array], Array]) -> Case:
    """The case with other arrays in all inputs and initialisers; what is declared of outputs is forgotten."""
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
