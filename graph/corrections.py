"""Where ONNX's reference evaluator is wrong or unfinished, the ops as they should be (found with onnx 1.23.2).

- LSTM, GRU, RNN: activations, clipping, sequence lengths and more are ignored (`recurrent`).
- Loop: stacks scan outputs with `vstack`, wrong unless they are vectors, and fails after no iteration.
- Scan: only along axis 0 and forwards, and without batches in opset 8.
- MaxPool: mixes up the pads of different axes unless beginning and end are equal.
- ConvTranspose: fails with groups.
- LRN: normalises as many channels as there are samples, and only images.
- CastLike: fails from opset 25 on.
- GatherElements: fails where more than 64 elements lie along the axis.
- Softmax, LogSoftmax, Hardmax before opset 13: don't flatten.
- OneHot: fails if the depth is a vector of one element.
- DequantizeLinear before opset 19: missing. (It means what 19 means for the types that it takes.)
- QuantizeLinear: what is beyond 32 bits, such as the lowest float of a mask, wraps instead of saturating.
- MatMulInteger: fails with a zero point for each row.
- GlobalLpPool, Scatter: missing.

`fallback.is_computed` tells what is missing after that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import helper
from onnx.reference import ops
from onnx.reference.op_run import OpRun

from .ir import Array, Node
from .recurrent import RECURRENT_OPS, evaluate_recurrent


def max_pool(x: Array, attrs: Mapping[str, Any]) -> Array:
    """The pool of a node with explicit attributes (see `onnx_import.normal`), without indices."""
    kernel, strides, dilations, pads = (attrs[key] for key in ("kernel_shape", "strides", "dilations", "pads"))
    count = len(kernel)
    lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype.name).min
    widths = [(0, 0), (0, 0), *zip(pads[:count], pads[count:], strict=True)]
    padded = np.pad(x, widths, constant_values=lowest)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=tuple(range(2, 2 + count)))
    steps = [slice(None)] * 2 + [slice(None, None, s) for s in strides] + [slice(None, None, d) for d in dilations]
    return np.asarray(windows[tuple(steps)].max(axis=tuple(range(2 + count, 2 + 2 * count))), x.dtype)


class _Corrected(OpRun):
    """Base of the classes that the evaluator takes in place of its own."""

    op_domain = ""

    def _attrs(self) -> dict[str, Any]:
        """The attributes that the node has."""
        return {item.name: getattr(self, item.name) for item in self.onnx_node.attribute}


class _Recurrent(_Corrected):
    def _run(self, *inputs: Any, **_: Any) -> tuple[Any, ...]:
        node = self.onnx_node
        plain = Node(node.op_type, tuple(node.input), tuple(node.output), self._attrs())
        return tuple(evaluate_recurrent(plain, inputs))


class _InGroups:
    """Ahead of the evaluator's ConvTranspose among the bases of a class."""

    def _run(self, *operands: Any, group: Any = None, **attrs: Any) -> Any:
        """One group at a time."""
        count = group or 1
        axes = (1, 0, 0)  # where the channels are in input, weight and bias
        split = [
            [None] * count if value is None else np.split(value, count, axis)
            for value, axis in zip(operands, axes, strict=False)
        ]
        parts = []
        for one in zip(*split, strict=True):
            parts += super()._run(*one, group=1, **attrs)  # type: ignore[misc]
        return (np.concatenate(parts, axis=1),)


class _LRN(_Corrected):
    def _run(self, x: Any, alpha: float, beta: float, bias: float, size: int) -> tuple[Array]:
        before, after = (size - 1) // 2, size // 2
        squares = np.pad(np.square(x), [(0, 0), (before, after), *[(0, 0)] * (x.ndim - 2)])
        total = sum(squares[:, k : k + x.shape[1]] for k in range(size))
        return (np.asarray(x / (bias + alpha / size * total) ** beta, x.dtype),)


class _Softmax(_Corrected):
    def _run(self, x: Any, axis: int | None = None) -> tuple[Array]:
        """Over one axis; before opset 13 over all from there on."""
        old = self.run_params["opsets"][""] < 13
        first = ((1 if old else -1) if axis is None else axis) % max(x.ndim, 1)
        axes = tuple(range(first, x.ndim)) if old else (first,)
        rows = np.moveaxis(x, axes, range(-len(axes), 0))
        values = self._rows(rows.reshape(*rows.shape[: x.ndim - len(axes)], -1)).reshape(rows.shape)
        return (np.asarray(np.moveaxis(values, range(-len(axes), 0), axes), x.dtype),)

    def _rows(self, rows: Any) -> Any:
        shifted = rows - rows.max(axis=-1, keepdims=True, initial=-np.inf)
        match self.onnx_node.op_type:
            case "Softmax":
                powers = np.exp(shifted)
                return powers / powers.sum(axis=-1, keepdims=True)
            case "LogSoftmax":
                return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
            case _:
                return np.arange(rows.shape[-1]) == rows.argmax(axis=-1)[..., None]


class _CastLike(_Corrected):
    def _run(self, x: Array, like: Array, **_: Any) -> tuple[Array]:
        return (x.astype(like.dtype),)


class _GatherElements(_Corrected):
    def _run(self, data: Array, indices: Any, **_: Any) -> tuple[Array]:
        axis = self._attrs().get("axis", 0) % data.ndim
        part = tuple(slice(None) if k == axis else slice(0, extent) for k, extent in enumerate(indices.shape))
        return (np.take_along_axis(data[part], indices, axis),)


class _OneHot(_Corrected):
    def _run(self, indices: Any, depth: Any, values: Any, **_: Any) -> tuple[Array]:
        count = int(np.asarray(depth).reshape(-1)[0])
        axis = self._attrs().get("axis", -1) % (indices.ndim + 1)
        places = np.arange(count).reshape(-1, *(1,) * (indices.ndim - axis))
        chosen = np.expand_dims(np.mod(indices, count), axis) == places
        inside = np.expand_dims((indices >= -count) & (indices < count), axis)
        return (np.where(chosen & inside, values[1], values[0]),)


class _MatMulInteger(_Corrected):
    def _run(self, a: Any, b: Any, zero_a: Any = None, zero_b: Any = None, **_: Any) -> tuple[Array]:
        left, right = (np.asarray(values, np.int32) for values in (a, b))
        if zero_a is not None:  # a vector is of rows
            left = left - (zero_a[:, None] if np.ndim(zero_a) == 1 and np.size(zero_a) > 1 else zero_a)
        if zero_b is not None:
            right = right - zero_b
        return (np.asarray(np.matmul(left, right), np.int32),)


class _Saturating:
    """Ahead of the evaluator's QuantizeLinear among the bases of a class."""

    def _run(self, *operands: Any, **attrs: Any) -> tuple[Any]:
        (result,) = super()._run(*operands, **attrs)  # type: ignore[misc]
        x, scale = operands[:2]
        limit = 65504.0 if x.dtype == np.float16 else 2.0**20  # beyond all results, and held by the type of x / scale
        sizes = np.abs(np.asarray(x, np.result_type(x.dtype, np.float32)))
        largest = np.fmax.reduce(sizes, axis=None, initial=0.0)  # of what is not NaN
        if result.dtype.name not in _BOUNDS or not largest > limit * np.min(np.abs(scale)):
            return (result,)
        low, high = _BOUNDS[result.dtype.name]
        steps = np.asarray(x, np.float64) / _spread(scale, x.shape, attrs.get("axis", 1), attrs.get("block_size"))
        saturated = np.where(steps > limit, high, np.where(steps < -limit, low, result.astype(np.int32)))
        return (saturated.astype(result.dtype),)


_BOUNDS = {f"int{bits}": (-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (2, 4, 8, 16)} | {
    f"uint{bits}": (0, (1 << bits) - 1) for bits in (2, 4, 8, 16)
}
"""The least and the most of what is quantised to, by the name of the type. Floats saturate by themselves."""


def _spread(scale: Any, shape: Sequence[int], axis: int, block_size: int | None) -> Any:
    """Scales as they meet an operand of this shape: one for all, one a place along an axis, or one a block."""
    if scale.size == 1:
        return scale.reshape(())
    if not block_size:
        return scale.reshape([-1 if k == axis % len(shape) else 1 for k in range(len(shape))])
    return np.repeat(scale, block_size, axis).take(np.arange(shape[axis]), axis)


class _GlobalLpPool(_Corrected):
    def _run(self, x: Any, **_: Any) -> tuple[Array]:
        p = self._attrs().get("p", 2)
        total = np.sum(np.abs(x) ** p, axis=tuple(range(2, x.ndim)), keepdims=True)
        return (np.asarray(total ** (1 / p), x.dtype),)


class _Scatter(_Corrected):
    def _run(self, data: Array, indices: Any, updates: Array, **_: Any) -> tuple[Array]:
        axis = self._attrs().get("axis", 0) % data.ndim
        result = data.copy()
        places = list(np.indices(indices.shape, sparse=True))
        places[axis] = indices
        result[tuple(places)] = updates
        return (result,)


class _WithBody(_Corrected):
    body: Any  # an evaluator

    def need_context(self) -> bool:
        """Bodies read tensors around them."""
        return True

    def _step(self, context: Mapping[str, Any] | None, values: Sequence[Any]) -> list[Any]:
        feeds = {**(context or {}), **dict(zip(self.body.input_names, values, strict=True))}
        return list(self.body.run(None, feeds))

    def _stacked(self, kept: Sequence[Any], axis: int, position: int) -> Any:
        """Scan outputs of all iterations; of none an empty tensor, as far as its type is declared."""
        if kept:
            return np.stack(kept, axis=axis)
        kind = self.body.output_types[position].tensor_type
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type) if kind.elem_type else np.float32
        return np.empty((0, *(dim.dim_value for dim in kind.shape.dim)), dtype)


class _Loop(_WithBody):
    def _run(self, trips: Any, condition: Any, *state: Any, context: Any = None, **_: Any) -> tuple[Any, ...]:
        states = list(state)
        count = len(self.body.output_names) - 1 - len(states)
        scans: list[list[Any]] = [[] for _ in range(count)]
        going = condition is None or bool(np.asarray(condition).item())
        limit = None if trips is None else int(np.asarray(trips).item())
        iteration = 0
        while going and (limit is None or iteration < limit):
            results = self._step(context, [np.asarray(iteration, np.int64), np.asarray(going), *states])
            going = bool(np.asarray(results[0]).item())
            states = results[1 : 1 + len(states)]
            for kept, value in zip(scans, results[1 + len(states) :], strict=True):
                kept.append(value)
            iteration += 1
        first = 1 + len(states)
        return (*states, *(self._stacked(kept, 0, first + k) for k, kept in enumerate(scans)))


class _Scan(_WithBody):
    def _run(self, *values: Any, context: Any = None, **_: Any) -> tuple[Any, ...]:
        attrs = self._attrs()
        count = attrs["num_scan_inputs"]
        if self.run_params["opsets"][""] < 9:
            return self._batches(values[0], values[1:-count], values[-count:], context)
        initial, sequences = values[: len(values) - count], values[len(values) - count :]
        outputs = len(self.body.output_names) - len(initial)
        axes, back = (attrs.get(f"scan_input_{key}") or [0] * count for key in ("axes", "directions"))
        rows = [np.moveaxis(sequence, axis, 0) for sequence, axis in zip(sequences, axes, strict=True)]
        rows = [row[::-1] if flag else row for row, flag in zip(rows, back, strict=True)]
        states, scans = self._scan(initial, rows, context)
        axes, back = (attrs.get(f"scan_output_{key}") or [0] * outputs for key in ("axes", "directions"))
        ordered = [kept[::-1] if flag else kept for kept, flag in zip(scans, back, strict=True)]
        stacked = [
            self._stacked(kept, axis, len(states) + k) for k, (kept, axis) in enumerate(zip(ordered, axes, strict=True))
        ]
        return (*states, *stacked)

    def _scan(
        self, states: Sequence[Any], rows: Sequence[Any], context: Mapping[str, Any] | None
    ) -> tuple[Sequence[Any], list[list[Any]]]:
        """The last states, and what each scan output was in every iteration."""
        count = len(states)
        scans: list[list[Any]] = [[] for _ in self.body.output_names[count:]]
        for iteration in range(len(rows[0])):
            results = self._step(context, [*states, *(row[iteration] for row in rows)])
            states = results[:count]
            for kept, value in zip(scans, results[count:], strict=True):
                kept.append(value)
        return states, scans

    def _batches(
        self, lengths: Any, initial: Sequence[Any], sequences: Sequence[Any], context: Mapping[str, Any] | None
    ) -> tuple[Any, ...]:
        """Opset 8: independent scans along axis 0, each over axis 1 as far as `lengths` says, then zeros."""
        longest = sequences[0].shape[1]
        back = self._attrs().get("directions") or [0] * len(sequences)
        finals = []
        for batch in range(len(sequences[0])):
            length = longest if lengths is None else int(lengths[batch])
            rows = [sequence[batch, :length] for sequence in sequences]
            rows = [row[::-1] if flag else row for row, flag in zip(rows, back, strict=True)]
            states, scans = self._scan([state[batch] for state in initial], rows, context)
            stacked = [self._stacked(kept, 0, len(states) + k) for k, kept in enumerate(scans)]
            padded = [np.pad(s, [(0, longest - length), *[(0, 0)] * (s.ndim - 1)]) for s in stacked]
            finals.append([*states, *padded])
        return tuple(np.stack(values) for values in zip(*finals, strict=True))


def _mended(op: str, *first: type) -> type:
    """The evaluator's own class of an op, of the newest opset it knows, with `first` ahead of it."""
    return type(op, (*first, ops.load_op("", op)), {"op_domain": ""})


CORRECTIONS = [
    *(type(name, (_Recurrent,), {}) for name in sorted(RECURRENT_OPS)),
    _mended("ConvTranspose", _InGroups),
    *(type(name, (_Softmax,), {}) for name in ("Hardmax", "LogSoftmax", "Softmax")),
    type("LRN", (_LRN,), {}),
    type("CastLike", (_CastLike,), {}),
    _mended("DequantizeLinear"),  # that of the newest opset: older ones have fewer types and attributes
    type("GatherElements", (_GatherElements,), {}),
    type("GlobalLpPool", (_GlobalLpPool,), {}),
    type("Loop", (_Loop,), {}),
    type("MatMulInteger", (_MatMulInteger,), {}),
    type("OneHot", (_OneHot,), {}),
    _mended("QuantizeLinear", _Saturating),
    type("Scan", (_Scan,), {}),
    type("Scatter", (_Scatter,), {}),
]
"""For the evaluator's `new_ops`, so that they hold inside bodies as well. (MaxPool there keeps the evaluator's.)"""
