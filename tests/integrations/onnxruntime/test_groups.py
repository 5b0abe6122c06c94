"""Groups of nodes: disjoint, ours alone, and never left and entered again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tunewright.integrations.onnxruntime.groups import LEAST_WORK, GroupNode, choose_groups


@st.composite
def graphs(draw: st.DrawFn) -> list[GroupNode]:
    nodes: list[GroupNode] = []
    for number in range(draw(st.integers(1, 14))):
        earlier = draw(st.lists(st.integers(0, max(number - 1, 0)), max_size=3)) if number else []
        inputs = tuple(f"t{source}" for source in earlier) or ("x",)
        work = draw(st.sampled_from((0, LEAST_WORK)))
        nodes.append(GroupNode(inputs, (f"t{number}",), draw(st.booleans()), work))
    return nodes


def reached(nodes: list[GroupNode], start: set[int]) -> set[int]:
    """Numbers of nodes to which a path leads from some."""
    found: set[int] = set()
    made = {name for number in start for name in nodes[number].outputs}
    for number, node in enumerate(nodes):
        if made.intersection(node.inputs):
            found.add(number)
            made.update(node.outputs)
    return found


@given(graphs())
def test_no_path_leaves_a_group_and_comes_back(nodes: list[GroupNode]) -> None:
    groups = choose_groups(nodes)
    members = [number for group in groups for number in group]
    assert len(set(members)) == len(members)
    for group in groups:
        assert all(nodes[number].is_ours for number in group)
        outside = reached(nodes, set(group)) - set(group)
        assert not reached(nodes, outside) & set(group)


@given(graphs())
def test_groups_do_not_wait_for_each_other(nodes: list[GroupNode]) -> None:
    """Of two groups at most one is reached from the other, so that they can be computed one after the other."""
    groups = [set(group) for group in choose_groups(nodes)]
    for one in groups:
        for other in groups:
            if one is not other:
                assert not (reached(nodes, one) & other and reached(nodes, other) & one)


def test_a_graph_that_is_ours_is_one_group() -> None:
    nodes = [GroupNode(("x",), ("a",), True), GroupNode(("a",), ("b",), True), GroupNode(("x",), ("c",), True)]
    assert choose_groups(nodes) == [[0, 1, 2]]


def test_little_work_stays_where_it_is() -> None:
    light = [GroupNode(("x",), ("a",), True, 10), GroupNode(("a",), ("b",), False, 10)]
    assert choose_groups(light) == []
    heavy = [GroupNode(("x",), ("a",), True, LEAST_WORK), GroupNode(("a",), ("b",), False, 10)]
    assert choose_groups(heavy) == [[0]]


def test_work_that_is_left_parts_no_group() -> None:
    """A light node between foreign ones is foreign itself, and what it parted is one group."""
    nodes = [
        GroupNode(("x",), ("f",), False),
        GroupNode(("f",), ("a",), True, LEAST_WORK),
        GroupNode(("f",), ("b",), True, LEAST_WORK),
        GroupNode(("a", "b"), ("c",), True, 5),
        GroupNode(("c",), ("g",), False),
        GroupNode(("g",), ("h",), True, 5),
    ]
    assert choose_groups(nodes) == [[1, 2, 3]]
