"""The steps of LSTM, GRU and RNN: one small computation, run once per step.

All steps of a Recurrence node (see `evaluation.recurrent`) are the same task, on other parts of the projected input and
of the result. Each gate is a sum of its own over the last state, so that a kernel can hold all of them in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Expr, const, op

from ..evaluation.recurrent import GATES, WEIGHTS_AT, Activation, is_clipped, recurrence_activations
from ..ir import Node, TensorType
from ..task import Index, Tensor, load
from .definition import Compute, Definition, MemorySlice, OpDef, Place, RoundBody, Rounds
from .elementwise import clip_to, negative_part, selu, softplus

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
    "thresholdedrelu": lambda x, a, b: op("select", op("lt", const(float(a)), x), x, 0.0),
}
"""Activation -> its value, given x, alpha and beta."""

X, H, C, NEXT_H, NEXT_C, GATED, ALIVE = "x", "h", "c", "next_h", "next_c", "gated", "alive"
"""Suffixes of the names of a step's tensors that differ from step to step; the node's first output is the prefix."""

FIXED = frozenset({3, 4, *range(WEIGHTS_AT, WEIGHTS_AT + max(GATES.values()))})
"""Inputs that all steps read. Each has its own name, so that a task does not depend on which are the same tensor."""


@dataclass(frozen=True, slots=True)
class _Step:
    """Sizes and activations of one step of a node."""

    node: Node
    batch: int
    hidden: int
    gates: int  # of this cell
    activations: tuple[Activation, ...]

    def activation(self, position: int, x: Expr) -> Expr:
        """The activation there, of a value that is clipped first where the cell clips it."""
        limit = self.node.attrs.get("clip")
        if limit is not None and is_clipped(self.node.attrs["cell"], position):
            x = clip_to(x, -float(limit), float(limit))
        activation = self.activations[position]
        return _FUNCTIONS[activation.name](x, activation.alpha, activation.beta)

    def sums(self, d: Definition, state: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
        """The state times each gate's weights."""

        def product(gate: Tensor) -> Callable[[Index, Index], Expr]:
            return lambda i, r: load(state, [i[0], r[0]]) * load(gate, [r[0], i[1]])

        shape = (self.batch, self.hidden)
        return [d.fold(d.temporary(shape, F32), "sum", (self.hidden,), product(gate)) for gate in weights]

    def projection(self, d: Definition) -> Tensor:
        """The step's input, as [B, G, H]."""
        return d.reshape(d.input(0, F32), (self.batch, self.gates, self.hidden))


def _gate(x: Tensor, totals: Sequence[Tensor], i: Index, number: int) -> Expr:
    """What goes into the activation of a gate: its part of the step's input, and of what the state comes to."""
    return load(totals[number], i) + load(x, [i[0], const(number), i[1]])


def _select_alive(d: Definition, position: int, i: Index, fresh: Expr, old: Expr) -> Expr:
    """The fresh state of sequences that go on, else the old one."""
    alive = d.optional(position, BOOL)
    return fresh if alive is None else op("select", load(alive, [i[0]]), fresh, old)


def _lstm(step: _Step, d: Definition) -> None:
    """Inputs: x, h, c, peepholes, alive, weights of the gates i, o, f, c. Outputs: next h, next c."""
    x, h, c, peepholes = step.projection(d), d.input(1, F32), d.input(2, F32), d.optional(3, F32)
    weights = [d.input(position, F32) for position in range(5, 9)]
    next_h, next_c = d.output(0), d.output(1)
    totals = step.sums(d, h, weights)

    def peephole_gate(i: Index, number: int, state: Tensor) -> Expr:
        total = _gate(x, totals, i, number)
        return total if peepholes is None else total + load(peepholes, [const(number), i[1]]) * load(state, i)

    def cell(i: Index) -> Expr:
        input_gate = step.activation(0, peephole_gate(i, 0, c))
        forget_gate = (
            const(1.0) - input_gate
            if step.node.attrs.get("input_forget")
            else step.activation(0, peephole_gate(i, 2, c))
        )
        fresh = forget_gate * load(c, i) + input_gate * step.activation(1, _gate(x, totals, i, 3))
        return _select_alive(d, 4, i, fresh, load(c, i))

    def hidden(i: Index) -> Expr:
        fresh = step.activation(0, peephole_gate(i, 1, next_c)) * step.activation(2, load(next_c, i))
        return _select_alive(d, 4, i, fresh, load(h, i))

    d.write(next_c, cell)
    d.write(next_h, hidden)


def _gru(step: _Step, d: Definition) -> None:
    """A GRU that is linear before the reset. Inputs: x, h, bias, alive, weights of the gates z, r, h."""
    x, h, bias = step.projection(d), d.input(1, F32), d.optional(2, F32)
    totals = step.sums(d, h, [d.input(position, F32) for position in range(4, 7)])

    def gate(i: Index, number: int) -> Expr:
        return step.activation(0, _gate(x, totals, i, number))

    def hidden(i: Index) -> Expr:
        candidate = load(totals[2], i) if bias is None else load(totals[2], i) + load(bias, [i[1]])
        fresh = step.activation(1, load(x, [i[0], const(2), i[1]]) + gate(i, 1) * candidate)
        update = gate(i, 0)
        return _select_alive(d, 3, i, (const(1.0) - update) * fresh + update * load(h, i), load(h, i))

    d.write(d.output(), hidden)


def _gru_gates(step: _Step, d: Definition) -> None:
    """The gates of another GRU. Inputs: x, h, weights of z and r. Outputs: z, and h after the reset."""
    x, h, z, reset = step.projection(d), d.input(1, F32), d.output(0), d.output(1)
    totals = step.sums(d, h, [d.input(2, F32), d.input(3, F32)])

    def gate(i: Index, number: int) -> Expr:
        return step.activation(0, _gate(x, totals, i, number))

    d.write(z, lambda i: gate(i, 0))
    d.write(reset, lambda i: gate(i, 1) * load(h, i))


def _gru_state(step: _Step, d: Definition) -> None:
    """The state of such a GRU. Inputs: x, h, z, h after the reset, alive, weights of the gate h."""
    x, h, z, reset = step.projection(d), d.input(1, F32), d.input(2, F32), d.input(3, F32)
    (total,) = step.sums(d, reset, [d.input(5, F32)])

    def hidden(i: Index) -> Expr:
        fresh = step.activation(1, load(x, [i[0], const(2), i[1]]) + load(total, i))
        fresh = (const(1.0) - load(z, i)) * fresh + load(z, i) * load(h, i)
        return _select_alive(d, 4, i, fresh, load(h, i))

    d.write(d.output(), hidden)


def _rnn(step: _Step, d: Definition) -> None:
    """Inputs: x, h, alive, weights."""
    x, h = step.projection(d), d.input(1, F32)
    totals = step.sums(d, h, [d.input(3, F32)])
    d.write(
        d.output(),
        lambda i: _select_alive(d, 2, i, step.activation(0, _gate(x, totals, i, 0)), load(h, i)),
    )


class _Recurrence:
    """The computations of one node's steps, and which memory each step works on."""

    def __init__(self, d: Definition) -> None:
        self.node = d.node
        steps, batch, wide = d.input(0, F32).shape
        state = d.input(1, F32)
        self.steps = steps
        self.step = _Step(d.node, batch, state.shape[1], wide // state.shape[1], tuple(recurrence_activations(d.node)))
        self.first = next(name for name in d.node.outputs if name)
        row = TensorType("float32", state.shape)
        step_types = dict.fromkeys((H, C, NEXT_H, NEXT_C, GATED, "z"), row)
        step_types |= {X: TensorType("float32", (batch, wide)), ALIVE: TensorType("bool", (batch,))}
        self.types = {self.name_of(name): kind for name, kind in step_types.items()}
        self.fixed = {self.name_of(f"given{n}"): name for n, name in enumerate(d.node.inputs) if name and n in FIXED}
        self.types |= {name: d.types[input_name] for name, input_name in self.fixed.items()}
        self.constants = {
            name: d.constants[input_name] for name, input_name in self.fixed.items() if input_name in d.constants
        }
        self.row_bytes = batch * state.shape[1] * F32.size_bytes

    def name_of(self, name: str) -> str:
        return f"{self.first}.{name}"

    def rounds(self) -> Rounds:
        """The computations of all steps."""
        order = range(self.steps)[:: -1 if self.node.attrs["backward"] else 1]
        hidden = self._states(0, 1, order)
        cells = self._states(None, 2, order) if self.node.input(2) else []
        places = [
            self._places(at, hidden[number : number + 2], cells[number : number + 2]) for number, at in enumerate(order)
        ]
        parts = {}
        if self.node.output(0) and self.node.output(1):
            last = hidden[-1]
            assert isinstance(last, MemorySlice)
            parts[self.node.output(1)] = last
        return Rounds(tuple(self._bodies()), tuple(places), parts)

    def _states(self, everywhere: int | None, last: int, order: Sequence[int]) -> list[Place]:
        """The memory of a state before and after each step.

        In the output of all steps' states if there is one, else in two buffers by turns; after the last step in the
        output `last`.
        """
        initial = self.node.input(last)
        if everywhere is not None and self.node.output(everywhere):
            return [initial, *(MemorySlice(self.node.output(everywhere), at * self.row_bytes) for at in order)]
        turns: list[Place] = [f"{self.first}.state{last}.{number % 2}" for number in range(len(order))]
        if self.node.output(last):
            turns[-1] = self.node.output(last)
        return [initial, *turns]

    def _places(self, at: int, hidden: Sequence[Place], cells: Sequence[Place]) -> dict[str, Place]:
        wide = self.step.gates * self.row_bytes
        places: dict[str, Place] = {
            self.name_of(X): MemorySlice(self.node.inputs[0], at * wide),
            self.name_of(H): hidden[0],
            self.name_of(NEXT_H): hidden[1],
            **self.fixed,
        }
        if cells:
            places |= {self.name_of(C): cells[0], self.name_of(NEXT_C): cells[1]}
        if self.node.input(5):
            places[self.name_of(ALIVE)] = MemorySlice(self.node.input(5), at * self.step.batch)
        return places

    def _bodies(self) -> list[RoundBody]:
        x, h, c, next_h, next_c = map(self.name_of, (X, H, C, NEXT_H, NEXT_C))
        alive = self.name_of(ALIVE) if self.node.input(5) else ""
        bias, peepholes, *weights = (
            name if name in self.fixed else "" for name in (self.name_of(f"given{n}") for n in sorted(FIXED))
        )
        weights = weights[: self.step.gates]
        match self.node.attrs["cell"]:
            case "LSTM":
                return [self._body(_lstm, (x, h, c, peepholes, alive, *weights), (next_h, next_c))]
            case "RNN":
                return [self._body(_rnn, (x, h, alive, *weights), (next_h,))]
        if self.node.attrs.get("linear_before_reset"):
            return [self._body(_gru, (x, h, bias, alive, *weights), (next_h,))]
        z, reset = self.name_of("z"), self.name_of(GATED)
        return [
            self._body(_gru_gates, (x, h, *weights[:2]), (z, reset)),
            self._body(_gru_state, (x, h, z, reset, alive, weights[2]), (next_h,)),
        ]

    def _body(
        self, write: Callable[[_Step, Definition], None], inputs: tuple[str, ...], outputs: tuple[str, ...]
    ) -> RoundBody:
        d = Definition(Node(self.node.op, inputs, outputs), self.types, self.constants)
        write(self.step, d)
        return RoundBody(Compute(tuple(d.stages), d.tensors), outputs)


def recurrence(d: Definition) -> Rounds:
    """Define a Recurrence: the rounds of all steps."""
    return _Recurrence(d).rounds()


RECURRENCES: Mapping[str, OpDef] = {"Recurrence": recurrence}
