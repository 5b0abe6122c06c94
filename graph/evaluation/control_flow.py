"""Corrections of Loop, Scan and SequenceMap, whose bodies run again and again: see `corrections`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import TypeProto, helper

from .corrections import CorrectedOp
from .onnx_form import infer_body, value_type


class _BodyOp(CorrectedOp):
    body: Any  # an evaluator

    def need_context(self) -> bool:
        """Bodies read tensors around them."""
        return True

    def _step(self, context: Mapping[str, Any] | None, values: Sequence[Any]) -> list[Any]:
        feeds = {**(context or {}), **dict(zip(self.body.input_names, values, strict=True))}
        return list(self.body.run(None, feeds))

    def _empty_outputs(
        self, context: Mapping[str, Any] | None, input_types: Sequence[TypeProto], axes: Sequence[int]
    ) -> list[Any]:
        """The outputs stacked along `axes` after no iteration: empty, with the extents that ONNX infers.

        So does ONNX Runtime: an extent that can't be told is 0, and of an unknown rank there is one dimension.
        """
        kinds = infer_body(self.body.onnx_graph_, self.body.opsets, input_types, context or {})
        empty = []
        for kind, axis in zip(kinds[len(kinds) - len(axes) :], axes, strict=True):
            shape = [dim.dim_value for dim in kind.tensor_type.shape.dim]
            shape.insert(axis % (len(shape) + 1), 0)
            number = kind.tensor_type.elem_type
            empty.append(np.empty(shape, helper.tensor_dtype_to_np_dtype(number) if number else np.float32))
        return empty


class Loop(_BodyOp):
    """A body that runs while the condition holds, and at most as often as the trip count says."""

    def _run(self, trips: Any, condition: Any, *state: Any, context: Any = None, **_: Any) -> tuple[Any, ...]:
        states = list(state)
        scans: list[list[Any]] = [[] for _ in self.body.output_names[1 + len(states) :]]
        is_running = condition is None or bool(np.asarray(condition).item())
        limit = None if trips is None else int(np.asarray(trips).item())
        iteration = 0
        while is_running and (limit is None or iteration < limit):
            results = self._step(context, [np.asarray(iteration, np.int64), np.asarray(is_running), *states])
            is_running = bool(np.asarray(results[0]).item())
            states = results[1 : 1 + len(states)]
            for scan, value in zip(scans, results[1 + len(states) :], strict=True):
                scan.append(value)
            iteration += 1
        if iteration == 0:
            # what states look like in a body is declared there: they may change from one step to the next
            return (*states, *self._empty_outputs(context, self.body.input_types, [0] * len(scans)))
        return (*states, *map(np.stack, scans))


class Scan(_BodyOp):
    """A body that runs once for each place along an axis of its inputs."""

    def _run(self, *values: Any, context: Any = None, **_: Any) -> tuple[Any, ...]:
        attrs = self.node_attrs()
        count = attrs["num_scan_inputs"]
        if self.run_params["opsets"][""] < 9:
            return self._batches(values[0], values[1:-count], values[-count:], context)
        initial, sequences = values[: len(values) - count], values[len(values) - count :]
        outputs = len(self.body.output_names) - len(initial)
        axes, back = (attrs.get(f"scan_input_{key}") or [0] * count for key in ("axes", "directions"))
        rows = [np.moveaxis(sequence, axis, 0) for sequence, axis in zip(sequences, axes, strict=True)]
        rows = [row[::-1] if flag else row for row, flag in zip(rows, back, strict=True)]
        axes, back = (attrs.get(f"scan_output_{key}") or [0] * outputs for key in ("axes", "directions"))
        return self._scan(initial, rows, axes, back, context)

    def _scan(
        self,
        states: Sequence[Any],
        rows: Sequence[Any],
        axes: Sequence[int],
        back: Sequence[int],
        context: Mapping[str, Any] | None,
    ) -> tuple[Any, ...]:
        """The last states, and the scan outputs stacked along `axes`, those of `back` in opposite order."""
        count = len(states)
        scans: list[list[Any]] = [[] for _ in axes]
        if not len(rows[0]):
            items = [*states, *(np.empty(row.shape[1:], row.dtype) for row in rows)]
            return (*states, *self._empty_outputs(context, [value_type(item) for item in items], axes))
        for iteration in range(len(rows[0])):
            results = self._step(context, [*states, *(row[iteration] for row in rows)])
            states = results[:count]
            for scan, value in zip(scans, results[count:], strict=True):
                scan.append(value)
        ordered = [scan[::-1] if flag else scan for scan, flag in zip(scans, back, strict=True)]
        return (*states, *(np.stack(scan, axis) for scan, axis in zip(ordered, axes, strict=True)))

    def _batches(
        self, lengths: Any, initial: Sequence[Any], sequences: Sequence[Any], context: Mapping[str, Any] | None
    ) -> tuple[Any, ...]:
        """Opset 8: independent scans along axis 0, each over axis 1 as far as `lengths` says, then zeros."""
        longest = sequences[0].shape[1]
        back = self.node_attrs().get("directions") or [0] * len(sequences)
        zeros = [0] * (len(self.body.output_names) - len(initial))
        finals = []
        for batch in range(len(sequences[0])):
            length = longest if lengths is None else int(lengths[batch])
            rows = [sequence[batch, :length] for sequence in sequences]
            rows = [row[::-1] if flag else row for row, flag in zip(rows, back, strict=True)]
            results = self._scan([state[batch] for state in initial], rows, zeros, zeros, context)
            states, stacked = results[: len(initial)], results[len(initial) :]
            padded = [np.pad(s, [(0, longest - length), *[(0, 0)] * (s.ndim - 1)]) for s in stacked]
            finals.append([*states, *padded])
        return tuple(np.stack(values) for values in zip(*finals, strict=True))


class SequenceMap(_BodyOp):
    """A body over the items of sequences; tensors beside them are the same for all items."""

    def _run(self, items: Sequence[Any], *others: Any, context: Any = None, **_: Any) -> tuple[list[Any], ...]:
        results: tuple[list[Any], ...] = tuple([] for _ in self.body.output_names)
        for k, item in enumerate(items):
            operands = [other[k] if isinstance(other, list) else other for other in others]
            for sequence, value in zip(results, self._step(context, [item, *operands]), strict=True):
                sequence.append(value)
        return results


CONTROL_FLOW = (Loop, Scan, SequenceMap)
