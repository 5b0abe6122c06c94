"""Causal attention as models: ONNX's own op, alone."""

from __future__ import annotations

from typing import NamedTuple

from onnx import parser

from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.search_space.sketches import sketch
from tunewright.tuner.models.model import open_for


class CausalSizes(NamedTuple):
    """The heads of queries and of keys, queries, keys before the first of them, and elements of a head."""

    heads: int
    groups: int
    queries: int
    past: int
    depth: int


def causal_model(sizes: CausalSizes, kind: str = "float16") -> bytes:
    """Attention of which no query sees a key after it."""
    heads, groups, queries, past, depth = sizes
    types = {"q": f"{kind}[1, {heads}, {queries}, {depth}]", "k": f"{kind}[1, {groups}, {queries}, {depth}]"}
    types["v"] = types["k"]
    call, results = "y = Attention<is_causal = 1>(q, k, v)", f"{kind} y"
    if past:
        types |= dict.fromkeys(("before_k", "before_v"), f"{kind}[1, {groups}, {past}, {depth}]")
        call, results = (
            "y, a, b = Attention<is_causal = 1>(q, k, v, , before_k, before_v)",
            f"{kind} y, {kind} a, {kind} b",
        )
    inputs = ", ".join(f"{shape} {name}" for name, shape in types.items())
    text = f'<ir_version: 11, opset_import: ["" : 23]> g ({inputs}) => ({results}) {{ {call} }}'
    return bytes(parser.parse_model(text).SerializeToString())


def causal_task(sizes: CausalSizes, target: Target, kind: str = "float16") -> Task:
    """The task of the attention as one launch."""
    model = open_for(target, causal_model(sizes, kind))
    segments = [segment.call.task for chain in model.chains for segment in chain.segments]
    tasks = (*segments, *(task for task, _ in model.tasks.values()))
    return next(task for task in tasks if sketch("attention_tiles").applies(task, target))
