"""Rewrites: functions from a graph to an equivalent one that runs faster or is easier to compile.

Read first: `STEPS`, the order in which they run. Each rewrite is a function in a module of its subject, with a worked
example in its docstring; most are a rule about one node (`edit.each`). `rewrite` runs them all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from tunewright.graph.ir import Graph

from ..numerics import PROCESSOR, Numerics, Precision
from .bf16_products import bf16_products
from .block_matmul import (
    block_matmuls,
    byte_block_matmuls,
    exact_activations,
    gpu_block_matmuls,
    rounded_activations,
)
from .byte_activations import byte_activations
from .edit import log
from .layout import channels_last
from .masks import causal_masks
from .output_scales import moved_bytes, output_scales
from .quantisation import (
    biases,
    constant_bytes,
    dot_products,
    float_products,
    integer_products,
    other_float_products,
    quantised_ops,
    residual_zero_points,
    signed_weights,
)
from .recognition import gates, gelus, layer_norms, softmaxes
from .recurrent import recurrences
from .repetition import grouped_scores, repeated_operands
from .resizing import interpolations
from .simplify import (
    common_subexpressions,
    constant_folding,
    dead_code,
    empty_tensors,
    identities,
    reshapes,
    transposes,
)
from .sizes import cut_outputs, sizes
from .sub_kernels import sub_kernels
from .unsigned_bytes import unsigned_activations
from .weight_types import bf16_weights, narrow_weights
from .weights import batch_norms, matrix_products, pads, scales, whole_pools
from .widening import narrow_floats
from .written_rows import whole_rows, written_rows
from .zero_points import zero_points

__all__ = ["STEPS", "Rewrite", "RewriteStep", "rewrite"]

MAX_ROUNDS = 50
"""Most rounds of a step; a chain of n nodes may take n of them."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One rewrite and its name for people; `rounds` is its row in docs/numerics.md, empty where no bit changes."""

    name: str
    run: Callable[[Graph], Graph]
    rounds: str = ""


class RewriteOptions(NamedTuple):
    """What `rewrite` gets beside the graph."""

    numerics: Numerics
    layout: Literal["NHWC", "NCHW"]
    is_body: bool


def _always(_: RewriteOptions) -> bool:
    return True


def _when_widened(options: RewriteOptions) -> bool:
    return options.numerics.widen


def _when_narrow(options: RewriteOptions) -> bool:
    return not options.numerics.widen


def _when_dots(options: RewriteOptions) -> bool:
    return options.numerics.widen and options.numerics.dots


def _when_byte_activations(options: RewriteOptions) -> bool:
    numerics = options.numerics
    return numerics.precision is Precision.INT8_ACTIVATIONS and (numerics.dots or not numerics.widen)


@dataclass(frozen=True, slots=True)
class RewriteStep:
    """Rewrites that make work for each other: they run in turn until none changes anything, or `once`.

    `when` says for which options they run.
    """

    name: str
    rewrites: tuple[Rewrite, ...]
    once: bool = False
    when: Callable[[RewriteOptions], bool] = _always


_CLEAN = (
    Rewrite("dead code", dead_code),
    Rewrite("empty tensors", empty_tensors),
    Rewrite("constant folding", constant_folding),
    Rewrite("common subexpressions", common_subexpressions),
    Rewrite("identities", identities),
    Rewrite("reshapes", reshapes),
    Rewrite("transposes", transposes),
)

_RECOGNISE = (
    Rewrite("copies", repeated_operands),
    Rewrite("gelu", gelus, rounds="recognised activations"),
    Rewrite("silu, hard swish", gates, rounds="recognised activations"),
    Rewrite("softmax", softmaxes, rounds="recognised norms"),
    Rewrite("layer norm", layer_norms, rounds="recognised norms"),
    Rewrite("recurrences", recurrences, rounds="recurrences"),
)

_GROUPED = Rewrite("groups of heads", grouped_scores)

STEPS = (
    RewriteStep("masks", (Rewrite("causal masks", causal_masks),), once=True, when=_when_widened),
    RewriteStep(
        "widen", (Rewrite("narrow floats", narrow_floats, rounds="narrow floats"),), once=True, when=_when_widened
    ),
    RewriteStep(
        "simplify",
        (
            Rewrite("quantised ops", quantised_ops),
            Rewrite("biases", biases, rounds="quantised products"),
            Rewrite("moved bytes", moved_bytes),
            *_CLEAN,
        ),
    ),
    RewriteStep(
        "byte activations",
        (
            Rewrite("byte activations", byte_activations, rounds="precision"),
            Rewrite("quantised ops", quantised_ops),
            *_CLEAN,
        ),
        when=_when_byte_activations,
    ),
    RewriteStep("sizes", (Rewrite("bounds of sizes", sizes),), once=True, when=_when_widened),
    RewriteStep(
        "rows",
        (Rewrite("whole rows", whole_rows), Rewrite("rows that are written", written_rows)),
        once=True,
        when=_when_widened,
    ),
    RewriteStep(
        "sizes of outputs",
        (Rewrite("cut outputs", cut_outputs),),
        once=True,
        when=lambda options: options.numerics.widen and not options.is_body,
    ),
    RewriteStep(
        "packed bytes",
        (Rewrite("products of blocks of bytes", byte_block_matmuls, rounds="scales of blocks"),),
        once=True,
        when=_when_dots,
    ),
    RewriteStep(
        "rounded activations", (Rewrite("rounded activations", rounded_activations),), once=True, when=_when_widened
    ),
    RewriteStep("exact activations", (Rewrite("exact activations", exact_activations),), once=True, when=_when_narrow),
    RewriteStep(
        "widen products",
        (Rewrite("products of floats", float_products, rounds="quantised products"),),
        once=True,
        when=lambda options: options.numerics.widen and not options.numerics.dots,
    ),
    RewriteStep(
        "keep dots",
        (
            Rewrite("unsigned activations", unsigned_activations),
            Rewrite("dots of bytes", dot_products, rounds="quantised products"),
            Rewrite("signed weights", signed_weights),
            Rewrite("scales of outputs", output_scales, rounds="quantised products"),
            Rewrite("other products of floats", other_float_products, rounds="quantised products"),
        ),
        once=True,
        when=_when_dots,
    ),
    RewriteStep(
        "keep bytes",
        (Rewrite("products of bytes", integer_products, rounds="quantised products"),),
        once=True,
        when=_when_narrow,
    ),
    RewriteStep(
        "packed weights",
        (Rewrite("products of blocks", block_matmuls, rounds="scales of blocks"),),
        once=True,
        when=_when_widened,
    ),
    RewriteStep(
        "stored weights",
        (Rewrite("products of blocks on GPUs", gpu_block_matmuls, rounds="scales of blocks"),),
        once=True,
        when=_when_narrow,
    ),
    RewriteStep("zero points", (Rewrite("zero points", zero_points),), once=True),
    RewriteStep(
        "quantised",
        (Rewrite("zero points that are kept", residual_zero_points), Rewrite("dequantised", constant_bytes), *_CLEAN),
    ),
    RewriteStep("recognise", (*_CLEAN, *_RECOGNISE)),
    RewriteStep("groups of heads", (_GROUPED, *_CLEAN)),  # patterns have a Reshape in their middle from here on
    RewriteStep(
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
    RewriteStep(
        "layout", (Rewrite("channels last", channels_last),), once=True, when=lambda options: options.layout == "NHWC"
    ),
    RewriteStep("sub-kernels", (Rewrite("sub-kernels", sub_kernels, rounds="sub-kernels"),), once=True),
    RewriteStep("resize", (Rewrite("interpolations", interpolations, rounds="interpolations"),), once=True),
    # With the Transposes gone, more patterns show.
    RewriteStep("tidy", (Rewrite("scales", scales, rounds="scales into weights"), *_CLEAN, *_RECOGNISE, _GROUPED)),
    RewriteStep(
        "bf16 products",
        (
            Rewrite("products of bfloat16", bf16_products, rounds="precision"),
            Rewrite("common subexpressions", common_subexpressions),
        ),
        once=True,
        when=lambda options: options.numerics.precision is Precision.BF16 and options.numerics.bf16,
    ),
    RewriteStep(
        "bf16 weights",
        (Rewrite("weights in bfloat16", bf16_weights, rounds="precision"),),
        once=True,
        when=lambda options: options.numerics.precision is Precision.BF16 and options.numerics.widen,
    ),
    # Last, else casts would fold.
    RewriteStep("narrow weights", (Rewrite("narrow weights", narrow_weights),), once=True, when=_when_widened),
)
"""The steps of `rewrite`, in order."""


def rewrite(
    graph: Graph,
    layout: Literal["NHWC", "NCHW"] = "NHWC",
    *,
    numerics: Numerics = PROCESSOR,
    is_body: bool = False,
) -> Graph:
    """The graph simplified, composite ops recognised, weights folded, and with "NHWC" channels last.

    On processors (`numerics`), too, what only a run tells the size of is computed at its bound; outputs of a body
    (`is_body`) have the size all the same.

    The result computes the same up to rounding, has the same inputs and outputs, and its tensors are numbered anew.
    What every rewrite did is logged at level DEBUG.
    """
    origin = graph  # defaults and bound inputs are constants like any all the way
    options = RewriteOptions(numerics, layout, is_body)
    unchanged: dict[Callable[[Graph], Graph], Graph] = {}
    for step in STEPS:
        if step.when(options):
            graph = _run_step(graph, step, unchanged)
    return renumber(graph).described_as(origin)


def _run_step(graph: Graph, step: RewriteStep, unchanged: dict[Callable[[Graph], Graph], Graph]) -> Graph:
    """The graph after a step. `unchanged` has for a rewrite the last graph that it did not change."""
    for _ in range(1 if step.once else MAX_ROUNDS):
        before = graph
        for item in step.rewrites:
            if unchanged.get(item.run) is graph:
                continue
            changed = item.run(graph)
            if changed is graph:
                unchanged[item.run] = graph
            else:
                log.debug("%s: %s: %d -> %d nodes", step.name, item.name, len(graph.nodes), len(changed.nodes))
                log.log(logging.DEBUG - 1, "%s", changed)
            graph = changed
        if graph is before:
            break
    return graph


def renumber(graph: Graph) -> Graph:
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
        tuple(replace(value, tensor=order[value.tensor]) for value in values)
        for values in (graph.inputs, graph.outputs)
    )
    constants = {order[name]: array for name, array in graph.constants.items() if name in order}
    types = {order[name]: kind for name, kind in graph.types.items() if name in order}
    return Graph(inputs, outputs, nodes, constants, types)
