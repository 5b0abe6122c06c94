"""Lanes: scalar expressions laid along the lanes of vectors, and single lanes of vectors as scalar expressions."""

from __future__ import annotations

from .expr import Const, Expr, Load, Op, Ramp, Var, const, op, rebuild, substitute, variables
from .index import Form, form
from .nodes import fact


def ramp(base: Expr, lanes: int) -> Expr:
    """`lanes` neighbouring numbers from `base` upwards; of one, itself."""
    return Ramp(base, lanes) if lanes > 1 else base


def vectorize(expr: Expr, var: str, base: Expr, lanes: int, count: int | None = None) -> Expr:
    """A scalar expression for `lanes` neighbouring values of a variable at once, from `base` upwards.

    A load whose last index moves one by one with the variable, and whose other indices don't, becomes contiguous; one
    that does not mention the variable stays scalar; any other becomes a gather. `count` (None: all) is how many
    leading lanes may touch memory, and is given to every vector load. One lane is the scalar expression at `base`.
    Raises ValueError if there are vectors already.
    """
    axis = Var(var)
    done: dict[Expr, Expr] = {axis: ramp(base, lanes)}

    def load(node: Load) -> Load:
        *outer, last = node.index
        total = form(last)
        others = [atom for atom in total.terms if atom is not axis]
        if total.terms.get(axis) == 1 and not any(var in variables(e) for e in (*outer, *others)):
            return Load(node.tensor, (*outer, Ramp(substitute(last, {var: base}), lanes)), node.dtype, count)
        return Load(node.tensor, tuple(map(go, node.index)), node.dtype, count)

    def go(node: Expr) -> Expr:
        vector = done.get(node)
        if vector is None:
            if var not in variables(node):
                return node
            vector = load(node) if isinstance(node, Load) else rebuild(node, tuple(map(go, node.children)))
            done[node] = vector
        return vector

    if expr.lanes > 1:
        raise ValueError(f"{expr} is a vector already")
    return go(expr) if lanes > 1 else substitute(expr, {var: base})


@fact
def lanes_of(index: Expr) -> tuple[Form, ...]:
    """The affine form of each lane of a vector index."""
    return tuple([form(_lane(index, lane, {})) for lane in range(index.lanes)])


def _lane(node: Expr, lane: int, done: dict[Expr, Expr]) -> Expr:
    """One lane of an expression, as a scalar expression."""
    if node.lanes == 1:
        return node
    scalar = done.get(node)
    if scalar is None:
        match node:
            case Ramp(base):
                scalar = base + lane
            case Load(count=count) if count is not None and lane >= count:
                scalar = const(0, node.dtype)
            case Load(tensor, index, dtype):
                scalar = Load(tensor, tuple(_lane(i, lane, done) for i in index), dtype)
            case Op("zip_low" | "zip_high" as name, args):
                source = lane // 2 + (node.lanes // 2 if name == "zip_high" else 0)
                scalar = _lane(args[lane % 2], source, {})  # another lane than that of `done`
            case Op(name, args, dtype):
                scalar = op(name, *(_lane(a, lane, done) for a in args), dtype=dtype)
            case Const() | Var():
                scalar = node
        done[node] = scalar
    return scalar
