"""LSTM, GRU and RNN as matrix products over all steps at once and what is left to do step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tunewright.graph.ir import Node, TensorType

from ..evaluation.onnx_form import NORMAL_VERSION
from ..evaluation.recurrent import ACTIVATIONS, GATES, RECURRENT_OPS, Activation, recurrent_activations
from .edit import Edit, Result, each

MAX_STEPS = 1 << 13
"""Most steps that a node may have: each is a call of its own."""


@each(*RECURRENT_OPS)
def recurrences(edit: Edit, node: Node) -> Result:
    """The input's part of all steps as one product, and the rest as `Recurrence` nodes (see `evaluation.recurrent`).

    Before: `y, h, c = LSTM(x, w, r, b)`.
    After: `p = Add(MatMul(x, transposed w), b's sum); ys, hs, cs = Recurrence(p, 0, 0, ..., r's four gates)` and
    Reshapes. Two directions are two such nodes and a Concat. Where sequences have lengths of their own, those that run
    backward are turned round by Gathers, before and after, and what lies beyond the lengths is zeroed.
    """
    cells = _RecurrentNode.of(edit, node)
    if cells is None:
        return None
    results = zip(*(cells.direction(d) for d in range(cells.directions)), strict=True)
    return tuple(_join_directions(edit, parts, cells.batch_first) for parts in results)


def _join_directions(edit: Edit, parts: Sequence[str], batch_first: bool) -> str:
    """Join an output of all directions, if it is wanted; the direction axis comes before the batch, or behind it."""
    if not parts[0]:
        return ""
    *steps, batch, hidden = edit.shape(parts[0]) or ()
    columns = [edit.emit("Reshape", part, shape=(*steps, 1, batch, hidden)) for part in parts]
    whole = columns[0] if len(columns) == 1 else edit.emit("Concat", *columns, axis=len(steps))
    return edit.emit("Transpose", whole, perm=(2, 0, 1, 3) if steps else (1, 0, 2)) if batch_first else whole


@dataclass(frozen=True, slots=True)
class _SequenceLengths:
    """Lengths of sequences, some of which end before the last step."""

    alive: str  # bool [T, B]
    rows: str  # int32 [T*B], the row of `[T*B, ...]` that each row gets when the sequences are turned round


@dataclass(frozen=True, slots=True)
class _RecurrentNode:
    """A recurrent node of known shapes and activations."""

    edit: Edit
    node: Node
    steps: int
    batch: int
    hidden: int
    directions: int
    activations: Sequence[Activation]  # those of the first direction, then those of the second
    x: str  # [T*B, I]
    lengths: _SequenceLengths | None

    @property
    def batch_first(self) -> bool:
        return bool(self.node.attrs.get("layout", 0))

    @staticmethod
    def of(edit: Edit, node: Node) -> _RecurrentNode | None:
        """The parts of a node; None where the node has to stay as it is."""
        activations = _activations(edit, node)
        if activations is None:
            return None
        x = node.inputs[0]
        if node.attrs.get("layout", 0):
            x = edit.emit("Transpose", x, perm=(1, 0, 2))
        steps, batch, features = edit.shape(x) or ()
        flat = edit.emit("Reshape", x, shape=(steps * batch, features))
        directions, _, hidden = edit.shape(node.inputs[2]) or ()
        lengths = _lengths(edit, node.input(4), steps, batch)
        return _RecurrentNode(edit, node, steps, batch, hidden, directions, activations, flat, lengths)

    def direction(self, d: int) -> tuple[str, str, str]:
        """The states of all steps [T, B, H], the last hidden and the last cell state [B, H]; "" where not wanted."""
        edit, node = self.edit, self.node
        is_backward = d == 1 or node.attrs.get("direction", "forward") == "reverse"
        is_turned = is_backward and self.lengths is not None
        initial_c = self._state(6, d) if node.op == "LSTM" else ""
        peepholes = self._part(7, d, (3, self.hidden)) if node.op == "LSTM" else ""
        alive = self.lengths.alive if self.lengths else ""
        projected, bias = self._project(d, is_turned)
        whole = self._part(2, d, (GATES[node.op] * self.hidden, self.hidden))
        parts = (self._rows(whole, gate, gate + 1) for gate in range(GATES[node.op]))
        weights = [edit.emit("Transpose", part, perm=(1, 0)) for part in parts]
        operands = (projected, self._state(5, d), initial_c, bias, peepholes, alive, *weights)
        kinds = [TensorType("float32", (self.steps, self.batch, self.hidden))]
        kinds += [TensorType("float32", (self.batch, self.hidden))] * 2
        outputs = [edit.new_tensor(kind) if name else "" for kind, name in zip(kinds, node.outputs, strict=False)]
        attrs = self._attrs(d) | {"backward": int(is_backward and not is_turned)}
        edit.add(Node("Recurrence", operands, tuple(outputs), attrs, version=NORMAL_VERSION))
        ys, last_h, last_c = (*outputs, "", "")[:3]
        return self._mask_lengths(ys, is_turned) if ys else "", last_h, last_c

    def _attrs(self, d: int) -> dict[str, object]:
        count = ACTIVATIONS[self.node.op]
        activations = self.activations[count * d : count * (d + 1)]
        attrs: dict[str, object] = {
            "cell": self.node.op,
            "activations": tuple(activation.name for activation in activations),
            "alphas": tuple(activation.alpha for activation in activations),
            "betas": tuple(activation.beta for activation in activations),
        }
        copied_names = ("clip", "input_forget", "linear_before_reset")
        return attrs | {name: self.node.attrs[name] for name in copied_names if name in self.node.attrs}

    def _part(self, position: int, d: int, shape: tuple[int, ...]) -> str:
        """The part of an input for one direction, under that shape; "" for an absent input."""
        name = self.node.input(position)
        if not name:
            return ""
        if self.directions > 1:
            name = self.edit.emit("Slice", name, starts=(d,), ends=(d + 1,), axes=(0,), steps=(1,))
        return self.edit.emit("Reshape", name, shape=shape)

    def _state(self, position: int, d: int) -> str:
        """An initial state [B, H]: zeros if there is none."""
        shape = (self.batch, self.hidden)
        name = self.node.input(position)
        if not name:
            return self.edit.constant(np.zeros(shape, np.float32))
        if not self.batch_first:
            return self._part(position, d, shape)
        own = self.edit.emit("Slice", name, starts=(d,), ends=(d + 1,), axes=(1,), steps=(1,))
        return self.edit.emit("Reshape", own, shape=shape)

    def _rows(self, name: str, first: int, end: int) -> str:
        """The rows of some gates."""
        starts, ends = (first * self.hidden,), (end * self.hidden,)
        return self.edit.emit("Slice", name, starts=starts, ends=ends, axes=(0,), steps=(1,))

    def _project(self, d: int, is_turned: bool) -> tuple[str, str]:
        """The input's part of all steps [T, B, G*H], biases added, and the bias that has to wait for the reset."""
        edit, gates = self.edit, GATES[self.node.op]
        rows, features = gates * self.hidden, (edit.shape(self.x) or ())[-1]
        weights = edit.emit("Transpose", self._part(1, d, (rows, features)), perm=(1, 0))
        projected, waiting = edit.emit("MatMul", self.x, weights), ""
        biases = self._part(3, d, (2 * rows,))
        if biases:
            own, other = self._rows(biases, 0, gates), self._rows(biases, gates, 2 * gates)
            if self.node.attrs.get("linear_before_reset", 0):
                waiting = self._rows(other, 2, 3)
                zeros = edit.constant(np.zeros(self.hidden, np.float32))
                other = edit.emit("Concat", self._rows(other, 0, 2), zeros, axis=0)
            projected = edit.emit("Add", projected, edit.emit("Add", own, other))
        if is_turned:
            projected = self._reverse_steps(projected)
        return edit.emit("Reshape", projected, shape=(self.steps, self.batch, rows)), waiting

    def _reverse_steps(self, rows: str) -> str:
        """`rows [T*B, ...]` with the steps of each sequence in opposite order."""
        assert self.lengths is not None
        return self.edit.emit("Gather", rows, self.lengths.rows, axis=0)

    def _mask_lengths(self, ys: str, is_turned: bool) -> str:
        """The states of all steps in the order of the input, zero beyond the lengths."""
        if self.lengths is None:
            return ys
        edit, shape = self.edit, (self.steps, self.batch, self.hidden)
        within = edit.emit("Reshape", self.lengths.alive, shape=(*shape[:2], 1))
        ys = edit.emit("Where", within, ys, edit.constant(np.float32(0)))
        if not is_turned:
            return ys
        flat = edit.emit("Reshape", ys, shape=(self.steps * self.batch, self.hidden))
        return edit.emit("Reshape", self._reverse_steps(flat), shape=shape)


def _activations(edit: Edit, node: Node) -> Sequence[Activation] | None:
    """The activations of a node all of whose shapes are known and whose numbers are float32; None for any other."""
    kinds = [edit.types[name] for place, name in enumerate(node.inputs) if name and place != 4]
    shapes = [edit.shape(name) for name in (*node.inputs, *node.outputs) if name]
    if node.version < 7 or any(kind.dtype != "float32" for kind in kinds) or any(not s or 0 in s for s in shapes):
        return None
    directions, _, hidden = edit.shape(node.inputs[2]) or ()
    steps = (edit.shape(node.inputs[0]) or ())[1 if node.attrs.get("layout", 0) else 0]
    expected_directions = {"forward": 1, "reverse": 1, "bidirectional": 2}.get(node.attrs.get("direction", "forward"))
    if directions != expected_directions or steps > MAX_STEPS or hidden != node.attrs.get("hidden_size", hidden):
        return None
    try:
        activations = recurrent_activations(node, directions)
    except KeyError:
        return None
    return activations if len(activations) >= ACTIVATIONS[node.op] * directions else None


def _lengths(edit: Edit, name: str, steps: int, batch: int) -> _SequenceLengths | None:
    """The lengths of sequences; None where all go on to the last step."""
    if not name:
        return None
    known = edit.array(name)
    if known is not None and bool(np.all(known == steps)):
        return None
    low, high = (edit.constant(np.int32(bound)) for bound in (0, steps))
    lengths = edit.emit("Reshape", edit.emit("Max", edit.emit("Min", name, high), low), shape=(1, batch))
    numbers = edit.constant(np.arange(steps, dtype=np.int32)[:, None])
    alive = edit.emit("Less", numbers, lengths)
    opposite = edit.emit("Sub", edit.emit("Sub", lengths, edit.constant(np.int32(1))), numbers)
    source = edit.emit("Where", alive, opposite, numbers)
    rows = edit.emit("Mul", source, edit.constant(np.int32(batch)))
    rows = edit.emit("Add", rows, edit.constant(np.arange(batch, dtype=np.int32)[None]))
    return _SequenceLengths(alive, edit.emit("Reshape", rows, shape=(steps * batch,)))
