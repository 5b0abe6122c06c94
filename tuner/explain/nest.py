"""Nest: the loops of a lowered kernel as a small tree, for a picture.

Repeats are merged: statements, loops and cases side by side that read and write the same tensors are mostly the same
work for a tile of another size, an edge, or the next vector. Where the tree is still too large, the parts that run
least often are summed up in a line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import Any

from tunewright.codegen.expr.expr import Op, loads
from tunewright.codegen.ir.formula import formula, prefetch_formula, store_formula
from tunewright.codegen.ir.ir import (
    Alloc,
    Barrier,
    Block,
    Buffer,
    Do,
    Fetch,
    For,
    If,
    Kernel,
    LoopKind,
    Prefetch,
    Roles,
    Scope,
    Stmt,
    Store,
)

from ..text import counted, shorten

MOST_NODES = 60
"""Loops and steps of a picture."""

MOST_LETTERS = 120
"""Letters of a step."""

MOST_NAMED = 4
"""Tensors that a summary names."""

MOST_STATEMENT = MOST_LETTERS - 20
"""Letters of a statement alone: a step may also have its count."""

LARGEST_VECTOR_BYTES = 256
"""Memory up to which it is not listed: a vector of the largest processors."""

LONGEST_PERIOD = 6
"""Longest sequence of statements whose repeats are merged."""

BARRIER = "all threads meet"
"""The step between two phases."""


@dataclass(frozen=True, slots=True)
class NestStep:
    """A statement of the nest: one line for people."""

    text: str


@dataclass(frozen=True, slots=True)
class NestLoop:
    """A loop around `parts`. `kind` is the value of a LoopKind."""

    kind: str
    var: str
    extent: int
    parts: tuple[Part, ...]


Part = NestLoop | NestStep


def nest(kernel: Kernel, most_nodes: int = MOST_NODES) -> tuple[Part, ...]:
    """The phases of a kernel in order, with a BARRIER between each two; loops and steps are `most_nodes` at most."""
    tree: list[_Node] = []
    for phase in kernel.body.body:
        inside = _nodes(phase)
        if any(node.statements for node in inside):
            tree += [_Node(BARRIER), *inside] if tree else inside
    return _fit(_flatten(tree), most_nodes)


def nodes(parts: Iterable[Part]) -> int:
    """The number of loops and steps."""
    return sum(1 + nodes(part.parts) if isinstance(part, NestLoop) else 1 for part in parts)


def to_json(part: Part) -> dict[str, Any]:
    """Plain data; `from_json` inverts it."""
    match part:
        case NestStep(text):
            return {"text": text}
        case NestLoop(kind, var, extent, parts):
            return {"kind": kind, "var": var, "extent": extent, "parts": [to_json(inner) for inner in parts]}


def from_json(data: Any) -> Part:
    """Raises KeyError, TypeError or ValueError on anything that `to_json` can't have written."""
    if "text" in data:
        return NestStep(_line(data["text"]))
    extent, parts = data["extent"], data["parts"]
    if type(extent) is not int or extent < 0 or not isinstance(parts, list):
        raise ValueError("that is no loop")
    return NestLoop(LoopKind(data["kind"]).value, _line(data["var"]), extent, tuple(map(from_json, parts)))


def _line(text: object) -> str:
    if not isinstance(text, str) or len(text) > MOST_LETTERS or not text.isprintable():
        raise ValueError("that is no line of a nest")
    return text


# The tree before it is fitted


@dataclass(frozen=True, slots=True)
class _Node:
    """A step, a loop around the nodes `inside`, or a group of them, which may be guarded by a condition."""

    text: str = ""  # of a step
    loop: tuple[str, str, int] | None = None  # kind, variable, extent
    guard: str = ""  # of a group: the condition
    inside: tuple[_Node, ...] = ()
    accesses: frozenset[tuple[str, str]] = frozenset()  # (READ, WRITE or PREFETCH, tensor)
    runs: int = 0  # statements that one run of it executes, as if all conditions held
    statements: int = 0
    once: bool = False  # whether it is for one tile alone
    count: int = 1  # how many alike it stands for

    @property
    def is_step(self) -> bool:
        return self.loop is None and not self.inside

    @property
    def loops(self) -> int:
        return (self.loop is not None) + sum(node.loops for node in self.inside)


READ, WRITE, PREFETCH = "read", "write", "prefetch"
"""Kinds of access to a tensor."""


def _nodes(stmt: Stmt) -> list[_Node]:
    """The nodes of a statement; none for one without effect."""
    match stmt:
        case Block(body):
            return _merge_repeats(list(chain.from_iterable(map(_nodes, body))))
        case For(var, extent, body, kind):
            return _around(_nodes(body), _Node(loop=(kind.value, var, extent)))
        case If(condition, then):
            is_one = isinstance(condition, Op) and condition.name == "eq"
            return _around(_nodes(then), _Node(guard=formula(condition, MOST_LETTERS // 2), once=is_one))
        case Alloc():
            return _with_memory(stmt)
        case Prefetch(tensor):
            return [_Node(prefetch_formula(stmt, MOST_STATEMENT), accesses=frozenset({(PREFETCH, tensor)}))]
        case Store(tensor, _, value):
            read = {(READ, load.tensor) for load in loads(value) if load.tensor != tensor}
            accesses = read | {(WRITE, tensor)}
            return [_Node(store_formula(stmt, MOST_STATEMENT), accesses=frozenset(accesses), runs=1, statements=1)]
        case Barrier():
            return [_Node("all threads of the block meet")]
        case Do(name, outs, ins):
            accesses = {(READ, operand.tensor) for operand in ins} | {(WRITE, operand.tensor) for operand in outs}
            return [_Node(name, accesses=frozenset(accesses), runs=1, statements=1)]
        case Fetch(tensor_map, _, target):
            accesses = {(READ, tensor_map.tensor), (WRITE, target.tensor)}
            return [_Node("fetch", accesses=frozenset(accesses), runs=1, statements=1)]
        case Roles(roles):
            return [node for role in roles for node in _nodes(role.body)]


def _around(inside: Sequence[_Node], outside: _Node) -> list[_Node]:
    """A loop or a condition, as long as there is anything to be done in it."""
    if not any(node.statements for node in inside):
        return []
    return [
        replace(
            outside,
            inside=tuple(inside),
            accesses=frozenset(chain.from_iterable(node.accesses for node in inside)),
            runs=sum(node.runs for node in inside) * (outside.loop[2] if outside.loop else 1),
            statements=sum(node.statements for node in inside),
        )
    ]


def _with_memory(stmt: Stmt) -> list[_Node]:
    """The nodes inside of allocations, after a step that lists the memory."""
    names_by_kind: dict[str, list[str]] = {}  # what it is -> names
    while True:
        match stmt:
            case Alloc(buffer, body):
                if kind := _memory(buffer):
                    names_by_kind.setdefault(kind, []).append(buffer.name.lstrip("."))
                stmt = body
            case Block((Alloc() as only,)):
                stmt = only
            case _:
                break
    inside = _nodes(stmt)
    lines = [f"{kind}: {', '.join(reversed(names))}" for kind, names in names_by_kind.items()]
    return [_Node("; ".join(lines)), *inside] if lines and inside else inside


def _memory(buffer: Buffer) -> str:
    """Memory larger than a vector, or registers of more than one row, in words; "" for less."""
    extents = f"{' x '.join(map(str, buffer.shape))} {buffer.dtype.value}"
    if buffer.scope is Scope.REGISTER:
        return f"registers of {extents}" if len(buffer.shape) > 1 else ""
    return f"memory of {extents}" if buffer.size_bytes > LARGEST_VECTOR_BYTES else ""


def _merge_repeats(inside: Sequence[_Node]) -> list[_Node]:
    """Merge neighbours that access the same tensors, or do so in turn."""
    merged = [_representative(list(alike)) for _, alike in groupby(inside, _likeness)]
    for period in range(2, LONGEST_PERIOD + 1):
        merged = _merge_turns(merged, period)
    return merged


def _likeness(node: _Node) -> object:
    """The key by which neighbours are alike. A node without accesses is like no other."""
    return node.accesses or id(node)


def _merge_turns(nodes: list[_Node], period: int) -> list[_Node]:
    """Merge sequences of `period` nodes that repeat."""
    merged: list[_Node] = []
    start = 0
    while start < len(nodes):
        turn = [node.accesses for node in nodes[start : start + period]]
        end = start + period
        while all(turn) and [node.accesses for node in nodes[end : end + period]] == turn:
            end += period
        if end > start + period:
            merged += [_representative(nodes[start + n : end : period]) for n in range(period)]
        else:
            merged.append(nodes[start])
            end = start + 1
        start = end
    return merged


def _representative(alike: Sequence[_Node]) -> _Node:
    """The node that runs most often, for all."""
    if len(alike) == 1:
        return alike[0]
    most = max(alike, key=lambda node: (not node.once, node.runs))
    runs, statements = sum(node.runs for node in alike), sum(node.statements for node in alike)
    return replace(most, runs=runs, statements=statements, count=sum(node.count for node in alike))


# The tree as it is shown


def _flatten(nodes: Sequence[_Node]) -> list[_Node]:
    """Loops and steps alone: conditions and counts of merged nodes become lines of their own."""
    flat: list[_Node] = []
    for number, node in enumerate(nodes):
        if node.is_step:
            flat.append(replace(node, text=f"{node.text} ({node.count} alike)", count=1) if node.count > 1 else node)
        elif node.loop:
            flat.append(replace(node, count=1))
            flat += [_Node(f"{node.count - 1} more like this, of other sizes")] if node.count > 1 else []
        else:
            flat += _flatten_guard(node, is_last=number + 1 == len(nodes))
    return flat


def _flatten_guard(node: _Node, is_last: bool) -> list[_Node]:
    """The nodes under a condition."""
    inside = _flatten(node.inside)
    others = f" ({node.count - 1} more like this, of other sizes)" if node.count > 1 else ""
    line = _Node(f"only where {node.guard}{others}:")
    match inside:
        case [_Node(loop=None) as step]:
            alike = f" ({node.count} alike)" if node.count > 1 else ""
            return [replace(step, text=f"where {node.guard}: {step.text}{alike}")]
        case [loop]:
            return [replace(loop, inside=(line, *loop.inside))]
    return [line, *inside] if is_last else [line, *inside, _Node("in any case:")]


def _fit(nodes: Sequence[_Node], room: int) -> tuple[Part, ...]:
    """Loops and steps within so much room; those that run least often give way."""
    if len(nodes) > room:
        nodes = _prune(nodes, room)
    needs = list(map(_size, nodes))
    rooms = [1] * len(nodes)
    free = room - len(nodes)
    for number in sorted(range(len(nodes)), key=lambda n: -nodes[n].runs):
        more = min(needs[number] - 1, free)
        rooms[number] += more
        free -= more
    return tuple(_part(node, most) for node, most in zip(nodes, rooms, strict=True))


def _size(node: _Node) -> int:
    """The number of loops and steps of a node, itself included."""
    return 1 + sum(map(_size, _flatten(node.inside)))


def _prune(nodes: Sequence[_Node], room: int) -> list[_Node]:
    """The nodes that run most often, and a line for each gap between them."""
    busiest = set(sorted(range(len(nodes)), key=lambda n: -nodes[n].runs)[: max(0, (room - 1) // 2)])
    pruned: list[_Node] = []
    for is_kept, numbers in groupby(range(len(nodes)), lambda n: n in busiest):
        run = [nodes[n] for n in numbers]
        pruned += run if is_kept else [_Node(f"{counted(len(run), 'more step')}: {_summary(run)}")]
    return pruned


def _part(node: _Node, room: int) -> Part:
    if node.loop is None:
        return NestStep(_short(node.text))
    kind, var, extent = node.loop
    if room < 2:
        return NestStep(_short(f"{kind} {var} < {extent}: {_summary(node.inside)}"))
    return NestLoop(kind, var, extent, _fit(_flatten(node.inside), room - 1))


def _summary(nodes: Sequence[_Node]) -> str:
    """The loops, statements and written tensors of nodes in a few words."""
    accesses = frozenset(chain.from_iterable(node.accesses for node in nodes))
    names = sorted(name for how, name in accesses if how == WRITE)
    memory = [name for name in names if "." not in name] or names  # no tensor has a dot, most registers do
    loops, statements = sum(node.loops for node in nodes), sum(node.statements for node in nodes)
    inside = [counted(loops, "loop")] if loops else []
    inside += [counted(statements, "statement")] if statements else []
    names_text = ", ".join(name.lstrip(".") for name in memory[:MOST_NAMED]) + (", ..." if memory[MOST_NAMED:] else "")
    return ", ".join(inside) + (f", to {names_text}" if names_text else "")


def _short(text: str) -> str:
    return shorten(text, MOST_LETTERS)
