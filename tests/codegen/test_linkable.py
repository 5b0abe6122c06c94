"""What others need to call a kernel of a processor: it is linked and called here as they would."""

from __future__ import annotations

import ctypes
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

import tunewright.codegen
from tunewright.codegen.argument import MOST_CODE_BYTES, Role
from tunewright.codegen.host import detect
from tunewright.codegen.llvm.build import build
from tunewright.codegen.llvm.linkable import Linkable
from tunewright.graph.oracle import example_inputs, reference
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.sketches import default_schedule, lower

from ..search_space.oracle import graph_of, tasks_of

HOST = detect(2)


@pytest.fixture(scope="module")
def task() -> Task:
    graph = graph_of("t = MatMul(x, w) u = Add(t, b) y = Tanh(u)", {"x": "5, 37"}, {"w": "37, 50", "b": "50"})
    [task] = tasks_of(graph)
    return task


@pytest.fixture(scope="module")
def linkable(task: Task) -> Linkable:
    return Linkable.of(lower(Candidate(task, HOST, default_schedule(task, HOST))), HOST, len(task.inputs))


def packed(array: Any, packing: Any, shape: Any) -> Any:
    """By the recipe of the docs alone."""
    docs = Path(tunewright.codegen.__path__[0]).parent / "docs" / "lookup.md"
    [recipe] = re.findall(r"```python\n(import numpy as np\n\n\ndef pack.*?)```", docs.read_text(), re.S)
    names: dict[str, Any] = {}
    exec(recipe, names)  # noqa: S102 - the example of the docs
    return names["pack"](array, packing.to_json(), list(shape))


def address(array: Any) -> int:
    return int(array.ctypes.data)


def test_it_is_linked_and_called_without_this_package(task: Task, linkable: Linkable) -> None:
    """By another linker, with each function's range in two parts."""
    machine = llvm.Target.from_triple(linkable.triple).create_target_machine(cpu=linkable.cpu)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    for code in linkable.objects:
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    given = dict(zip((tensor.name for tensor in task.inputs), example_inputs(task, 1), strict=True))
    arrays = []
    for argument in linkable.arguments:
        array = np.zeros(argument.shape, argument.dtype)
        if argument.role is Role.INPUT:
            value = given[argument.name]
            packing = argument.packing
            array[...] = packed(value, packing, array.shape) if packing else value.reshape(array.shape)
        arrays.append(array)
    buffers = (ctypes.c_void_p * len(arrays))(*map(address, arrays))
    for function in linkable.functions:
        kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        call, middle = kind(engine.get_function_address(function.symbol)), function.iterations // 2
        for begin, end in ((0, middle), (middle, function.iterations)):
            if begin < end:
                call(ctypes.addressof(buffers), begin, end)
    [result] = [
        array for argument, array in zip(linkable.arguments, arrays, strict=True) if argument.role is Role.OUTPUT
    ]
    expected: Any
    [expected] = reference(task, example_inputs(task, 1))
    np.testing.assert_allclose(result.reshape(expected.shape), expected, rtol=1e-5, atol=1e-6)


def test_as_data(linkable: Linkable) -> None:
    data = json.loads(json.dumps(linkable.to_json()))
    assert Linkable.from_json(data) == linkable
    assert linkable.functions[0].symbol in linkable.llvm


def test_for_another_machine(task: Task) -> None:
    """The server need not be one: it is code of the target's own kind."""
    arm = replace(HOST, triple="aarch64-unknown-linux-gnu", cpu="neoverse-v1", features="", vector_bits=128)
    code = Linkable.of(lower(Candidate(task, arm, default_schedule(task, arm))), arm, len(task.inputs)).objects[0]
    assert code[:4] == b"\x7fELF" and code[18:20] == b"\xb7\x00"  # EM_AARCH64


def test_what_is_too_large(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = lower(Candidate(task, HOST, default_schedule(task, HOST)))
    large = replace(build(kernel, HOST), objects=(bytes(MOST_CODE_BYTES + 1),))
    monkeypatch.setattr("tunewright.codegen.llvm.build.build", lambda *_: large)
    with pytest.raises(ValueError, match=r"2,097,153 bytes of machine code: 2,097,152 are the most"):
        Linkable.of(kernel, HOST, len(task.inputs))


@pytest.mark.parametrize("change", [{"objects": [1]}, {"objects": ["?"]}, {"functions": [{}]}, {"arguments": None}])
def test_other_data_is_refused(linkable: Linkable, change: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        Linkable.from_json(linkable.to_json() | change)
