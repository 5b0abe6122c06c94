"""LSTM, GRU and RNN in numpy, complete: ONNX's reference leaves out activations, clipping and sequence lengths.

Shapes: T steps, B batch, D directions, H hidden, G gates. Equations and gate orders: ONNX's operator documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .ir import Array, Node

Activation = Callable[[Any], Any]

_DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
RECURRENT_OPS = frozenset(_DEFAULTS)

# Name -> (function of x, alpha, beta; default alpha; default beta); None where the function takes no such number.
_ACTIVATIONS: dict[str, tuple[Callable[[Any, float, float], Any], float | None, float | None]] = {
    "affine": (lambda x, a, b: a * x + b, 1.0, 0.0),
    "elu": (lambda x, a, b: np.where(x < 0, a * np.expm1(np.minimum(x, 0)), x), 1.0, None),
    "hardsigmoid": (lambda x, a, b: np.clip(a * x + b, 0, 1), 0.2, 0.5),
    "leakyrelu": (lambda x, a, b: np.where(x < 0, a * x, x), 0.01, None),
    "relu": (lambda x, a, b: np.maximum(x, 0), None, None),
    "scaledtanh": (lambda x, a, b: a * np.tanh(b * x), 1.0, 1.0),
    "sigmoid": (lambda x, a, b: 0.5 * np.tanh(0.5 * x) + 0.5, None, None),  # this form can't overflow
    "softplus": (lambda x, a, b: np.logaddexp(x, 0), None, None),
    "softsign": (lambda x, a, b: x / (1 + np.abs(x)), None, None),
    "tanh": (lambda x, a, b: np.tanh(x), None, None),
    "thresholdedrelu": (lambda x, a, b: np.where(x > a, x, 0), 1.0, None),
}


@dataclass(frozen=True, slots=True)
class _Direction:
    """The weights of one direction: `w [G*H, I]`, `r [G*H, H]`, biases `[G*H]`, peepholes `p [3*H]` of an LSTM."""

    op: str
    w: Any
    r: Any
    wb: Any
    rb: Any
    p: Any
    activations: Sequence[Activation]
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


def _activations(node: Node, directions: int) -> list[Activation]:
    names = node.attrs.get("activations") or _DEFAULTS[node.op] * directions
    alphas, betas = (list(node.attrs.get(f"activation_{which}", ())) for which in ("alpha", "beta"))
    limit: Any = node.attrs.get("clip")

    def bound(position: int, name: str) -> Activation:
        function, alpha, beta = _ACTIVATIONS[name.lower()]
        a = 0.0 if alpha is None else alphas.pop(0) if alphas else alpha
        b = 0.0 if beta is None else betas.pop(0) if betas else beta
        # Gates are clipped, an LSTM's cell state on its way out is not: so does ONNX Runtime.
        clipped = limit is not None and not (node.op == "LSTM" and position % 3 == 2)
        return lambda x: function(np.clip(x, -limit, limit) if clipped else x, a, b)

    return [bound(position, name) for position, name in enumerate(names)]


def _run(cell: _Direction, x: Any, lengths: Any, h: Any, c: Any) -> tuple[Any, Any, Any]:
    """All steps: outputs `[T, B, H]` (zero beyond a sequence's length) and the states after its last step."""
    outputs = np.zeros((len(x), *h.shape), h.dtype)
    projected = x @ cell.w.T + cell.wb
    for t in range(len(x)):
        fresh_h, fresh_c = cell.step(projected[t], h, c)
        alive = (t < lengths)[:, None]
        h, c = np.where(alive, fresh_h, h), np.where(alive, fresh_c, c)
        outputs[t] = np.where(alive, h, 0)
    return outputs, h, c


def _reversed(x: Any, lengths: Any) -> Any:
    """`x [T, B, ...]` with the steps of each sequence in opposite order; what lies beyond its length stays."""
    steps = np.arange(len(x))[:, None]
    source = np.where(steps < lengths, lengths - 1 - steps, steps)
    return np.take_along_axis(x, source[..., None], axis=0)


def evaluate_recurrent(node: Node, arrays: Sequence[Array | None]) -> list[Array]:
    """The outputs of an LSTM, GRU or RNN node. Raises KeyError for an unknown activation."""
    given: list[Any] = [*arrays, *[None] * (8 - len(arrays))]
    x, w, r, b, lengths, h0, c0, p = given
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
    functions = _activations(node, directions)
    each = len(_DEFAULTS[node.op])
    results = []
    for d in range(directions):
        backward = node.attrs.get("direction", "forward") == "reverse" or d == 1
        wb, rb = np.split(b[d], 2)
        cell = _Direction(node.op, w[d], r[d], wb, rb, p[d], functions[each * d : each * (d + 1)], node.attrs)
        y, h, c = _run(cell, _reversed(x, lengths) if backward else x, lengths, h0[d], c0[d])
        results.append((_reversed(y, lengths) if backward else y, h, c))
    ys, hs, cs = (np.stack(parts) for parts in zip(*results, strict=True))
    y = np.moveaxis(ys, 0, 1)  # [D, T, B, H] -> [T, D, B, H]
    outputs = [np.moveaxis(y, 2, 0), *(np.swapaxes(s, 0, 1) for s in (hs, cs))] if batch_first else [y, hs, cs]
    return [np.ascontiguousarray(value, x.dtype) for value in outputs[: len(node.outputs)]]
