"""Loops of which it is known how often they run, and first iterations that are written out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from onnx import NodeProto

from tunewright.graph.ir import Node

from ..evaluation.onnx_form import CAPTURES
from .control_types import ControlFlow
from .import_draft import GraphWalk, ImportDraft, NameScope
from .loops import loop_after


def with_trip_count(draft: ImportDraft, node: Node, trips: int | None) -> Node:
    """A Loop that has a trip count and no condition, where it is known how often it runs."""
    if trips is None:
        return node
    count = draft.constant(np.asarray(trips, np.int64))
    draft.note_types([count])
    first = min(len(node.inputs) - len(node.attrs[CAPTURES]), 2)
    return replace(node, inputs=((count, "")[:first] + node.inputs[first:]))


def write_out(walk: GraphWalk, proto: NodeProto, flow: ControlFlow, scope: NameScope) -> None:
    """Add the first iterations of a Loop, and behind them what is left of it, if anything is."""
    draft, count = walk.draft, len(proto.input) - 2
    states, rows = [scope.names[name] for name in proto.input[2:]], list[list[str]]()
    condition = ""
    for number in range(flow.first):
        condition, *results = _add_iteration(walk, flow, number, states, scope)
        states = results[:count]
        rows.append([_as_row(draft, name) for name in results[count:]])
    if flow.trips != flow.first:
        results = _add_rest(walk, proto, flow, condition, states, scope)
        states = results[:count]
        rows.append(results[count:])
    stacks = [draft.emit("Concat", *parts, axis=0) for parts in zip(*rows, strict=True)]
    for name, tensor in zip(proto.output, (*states, *stacks), strict=True):
        if name:
            draft.alias(scope, name, tensor)


def _add_iteration(walk: GraphWalk, flow: ControlFlow, number: int, states: list[str], scope: NameScope) -> list[str]:
    """The outputs of the body in the iteration of this number."""
    draft, body, inner = walk.draft, flow.graphs["body"], scope.inner()
    own = (draft.constant(np.asarray(number)), draft.constant(np.asarray(True)), *states)
    draft.note_types(own)
    inner.names.update(zip((value.name for value in body.input), own, strict=True))
    walk.add_graph(body, inner)
    return [inner.names[value.name] for value in body.output]


def _add_rest(
    walk: GraphWalk, proto: NodeProto, flow: ControlFlow, condition: str, states: list[str], scope: NameScope
) -> list[str]:
    """The outputs of the Loop that goes on after the first iterations."""
    draft, inner = walk.draft, scope.inner()
    rest = loop_after(proto, flow.first)
    most = flow.values[0]
    trips = "" if most is None else draft.constant(np.asarray(most.item() - flow.first))
    draft.note_types([trips])
    inner.names.update(zip(rest.input, (trips, condition, *states), strict=True))
    walk.add_node(rest, inner)
    return [inner.names[name] for name in rest.output]


def _as_row(draft: ImportDraft, name: str) -> str:
    """A tensor as the only row of another."""
    shape = draft.shape(name)
    if shape is not None:
        return draft.emit("Reshape", name, shape=(1, *shape))
    return draft.emit("Unsqueeze", name, draft.constant(np.zeros(1, np.int64)))
