"""Canonical tasks: the same computation has the same key, whatever it was called."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Expr, Load, Var, const, op, substitute, transform
from tunewright.graph.task import Axis, Stage, Task, Tensor, canonical, identity, in_order_of_use

F32 = DType.F32


def dense(
    rows: int = 5,
    inner: int = 7,
    columns: int = 3,
    *,
    constant: bool = True,
    x: str = "x",
    w: str = "w",
    b: str = "b",
    total: str = "total",
    y: str = "y",
    m: str = "m",
    n: str = "n",
    k: str = "k",
    flipped: bool = False,
    label: str = "MatMul+Silu",
) -> Task:
    """silu(x @ w + b), written with any names."""
    where = Var(m), Var(n)
    product = op("mul", Load(x, (Var(m), Var(k)), F32), Load(w, (Var(k), Var(n)), F32))
    shifted = op("add", Load(total, where, F32), Load(b, (Var(n),), F32))
    axes = Axis(m, rows), Axis(n, columns)
    stages = [
        Stage(total, axes, product, (Axis(k, inner),), "sum"),
        Stage(y, axes, op("mul", shifted, op("sigmoid", shifted))),
    ]
    inputs = [Tensor(x, (rows, inner), F32), Tensor(w, (inner, columns), F32, constant), Tensor(b, (columns,), F32)]
    if flipped:
        inputs.reverse()
    shape = rows, columns
    return canonical(label, inputs, [Tensor(y, shape, F32)], [Tensor(total, shape, F32)], stages)


def test_the_shape_tells_what_goes_in_and_comes_out() -> None:
    assert dense().shape == "5x7, 7x3, 3 -> 5x3"
    scalar = Tensor("y", (), F32)
    assert Task("Constant", (), (scalar,), (), (Stage("y", (), const(1.0, F32)),)).shape == "nothing -> scalar"


def test_names_and_order_do_not_matter() -> None:
    task = dense()
    other = dense(x="a", w="z", b="c", total="i0", y="t0", m="r0", n="k", k="i0", flipped=True, label="something")
    assert task.key == other.key
    assert [t.name for t in task.inputs] == ["t0", "t1", "t3"]
    assert [t.shape for t in task.inputs] == [(5, 7), (7, 3), (3,)]
    assert [[a.name for a in s.axes + s.reduce] for s in task.stages] == [["i0", "i1", "r0"], ["i0", "i1"]]


@pytest.mark.parametrize(
    "other",
    [dense(6), dense(inner=8), dense(columns=4), dense(constant=False)],
    ids=["rows", "inner", "columns", "const"],
)
def test_what_is_computed_matters(other: Task) -> None:
    assert dense().key != other.key


def test_dtype_matters() -> None:
    def copy(dtype: DType) -> Task:
        a, b = Tensor("a", (4,), dtype), Tensor("b", (4,), dtype)
        return canonical("Copy", [a], [b], [], [Stage("b", (Axis("i", 4),), Load("a", (Var("i"),), dtype))])

    assert len({copy(dtype).key for dtype in DType}) == len(DType)


def test_inputs_that_nobody_reads_are_left_out() -> None:
    a, b = Tensor("a", (4,), F32), Tensor("b", (4,), F32)
    stage = Stage("b", (Axis("i", 4),), Load("a", (Var("i"),), F32))
    task = canonical("Copy", [Tensor("unread", (9,), F32), a], [b], [], [stage])
    assert task.key == canonical("Copy", [a], [b], [], [stage]).key
    assert [t.name for t in in_order_of_use([b, a, Tensor("unread", (9,), F32)], [stage])] == ["a", "b"]


def test_canonical_is_idempotent() -> None:
    task = dense()
    assert canonical(task.op, task.inputs, task.outputs, task.temporaries, task.stages) == task


def as_somebody_wrote(task: Task) -> dict[str, Any]:
    """The task under other names, its tensors in another order."""
    text = re.sub(r'"t(\d)', r'"some\1', json.dumps(task.to_json()))
    text = text.replace('"i0"', '"k"').replace('"r0"', '"i0"')
    data: dict[str, Any] = json.loads(text)
    return data | {"inputs": data["inputs"][::-1]}


@pytest.mark.parametrize("is_decisive", [False, True])
def test_a_task_under_other_names_is_the_same_once_it_is_renamed(is_decisive: bool) -> None:
    task = replace(dense(), is_decisive=is_decisive)
    other = Task.from_json(as_somebody_wrote(task))
    assert other.key != task.key and other.renamed() == task and other.renamed().key == task.key


def test_names_that_are_given_twice_are_refused() -> None:
    data = dense().to_json()
    [first, *others] = data["inputs"]
    with pytest.raises(ValueError, match="two tensors have one name"):
        Task.from_json(data | {"inputs": [first, first, *others]})
    with pytest.raises(ValueError, match="two axes have one name"):
        stage = data["stages"][0]
        Task.from_json(data | {"stages": [stage | {"reduce": stage["axes"][:1]}, *data["stages"][1:]]})


def test_places_are_not_read_from_tensors() -> None:
    """A list of them would be a task that nothing here lowers, under names that nothing declares."""
    data = dense().to_json()
    for name in ("t0", "unknown"):
        stage = data["stages"][0] | {"index": [["load", "int64", name, ["var", "i0"]], ["var", "i1"]]}
        with pytest.raises(ValueError, match="places that it reads from a tensor"):
            Task.from_json(data | {"stages": [stage, *data["stages"][1:]]})


def test_json_keeps_everything() -> None:
    task = dense()
    again = Task.from_json(json.loads(json.dumps(task.to_json())))
    assert again == task
    assert (again.key, again.flops, again.traffic_bytes) == (task.key, task.flops, task.traffic_bytes)


def test_equal_parts_are_counted_once() -> None:
    """x + b is written twice in JSON, by two objects here, and is one addition all the same."""
    task = dense()
    twice = transform(task.stages[1].body, _copied)
    apart = replace(task.stages[1], body=twice)
    fresh = canonical(task.op, task.inputs, task.outputs, task.temporaries, [task.stages[0], apart])
    assert fresh.flops == task.flops == 2 * 5 * 7 * 3 + 3 * 5 * 3


def _copied(node: Expr) -> Expr:
    """An equal node that shares nothing."""
    return substitute(replace(node), {"i0": op("add", Var("i0"), const(0))})


def test_keys_are_the_same_in_every_process() -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); import test_task; print(test_task.dense().key)"
    folder = str(Path(__file__).parent)
    keys = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        run = subprocess.run(
            [sys.executable, "-c", code, folder], env=environment, capture_output=True, text=True, check=True
        )
        keys.add(run.stdout.strip())
    assert keys == {dense().key}


@pytest.mark.parametrize("name", ["t0; DROP", "T", "", "a" * 17, "../x", 'a"b', "t9"])
def test_names_from_elsewhere_are_refused(name: str) -> None:
    x, y = Tensor("t0", (4,), DType.F32), Tensor("t1", (4,), DType.F32)
    stage = Stage("t1", (Axis("i0", 4),), op("neg", Load("t0", (Var("i0"),), DType.F32)))
    data = Task("Neg", (x,), (y,), (), (stage,)).to_json()
    assert Task.from_json(data).to_json() == data
    text = json.dumps(data)
    for own_name in ("t0", "t1", "i0"):
        changed = json.loads(text)
        changed["stages"][0]["body"] = json.loads(
            json.dumps(changed["stages"][0]["body"]).replace(json.dumps(own_name), json.dumps(name))
        )
        if changed != data:
            with pytest.raises(ValueError, match=r"no name|is called"):
                Task.from_json(changed)
    data["inputs"][0]["name"] = name
    with pytest.raises(ValueError, match=r"no name|is called"):
        Task.from_json(data)


def test_unsound_stages_from_elsewhere_are_refused() -> None:
    task = dense()
    data = task.to_json()
    assert Task.from_json(data) == task

    def broken(change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        copy: dict[str, Any] = json.loads(json.dumps(data))
        change(copy)
        return copy

    changes: tuple[Callable[[dict[str, Any]], Any], ...] = (
        lambda d: d["stages"][0].update(combiner="mean"),
        lambda d: d["stages"][0]["axes"][0].__setitem__(1, 0),
        lambda d: d["stages"][0]["index"].pop(),
        lambda d: d["inputs"][0]["shape"].append(1),
        lambda d: d["inputs"][0]["shape"].__setitem__(0, -1),
        lambda d: d["inputs"][0].update(dtype="int64"),
        lambda d: d.update(stages=[]),
        lambda d: d["stages"].pop(),
        lambda d: d["stages"][0]["index"].__setitem__(0, ["var", "r0"]),
    )
    for change in changes:
        with pytest.raises(ValueError, match=r"combiner|extent|rank|empty|type|no stage writes|reduction moves"):
            Task.from_json(broken(change))


@pytest.mark.parametrize(
    ("combiner", "dtype", "value"),
    [
        ("sum", DType.F32, 0.0),
        ("prod", DType.U8, 1),
        ("max", DType.F64, float("-inf")),
        ("max", DType.I8, -128),
        ("min", DType.U8, 255),
        ("max", DType.I64, -(2**63)),
    ],
)
def test_what_a_fold_starts_from(combiner: str, dtype: DType, value: float) -> None:
    start = identity(combiner, dtype)
    assert start == value
    assert type(start) is type(value)
