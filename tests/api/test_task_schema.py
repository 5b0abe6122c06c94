"""The JSON schema of a task: it takes every task there is, and refuses what no task can be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from tunewright.api.http.schemas.task import COMPONENTS
from tunewright.bench.suite.convolutional import mobilenet_v2
from tunewright.bench.suite.quantised import byte_product, packed_row
from tunewright.bench.suite.sequential import bert_base_s128
from tunewright.graph.task import Task
from tunewright.tuner.models.model import open_model

from .conftest import make_task

SCHEMA = {"$ref": "#/components/schemas/Task", "components": {"schemas": COMPONENTS}}

VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


MODELS: dict[str, Callable[[], bytes]] = {
    "mobilenet": mobilenet_v2,
    "bert": bert_base_s128,
    "bytes": lambda: byte_product(3, 64, 48),
    "four bits": lambda: packed_row(64, 48),
}


@pytest.mark.slow
@pytest.mark.parametrize("build", list(MODELS.values()), ids=list(MODELS))
def test_it_takes_the_tasks_of_models_which_have_their_own_names(build: Callable[[], bytes]) -> None:
    for task, _ in open_model(build()).tasks.values():
        VALIDATOR.validate(task.to_json())
        assert task.renamed().key == task.key


def changed(where: list[str | int], value: Any) -> dict[str, Any]:
    data = make_task(64).to_json()
    place: Any = data
    for step in where[:-1]:
        place = place[step]
    place[where[-1]] = value
    return data


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (["stages"], []),
        (["stages", 0, "combiner"], "mean"),
        (["stages", 0, "axes"], [["i0"]]),
        (["stages", 0, "axes"], [["I 0", 4]]),
        (["stages", 0, "axes"], [["i0", 0]]),
        (["stages", 0, "body"], ["op", "float32", "add", ["const", "float32", 1.0]]),
        (["stages", 0, "body"], ["op", "float32", "system", ["const", "float32", 1.0]]),
        (["stages", 0, "body"], ["const", "float31", 1.0]),
        (["stages", 0, "body"], ["var", "<b>"]),
        (["inputs", 0, "shape"], [1.5]),
        (["inputs", 0], {"name": "t0"}),
    ],
)
def test_it_refuses_what_is_no_task(where: list[str | int], value: Any) -> None:
    data = changed(where, value)
    assert not VALIDATOR.is_valid(data)
    with pytest.raises(ValueError):
        Task.from_json(data)
