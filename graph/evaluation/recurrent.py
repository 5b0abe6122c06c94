"""LSTM, GRU and RNN in numpy, complete: ONNX's reference leaves out activations, clipping and sequence lengths.

Shapes: T steps, B batch, D directions, H hidden, G gates. Equations and gate orders: ONNX's operator documentation.

`rewrites.recurrent` parts such a node into matrix products over all steps at once and `Recurrence` nodes, which ONNX
does not have: what is left to do step by step, in one direction. Their inputs are the projected steps `[T, B, G*H]`
with all biases that simply add; the state `h [B, H]`; `c [B, H]` of an LSTM; of a GRU that is linear before the reset
the bias `[H]` of its new state; the peepholes `[3, H]` of an LSTM; `alive [T, B]`, which tells the steps within each
sequence; and the recurrent weights of each gate, `[H, H]`, transposed. Absent ones are empty, all but the first two
and the weights are optional. Outputs are the states of all steps `[T, B, H]`, the last `h`, and the last `c`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ir import Array, Node
from .corrections import Correction, OnnxCall

ActivationFunction = Callable[[Any], Any]

DEFAULT_ACTIVATIONS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
"""Those of each cell where a node says none."""

RECURRENT_OPS = frozenset(DEFAULT_ACTIVATIONS)

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
"""Gates of each cell."""

ACTIVATIONS = {"LSTM": 3, "GRU": 2, "RNN": 1}
"""Activations of each cell."""

WEIGHTS_AT = 6
"""The position of the first recurrent weight among the inputs of a Recurrence."""

# Name -> (function of x, alpha, beta; default alpha; default beta); None where the function takes no such number.
_ACTIVATIONS: dict[str, tuple[Callable[[Any, float, float], Any], float | None, float | None]] = {
    "affine": (lambda x, a, b: a * x + b, 1.0, 0.0),
    "elu": (lambda x, a, b: np.where(x < 0, a * np.expm1(np.minimum(x, 0)), x), 1.0, None),
    "hardsigmoid": (lambda x, a, b: np.clip(a * x + b, 0, 1), 0.2, 0.5),
    "leakyrelu": (lambda x, a, b: np.where(x < 0, a * x, x), 0.01, None),
    "relu": (lambda x, a, b: np.maximum(x, 0), None, None),
    "scaledtanh": (lambda x, a, b: a * np.tanh(b * x), 1.0, 1.0),
    "sigmoid": (lambda x, a, b: 1 / (1 + np.exp(-x)), None, None),
    "softplus": (lambda x, a, b: np.logaddexp(x, 0), None, None),
    "softsign": (lambda x, a, b: x / (1 + np.abs(x)), None, None),
    "tanh": (lambda x, a, b: np.tanh(x), None, None),
    "thresholdedrelu": (lambda x, a, b: np.where(x > a, x, 0), 1.0, None),
}

ACTIVATION_NAMES = tuple(_ACTIVATIONS)
"""All activations. Models may write them with capital letters."""


@dataclass(frozen=True, slots=True)
class _Direction:
    """The weights of one direction: `w [G*H, I]`, `r [G*H, H]`, biases `[G*H]`, peepholes `p [3*H]` of an LSTM."""

    op: str
    w: Any
    r: Any
    wb: Any
    rb: Any
    p: Any
    activations: Sequence[ActivationFunction]
    attrs: Any

    def step(self, x: Any, h: Any, c: Any) -> tuple[Any, Any]:
        """The hidden and cell state after one step. `x [B, G*H]` has been multiplied by the weights already."""
        match self.op:
            case "LSTM":
                return self._lstm(x, h, c)
            case "GRU":
                return self._gru(x, h), c
            case _:
                return self.activations[0](x + h @ self.r.T + self.rb), c

    def _lstm(self, x: Any, h: Any, c: Any) -> tuple[Any, Any]:
        f, g, out = self.activations
        i_in, o_in, f_in, c_in = np.split(x + h @ self.r.T + self.rb, 4, axis=-1)
        p_i, p_o, p_f = np.split(self.p, 3)
        keep_in = f(i_in + p_i * c)
        keep = 1 - keep_in if self.attrs.get("input_forget", 0) else f(f_in + p_f * c)
        cell = keep * c + keep_in * g(c_in)
        return f(o_in + p_o * cell) * out(cell), cell

    def _gru(self, x: Any, h: Any) -> Any:
        f, g = self.activations
        size = h.shape[-1]
        r_gates, r_new = self.r[: 2 * size], self.r[2 * size :]
        z, r = np.split(f(x[..., : 2 * size] + h @ r_gates.T + self.rb[: 2 * size]), 2, axis=-1)
        bias = self.rb[2 * size :]
        hidden = r * (h @ r_new.T + bias) if self.attrs.get("linear_before_reset", 0) else (r * h) @ r_new.T + bias
        return (1 - z) * g(x[..., 2 * size :] + hidden) + z * h


@dataclass(frozen=True, slots=True)
class Activation:
    """An activation function by its name in small letters, with its numbers."""

    name: str
    alpha: float
    beta: float


def recurrent_activations(node: Node, directions: int) -> list[Activation]:
    """The activations of all directions, in ONNX's order. Raises KeyError for one that ONNX does not have."""
    names = node.attrs.get("activations") or DEFAULT_ACTIVATIONS[node.op] * directions
    alphas, betas = (list(node.attrs.get(f"activation_{which}", ())) for which in ("alpha", "beta"))

    def choose(name: str) -> Activation:
        _, alpha, beta = _ACTIVATIONS[name.lower()]
        a = 0.0 if alpha is None else alphas.pop(0) if alphas else alpha
        b = 0.0 if beta is None else betas.pop(0) if betas else beta
        return Activation(name.lower(), float(a), float(b))

    return [choose(name) for name in names]


def is_clipped(cell: str, position: int) -> bool:
    """Whether `clip` bounds what goes into the activation there, counted within one direction.

    Gates are clipped, an LSTM's cell state on its way out is not: so does ONNX Runtime.
    """
    return not (cell == "LSTM" and position == 2)


def _bind_activations(cell: str, activations: Sequence[Activation], limit: Any) -> list[ActivationFunction]:
    """The activations of one direction as functions of one argument."""

    def bind(position: int, activation: Activation) -> ActivationFunction:
        function = _ACTIVATIONS[activation.name][0]
        clipped = limit is not None and is_clipped(cell, position)
        return lambda x: function(np.clip(x, -limit, limit) if clipped else x, activation.alpha, activation.beta)

    return [bind(position, activation) for position, activation in enumerate(activations)]


def _run(cell: _Direction, x: Any, lengths: Any, h: Any, c: Any) -> tuple[Any, Any, Any]:
    """Run all steps: the outputs `[T, B, H]`, zero beyond a sequence's length, and the states after its last step."""
    alive = np.arange(len(x))[:, None] < lengths
    outputs, h, c = _advance(cell, x @ cell.w.T + cell.wb, alive, h, c)
    return np.where(alive[..., None], outputs, 0), h, c


def _advance(cell: _Direction, projected: Any, alive: Any, h: Any, c: Any) -> tuple[Any, Any, Any]:
    """The hidden states of all steps, and the states after the last; a step that is not alive keeps them."""
    outputs = np.zeros((len(projected), *h.shape), h.dtype)
    for t, step in enumerate(projected):
        fresh_h, fresh_c = cell.step(step, h, c)
        h, c = np.where(alive[t][:, None], fresh_h, h), np.where(alive[t][:, None], fresh_c, c)
        outputs[t] = h
    return outputs, h, c


def _reverse(x: Any, lengths: Any) -> Any:
    """`x [T, B, ...]` with the steps of each sequence in opposite order; what lies beyond its length stays."""
    steps = np.arange(len(x))[:, None]
    source = np.where(steps < lengths, lengths - 1 - steps, steps)
    return np.take_along_axis(x, source[..., None], axis=0)


def evaluate_recurrent(node: Node, arrays: Sequence[Array | None]) -> list[Array]:
    """The outputs of an LSTM, GRU or RNN node. Raises KeyError for an unknown activation."""
    operands: list[Any] = [*arrays, *[None] * (8 - len(arrays))]
    x, w, r, b, lengths, h0, c0, p = operands
    batch_first = bool(node.attrs.get("layout", 0))
    if batch_first:
        x, h0, c0 = (value if value is None else np.swapaxes(value, 0, 1) for value in (x, h0, c0))
    directions, hidden = r.shape[0], r.shape[-1]
    steps, batch = x.shape[:2]
    zeros = np.zeros((directions, batch, hidden), x.dtype)
    h0, c0 = (zeros if value is None else value for value in (h0, c0))
    b = np.zeros((directions, 2 * w.shape[1]), x.dtype) if b is None else b
    p = np.zeros((directions, 3 * hidden), x.dtype) if p is None else p
    lengths = np.full(batch, steps) if lengths is None else lengths
    count = ACTIVATIONS[node.op]
    activations = recurrent_activations(node, directions)
    functions = [
        function
        for d in range(directions)
        for function in _bind_activations(node.op, activations[count * d : count * (d + 1)], node.attrs.get("clip"))
    ]
    results = []
    for d in range(directions):
        backward = node.attrs.get("direction", "forward") == "reverse" or d == 1
        wb, rb = np.split(b[d], 2)
        cell = _Direction(node.op, w[d], r[d], wb, rb, p[d], functions[count * d : count * (d + 1)], node.attrs)
        y, h, c = _run(cell, _reverse(x, lengths) if backward else x, lengths, h0[d], c0[d])
        results.append((_reverse(y, lengths) if backward else y, h, c))
    ys, hs, cs = (np.stack(parts) for parts in zip(*results, strict=True))
    y = np.moveaxis(ys, 0, 1)  # [D, T, B, H] -> [T, D, B, H]
    outputs = [np.moveaxis(y, 2, 0), *(np.swapaxes(s, 0, 1) for s in (hs, cs))] if batch_first else [y, hs, cs]
    return [np.ascontiguousarray(value, x.dtype) for value in outputs[: len(node.outputs)]]


def evaluate_recurrence(node: Node, arrays: Sequence[Array | None]) -> list[Array]:
    """The outputs of a Recurrence node, as the module's docstring defines it."""
    operands: list[Any] = list(arrays)
    projected, h, c, bias, peepholes, alive = operands[:WEIGHTS_AT]
    r = np.concatenate([weights.T for weights in operands[WEIGHTS_AT:]])
    hidden = h.shape[-1]
    rb = np.zeros(len(r), h.dtype)
    if bias is not None:
        rb[-hidden:] = bias
    p = np.zeros(3 * hidden, h.dtype) if peepholes is None else peepholes.reshape(-1)
    alive = np.ones(projected.shape[:2], np.bool_) if alive is None else alive
    cell = node.attrs["cell"]
    functions = _bind_activations(cell, recurrence_activations(node), node.attrs.get("clip"))
    direction = _Direction(cell, None, r, None, rb, p, functions, node.attrs)
    order = slice(None, None, -1 if node.attrs["backward"] else 1)
    ys, last_h, last_c = _advance(direction, projected[order], alive[order], h, h if c is None else c)
    results = [ys[order], last_h, last_c]
    return [np.ascontiguousarray(value, h.dtype) for value in results[: len(node.outputs)]]


def recurrence_activations(node: Node) -> list[Activation]:
    """The activations of a Recurrence node."""
    numbers = (node.attrs["alphas"], node.attrs["betas"])
    return [Activation(*parts) for parts in zip(node.attrs["activations"], *numbers, strict=True)]


def _recurrent(call: OnnxCall, *operands: Any) -> tuple[Any, ...]:
    names = tuple(f"o{k}" for k in range(call.output_count))
    return tuple(evaluate_recurrent(Node(call.op, (), names, call.attrs), operands))


RECURRENT: Mapping[str, Correction] = dict.fromkeys(sorted(RECURRENT_OPS), _recurrent)
