"""The sketch of pixel words: borders of every kind, batches, and what it leaves alone."""

from __future__ import annotations

from typing import Any

import onnx
import pytest

from tunewright.graph.fusion.fusion import TaskCall, partition
from tunewright.graph.onnx_import import load
from tunewright.graph.rewrites import rewrite
from tunewright.graph.task import Task
from tunewright.search_space.cpu.pixel_words import PixelWordsSketch

from .oracle import NARROW, WIDE, agree

SKETCH = PixelWordsSketch()

TURN = "t = Transpose<perm=[0, 2, 3, 1]>(q) y = Identity(t)"


def task_of(shape: str, nodes: str, kind: str = "uint8") -> Task:
    """The task that makes the bytes of a model."""
    head = '<ir_version: 10, opset_import: ["" : 20]>'
    constants = (
        f"s = Constant<value_float=0.03125>() z = Constant<value={kind} {{7}}>() n = Constant<value={kind} {{0}}>()"
    )
    model: Any = onnx.parser.parse_model(
        f"{head} m (float[{shape}] x) => ({kind}[a, b, c, d] y) {{ {constants} {nodes} }}"
    )
    calls = [step for step in partition(rewrite(load(model.SerializeToString()))) if isinstance(step, TaskCall)]
    return calls[-1].task


def padded(pads: str, value: str = "z") -> str:
    """Quantised, then a border around it: places before and after along each axis of N C H W."""
    quantised = "p = QuantizeLinear(x, s, z)"
    return f"{quantised} k = Constant<value_ints=[{pads}]>() q = Pad(p, k, {value}) {TURN}"


LAYOUTS = {
    "plain": ("1, 4, 3, 16", f"q = QuantizeLinear(x, s, z) {TURN}"),
    "odd": ("1, 4, 5, 37", f"q = QuantizeLinear(x, s, z) {TURN}"),
    "batch": ("3, 4, 2, 19", f"q = QuantizeLinear(x, s, z) {TURN}"),
    "a fourth channel": ("1, 3, 4, 21", padded("0, 0, 0, 0, 0, 1, 0, 0", "n")),
    "columns around": ("1, 4, 3, 18", padded("0, 0, 0, 2, 0, 0, 0, 3")),
    "rows around": ("2, 4, 3, 18", padded("0, 0, 1, 0, 0, 0, 2, 0")),
    "both": ("2, 4, 3, 40", padded("0, 0, 3, 1, 0, 0, 0, 17")),
}
"""Shapes of floats, and nodes that make pixels of them."""


@pytest.mark.parametrize("name", LAYOUTS)
def test_schedules_agree_with_the_oracle(name: str) -> None:
    task = task_of(*LAYOUTS[name])
    for target in (WIDE, NARROW):
        assert SKETCH.applies(task, target)
        agree(SKETCH, task, target, 0, 4)


@pytest.mark.parametrize(
    ("shape", "nodes", "kind"),
    [
        ("1, 4, 3, 18", f"q = QuantizeLinear(x, s, z) {TURN}", "int8"),
        ("1, 4, 3, 5", f"q = QuantizeLinear(x, s, z) {TURN}", "uint8"),
        ("1, 8, 3, 18", f"q = QuantizeLinear(x, s, z) {TURN}", "uint8"),
        ("1, 4, 3, 18", padded("1, 0, 1, 0, 0, 0, 0, 0"), "uint8"),
        ("1, 4, 3, 18", "q = QuantizeLinear(x, s, z) t = Transpose<perm=[0, 3, 2, 1]>(q) y = Identity(t)", "uint8"),
    ],
    ids=["signed", "few columns", "eight channels", "two axes with a border", "columns first"],
)
def test_what_it_leaves_alone(shape: str, nodes: str, kind: str) -> None:
    assert not SKETCH.applies(task_of(shape, nodes, kind), WIDE)
