"""Products of bytes, four at a time: exact on every machine, and where they apply."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

from tunewright.codegen.llvm.build import assembly
from tunewright.codegen.target import Target
from tunewright.graph.fusion.fusion import TaskCall, partition
from tunewright.graph.numerics import Numerics
from tunewright.graph.onnx_import import load
from tunewright.graph.rewrites import rewrite
from tunewright.graph.task import SMALL, Task
from tunewright.search_space.sketch import find_space
from tunewright.search_space.sketches import sketch, spaces

from .oracle import ARM_DOTS, DOTS, HOST, NARROW, WIDE, agree_exactly

WORDS = replace(HOST, cpu="x86-64-v3", features="+avx2", vector_bits=256)

PLAIN = replace(HOST, features=",".join(word for word in HOST.features.split(",") if "vnni" not in word))

SKETCH = sketch("byte_product")

MODELS = {
    "product": ("uint8[7,20] x", "t = MatMulInteger (x, w, m) y = Cast <to=1> (t)", (20, 33)),
    "one row": ("uint8[1,64] x", "t = MatMulInteger (x, w, m) u = Cast <to=1> (t) y = Mul (u, s)", (64, 48)),
    "batch": ("uint8[2,3,8] x", "t = MatMulInteger (x, w, m) u = Cast <to=1> (t) y = Relu (u)", (8, 16)),
    "windows": (
        "uint8[1,8,7,9] x",
        "t = ConvInteger <pads=[1,1,1,1], strides=[2,1]> (x, w) u = Cast <to=1> (t) y = Mul (u, s)",
        (17, 8, 3, 3),
    ),
    "windows apart": (
        "uint8[1,4,9,8] x",
        "t = ConvInteger <dilations=[2,1]> (x, w, m) y = Cast <to=1> (t)",
        (16, 4, 3, 2),
    ),
    "windows along the reduction, beyond the edges": (
        "uint8[1,1,5,6] x",
        "t = ConvInteger <pads=[1,2,1,3]> (x, w) u = Neg (t) y = Cast <to=1> (u)",
        (16, 1, 3, 4),
    ),
}
"""Models: input, nodes, shape of the weights."""


def tasks_of(name: str, target: Target = DOTS, kind: type = np.int8, most: int | None = None) -> list[Task]:
    inputs, nodes, shape = MODELS[name]
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 20]> q ({inputs}) => (float y) {{ {nodes} }}'
    )
    rng, limits = np.random.default_rng(3), np.iinfo(kind)
    low, high = (limits.min, limits.max) if most is None else (-most, most)
    known = {"w": rng.integers(low, high, shape, kind, endpoint=True), "m": np.uint8(131)}
    for key, value in {**known, "s": np.float32(0.25)}.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), key))
    graph = rewrite(load(model.SerializeToString()), numerics=Numerics(dots=target.has_dots))
    return [step.task for step in partition(graph) if isinstance(step, TaskCall)]


def product_of(name: str, most: int | None = None) -> Task:
    [task] = [task for task in tasks_of(name, most=most) if find_space(SKETCH, task, DOTS)]
    return task


@pytest.mark.slow
@pytest.mark.parametrize("target", [DOTS, WORDS], ids=["four at a time", "two at a time"])
@pytest.mark.parametrize("most", [None, SMALL], ids=["any weights", "small weights"])
@pytest.mark.parametrize("name", MODELS)
def test_any_schedule_is_exact(name: str, most: int | None, target: Target) -> None:
    """In the interpreter, by this machine's instruction where it has one, and without it."""
    agree_exactly(SKETCH, product_of(name, most), target, 3, [PLAIN, HOST])


@pytest.mark.parametrize(("most", "is_small"), [(SMALL, True), (SMALL + 1, False)])
def test_small_weights_are_multiplied_four_at_a_time(most: int, is_small: bool) -> None:
    """As of `reduce_range`. A task with others is another task, as these would saturate."""
    task = product_of("product", most)
    text = assembly(SKETCH.lower(task, SKETCH.space(task, WORDS).default, WORDS), WORDS)
    assert ("vpmaddubsw" in text) == is_small
    assert any(tensor.small for tensor in task.inputs) == is_small
    assert Task.from_json(task.to_json()) == task


def test_machines_that_do_not_multiply_bytes_get_floats() -> None:
    assert not WIDE.has_dots
    for task in tasks_of("product", WIDE):
        assert not any(tensor.dtype.value == "int32" for tensor in task.temporaries)
        assert not find_space(SKETCH, task, WIDE)


def test_it_is_the_first_choice() -> None:
    task = product_of("product")
    assert [space.sketch for space in spaces(task, DOTS)] == ["byte_product"]


def test_weights_of_other_bytes_are_multiplied_as_floats() -> None:
    """Unsigned weights whose zero point leaves them no signed bytes."""
    assert not any(find_space(SKETCH, task, DOTS) for task in tasks_of("product", kind=np.uint8))


@pytest.mark.parametrize(("feature", "bits"), [("avx512vnni", 512), ("avxvnni", 256)])
def test_the_instruction_is_there(feature: str, bits: int) -> None:
    target = replace(WIDE, cpu="x86-64-v4", features=f"+{feature}", vector_bits=bits)
    assert target.has_dots and not replace(target, vector_bits=2 * bits).has_dots
    task = product_of("product")
    kernel = SKETCH.lower(task, SKETCH.space(task, target).default, target)
    assert "vpdpbusd" in assembly(kernel, target)
    assert "vpdpbusd" not in assembly(kernel, replace(target, features=""))


@pytest.mark.parametrize(("feature", "bits"), [("avx512bw", 512), ("avx2", 256)])
def test_other_instructions_multiply_words(feature: str, bits: int) -> None:
    target = replace(WIDE, cpu="x86-64-v4" if bits == 512 else "x86-64-v3", features=f"+{feature}", vector_bits=bits)
    assert target.has_dots and not target.has_quick_dots and not replace(target, vector_bits=2 * bits).has_dots
    task = product_of("product")
    text = assembly(SKETCH.lower(task, SKETCH.space(task, target).default, target), target)
    assert "vpmaddwd" in text and "vpmulld" not in text


@pytest.mark.parametrize("name", MODELS)
def test_processors_of_arm_have_an_instruction_too(name: str) -> None:
    """USDOT, of I8MM: unsigned by signed bytes, as x86's."""
    assert ARM_DOTS.has_quick_dots and not NARROW.has_dots
    task = product_of(name)
    agree_exactly(SKETCH, task, ARM_DOTS, 1, [])
    kernel = SKETCH.lower(task, SKETCH.space(task, ARM_DOTS).default, ARM_DOTS)
    assert "usdot" in assembly(kernel, ARM_DOTS)
    assert "usdot" not in assembly(kernel, NARROW)
