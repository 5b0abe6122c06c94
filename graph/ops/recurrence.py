"""What is left of LSTM, GRU and RNN to do step by step: one small computation, run once a step.

All steps of a Recurrence node (see `graph.recurrent`) are the same task, on other parts of the projected input and of
the result. Each gate is a sum of its own over the last state, so that a kernel can hold all of them in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tunewright.codegen.dtype import DType
from tunewright.codegen.expr import Expr, const, op

from ..ir import Node, TensorType
from ..recurrent import GATES, WEIGHTS_AT, Chosen, activations_of, is_clipped
from ..task import Tensor
from .definition import Body, Compute, Definition, Index, OpDef, Part, Place, Rounds, load
from .elementwise import clip_to, floats, negative_part, selu, softplus

F32, BOOL = DType.F32, DType.BOOL

_FUNCTIONS: Mapping[str, Callable[[Expr, float, float], Expr]] = {
    "affine": lambda x, a, b: x * a + b,
    "elu": lambda x, a, b: selu(x, a, 1.0),
    "hardsigmoid": lambda x, a, b: clip_to(x * a + b, 0.0, 1.0),
    "leakyrelu": lambda x, a, b: negative_part(x, x * a),
    "relu": lambda x, a, b: op("max", x, 0.0),
    "scaledtanh": lambda x, a, b: op("tanh", x * b) * a,
    "sigmoid": lambda x, a, b: op("sigmoid", x),
    "softplus": lambda x, a, b: softplus(x),
    "softsign": lambda x, a, b: x / (op("abs", x) + 1.0),
    "tanh": lambda x, a, b: op("tanh", x),
    "thresholdedrelu": lambda x, a, b: op("select", op("lt", floats(a), x), x, floats(0)),
}
"""Activation -> its value, given x, alpha and beta."""

X, H, C, NEXT_H, NEXT_C, GATED, ALIVE = "x", "h", "c", "next_h", "next_c", "gated", "alive"
"""What differs from step to step. Tensors of a step are called by these, behind the name of the node's first output."""

FIXED = frozenset({3, 4, *range(WEIGHTS_AT, WEIGHTS_AT + max(GATES.values()))})
"""Inputs that all steps read. They have names of their own too: whether two are equal must not tell in a task."""


@dataclass(frozen=True, slots=True)
class _Step:
    """One step of a node, as the definitions of its computations need it."""

    node: Node
    batch: int
    hidden: int
    gates: int  # of this cell
    activations: tuple[Chosen, ...]

    def activation(self, position: int, x: Expr) -> Expr:
        """The activation there, of a value that is clipped first where the cell clips it."""
        limit = self.node.attrs.get("clip")
        if limit is not None and is_clipped(self.node.attrs["cell"], position):
            x = clip_to(x, -float(limit), float(limit))
        one = self.activations[position]
        return _FUNCTIONS[one.name](x, one.alpha, one.beta)

    def sums(self, d: Definition, state: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
        """The state times each gate's weights."""

        def product(gate: Tensor) -> Callable[[Index, Index], Expr]:
            return lambda i, r: load(state, [i[0], r[0]]) * load(gate, [r[0], i[1]])

        shape = (self.batch, self.hidden)
        return [d.fold(d.temporary(shape, F32), "sum", (self.hidden,), product(gate)) for gate in weights]

    def projected(self, d: Definition, position: int) -> Tensor:
        """The step's input, as [B, G, H]."""
        return d.viewed(d.input(position, F32), (self.batch, self.gates, self.hidden))


def _kept(d: Definition, position: int, i: Index, fresh: Expr, old: Expr) -> Expr:
    """The fresh state of sequences that go on, else the old one."""
    alive = d.optional(position, BOOL)
    return fresh if alive is None else op("select", load(alive, [i[0]]), fresh, old)


def _lstm(step: _Step, d: Definition) -> None:
    """Inputs: x, h, c, peepholes, alive, weights of the gates i, o, f, c. Outputs: next h, next c."""
    x, h, c, peepholes = step.projected(d, 0), d.input(1, F32), d.input(2, F32), d.optional(3, F32)
    weights = [d.input(position, F32) for position in range(5, 9)]
    next_h, next_c = d.output(0), d.output(1)
    totals = step.sums(d, h, weights)

    def gate(i: Index, number: int) -> Expr:
        return load(totals[number], i) + load(x, [i[0], const(number), i[1]])

    def peeped(i: Index, number: int, state: Tensor) -> Expr:
        if peepholes is None:
            return gate(i, number)
        return gate(i, number) + load(peepholes, [const(number), i[1]]) * load(state, i)

    def cell(i: Index) -> Expr:
        entering = step.activation(0, peeped(i, 0, c))
        kept = floats(1) - entering if step.node.attrs.get("input_forget") else step.activation(0, peeped(i, 2, c))
        fresh = kept * load(c, i) + entering * step.activation(1, gate(i, 3))
        return _kept(d, 4, i, fresh, load(c, i))

    def hidden(i: Index) -> Expr:
        fresh = step.activation(0, peeped(i, 1, next_c)) * step.activation(2, load(next_c, i))
        return _kept(d, 4, i, fresh, load(h, i))

    d.write(next_c, cell)
    d.write(next_h, hidden)


def _gru(step: _Step, d: Definition) -> None:
    """A GRU that is linear before the reset. Inputs: x, h, bias, alive, weights of the gates z, r, h."""
    x, h, bias = step.projected(d, 0), d.input(1, F32), d.optional(2, F32)
    totals = step.sums(d, h, [d.input(position, F32) for position in range(4, 7)])

    def gate(i: Index, number: int) -> Expr:
        return step.activation(0, load(totals[number], i) + load(x, [i[0], const(number), i[1]]))

    def hidden(i: Index) -> Expr:
        own = load(totals[2], i) if bias is None else load(totals[2], i) + load(bias, [i[1]])
        fresh = step.activation(1, load(x, [i[0], const(2), i[1]]) + gate(i, 1) * own)
        update = gate(i, 0)
        return _kept(d, 3, i, (floats(1) - update) * fresh + update * load(h, i), load(h, i))

    d.write(d.output(), hidden)


def _gru_gates(step: _Step, d: Definition) -> None:
    """The gates of another GRU. Inputs: x, h, weights of z and r. Outputs: z, and h after the reset."""
    x, h, z, reset = step.projected(d, 0), d.input(1, F32), d.output(0), d.output(1)
    totals = step.sums(d, h, [d.input(2, F32), d.input(3, F32)])

    def gate(i: Index, number: int) -> Expr:
        return step.activation(0, load(totals[number], i) + load(x, [i[0], const(number), i[1]]))

    d.write(z, lambda i: gate(i, 0))
    d.write(reset, lambda i: gate(i, 1) * load(h, i))


def _gru_state(step: _Step, d: Definition) -> None:
    """The state of such a GRU. Inputs: x, h, z, h after the reset, alive, weights of the gate h."""
    x, h, z, reset = step.projected(d, 0), d.input(1, F32), d.input(2, F32), d.input(3, F32)
    (total,) = step.sums(d, reset, [d.input(5, F32)])

    def hidden(i: Index) -> Expr:
        fresh = step.activation(1, load(x, [i[0], const(2), i[1]]) + load(total, i))
        fresh = (floats(1) - load(z, i)) * fresh + load(z, i) * load(h, i)
        return _kept(d, 4, i, fresh, load(h, i))

    d.write(d.output(), hidden)


def _rnn(step: _Step, d: Definition) -> None:
    """Inputs: x, h, alive, weights."""
    x, h = step.projected(d, 0), d.input(1, F32)
    (total,) = step.sums(d, h, [d.input(3, F32)])

    def hidden(i: Index) -> Expr:
        fresh = step.activation(0, load(total, i) + load(x, [i[0], const(0), i[1]]))
        return _kept(d, 2, i, fresh, load(h, i))

    d.write(d.output(), hidden)


class _Recurrence:
    """The computations of one node's steps, and which memory each step works on."""

    def __init__(self, d: Definition) -> None:
        self.node = d.node
        steps, batch, wide = d.input(0, F32).shape
        state = d.input(1, F32)
        self.steps = steps
        self.step = _Step(d.node, batch, state.shape[1], wide // state.shape[1], tuple(activations_of(d.node)))
        self.first = next(name for name in d.node.outputs if name)
        row = TensorType("float32", state.shape)
        own = dict.fromkeys((H, C, NEXT_H, NEXT_C, GATED, "z"), row)
        own |= {X: TensorType("float32", (batch, wide)), ALIVE: TensorType("bool", (batch,))}
        self.types = {self.own(name): kind for name, kind in own.items()}
        self.fixed = {self.own(f"given{n}"): name for n, name in enumerate(d.node.inputs) if name and n in FIXED}
        self.types |= {name: d.types[given] for name, given in self.fixed.items()}
        self.constants = {name: d.constants[given] for name, given in self.fixed.items() if given in d.constants}
        self.row_bytes = batch * state.shape[1] * F32.size_bytes

    def own(self, name: str) -> str:
        return f"{self.first}.{name}"

    def rounds(self) -> Rounds:
        """All of it."""
        order = range(self.steps)[:: -1 if self.node.attrs["backward"] else 1]
        hidden = self._states(0, 1, order)
        cells = self._states(None, 2, order) if self._given(2) else []
        places = [
            self._places(at, hidden[number : number + 2], cells[number : number + 2]) for number, at in enumerate(order)
        ]
        parts = {}
        if self._output(0) and self._output(1):
            last = hidden[-1]
            assert isinstance(last, Part)
            parts[self._output(1)] = last
        return Rounds(tuple(self._bodies()), tuple(places), parts)

    def _given(self, position: int) -> str:
        return self.node.inputs[position] if position < len(self.node.inputs) else ""

    def _output(self, position: int) -> str:
        return self.node.outputs[position] if position < len(self.node.outputs) else ""

    def _states(self, everywhere: int | None, last: int, order: Sequence[int]) -> list[Place]:
        """Where a state is before and after each step.

        In the output of all steps' states if somebody wants that, else in two places by turns; in the end where the
        output `last` is.
        """
        initial = self._given(last)
        if everywhere is not None and self._output(everywhere):
            return [initial, *(Part(self._output(everywhere), at * self.row_bytes) for at in order)]
        turns: list[Place] = [f"{self.first}.state{last}.{number % 2}" for number in range(len(order))]
        if self._output(last):
            turns[-1] = self._output(last)
        return [initial, *turns]

    def _places(self, at: int, hidden: Sequence[Place], cells: Sequence[Place]) -> dict[str, Place]:
        wide = self.step.gates * self.row_bytes
        places: dict[str, Place] = {
            self.own(X): Part(self.node.inputs[0], at * wide),
            self.own(H): hidden[0],
            self.own(NEXT_H): hidden[1],
            **self.fixed,
        }
        if cells:
            places |= {self.own(C): cells[0], self.own(NEXT_C): cells[1]}
        if self._given(5):
            places[self.own(ALIVE)] = Part(self._given(5), at * self.step.batch)
        return places

    def _bodies(self) -> list[Body]:
        x, h, c, next_h, next_c = map(self.own, (X, H, C, NEXT_H, NEXT_C))
        alive = self.own(ALIVE) if self._given(5) else ""
        bias, peepholes, *weights = (
            name if name in self.fixed else "" for name in (self.own(f"given{n}") for n in sorted(FIXED))
        )
        weights = weights[: self.step.gates]
        match self.node.attrs["cell"]:
            case "LSTM":
                return [self._body(_lstm, (x, h, c, peepholes, alive, *weights), (next_h, next_c))]
            case "RNN":
                return [self._body(_rnn, (x, h, alive, *weights), (next_h,))]
        if self.node.attrs.get("linear_before_reset"):
            return [self._body(_gru, (x, h, bias, alive, *weights), (next_h,))]
        z, reset = self.own("z"), self.own(GATED)
        return [
            self._body(_gru_gates, (x, h, *weights[:2]), (z, reset)),
            self._body(_gru_state, (x, h, z, reset, alive, weights[2]), (next_h,)),
        ]

    def _body(
        self, write: Callable[[_Step, Definition], None], inputs: tuple[str, ...], outputs: tuple[str, ...]
    ) -> Body:
        d = Definition(Node(self.node.op, inputs, outputs), self.types, self.constants)
        write(self.step, d)
        return Body(Compute(tuple(d.stages), d.tensors), outputs)


def recurrence(d: Definition) -> Rounds:
    """All steps."""
    return _Recurrence(d).rounds()


RECURRENCES: Mapping[str, OpDef] = {"Recurrence": recurrence}
