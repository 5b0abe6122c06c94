"""Control flow of a flat program, iteration by iteration: how its bodies are run is the caller's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import GraphProto

from tunewright.graph.evaluation.onnx_form import CAPTURES
from tunewright.graph.ir import Node

RunBody = Callable[[GraphProto, Mapping[str, Any]], list[Any]]
"""The outputs of a body, from the values of the tensors that it reads, by name."""


def run_bodies(node: Node, arrays: Sequence[Any], run: RunBody) -> list[Any] | None:
    """The outputs of an If, Loop, Scan or SequenceMap. None where nothing is iterated, and for all other ops."""
    captures = node.attrs.get(CAPTURES, ())
    explicit = len(arrays) - len(captures)
    own, around = arrays[:explicit], dict(zip(captures, arrays[explicit:], strict=True))
    match node.op:
        case "If":
            name = "then_branch" if np.asarray(own[0]).item() else "else_branch"
            return run(GraphProto.FromString(node.attrs[name]), around)
        case "Loop":
            return _loop(GraphProto.FromString(node.attrs["body"]), own, around, run)
        case "Scan" if node.version >= 9:
            return _scan(node, own, around, run)
        case "SequenceMap":
            return _map(GraphProto.FromString(node.attrs["body"]), own, around, run)
    return None


def _map(body: GraphProto, own: Sequence[Any], around: Mapping[str, Any], run: RunBody) -> list[Any] | None:
    """A sequence for each output; what is no sequence is the same for all items."""
    names = [value.name for value in body.input]
    rows = []
    for number in range(len(own[0])):
        items = [value[number] if isinstance(value, list) else value for value in own]
        rows.append(run(body, {**around, **dict(zip(names, items, strict=True))}))
    return [list(column) for column in zip(*rows, strict=True)] if rows else None


def _loop(body: GraphProto, own: Sequence[Any], around: Mapping[str, Any], run: RunBody) -> list[Any] | None:
    trips, condition, *states = (*own, None, None)[: max(len(own), 2)]
    limit = None if trips is None else int(np.asarray(trips).item())
    is_running = condition is None or bool(np.asarray(condition).item())
    rows: list[list[Any]] = []
    names = [value.name for value in body.input]
    while is_running and (limit is None or len(rows) < limit):
        values = [np.asarray(len(rows), np.int64), np.asarray(is_running), *states]
        after, *results = run(body, {**around, **dict(zip(names, values, strict=True))})
        is_running = bool(np.asarray(after).item())
        states = results[: len(states)]
        rows.append(results[len(states) :])
    return [*states, *(np.stack(column) for column in zip(*rows, strict=True))] if rows else None


def _scan(node: Node, own: Sequence[Any], around: Mapping[str, Any], run: RunBody) -> list[Any] | None:
    attrs, body = node.attrs, GraphProto.FromString(node.attrs["body"])
    count = attrs["num_scan_inputs"]
    states, sequences = list(own[: len(own) - count]), own[len(own) - count :]
    axes, back = (attrs.get(f"scan_input_{key}") or [0] * count for key in ("axes", "directions"))
    columns = [np.moveaxis(sequence, axis, 0) for sequence, axis in zip(sequences, axes, strict=True)]
    columns = [column[::-1] if flag else column for column, flag in zip(columns, back, strict=True)]
    names = [value.name for value in body.input]
    rows: list[list[Any]] = []
    for items in zip(*columns, strict=True):
        results = run(body, {**around, **dict(zip(names, [*states, *items], strict=True))})
        states = results[: len(states)]
        rows.append(results[len(states) :])
    if not rows:
        return None
    stacks = [list(column) for column in zip(*rows, strict=True)]
    axes, back = (attrs.get(f"scan_output_{key}") or [0] * len(stacks) for key in ("axes", "directions"))
    ordered = [stack[::-1] if flag else stack for stack, flag in zip(stacks, back, strict=True)]
    return [*states, *(np.stack(stack, axis) for stack, axis in zip(ordered, axes, strict=True))]
