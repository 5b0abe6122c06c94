"""Index arithmetic: affine forms, intervals, and simplification.

Everything rests on `Form`, an integer expression as an exact sum of multiples of atoms, and on `Domain`, what is known
about the variables. Equal atoms of a sum cancel before intervals are taken, which is what makes tiled indices come out
exact: `8*a + b - 8*a` is as wide as `b`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd

from .dtype import DType
from .expr import COMPARISONS, HORIZONTAL, Const, Expr, Load, Op, Ramp, Var, const, op, rebuild, walk
from .nodes import fact
from .semantics import UNBOUNDED, UNKNOWN, Interval, comparison, difference, op_interval, saturate, type_range

Ranges = Mapping[str, Interval]

ZERO = const(0)


@dataclass(frozen=True, slots=True)
class Linear:
    """`constant` plus the sum of `coefficient * variable`. No coefficient is zero."""

    coefficients: Mapping[str, int]
    constant: int

    def bounds(self, extents: Mapping[str, int]) -> tuple[int, int]:
        """Smallest and largest value where each variable runs from 0 to below its extent."""
        spans = [c * (extents[name] - 1) for name, c in self.coefficients.items()]
        return self.constant + sum(min(s, 0) for s in spans), self.constant + sum(max(s, 0) for s in spans)

    def expr(self) -> Expr:
        """The function as an expression."""
        total: Expr = const(0)
        for name, coefficient in self.coefficients.items():
            total = total + Var(name) * coefficient
        return total + self.constant


@dataclass(frozen=True, slots=True)
class Form:
    """`constant` plus the sum of `coefficient * atom`. No coefficient is zero.

    Atoms are variables, the lane numbers `Ramp(0, lanes)`, and whatever is not affine: a quotient, a minimum, a load.
    """

    terms: Mapping[Expr, int]
    constant: int

    def plus(self, other: Form, scale: int = 1) -> Form:
        """`self + scale * other`."""
        constant = self.constant + scale * other.constant
        if not other.terms:
            return Form(self.terms, constant)
        if scale == 1 and not self.terms:
            return Form(other.terms, constant)
        terms = dict(self.terms)
        for atom, coefficient in other.terms.items():
            total = terms.get(atom, 0) + scale * coefficient
            if total:
                terms[atom] = total
            else:
                terms.pop(atom, None)
        return Form(terms, constant)


NOTHING = Form({}, 0)

AFFINE = frozenset({"add", "sub", "mul", "neg"})
"""Ops that keep forms forms, `mul` with one that is constant."""


@fact
def form(node: Expr) -> Form:
    """The affine form of an integer expression; of any other one, itself as a single atom."""
    match node:
        case Const(value, DType.I64):
            return Form({}, int(value))
        case Ramp(base, lanes) if base != ZERO:
            return form(base).plus(Form({Ramp(ZERO, lanes): 1}, 0))
        case Op(name, args, DType.I64) if name in AFFINE:
            result = _combine(name, *map(form, args))
            if result is not None:
                return result
    return Form({node: 1}, 0)


def _combine(name: str, left: Form, right: Form = NOTHING) -> Form | None:
    """An op of `AFFINE` on forms, if the result is one."""
    if name == "add":
        return left.plus(right)
    if name == "sub":
        return left.plus(right, -1)
    if name == "neg":
        return NOTHING.plus(left, -1)
    if not left.terms:
        return NOTHING.plus(right, left.constant)
    return None if right.terms else NOTHING.plus(left, right.constant)


def build(total: Form) -> Expr:
    """The expression of a form. Lanes with coefficient 1 become the outermost `Ramp`."""
    lanes = next((a.lanes for a, c in total.terms.items() if isinstance(a, Ramp) and c == 1), None)
    terms = [(a, c) for a, c in total.terms.items() if lanes is None or c != 1 or not isinstance(a, Ramp)]
    result: Expr | None = None
    for atom, coefficient in sorted(terms, key=lambda term: term[1] < 0):
        piece = op("mul", atom, abs(coefficient))
        if coefficient > 0:
            result = piece if result is None else result + piece
        else:
            result = op("neg", piece) if result is None else result - piece
    if result is None:
        result = const(total.constant)
    elif total.constant:
        result = result + total.constant if total.constant > 0 else result - -total.constant
    return result if lanes is None else Ramp(result, lanes)


def linear(expr: Expr) -> Linear | None:
    """The expression as a linear function of variables; None if it isn't one, or is a vector."""
    if expr.dtype is not DType.I64:
        return None
    total = form(expr)
    coefficients = {atom.name: c for atom, c in total.terms.items() if isinstance(atom, Var)}
    return Linear(coefficients, total.constant) if len(coefficients) == len(total.terms) else None


def contiguous(index: Sequence[Expr]) -> bool:
    """Whether a vector index reads or writes consecutive elements: a `Ramp` last, all else scalar."""
    return bool(index) and isinstance(index[-1], Ramp) and all(i.lanes == 1 for i in index[:-1])


@dataclass(frozen=True, slots=True)
class Domain:
    """Known facts about the variables of an expression: inclusive `ranges`, and upper `limits` of forms.

    `count` says how many leading lanes of vectors matter. Extend it with `assume`.
    """

    ranges: Ranges
    limits: tuple[tuple[Form, int], ...] = ()
    count: int | None = None
    _done: dict[Expr, Interval] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def is_empty(self) -> bool:
        """Whether there is no point, so that anything holds."""
        return any(low > high for low, high in self.ranges.values())

    def bounds(self, expr: Expr) -> Interval | None:
        """The least interval found that holds every lane; None if data decide an end of it.

        It is never too narrow, and exact for affine expressions and the usual tilings, clamps and halos.
        """
        low, high = self.interval(expr)
        return None if low == -UNBOUNDED or high == UNBOUNDED else (low, high)

    def decide(self, condition: Expr) -> bool | None:
        """Whether a condition holds for all lanes, for none, or None where neither was proven."""
        low, high = self.interval(condition)
        return bool(low) if low == high else None

    def with_loop(self, var: str, extent: int) -> Domain:
        """The domain inside a loop. Cached intervals stay valid: none of them is about this variable."""
        inside = Domain({**self.ranges, var: (0, extent - 1)}, self.limits, self.count)
        inside._done.update(self._done)
        return inside

    def assume(self, condition: Expr) -> Domain:
        """The domain where a condition holds as well. Parts of the condition that can't be used are ignored."""
        match condition:
            case Op("and", (left, right)):
                return self.assume(left).assume(right)
            case Op("not", (inner,)):
                return self.assume(_negation(inner)) if _negation(inner) != condition else self
            case Op("lt" | "le" | "eq" as name, (left, right), _) if left.dtype is right.dtype is DType.I64:
                if condition.lanes > 1:
                    return self
                gap = self._without_remainders(form(left).plus(form(right), -1))
                if name == "eq":
                    return self.with_limit(gap, 0).with_limit(NOTHING.plus(gap, -1), 0)
                return self.with_limit(gap, -1 if name == "lt" else 0)
        return self

    def _without_remainders(self, total: Form) -> Form:
        """The form with numbers instead of their remainders, where these are the same here."""
        for atom, coefficient in total.terms.items():
            match atom:
                case Op("mod", (inner, Const(divisor, DType.I64))):
                    low, high = self.interval(inner)
                    if low >= 0 and high < divisor:
                        total = total.plus(form(atom), -coefficient).plus(form(inner), coefficient)
        return total

    def interval(self, node: Expr) -> Interval:
        """As `bounds`, with unknown ends at plus or minus UNBOUNDED."""
        known = self._done.get(node)
        if known is not None:
            return known
        total = self._without_remainders(form(node)) if node.dtype is DType.I64 else Form({node: 1}, 0)
        atomic = total.constant == 0 and len(total.terms) == 1 and node in total.terms
        self._done[node] = type_range(node.dtype)  # sound, should a limit lead back to this node
        if atomic:
            self._done[node] = saturate(self._atom(node))
        if self.limits or not atomic:
            self._done[node] = self.interval_of(total)
        return self._done[node]

    def interval_of(self, total: Form) -> Interval:
        """The interval of a form."""
        if self.limits:
            return saturate((-self._upper(NOTHING.plus(total, -1), self.limits), self._upper(total, self.limits)))
        return saturate(self._sum(_recombine(total)))

    def _sum(self, total: Form) -> Interval:
        """The interval of a form from those of its atoms alone."""
        least = most = total.constant
        for atom, coefficient in total.terms.items():
            low, high = self.interval(atom)
            least += coefficient * (low if coefficient > 0 else high)
            most += coefficient * (high if coefficient > 0 else low)
        return least, most

    def _upper(self, total: Form, limits: tuple[tuple[Form, int], ...]) -> int:
        total = _recombine(total)
        _, best = self._sum(total)
        for n, (limited, limit) in enumerate(limits):
            for scale in _ratios(total, limited):
                rest = self._upper(total.plus(limited, -scale), limits[:n] + limits[n + 1 :])
                best = min(best, scale * limit + rest)
        return min(best, UNBOUNDED)

    def with_limit(self, total: Form, limit: int) -> Domain:
        """The domain with the fact `total <= limit`."""
        limit -= total.constant
        total = Form(total.terms, 0)
        if not total.terms:
            return self
        ranges = dict(self.ranges)
        for atom, coefficient in total.terms.items():
            if isinstance(atom, Var):
                others = self.interval_of(total.plus(Form({atom: 1}, 0), -coefficient))[0]
                if others == -UNBOUNDED:
                    continue
                low, high = ranges.get(atom.name, UNKNOWN)
                room = (limit - others) // abs(coefficient)
                ranges[atom.name] = (low, min(high, room)) if coefficient > 0 else (max(low, -room), high)
        is_range = len(total.terms) == 1 and set(map(type, total.terms)) == {Var}
        # Bounding a select extends the domain, so a limit on it would have no end.
        if is_range or any(isinstance(node, Op) and node.name == "select" for node in walk(*total.terms)):
            return Domain(ranges, self.limits, self.count)
        return Domain(ranges, (*self.limits, (total, limit)), self.count)

    def _atom(self, node: Expr) -> Interval:
        match node:
            case Const(value, dtype):
                return type_range(dtype) if dtype.is_float else (int(value), int(value))
            case Var(name):
                return self.ranges.get(name, UNKNOWN)
            case Ramp(_, lanes):
                return (0, (lanes if self.count is None else min(self.count, lanes)) - 1)
            case Op("mod", (inner, Const(int(divisor)))) if divisor > 0:
                return self._remainder(form(inner), divisor)
            case Op("select", (condition, yes, no)):
                return self._choice(condition, yes, no)
            case Op(name, (left, right)) if name in COMPARISONS and not left.dtype.is_float:
                if left.dtype is right.dtype is DType.I64:
                    return comparison(name, self.interval_of(form(left).plus(form(right), -1)))
                return comparison(name, difference(self.interval(left), self.interval(right)))
            case Op("min" | "max" as name, (left, right), DType.I64):
                # The less of two is at most half of their sum, which tells more where one mirrors the other.
                low, high = op_interval(name, (self.interval(left), self.interval(right))) or UNKNOWN
                least, most = self.interval_of(form(left).plus(form(right)))
                return saturate((low, min(high, most // 2)) if name == "min" else (max(low, -(-least // 2)), high))
            case Op(name, args, dtype) if not any(a.dtype.is_float for a in args):
                interval = saturate(op_interval(name, [self.interval(a) for a in args]) or UNKNOWN)
                kind = type_range(dtype)
                return interval if kind[0] <= interval[0] and interval[1] <= kind[1] else kind
        return type_range(node.dtype)

    def _remainder(self, total: Form, divisor: int) -> Interval:
        rest = Form({a: c for a, c in total.terms.items() if c % divisor}, total.constant)
        low, high = self.interval_of(rest)
        if low // divisor == high // divisor:
            return (low % divisor, high % divisor)
        step = gcd(divisor, *rest.terms.values())
        return (rest.constant % step, divisor - step + rest.constant % step)

    def _choice(self, condition: Expr, yes: Expr, no: Expr) -> Interval:
        truth = self.decide(condition)
        if truth is not None:
            return self.interval(yes if truth else no)
        sides = [(self.assume(condition), yes), (self.assume(_negation(condition)), no)]
        intervals = [domain.interval(side) for domain, side in sides if not domain.is_empty]
        if not intervals:
            return type_range(yes.dtype)
        return (min(low for low, _ in intervals), max(high for _, high in intervals))


def _negation(condition: Expr) -> Expr:
    match condition:
        case Op("lt", (left, right)) if not left.dtype.is_float:
            return op("le", right, left)
        case Op("le", (left, right)) if not left.dtype.is_float:
            return op("lt", right, left)
        case Op("ne", args):
            return op("eq", *args)
        case Op("or", (left, right)):
            return op("and", _negation(left), _negation(right))
        case Op("not", (inner,)):
            return inner
    return op("not", condition)


def _ratios(total: Form, part: Form) -> set[int]:
    """Whole positive multiples of `part` that cancel an atom of `total`."""
    shared = [(total.terms[atom], c) for atom, c in part.terms.items() if atom in total.terms]
    return {whole // divisor for whole, divisor in shared if whole % divisor == 0 and whole // divisor > 0}


def _recombine(total: Form) -> Form:
    """`c*k*(e // k) + c*(e % k)` is `c*e`."""
    for atom, coefficient in total.terms.items():
        match atom:
            case Op("mod", (inner, Const(int(divisor)))) if len(total.terms) > 1:
                quotient = Op("floordiv", atom.args, DType.I64)
                if divisor > 0 and total.terms.get(quotient) == coefficient * divisor:
                    pair = Form({atom: 1, quotient: divisor}, 0)
                    return _recombine(total.plus(pair, -coefficient).plus(form(inner), coefficient))
    return total


def simplify(expr: Expr, ranges: Ranges) -> Expr:
    """An equal expression with divisions, remainders, clamps and comparisons that the ranges decide taken out.

    Keeps the sharing of parts. A vector may become a scalar where all lanes are equal.
    """
    domain = Domain(ranges)
    done: dict[Expr, Expr] = {}

    def go(node: Expr) -> Expr:
        result = done.get(node)
        if result is None:
            result = done[node] = _simplify_node(node, tuple(map(go, node.children)), domain)
        return result

    return go(expr)


def _simplify_node(node: Expr, parts: tuple[Expr, ...], domain: Domain) -> Expr:
    match node:
        case Op(name) if name in HORIZONTAL and parts[0].lanes != node.args[0].lanes:
            return node  # a scalar no longer knows how many lanes were to be joined
        case Load(count=int()) if max(part.lanes for part in parts) != node.lanes:
            return node
    fresh = rebuild(node, parts)
    if isinstance(fresh, Const | Load):
        return fresh
    if fresh.dtype in (DType.I64, DType.BOOL):
        low, high = domain.interval(fresh)
        if low == high:
            return const(low if fresh.dtype is DType.I64 else bool(low), fresh.dtype)
    match fresh:
        case Op("select", (_, yes, no)) if yes == no:
            return yes
        case Op("min" | "max" as name, (left, right), DType.I64):
            low, high = domain.interval_of(form(left).plus(form(right), -1))
            if low >= 0 or high <= 0:
                return left if (low >= 0) is (name == "max") else right
        case Op("floordiv" | "mod" as name, (inner, Const(int(divisor))), DType.I64) if divisor > 0:
            return _division(name, inner, divisor, domain) or fresh
        case Ramp() | Op("add" | "sub" | "mul" | "neg", _, DType.I64):
            return _tidy(fresh)
    return fresh


def _tidy(node: Expr) -> Expr:
    total = _recombine(form(node))
    fresh = build(total)
    lanes_outermost = isinstance(fresh, Ramp) and not isinstance(node, Ramp)
    return fresh if lanes_outermost or _affine_ops(fresh) < _affine_ops(node) else node


def _affine_ops(root: Expr) -> int:
    """The number of operations in the affine part at the top of a DAG."""
    visited: set[int] = set()
    stack = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, Ramp):
            stack.append(node.base)
        elif isinstance(node, Op) and node.name in AFFINE and id(node) not in visited:
            visited.add(id(node))
            stack.extend(node.args)
    return len(visited)


def _split(total: Form, divisor: int) -> tuple[Form, Form]:
    """`total == divisor * whole + rest`, the constant of `rest` in 0 .. divisor - 1."""
    whole = {a: c // divisor for a, c in total.terms.items() if c % divisor == 0}
    rest = {a: c for a, c in total.terms.items() if c % divisor}
    quotient, remainder = divmod(total.constant, divisor)
    return Form(whole, quotient), Form(rest, remainder)


def _common_factor(rest: Form, divisor: int, domain: Domain) -> tuple[int, Form, Form] | None:
    """A factor g of the divisor with `rest == g * whole + small` and `small` in 0 .. g - 1."""
    for factor in sorted({gcd(divisor, c) for c in rest.terms.values()} - {1}, reverse=True):
        whole, small = _split(rest, factor)
        low, high = domain.interval_of(small)
        if low >= 0 and high < factor:
            return factor, whole, small
    return None


def _division(name: str, inner: Expr, divisor: int, domain: Domain) -> Expr | None:
    """`inner // divisor` ("floordiv") or `inner % divisor` ("mod"), simpler; None if it can't be.

    Dividends stay non-negative, as the ops ask.
    """
    is_quotient = name == "floordiv"
    whole, rest = _split(form(inner), divisor)
    low, high = domain.interval_of(rest)
    if low // divisor == high // divisor:
        times = low // divisor
        return build(whole.plus(Form({}, times)) if is_quotient else rest.plus(Form({}, -divisor * times)))
    if low < 0:
        return None
    common = _common_factor(rest, divisor, domain)
    if common:
        factor, larger, small = common
        inside = op(name, build(larger), divisor // factor)
        return build(whole) + inside if is_quotient else inside * factor + build(small)
    if whole.terms or whole.constant:
        inside = op(name, build(rest), divisor)
        return build(whole) + inside if is_quotient else inside
    match inner:
        case Op("floordiv", (deeper, Const(int(first)))) if is_quotient and first > 0:
            return op("floordiv", deeper, first * divisor)
        case Op("mod", (deeper, Const(int(first)))) if not is_quotient and first % divisor == 0:
            return op("mod", deeper, divisor)
    return None
