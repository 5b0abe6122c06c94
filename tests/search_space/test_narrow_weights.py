"""Weights that a narrow type holds exactly: kept narrow, and cast in registers."""

from __future__ import annotations

from dataclasses import replace

import onnx.parser
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tunewright.codegen.llvm.build import ObjectCache
from tunewright.graph.numerics import PROCESSOR
from tunewright.graph.rewrites import weight_types
from tunewright.graph.task import Task
from tunewright.search_space.cpu.loops.wide_panel import WIDE_PANEL
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.sketches import default_schedule, lower

from .oracle import HOST, WIDE
from .test_sketches import SIZES, all_sketches_agree, fuse_model

MODELS = {
    "dense": "float[{a}, {b}, {c}] x, {t}[{c}, {e}] w, float[{e}] z |"
    " v = Cast<to=1>(w) f = MatMul(x, v) t = Add(f, z) y = Relu(t) | float[{a}, {b}, {e}] y | w z",
    "one row": "float[{c}] x, {t}[{c}, {e}] w | v = Cast<to=1>(w) y = MatMul(x, v) | float[{e}] y | w",
    "turned": "float[{a}, {c}] x, {t}[{e}, {c}] w |"
    " v = Cast<to=1>(w) u = Transpose(v) y = MatMul(x, u) | float[{a}, {e}] y | w",
    "pointwise convolution": "float[{a}, {c}, {b}, {d}] x, {t}[{e}, {c}, 1, 1] w |"
    " v = Cast<to=1>(w) f = Conv(x, v) y = Relu(f) | float[{a}, {e}, {b}, {d}] y | w",
    "chain": "float[{a}, {b}, {c}] x, {t}[{c}, {e}] w, {t}[{e}, {c}] u |"
    " v = Cast<to=1>(w) r = Cast<to=1>(u) f = MatMul(x, v) g = Relu(f) y = MatMul(g, r) | float[{a}, {b}, {c}] y | w u",
    "gated": "float[{a}, {c}] x, {t}[{c}, {e}] w, {t}[{c}, {e}] u |"
    " v = Cast<to=1>(w) r = Cast<to=1>(u) f = MatMul(x, v) g = MatMul(x, r) h = Sigmoid(g) y = Mul(f, h)"
    " | float[{a}, {e}] y | w u",
    "table": "float[{a}, {e}] x, {t}[{c}, {e}] w, int64[{a}] i |"
    " v = Cast<to=1>(w) t = Gather(v, i) y = Add(t, x) | float[{a}, {e}] y | w",
}  # fmt: skip
"""Inputs, nodes, output and names of constants; {t} is a narrow type, {e} twice {c}."""

NARROW = ("bfloat16", "float16")


@pytest.fixture(autouse=True)
def all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also weights that are too small to matter."""
    monkeypatch.setattr(weight_types, "LEAST_BYTES", 1)


def tasks_of(name: str, kind: str, sizes: dict[str, int]) -> list[Task]:
    names = {"t": kind, "e": 2 * sizes["c"], **sizes}
    inputs, nodes, output, constants = MODELS[name].format(**names).split("|")
    body = nodes.strip().replace(") ", ")\n")
    text = f'<ir_version: 10, opset_import: ["" : 20]> m ({inputs}) => ({output}) {{ {body} }}'
    return fuse_model(onnx.parser.parse_model(text), set(constants.split()), PROCESSOR)


@pytest.mark.parametrize("kind", NARROW)
@pytest.mark.parametrize("name", MODELS)
def test_a_task_reads_its_weights_as_they_are_stored(name: str, kind: str) -> None:
    for task in tasks_of(name, kind, {"a": 3, "b": 5, "c": 37, "d": 2}):
        weights = [tensor for tensor in task.inputs if tensor.constant and len(tensor.shape) > 1]
        assert weights and all(tensor.dtype.is_narrow for tensor in weights)
        is_product = name != "table"
        assert (default_schedule(task, HOST).sketch == "generic") is not is_product or name in ("one row", "turned")


def test_casts_are_shared_by_tiles_of_few_rows() -> None:
    """With tiles of many rows they cost little in registers."""
    [task] = tasks_of("dense", "float16", {"a": 13, "b": 11, "c": 67, "d": 2})
    for target, held in ((replace(WIDE, vector_bits=256, vector_registers=16), 1), (WIDE, 0)):
        schedule = default_schedule(task, target)
        assert schedule["held"] == held
        assert (WIDE_PANEL in str(lower(Candidate(task, target, schedule)))) is bool(held)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@settings(deadline=None, max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kind=st.sampled_from(NARROW), sizes=SIZES, seed=st.integers(0, 2**31))
def test_random_schedules_agree_with_the_oracle(
    name: str, objects: ObjectCache, kind: str, sizes: dict[str, int], seed: int
) -> None:
    for task in tasks_of(name, kind, sizes):
        all_sketches_agree(task, objects, seed)
