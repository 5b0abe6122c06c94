"""Chains: which rows a block needs of what comes before it, on windows, padding and rests of every kind."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tunewright.codegen.ir.ir import Alloc, Block, Buffer, For, If, Scope, Stmt
from tunewright.codegen.target import Target
from tunewright.graph.fusion.fusion import TaskCall, partition
from tunewright.graph.fusion.merge import concatenate
from tunewright.graph.task import Task
from tunewright.search_space.cpu.chain import ChainSketch
from tunewright.search_space.cpu.loops.chain_plan import plan_chain
from tunewright.search_space.cpu.loops.row_passes import PART, VALUE
from tunewright.search_space.patterns.chain import ROW, Chain, match_chain
from tunewright.search_space.sketch import LOCAL_BYTES

from .oracle import NARROW, WIDE, agree, graph_of

SKETCH = ChainSketch()

MODELS = {
    "separable": "g = Conv(x, p) t = Conv<group=16, pads=[1, 1, 1, 1]>(g, w) u = Relu(t) y = Conv(u, q)",
    "inverted": "s = Conv(x, p) t = Clip(s, low, high) u = Conv<group=16, pads=[1, 1, 1, 1]>(t, w) r = Conv(u, q)"
    " y = Add(r, x)",
    "strided": "s = Conv(x, p) t = Relu(s) u = Conv<group=16, pads=[0, 1, 1, 0], strides=[2, 2]>(t, w) y = Conv(u, q)",
    "skipping": "s = Conv(x, p) u = Conv<group=16, strides=[4, 1]>(s, w) y = Conv(u, q)",
    "dilated": "s = Conv(x, p) u = Conv<group=16, dilations=[2, 1], pads=[2, 0, 2, 0]>(s, w) y = Conv(u, q)",
    "twice": "s = Conv(x, p) t = Conv<group=16, pads=[1, 1, 1, 1]>(s, w)"
    " u = Conv<group=16, pads=[2, 1, 2, 1], dilations=[2, 1]>(t, v) y = Conv(u, q)",
    "pooled": "s = Conv(x, p) u = MaxPool<kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]>(s) y = Conv(u, q)",
}
"""Chains of convolutions: x has 8 channels, p widens 8 channels to 16, q narrows them again."""

CONSTANTS = {"p": "16, 8, 1, 1", "q": "8, 16, 1, 1", "w": "16, 1, 3, 3", "v": "16, 1, 3, 3", "low": "", "high": ""}

ATTENTION = (
    "t = Transpose<perm=[0, 2, 1]>(k) r = MatMul(q, t) s = Add(r, m) p = Softmax(s) o = MatMul(p, v)"
    " y = Transpose<perm=[1, 0, 2]>(o)"
)

ALONG_ROWS = {
    "between": "t = MatMul(x, p) u = LayerNormalization(t, s, z) y = MatMul(u, q)",
    "last": "t = MatMul(x, p) y = Softmax(t)",
}
"""Chains with steps along rows of 48 columns, 19 rows."""

NOT_MERGED = "t = Transpose<perm=[1, 0]>(k) r = MatMul(q, t) a = Sigmoid(r) p = Softmax(a) y = Add(p, r)"
"""A product that a map over the same axes and the last link read."""


def whole(nodes: str, shapes: dict[str, str], constants: dict[str, str]) -> Task:
    """All that some nodes compute, as one task."""
    graph = graph_of(nodes, shapes, constants, low=0.0, high=2.0)
    calls = [step for step in partition(graph) if isinstance(step, TaskCall)]
    group, *others = (call.group for call in calls)
    for other in others:
        assert group is not None and other is not None
        group = concatenate(group, other, group.outputs[0])
    assert group is not None
    return TaskCall.of(graph, group).task


def convolutions(name: str, a: int, b: int, images: int = 1) -> Task:
    return whole(MODELS[name], {"x": f"{images}, 8, {a}, {b}"}, CONSTANTS)


def attention(heads: int, queries: int, keys: int, depth: int) -> Task:
    shapes = {
        "q": f"{heads}, {queries}, {depth}",
        "k": f"{heads}, {keys}, {depth}",
        "v": f"{heads}, {keys}, {depth}",
    }
    return whole(ATTENTION, shapes, {"m": f"{queries}, {keys}"})


def along_rows(name: str) -> Task:
    constants = {"p": "24, 48", "s": "48", "z": "48", "q": "48, 20"}
    return whole(ALONG_ROWS[name], {"x": "19, 24"}, constants)


def local_buffers(stmt: Stmt) -> Iterator[Buffer]:
    """The buffers on the stack of a chunk."""
    match stmt:
        case Alloc(buffer, body):
            if buffer.scope is Scope.SHARED:
                yield buffer
            yield from local_buffers(body)
        case Block(body):
            for inner in body:
                yield from local_buffers(inner)
        case For(body=inner) | If(then=inner):
            yield from local_buffers(inner)


def match(task: Task) -> Chain:
    chain = match_chain(task)
    assert chain is not None
    return chain


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("target", [WIDE, NARROW], ids=["wide", "narrow"])
@settings(deadline=None, max_examples=2)
@given(a=st.integers(9, 15), b=st.integers(3, 7), seed=st.integers(0, 2**31))
def test_blocks_of_convolutions_agree_with_the_oracle(name: str, target: Target, a: int, b: int, seed: int) -> None:
    task = convolutions(name, a, b)
    agree(SKETCH, task, target, seed, 1)


@pytest.mark.parametrize("name", MODELS)
def test_blocks_of_several_images_agree_with_the_oracle(name: str) -> None:
    agree(SKETCH, convolutions(name, 9, 4, images=3), NARROW, 0, 1)


def test_blocks_of_several_lines_agree_with_the_oracle() -> None:
    nodes = "g = Conv(x, p) t = Conv<group=16, pads=[1, 1]>(g, w) y = Conv(t, q)"
    task = whole(nodes, {"x": "3, 8, 13"}, {"p": "16, 8, 1", "w": "16, 1, 3", "q": "8, 16, 1"})
    plan = plan_chain(task, 4)
    assert plan is not None and [axis.extent for axis in plan.chain.outer] == [3]
    assert {plan.tile_axis(number) for number in plan.products} == {""}  # its rows are tiled one by one, see `Blocks`
    agree(SKETCH, task, NARROW, 0, 2)


@pytest.mark.slow
@pytest.mark.parametrize("target", [WIDE, NARROW], ids=["wide", "narrow"])
@settings(deadline=None, max_examples=2)
@given(
    sizes=st.tuples(st.integers(1, 3), st.integers(2, 37), st.integers(8, 37), st.integers(8, 20)),
    seed=st.integers(0, 2**31),
)
@example(sizes=(2, 19, 32, 16), seed=0)
@example(sizes=(1, 37, 16, 8), seed=0)
def test_blocks_of_attention_agree_with_the_oracle(target: Target, sizes: tuple[int, int, int, int], seed: int) -> None:
    agree(SKETCH, attention(*sizes), target, seed, 2)


@pytest.mark.parametrize("name", ALONG_ROWS)
@pytest.mark.parametrize("target", [WIDE, NARROW], ids=["wide", "narrow"])
def test_rows_between_products_and_at_the_end_agree_with_the_oracle(name: str, target: Target) -> None:
    agree(SKETCH, along_rows(name), target, 0, 2)


def test_a_window_needs_rows_beside_those_of_a_block() -> None:
    chain = match(convolutions("inverted", 14, 7))
    assert [link.padding is not None for link in chain.links] == [False, True, False, False]  # the first turns x
    assert [bool(link.product) for link in chain.links] == [False, True, False, True]
    spans = chain.spans(4)[1:]
    assert [(int(s.first), int(s.end), int(s.overlap)) for s in spans] == [(0, 6, 2), (0, 4, 0), (0, 4, 0)]
    assert int(chain.line_buffer_rows(1, chain.spans(4))) == 6 and chain.rows == 14


def test_strides_and_windows_add_up_along_a_chain() -> None:
    twice = match(convolutions("twice", 14, 7)).spans(3)
    assert [(int(s.stride), int(s.first), int(s.end)) for s in twice[:3]] == [(3, -2, 7), (3, 0, 7), (3, 0, 3)]
    strided = match(convolutions("strided", 14, 7)).spans(3)
    assert [(int(s.stride), int(s.first), int(s.end)) for s in strided[:2]] == [(6, 0, 7), (3, 0, 3)]


def test_queries_are_the_rows_of_attention_and_heads_stay_apart() -> None:
    chain = match(attention(3, 10, 16, 8))
    assert [axis.extent for axis in chain.outer] == [3]
    assert chain.rows == 10 and not chain.is_sliding
    assert all(ROW in {a.name for a in link.fused_stage.stage.axes} for link in chain.links)


def test_softmax_goes_along_the_rows_of_a_block_and_keeps_to_single_rows() -> None:
    plan = plan_chain(attention(3, 10, 32, 16), 16)
    assert plan is not None
    (softmax,) = plan.row_links
    assert (softmax.first, softmax.stop, softmax.plan.pass_count) == (1, 5, 3)
    names = [link.tensor.name for link in plan.links]
    assert plan.within_rows == set(names[1:4])  # the scores and what they are turned into are of a whole block
    assert {axis.name for axis in softmax.plan.rows} == {ROW, "outer0"}


def test_products_have_loops_of_their_own_where_a_map_follows() -> None:
    task = whole(NOT_MERGED, {"q": "20, 16", "k": "32, 16"}, {})
    plan = plan_chain(task, 16)
    assert plan is not None and plan.products == (0,) and not plan.links[1].fused_stage.stage.reduce
    assert [(together.first, together.stop) for together in plan.row_links] == [(1, 6)]
    agree(SKETCH, task, WIDE, 0, 1)


def test_values_are_read_where_they_are_and_keys_turned() -> None:
    task = attention(3, 10, 32, 16)
    plan = plan_chain(task, 16)
    assert plan is not None and not plan.packed_products
    assert [plan.is_in_place(number) for number in plan.products] == [False, True]


def test_what_lies_between_pieces_is_never_in_shared_memory() -> None:
    task = convolutions("inverted", 14, 7)
    kernel = SKETCH.lower(task, SKETCH.space(task, NARROW).default, NARROW)
    assert not kernel.scratch and len(kernel.body.body) == 1
    assert all(buffer.scope is Scope.GLOBAL for buffer in kernel.params)


def test_schedules_stay_within_the_memory_of_a_chunk() -> None:
    task = convolutions("inverted", 512, 300)
    space = SKETCH.space(task, NARROW)
    blocks = {schedule["block"] for schedule in map(space.schedule, space.sample(200, np.random.default_rng(0)))}
    assert max(blocks) * 300 * 16 * 4 <= LOCAL_BYTES


@pytest.mark.parametrize("name", [*ALONG_ROWS, "attention"])
def test_chunks_take_no_more_memory_than_is_counted(name: str) -> None:
    task = attention(2, 12, 32, 16) if name == "attention" else along_rows(name)
    plan, space = plan_chain(task, 16), SKETCH.space(task, WIDE)
    assert plan is not None and plan.row_links
    for schedule in (space.default, *map(space.schedule, space.sample(8, np.random.default_rng(0)))):
        buffers = local_buffers(SKETCH.lower(task, schedule, WIDE).body)
        sizes = {b.name: b.size_bytes for b in buffers if not b.name.endswith((PART, VALUE))}
        columns = {knob: np.array(value) for knob, value in schedule.values}
        assert sum(sizes.values()) <= plan.local_bytes(columns["block"], columns["chunks"], columns)


@pytest.mark.parametrize(
    "nodes",
    ["y = MatMul(q, k)", "y = Softmax(q)", "r = MatMul(q, k) y = Relu(r)", "r = MatMul(q, k) y = MatMul(k, r)"],
    ids=["product", "rows", "epilogue", "columns"],
)
def test_what_is_no_chain_of_reductions_is_left_to_others(nodes: str) -> None:
    task = whole(nodes, {"q": "32, 32", "k": "32, 32"}, {})
    assert not SKETCH.applies(task, WIDE)
