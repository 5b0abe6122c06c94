"""Rewrites: functions from a graph to an equivalent one that runs faster or is easier to compile.

Read first: `STEPS`, the order in which they run. Each rewrite is a function in a module of its subject, with a worked
example in its docstring; most are a rule about one node, applied by `edit.apply`. `rewrite` runs them all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from tunewright.graph.ir import Graph, Value

from .activations import gates, gelus
from .cleanup import common_subexpressions, constant_folding, dead_code
from .edit import log
from .identities import identities
from .layout import channels_last
from .linear import matrix_products
from .movement import reshapes, transposes
from .norms import layer_norms, softmaxes
from .quantised import decomposed, dequantised, float_products, integer_products, kept_zero_points, zero_points
from .recurrent import recurrences
from .scales import batch_norms, scales
from .widening import narrow_floats
from .windows import pads, whole_pools

__all__ = ["STEPS", "Rewrite", "Step", "rewrite"]

MAX_ROUNDS = 50
"""How often a step is repeated at most; a chain of n nodes may take n rounds."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One rewrite and its name for people; `rounds` is its row in docs/numerics.md, empty where no bit changes."""

    name: str
    run: Callable[[Graph], Graph]
    rounds: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """Rewrites that make work for each other: they run in turn until none changes anything, or `once`."""

    name: str
    rewrites: tuple[Rewrite, ...]
    once: bool = False


_CLEAN = (
    Rewrite("dead code", dead_code),
    Rewrite("constant folding", constant_folding),
    Rewrite("common subexpressions", common_subexpressions),
    Rewrite("identities", identities),
    Rewrite("reshapes", reshapes),
    Rewrite("transposes", transposes),
)

_RECOGNISE = (
    Rewrite("gelu", gelus, rounds="recognised activations"),
    Rewrite("silu, hard swish", gates, rounds="recognised activations"),
    Rewrite("softmax", softmaxes, rounds="recognised norms"),
    Rewrite("layer norm", layer_norms, rounds="recognised norms"),
    Rewrite("recurrences", recurrences, rounds="recurrences"),
)

STEPS = (
    Step("widen", (Rewrite("narrow floats", narrow_floats, rounds="narrow floats"),), once=True),
    Step("simplify", (Rewrite("quantised ops", decomposed), *_CLEAN)),
    Step("widen", (Rewrite("products of floats", float_products, rounds="quantised products"),), once=True),
    Step("keep bytes", (Rewrite("products of bytes", integer_products, rounds="quantised products"),), once=True),
    Step("zero points", (Rewrite("zero points", zero_points),), once=True),
    Step(
        "quantised",
        (Rewrite("zero points that are kept", kept_zero_points), Rewrite("dequantised", dequantised), *_CLEAN),
    ),
    Step("recognise", (*_CLEAN, *_RECOGNISE)),
    Step(
        "fold weights",
        (
            Rewrite("batch norm", batch_norms, rounds="BatchNormalization"),
            Rewrite("matrix products", matrix_products, rounds="scales into weights"),
            Rewrite("pools over all", whole_pools),
            Rewrite("pads", pads),
            Rewrite("scales", scales, rounds="scales into weights"),
            *_CLEAN,
        ),
    ),
    Step("layout", (Rewrite("channels last", channels_last),), once=True),
    # With the Transposes gone, more patterns show.
    Step("tidy", (Rewrite("scales", scales, rounds="scales into weights"), *_CLEAN, *_RECOGNISE)),
)
"""What `rewrite` does, in order."""


def rewrite(graph: Graph, layout: Literal["NHWC", "NCHW"] = "NHWC", widen: bool = True) -> Graph:
    """The graph simplified, composite ops recognised, weights folded, and with "NHWC" channels last.

    `widen`: what is float16 or bfloat16 is computed, and kept meanwhile, in float32, as processors do it, and what
    bytes stand for is multiplied as floats. Else bytes are multiplied as they are.

    The result computes the same up to rounding, has the same inputs and outputs, and its tensors are numbered anew.
    What every rewrite did is logged at level DEBUG.
    """
    defaults = graph.defaults  # all the way they are constants like any
    wanted = {"layout": layout == "NHWC", "widen": widen, "keep bytes": not widen}
    settled: dict[Callable[[Graph], Graph], Graph] = {}
    for step in STEPS:
        if wanted.get(step.name, True):
            graph = _settled(graph, step, settled)
    return replace(renumbered(graph), defaults=defaults)


def _settled(graph: Graph, step: Step, settled: dict[Callable[[Graph], Graph], Graph]) -> Graph:
    """The graph after a step. `settled`: for a rewrite the graph that it has seen and found nothing to do in."""
    for _ in range(1 if step.once else MAX_ROUNDS):
        before = graph
        for item in step.rewrites:
            if settled.get(item.run) is graph:
                continue
            changed = item.run(graph)
            if changed is graph:
                settled[item.run] = graph
            else:
                log.debug("%s: %s: %d -> %d nodes", step.name, item.name, len(graph.nodes), len(changed.nodes))
                log.log(logging.DEBUG - 1, "%s", changed)
            graph = changed
        if graph is before:
            break
    return graph


def renumbered(graph: Graph) -> Graph:
    """The graph with tensors called `v0, v1, ...` in order of appearance."""
    order: dict[str, str] = {"": ""}
    for value in graph.inputs:
        order.setdefault(value.tensor, f"v{len(order) - 1}")
    for node in graph.nodes:
        for name in (*node.inputs, *node.outputs):
            order.setdefault(name, f"v{len(order) - 1}")
    for value in graph.outputs:
        order.setdefault(value.tensor, f"v{len(order) - 1}")
    nodes = tuple(
        replace(n, inputs=tuple(map(order.__getitem__, n.inputs)), outputs=tuple(map(order.__getitem__, n.outputs)))
        for n in graph.nodes
    )
    inputs, outputs = (
        tuple(Value(value.label, order[value.tensor]) for value in values) for values in (graph.inputs, graph.outputs)
    )
    constants = {order[name]: array for name, array in graph.constants.items() if name in order}
    types = {order[name]: kind for name, kind in graph.types.items() if name in order}
    return Graph(inputs, outputs, nodes, constants, types)
