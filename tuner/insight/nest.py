"""Nest: the loops of a lowered kernel as a small tree, for a picture.

What is repeated is told once: statements, loops and cases side by side that read and write the same tensors are mostly
the same work for a tile of another size, an edge, or the next vector. Where the tree is still too large, what runs
least often is summed up in a line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import Any

from tunewright.codegen.expr import Op, loads
from tunewright.codegen.ir import (
    Alloc,
    Barrier,
    Block,
    Buffer,
    Do,
    For,
    If,
    Kernel,
    LoopKind,
    Prefetch,
    Scope,
    Stmt,
    Store,
)

from ..text import counted, shortened
from .formula import formula, prefetch_formula, store_formula

MOST_NODES = 60
"""Loops and steps of a picture."""

MOST_LETTERS = 120
"""Of a step."""

MOST_NAMED = 4
"""Tensors that a summary names."""

MOST_STATEMENT = MOST_LETTERS - 20
"""Of a statement alone: a step may say how many there are of it."""

LARGEST_VECTOR_BYTES = 256
"""What is no more is not worth telling of: a vector, of the largest processors."""

LONGEST_PERIOD = 6
"""Statements that come again and again in turn, and are told once."""

BARRIER = "all threads meet"
"""The step between two phases."""


@dataclass(frozen=True, slots=True)
class Step:
    """What is done at a place of the nest: one line for people."""

    text: str


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop around `parts`. `kind` is the value of a LoopKind."""

    kind: str
    var: str
    extent: int
    parts: tuple[Part, ...]


Part = Loop | Step


def nest(kernel: Kernel, most_nodes: int = MOST_NODES) -> tuple[Part, ...]:
    """The phases of a kernel in order, with a BARRIER between each two; loops and steps are `most_nodes` at most."""
    found: list[_Node] = []
    for phase in kernel.body.body:
        inside = _nodes(phase)
        if any(node.statements for node in inside):
            found += [_Node(BARRIER), *inside] if found else inside
    return _fitted(_flat(found), most_nodes)


def nodes(parts: Iterable[Part]) -> int:
    """How many loops and steps there are."""
    return sum(1 + nodes(part.parts) if isinstance(part, Loop) else 1 for part in parts)


def to_json(part: Part) -> dict[str, Any]:
    """Plain data; `from_json` inverts it."""
    match part:
        case Step(text):
            return {"text": text}
        case Loop(kind, var, extent, parts):
            return {"kind": kind, "var": var, "extent": extent, "parts": [to_json(one) for one in parts]}


def from_json(data: Any) -> Part:
    """Raises KeyError, TypeError or ValueError on anything that `to_json` can't have written."""
    if "text" in data:
        return Step(_line(data["text"]))
    extent, parts = data["extent"], data["parts"]
    if type(extent) is not int or extent < 0 or not isinstance(parts, list):
        raise ValueError("that is no loop")
    return Loop(LoopKind(data["kind"]).value, _line(data["var"]), extent, tuple(map(from_json, parts)))


def _line(text: object) -> str:
    if not isinstance(text, str) or len(text) > MOST_LETTERS or not text.isprintable():
        raise ValueError("that is no line of a nest")
    return text


# The tree before it is fitted


@dataclass(frozen=True, slots=True)
class _Node:
    """A step, a loop around what is `inside`, or a group of what is inside, which may be guarded by a condition."""

    text: str = ""  # of a step
    loop: tuple[str, str, int] | None = None  # kind, variable, extent
    guard: str = ""  # of a group: the condition
    inside: tuple[_Node, ...] = ()
    touched: frozenset[tuple[str, str]] = frozenset()  # (READ, WRITTEN or ASKED, tensor)
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


READ, WRITTEN, ASKED = "read", "written", "asked"
"""How a tensor is touched."""


def _nodes(stmt: Stmt) -> list[_Node]:
    """What a statement is in the tree; nothing for one that does nothing."""
    match stmt:
        case Block(body):
            return _told_once(list(chain.from_iterable(map(_nodes, body))))
        case For(var, extent, body, kind):
            return _around(_nodes(body), _Node(loop=(kind.value, var, extent)))
        case If(condition, then):
            is_one = isinstance(condition, Op) and condition.name == "eq"
            return _around(_nodes(then), _Node(guard=formula(condition, MOST_LETTERS // 2), once=is_one))
        case Alloc():
            return _with_memory(stmt)
        case Prefetch(tensor):
            return [_Node(prefetch_formula(stmt, MOST_STATEMENT), touched=frozenset({(ASKED, tensor)}))]
        case Store(tensor, _, value):
            read = {(READ, load.tensor) for load in loads(value) if load.tensor != tensor}
            touched = read | {(WRITTEN, tensor)}
            return [_Node(store_formula(stmt, MOST_STATEMENT), touched=frozenset(touched), runs=1, statements=1)]
        case Barrier():
            return [_Node("all threads of the block meet")]
        case Do(name, outs, ins):
            touched = {(READ, one.tensor) for one in ins} | {(WRITTEN, one.tensor) for one in outs}
            return [_Node(name, touched=frozenset(touched), runs=1, statements=1)]


def _around(inside: Sequence[_Node], outside: _Node) -> list[_Node]:
    """A loop or a condition, as long as there is anything to be done in it."""
    if not any(node.statements for node in inside):
        return []
    return [
        replace(
            outside,
            inside=tuple(inside),
            touched=frozenset(chain.from_iterable(node.touched for node in inside)),
            runs=sum(node.runs for node in inside) * (outside.loop[2] if outside.loop else 1),
            statements=sum(node.statements for node in inside),
        )
    ]


def _with_memory(stmt: Stmt) -> list[_Node]:
    """What is done in memory that exists only there, and a step for all that is worth telling of that."""
    told: dict[str, list[str]] = {}  # what it is -> names
    while True:
        match stmt:
            case Alloc(buffer, body):
                if kind := _memory(buffer):
                    told.setdefault(kind, []).append(buffer.name.lstrip("."))
                stmt = body
            case Block((Alloc() as only,)):
                stmt = only
            case _:
                break
    inside = _nodes(stmt)
    lines = [f"{kind}: {', '.join(reversed(names))}" for kind, names in told.items()]
    return [_Node("; ".join(lines)), *inside] if lines and inside else inside


def _memory(buffer: Buffer) -> str:
    """What memory beyond a vector is, or registers of more than one row; "" for less, which tells nothing."""
    extents = f"{' x '.join(map(str, buffer.shape))} {buffer.dtype.value}"
    if buffer.scope is Scope.REGISTER:
        return f"registers of {extents}" if len(buffer.shape) > 1 else ""
    return f"memory of {extents}" if buffer.size_bytes > LARGEST_VECTOR_BYTES else ""


def _told_once(inside: Sequence[_Node]) -> list[_Node]:
    """Neighbours that touch the same tensors, or do so in turn, as one of them."""
    found = [_one_of(list(alike)) for _, alike in groupby(inside, _touched_apart)]
    for period in range(2, LONGEST_PERIOD + 1):
        found = _without_turns(found, period)
    return found


def _touched_apart(node: _Node) -> object:
    """What makes neighbours alike. What touches nothing is like nothing."""
    return node.touched or id(node)


def _without_turns(found: list[_Node], period: int) -> list[_Node]:
    """Each `period` neighbours that come again and again, told once."""
    made: list[_Node] = []
    at = 0
    while at < len(found):
        turn = [node.touched for node in found[at : at + period]]
        end = at + period
        while all(turn) and [node.touched for node in found[end : end + period]] == turn:
            end += period
        if end > at + period:
            made += [_one_of(found[at + n : end : period]) for n in range(period)]
        else:
            made.append(found[at])
            end = at + 1
        at = end
    return made


def _one_of(alike: Sequence[_Node]) -> _Node:
    """The one that does most, for all."""
    if len(alike) == 1:
        return alike[0]
    most = max(alike, key=lambda node: (not node.once, node.runs))
    runs, statements = sum(node.runs for node in alike), sum(node.statements for node in alike)
    return replace(most, runs=runs, statements=statements, count=sum(node.count for node in alike))


# The tree as it is shown


def _flat(found: Sequence[_Node]) -> list[_Node]:
    """Loops and steps: conditions, and how many there are of what is told once, in lines of their own."""
    made: list[_Node] = []
    for number, node in enumerate(found):
        if node.is_step:
            made.append(replace(node, text=f"{node.text} ({node.count} alike)", count=1) if node.count > 1 else node)
        elif node.loop:
            made.append(replace(node, count=1))
            made += [_Node(f"{node.count - 1} more like this, of other sizes")] if node.count > 1 else []
        else:
            made += _guarded(node, is_last=number + 1 == len(found))
    return made


def _guarded(node: _Node, is_last: bool) -> list[_Node]:
    """What is done where a condition holds."""
    inside = _flat(node.inside)
    others = f" ({node.count - 1} more like this, of other sizes)" if node.count > 1 else ""
    line = _Node(f"only where {node.guard}{others}:")
    match inside:
        case [_Node(loop=None) as step]:
            alike = f" ({node.count} alike)" if node.count > 1 else ""
            return [replace(step, text=f"where {node.guard}: {step.text}{alike}")]
        case [loop]:
            return [replace(loop, inside=(line, *loop.inside))]
    return [line, *inside] if is_last else [line, *inside, _Node("in any case:")]


def _fitted(found: Sequence[_Node], room: int) -> tuple[Part, ...]:
    """Loops and steps in so much room. What runs least often gives way to the rest."""
    if len(found) > room:
        found = _fewer(found, room)
    needs = list(map(_need, found))
    given = [1] * len(found)
    left = room - len(found)
    for number in sorted(range(len(found)), key=lambda n: -found[n].runs):
        more = min(needs[number] - 1, left)
        given[number] += more
        left -= more
    return tuple(_part(node, most) for node, most in zip(found, given, strict=True))


def _need(node: _Node) -> int:
    """Loops and steps of a loop or a step, itself counted."""
    return 1 + sum(map(_need, _flat(node.inside)))


def _fewer(found: Sequence[_Node], room: int) -> list[_Node]:
    """Those that run most often, and a line for each gap between them."""
    kept = set(sorted(range(len(found)), key=lambda n: -found[n].runs)[: max(0, (room - 1) // 2)])
    made: list[_Node] = []
    for is_kept, numbers in groupby(range(len(found)), lambda n: n in kept):
        nodes = [found[n] for n in numbers]
        made += nodes if is_kept else [_Node(f"{counted(len(nodes), 'more step')}: {_summary(nodes)}")]
    return made


def _part(node: _Node, room: int) -> Part:
    if node.loop is None:
        return Step(_short(node.text))
    kind, var, extent = node.loop
    if room < 2:
        return Step(_short(f"{kind} {var} < {extent}: {_summary(node.inside)}"))
    return Loop(kind, var, extent, _fitted(_flat(node.inside), room - 1))


def _summary(found: Sequence[_Node]) -> str:
    """What is done, in a few words."""
    touched = frozenset(chain.from_iterable(node.touched for node in found))
    names = sorted(name for how, name in touched if how == WRITTEN)
    memory = [name for name in names if "." not in name] or names  # no tensor has a dot, most registers do
    loops, statements = sum(node.loops for node in found), sum(node.statements for node in found)
    inside = [counted(loops, "loop")] if loops else []
    inside += [counted(statements, "statement")] if statements else []
    shown = ", ".join(name.lstrip(".") for name in memory[:MOST_NAMED]) + (", ..." if memory[MOST_NAMED:] else "")
    return ", ".join(inside) + (f", to {shown}" if shown else "")


def _short(text: str) -> str:
    return shortened(text, MOST_LETTERS)
