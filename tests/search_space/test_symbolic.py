"""Symbolic kernels: one kernel agrees with the oracle at all sizes that its trace is for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunewright.codegen.expr.symbolic import Trace
from tunewright.codegen.ir.pin import PlainNumbers
from tunewright.codegen.llvm.build import ObjectCache, build_symbolic
from tunewright.codegen.verify import verify
from tunewright.codegen.verify_context import VerifyError
from tunewright.graph.oracle import example_inputs, reference
from tunewright.graph.task import Task
from tunewright.graph.task_family import TaskFamily
from tunewright.search_space.sketch import find_space
from tunewright.search_space.sketches import SKETCHES, default_schedule, sketch
from tunewright.search_space.symbolic import SymbolicKernel, lower_family

from .oracle import HOST, WIDE, interpret, native
from .test_sketches import MODELS, agree, schedules, tasks_of

EXTENTS = (1, 2, 7, 13, 24, 25, 31, 64, 97)
"""One, small ones, primes, multiples of vectors and of tiles and their neighbours."""

FIXED = {"b": 11, "c": 16, "d": 4}


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> ObjectCache:
    return ObjectCache(tmp_path_factory.mktemp("objects"))


def at_sizes(name: str, letter: str, extents: tuple[int, ...]) -> list[list[Task]]:
    """The tasks of a line of MODELS at several sizes."""
    return [tasks_of(MODELS[name], {"a": 5, **FIXED, letter: extent}) for extent in extents]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@settings(deadline=None, max_examples=1)
@given(letter=st.sampled_from("ab"), base=st.sampled_from((19, 37)), seed=st.integers(0, 2**31))
def test_a_kernel_agrees_with_the_oracle_at_every_size_that_it_is_for(
    name: str, objects: ObjectCache, letter: str, base: int, seed: int
) -> None:
    """In the interpreter where it is quick, and in native code."""
    first, second, *others = at_sizes(name, letter, (base, base + 4, *EXTENTS))
    for task in second:
        family = next(filter(None, (TaskFamily.of(other, task) for other in first)), None)
        values = family.match(task) if family is not None else None
        if family is None or values is None:
            continue
        for one in SKETCHES:
            if not find_space(one, task, HOST):
                continue
            for schedule in schedules(task, HOST, one.name, 1, seed):
                symbolic = lower_family(family, values, schedule, HOST)
                if symbolic is None:
                    continue
                code = build_symbolic(*symbolic, HOST, objects)
                sizes = [task, *(other for tasks in others for other in tasks)]
                assert sum(_agrees(symbolic, code.at, family, size, seed) for size in sizes) >= 1


def _agrees(symbolic: SymbolicKernel, code_at: object, family: TaskFamily, task: Task, seed: int) -> bool:
    """Whether a kernel is for a task; then it agrees with the oracle."""
    values = family.match(task)
    numbers = symbolic.trace.replay(values) if values is not None else None
    if values is None or numbers is None:
        return False
    plain = PlainNumbers(symbolic.trace, dict(enumerate(numbers))).kernel(symbolic.kernel)
    verify(plain)
    artifact = code_at(values)  # type: ignore[operator]
    arrays = example_inputs(task, seed)
    expected = reference(task, arrays)
    agree(task, native(task, plain, arrays, artifact=artifact), expected)
    if task.flops < 20_000:
        agree(task, interpret(task, plain, arrays), expected)
    return True


def test_the_verifier_refuses_what_holds_for_no_size() -> None:
    [[one], [other]] = at_sizes("dense", "a", (67, 71))
    family = TaskFamily.of(one, other)
    assert family is not None
    symbolic = lower_family(family, (71,), default_schedule(other, HOST), HOST)
    assert symbolic is not None
    kernel, trace = symbolic
    verify(kernel, trace.ranges())
    with pytest.raises(VerifyError, match="no loop of that variable"):
        verify(kernel)
    assert trace.replay([71]) and not trace.replay([0])


POOLING = (
    "x[1, 5, {a}, 16] | p = Transpose<perm=[0, 3, 1, 2]>(x)"
    " t = MaxPool<kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]>(p) y = Transpose<perm=[0, 2, 3, 1]>(t) | y"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "name", "largest", "most"),
    [
        (MODELS["dense"], "contraction", 2000, 10),
        (POOLING, "window", 500, 4),
    ],  # parallel chunks of padding change there
)
def test_kernels_for_some_sizes_are_for_larger_ones(text: str, name: str, largest: int, most: int) -> None:
    def task_at(extent: int) -> Task:
        [task] = tasks_of(text, {**FIXED, "a": extent})
        return task

    def values_at(extent: int) -> tuple[int, ...]:
        values = family.match(task_at(extent)) if family is not None else None
        assert values is not None
        return values

    target = replace(WIDE, vector_bits=256, vector_registers=16)  # of others tiles have other extents, and remainders
    family = TaskFamily.of(task_at(67), task_at(71))
    assert family is not None
    schedule, traces = sketch(name).space(task_at(71), target).default, list[Trace]()
    for extent in range(49, 260, 2):
        if not any(trace.replay(values_at(extent)) for trace in traces):
            symbolic = lower_family(family, values_at(extent), schedule, target)
            assert symbolic is not None and symbolic.trace.replay(values_at(extent))
            traces.append(symbolic.trace)
    assert all(any(trace.replay(values_at(extent)) for trace in traces) for extent in range(261, largest, 14))
    assert len(traces) <= most
