"""What is malformed is told of in words for people: no answer has those of Python, which tell of its insides."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from tunewright.db.exchange import to_json
from tunewright.search_space.measurement import Record

from .conftest import TARGET, make_task, measured, points

INSIDES = re.compile(
    r"Error\b|Exception|Traceback|__\w+__|NoneType|not (iterable|subscriptable)|has no attribute|positional argument|"
    r"keyword argument|(values to|cannot) unpack|invalid literal|could not convert|indices must|not supported between|"
    r"is not a valid \w+$|isoformat|object of type|\.py\b"
)
"""What Python says, and we don't."""

WRONG = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.sampled_from([[], {}, [1], [["a"]], [[1, 2, 3]], {"a": 1}, ["const", "float32", "x"], ["op", "f33", "max"]]),
)

TASK = make_task().to_json()
RECORD = to_json(
    TASK,
    TARGET.to_json(),
    Record(make_task().key, TARGET.key, points(make_task())[0], measured()),
    datetime.now(UTC),
)


def places(data, path=()):
    yield path
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for name, value in items:
        yield from places(value, (*path, name))


def spoiled(draw, data):
    """The data with a field that is missing, unknown, or something else."""
    data = json.loads(json.dumps(data))
    *way, last = draw(st.sampled_from([place for place in places(data) if place]))
    within = data
    for name in way:
        within = within[name]
    if isinstance(within, dict) and draw(st.booleans()):
        del within[last]
    elif isinstance(within, dict) and draw(st.booleans()):
        within["extra"] = draw(WRONG)
    else:
        within[last] = draw(WRONG)
    return data


def check(answer):
    """It is no fault of the service, and says nothing of Python."""
    assert answer.status_code < 500, answer.text
    if answer.status_code >= 400:
        told = answer.json()
        for said in [told["detail"], *(error["detail"] for error in told.get("errors", []))]:
            assert not INSIDES.search(said), said


QUICK = settings(max_examples=150, deadline=None, database=None, suppress_health_check=list(HealthCheck))


@pytest.mark.slow
def test_definitions_of_tasks_and_targets(client):
    @QUICK
    @given(st.data())
    def told(data):
        sent = {"target": TARGET.to_json(), "tasks": [make_task().key], "definitions": {make_task().key: TASK}}
        check(client.post("/v1/lookups", json=spoiled(data.draw, sent)))

    told()


def test_records(client):
    @QUICK
    @given(st.data())
    def told(data):
        check(client.post("/v1/records", content=json.dumps(spoiled(data.draw, RECORD))))

    told()


@given(st.data())
@QUICK
def test_bodies_that_are_nothing(client, data):
    path = data.draw(st.sampled_from(["/v1/jobs", "/v1/lookups", "/v1/records", "/v1/models"]))
    kind = data.draw(st.sampled_from(["application/json", "text/plain", "application/octet-stream", "a/b+json", "x"]))
    check(client.post(path, content=data.draw(st.binary(max_size=40)), headers={"Content-Type": kind}))


def test_a_packed_body_is_told_to_be_so(client):
    answer = client.post("/v1/records", content=b"\x1f\x8b", headers={"Content-Type": "application/json"})
    check(answer)
    assert "it is packed by gzip, so unpack it first" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda task: task["inputs"][0].pop("constant"), "it is no task: 'constant' is missing"),
        (lambda task: task["inputs"].append(5), "it is no task: 5 is not an object"),
        (lambda task: task.update(stages=None), "it is no task: stages is null, not an array"),
        (lambda task: task["inputs"][0].update(dtype="f33"), "it is no task: dtype is 'f33', not one of float32"),
        (lambda task: task["stages"][0].update(axes=[["a0"]]), "an axis is a name and an extent"),
    ],
)
def test_what_is_said(client, spoil, said):
    task = json.loads(json.dumps(TASK))
    spoil(task)
    body = {"target": TARGET.to_json(), "tasks": [make_task().key], "definitions": {make_task().key: task}}
    answer = client.post("/v1/lookups", json=body)
    assert answer.status_code == 422
    assert said in answer.json()["errors"][0]["detail"]
