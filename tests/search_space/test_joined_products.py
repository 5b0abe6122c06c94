"""Kernels of what reads parts of a joined product, in place."""

from __future__ import annotations

import numpy as np
import pytest

from tunewright.bench.suite.network import Network, NetworkForm
from tunewright.bench.suite.sequential import encoder_layer
from tunewright.codegen.cuda import interp
from tunewright.codegen.gpu import KNOWN
from tunewright.codegen.target import Target
from tunewright.codegen.verify import verify
from tunewright.graph.fusion import segments
from tunewright.graph.numerics import Numerics
from tunewright.graph.oracle import example_inputs, reference
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.sketches import default_schedule, lower, spaces
from tunewright.tuner.models.model import open_for, open_model

from .oracle import GPU, HOST, interpret
from .test_sketches import agree


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The models here are small ones."""
    monkeypatch.setattr(segments, "SMALLEST_BYTES", 0)


def encoder(batch: int, tokens: int, heads: int, size: int, mask: bool) -> bytes:
    """A layer of a transformer in float16, whose products have biases."""
    net = Network("encoder", form=NetworkForm(batch, np.float16))
    x = net.input("x", (batch, tokens, heads * size))
    bias = net.input("mask", (batch, 1, 1, tokens)) if mask else None
    return net.onnx(encoder_layer(net, x, tokens, heads * size, heads, bias, net.gelu))


def grouped(tokens: int, heads: int, pairs: int, size: int) -> bytes:
    """Attention of `heads` heads of queries to `pairs` of keys and values, and a gated perceptron, in float16."""
    net, features = Network("grouped", form=NetworkForm(1, np.float16)), heads * size

    def project(x: str, columns: int) -> str:
        return net.add("MatMul", x, net.table(features, columns, features**-0.5))

    def spread(x: str) -> str:
        few = net.reshape(project(x, pairs * size), 1, tokens, pairs, 1, size)
        each = net.constant(np.array([1, tokens, pairs, heads // pairs, size], np.int64))
        return net.reshape(net.add("Expand", few, each), 1, tokens, heads, size)

    x = net.input("x", (1, tokens, features))
    query = net.transpose(net.reshape(project(x, features), 1, tokens, heads, size), 0, 2, 1, 3)
    key, value = net.transpose(spread(x), 0, 2, 3, 1), net.transpose(spread(x), 0, 2, 1, 3)
    weights = net.add("Softmax", net.add("MatMul", query, key), axis=-1)
    x = net.reshape(net.transpose(net.add("MatMul", weights, value), 0, 2, 1, 3), 1, tokens, features)
    x = net.add("Add", x, project(x, features))
    gate = project(x, 3 * features)
    gated = net.add("Mul", net.add("Mul", gate, net.add("Sigmoid", gate)), project(x, 3 * features))
    return net.onnx(net.add("MatMul", gated, net.table(3 * features, features, features**-0.5)))


def branches(rows: int, depth: int, *columns: int) -> bytes:
    """Products of one operand with so many columns, each multiplied once more, in float16."""
    net = Network("branches", form=NetworkForm(1, np.float16))
    x, total = net.input("x", (rows, depth)), ""
    for n in columns:
        part = net.add("MatMul", net.add("MatMul", x, net.table(depth, n, depth**-0.5)), net.table(n, depth, n**-0.5))
        total = net.add("Add", total, part) if total else part
    return net.onnx(total)


MODELS = {
    "columns of any number": lambda: branches(70, 72, 72, 136, 40),
    "columns that copies can't begin at": lambda: branches(70, 72, 71, 13),
    "odd size": lambda: encoder(1, 67, 3, 24, mask=False),
    "several texts": lambda: encoder(2, 70, 2, 40, mask=True),
    "places that copies can't begin at": lambda: encoder(1, 33, 3, 7, mask=True),
    "grouped queries": lambda: grouped(75, 4, 2, 16),
}


def parts_of(data: bytes) -> list[Task]:
    """The tasks of a GPU that read parts."""
    return [task for task, _ in open_for(GPU, data).tasks.values() if "Split" in task.op]


def right(task: Task, target: Target, count: int) -> None:
    """The default schedule of each sketch and some others come to what the oracle does."""
    inputs, rng = example_inputs(task, 0), np.random.default_rng(0)
    expected = reference(task, inputs)
    for space in spaces(task, target):
        for schedule in (space.default, *map(space.schedule, space.sample(count, rng))):
            kernel = lower(Candidate(task, target, schedule))
            verify(kernel)
            agree(task, interpret(task, kernel, inputs, interp.run), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_readers_of_parts(name: str) -> None:
    tasks = parts_of(MODELS[name]())
    assert tasks
    for task in tasks:
        right(task, GPU, 1)


@pytest.mark.parametrize("name", ["odd size", "several texts"])
def test_attention_is_fetched_from_one_tensor(name: str) -> None:
    [task] = [task for task in parts_of(MODELS[name]()) if "Softmax" in task.op and "MatMul" in task.op]
    assert len(task.inputs) == (2 if name == "several texts" else 1)
    assert default_schedule(task, GPU).sketch == "specialized_attention"
    assert default_schedule(task, Target.of_gpu(KNOWN["sm_80"])).sketch == "attention_tiles"


def test_parts_of_rows_are_fetched() -> None:
    tasks = parts_of(MODELS["columns of any number"]())
    assert [default_schedule(task, GPU).sketch for task in tasks] == ["specialized_tiles"] * 3


@pytest.mark.parametrize("name", MODELS)
def test_processors_have_the_tasks_that_they_had(name: str) -> None:
    data = MODELS[name]()
    tasks = open_for(HOST, data).tasks
    assert not any("Split" in task.op for task, _ in tasks.values())
    assert tasks == open_model(data, numerics=Numerics(dots=HOST.has_dots)).tasks
    assert len(open_for(GPU, data).tasks) <= len(open_model(data, numerics=Numerics(widen=False)).tasks)
