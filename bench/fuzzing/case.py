"""FuzzCase: a model, inputs for it, and how ours runs it: all that is needed to repeat it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, NodeProto, numpy_helper

from tunewright.graph.ir import Array
from tunewright.graph.numerics import Precision

Feeds = Mapping[str, Array]
"""Inputs by name."""

SHOWN_ELEMENTS = 8
"""Elements of an array that are shown."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """How ours runs a model: on default schedules, or on points drawn by the seed."""

    seed: int
    is_random: bool = False
    threads: int = 1
    vector_bits: int = 0  # 0: those of the machine
    precision: Precision = Precision.AS_GIVEN  # that it is run in as well


@dataclass(frozen=True, slots=True, eq=False)
class FuzzCase:
    """A model with the feeds that are run in turn, and the seed that it comes from."""

    seed: int
    model: bytes
    feeds: tuple[Feeds, ...]
    plan: RunPlan

    def proto(self) -> onnx.ModelProto:
        """The model."""
        parsed: onnx.ModelProto = onnx.ModelProto.FromString(self.model)
        return parsed

    def dims(self) -> dict[str, int]:
        """The extents that the first feed gives the model's named dimensions."""
        dims_by_name = {}
        for value in self.proto().graph.input:
            if self.feeds and value.name in self.feeds[0]:
                extents = self.feeds[0][value.name].shape
                dims = value.type.tensor_type.shape.dim
                dims_by_name.update({d.dim_param: e for d, e in zip(dims, extents, strict=False) if d.dim_param})
        return dims_by_name

    def ops(self) -> list[str]:
        """The ops of the model, of bodies and functions too, with repetitions."""
        model = self.proto()
        graphs = [model.graph.node, *(function.node for function in model.functions)]
        return [op_name(node) for nodes in graphs for node in all_nodes(nodes) if node.domain != "local"]

    def lines(self) -> Iterator[str]:
        """The case as lines of text."""
        model = self.proto()
        opsets = ", ".join(f"{item.domain or 'onnx'} {item.version}" for item in model.opset_import)
        schedules = "random schedules" if self.plan.is_random else "default schedules"
        bits = f", {self.plan.vector_bits} bits" if self.plan.vector_bits else ""
        more = f"; also in {self.plan.precision}" if self.plan.precision is not Precision.AS_GIVEN else ""
        yield f"{opsets}, IR {model.ir_version}; {schedules}, threads: {self.plan.threads}{bits}{more}"
        for function in model.functions:
            defaults = [_attribute(item) for item in function.attribute_proto]
            attributes = ", ".join([*function.attribute, *defaults])
            yield f"function {function.name}({', '.join(function.input)}; {attributes})"
            yield from (f"  {_node(node)}" for node in function.node)
            yield f"  return {', '.join(function.output)}"
        feeds = self.feeds[0] if self.feeds else {}
        for value in model.graph.input:
            yield f"{value.name} = {_array_text(feeds[value.name]) if value.name in feeds else 'not given'}"
        for tensor in model.graph.initializer:
            yield f"{tensor.name} := {_array_text(numpy_helper.to_array(tensor))}"
        yield from (_node(node) for node in model.graph.node)
        yield f"return {', '.join(value.name for value in model.graph.output)}"


def op_name(node: NodeProto) -> str:
    """The op of a node, after its domain unless that is ONNX's main one."""
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def all_nodes(nodes: object) -> Iterator[NodeProto]:
    """The nodes and those of their bodies."""
    for node in nodes:  # type: ignore[attr-defined]
        yield node
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from all_nodes(attribute.g.node)


def _node(node: NodeProto) -> str:
    attrs = ", ".join(_attribute(attribute) for attribute in node.attribute)
    return f"{', '.join(node.output)} = {op_name(node)}({', '.join(node.input)}{'; ' if attrs else ''}{attrs})"


def _attribute(attribute: AttributeProto) -> str:
    if attribute.ref_attr_name:
        return f"{attribute.name}=@{attribute.ref_attr_name}"
    if attribute.type == AttributeProto.GRAPH:
        return f"{attribute.name}={{{_graph(attribute.g)}}}"
    if attribute.type == AttributeProto.TENSOR:
        return f"{attribute.name}={_array_text(numpy_helper.to_array(attribute.t))}"
    value = onnx.helper.get_attribute_value(attribute)
    text = value.decode() if isinstance(value, bytes) else f"{value:.9g}" if isinstance(value, float) else str(value)
    return f"{attribute.name}={text}"


def _graph(graph: GraphProto) -> str:
    takes = ", ".join(value.name for value in graph.input)
    gives = ", ".join(value.name for value in graph.output)
    return f"({takes}) {'; '.join(_node(node) for node in graph.node)}; return {gives}"


def _array_text(array: Array) -> str:
    shape = "x".join(map(str, array.shape))
    elements = array.ravel()[:SHOWN_ELEMENTS]
    values = ", ".join(f"{float(v):.9g}" if array.dtype.kind in "fV" else str(v) for v in elements)
    return f"{array.dtype.name}[{shape}] {values}{', ...' if array.size > SHOWN_ELEMENTS else ''}"


def first_feed_arrays(case: FuzzCase) -> dict[str, Array]:
    """The inputs of the first feed by name."""
    return {name: np.asarray(array) for name, array in (case.feeds[0] if case.feeds else {}).items()}
