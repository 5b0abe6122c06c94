"""LSTM of weights in bytes, whose input and state are rounded to bytes as well, as ONNX Runtime does it.

The input's part is one product of bytes for all steps. A step rounds the state that it gets, in the whole range of its
numbers, and multiplies it: what ONNX Runtime computes, where its own kernels don't saturate.
"""

from __future__ import annotations

from collections.abc import Sequence

from onnx import GraphProto, parser

from ..evaluation.onnx_form import element_type
from ..evaluation.recurrent import DEFAULT_ACTIVATIONS
from .call import BYTES, ContribCall, contrib_op
from .quantisation import product_of_bytes

_ATTRS = {
    "hidden_size": int | None, "direction": "forward", "input_forget": 0, "clip": float | None,
    "activations": list[str], "activation_alpha": list[float], "activation_beta": list[float],
}  # fmt: skip

DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
"""Of each direction, whether it goes backward."""


@contrib_op(
    "DynamicQuantizeLSTM(X:T, W:T2, R:T2, B?:T, sequence_lens?:T1, initial_h?:T, initial_c?:T, P?:T, W_scale:T,"
    " W_zero_point:T2, R_scale:T, R_zero_point:T2) -> Y?:T, Y_h?:T, Y_c?:T",
    {"T": "float", "T1": "int32", "T2": BYTES},
    _ATTRS,
)
def _dynamic_quantize_lstm(call: ContribCall) -> Sequence[str]:
    """Step by step; with lengths, limits or other activations it is that of the weights as real numbers."""
    directions = DIRECTIONS[call.attr("direction")]
    activations = [name.capitalize() for name in call.attr("activations") or ()]
    is_usual = activations in ([], [*DEFAULT_ACTIVATIONS["LSTM"]] * len(directions))
    if not is_usual or call.attr("input_forget") or call.attr("clip") is not None or call.operand("sequence_lens"):
        return _in_real_numbers(call)
    parts = [_LstmDirection(call, number, is_backward).results() for number, is_backward in enumerate(directions)]
    axes = (1, 0, 0)
    joined = zip(axes, zip(*parts, strict=True), strict=True)
    return [call.emit("Concat", *(call.unsqueeze(part, axis) for part in of_all), axis=axis) for axis, of_all in joined]


def _in_real_numbers(call: ContribCall) -> Sequence[str]:
    w, r = (_real_weight(call, name) for name in "WR")
    others = [call.operand(name) for name in ("B", "sequence_lens", "initial_h", "initial_c", "P")]
    attrs = {name: call.attr(name) for name in _ATTRS}
    return call.emit_all("LSTM", [call.operand("X"), w, r, *others], 3, **attrs)


def _real_weight(call: ContribCall, name: str) -> str:
    """The real numbers of a weight `[D, inputs, 4 * H]`, turned as an LSTM has it. Scales are `[D]` or `[D, 4 * H]`."""
    weight, scale, zero_point = (call.operand(name + part) for part in ("", "_scale", "_zero_point"))
    axes = (1, 2) if len(call.shape(scale)) == 1 else (1,)
    centred = call.emit("Sub", call.cast(weight, "float32"), call.unsqueeze(call.cast(zero_point, "float32"), *axes))
    return call.emit("Transpose", call.emit("Mul", centred, call.unsqueeze(scale, *axes)), perm=[0, 2, 1])


class _LstmDirection:
    """One direction of a call."""

    def __init__(self, call: ContribCall, number: int, is_backward: bool) -> None:
        self.call, self.number, self.is_backward = call, number, is_backward
        _, self.batch, _ = call.shape(call.operand("X"))
        self.hidden = call.shape(call.operand("R"))[2] // 4

    def results(self) -> tuple[str, str, str]:
        """The states of all steps `[T, B, H]`, the last hidden and the last cell state `[B, H]`."""
        call, order = self.call, [int(self.is_backward)]
        states = [self._state(name) for name in ("initial_h", "initial_c")]
        last_h, last_c, ys = call.emit_all(
            "Scan",
            [*states, self._projected()],
            3,
            body=self._body(),
            num_scan_inputs=1,
            scan_input_directions=order,
            scan_output_directions=order,
        )
        return ys, last_h, last_c

    def _part(self, name: str) -> str:
        """This direction's part of an operand; "" where there is none."""
        operand = self.call.operand(name)
        return self.call.emit("Gather", operand, self.call.constant(self.number, "int64"), axis=0) if operand else ""

    def _state(self, name: str) -> str:
        return self._part(name) or self.call.constant([[0.0] * self.hidden] * self.batch, "float32")

    def _projected(self) -> str:
        """The input's part of all steps `[T, B, 4 * H]`, biases added."""
        call = self.call
        x, x_scale, x_zero_point = call.emit_all("DynamicQuantizeLinear", [call.operand("X")], 3)
        biases, wide = self._part("B"), 4 * self.hidden
        bias = call.sum(*(call.slice(biases, 0, start, start + wide) for start in (0, wide))) if biases else ""
        zero_points, scales = (x_zero_point, self._part("W_zero_point")), (x_scale, self._part("W_scale"))
        return product_of_bytes(call, x, self._part("W"), zero_points, scales, bias)

    def _body(self) -> GraphProto:
        """A step: it takes the states and its row of what is projected, and returns the states and what it shows."""
        r, r_scale, r_zero_point = (self._part(f"R{part}") for part in ("", "_scale", "_zero_point"))
        state, row = f"float[{self.batch}, {self.hidden}]", f"float[{self.batch}, {4 * self.hidden}]"
        peepholes = self._part("P")
        split = f"pi, po, pf = Split<axis = 0, num_outputs = 3>({peepholes})" if peepholes else ""

        def gate(name: str, cell: str) -> str:
            if not peepholes:
                return f"{name} = Sigmoid({name}0)"
            return f"{name}p = Mul(p{name}, {cell}) {name}1 = Add({name}0, {name}p) {name} = Sigmoid({name}1)"

        return parser.parse_graph(
            f"""step ({state} h, {state} c, {row} x) => ({state} next_h, {state} next_c, {state} y) {{
                q, s, z = DynamicQuantizeLinear(h)
                product = MatMulInteger(q, {r}, z, {r_zero_point})
                whole = Cast<to = {element_type("float32")}>(product)
                scale = Mul(s, {r_scale})
                recurrent = Mul(whole, scale)
                gates = Add(recurrent, x)
                i0, o0, f0, n0 = Split<axis = 1, num_outputs = 4>(gates)
                {split} {gate("i", "c")} {gate("f", "c")}
                n = Tanh(n0)
                kept = Mul(f, c)
                added = Mul(i, n)
                next_c = Add(kept, added)
                {gate("o", "next_c")}
                shown = Tanh(next_c)
                next_h = Mul(o, shown)
                y = Identity(next_h)
            }}"""
        )
