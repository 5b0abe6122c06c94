"""Numbers have bounds, wherever they come in: none is too large for the database."""

import json

import pytest
from typer.main import get_command

from tunewright.api import program
from tunewright.api.client import Client
from tunewright.db.bounds import LARGEST_ID
from tunewright.tuner import arguments
from tunewright.tuner.errors import Refused
from tunewright.tuner.search.tuning import tune

from ..commands import commands


@pytest.fixture
def command(capfd):
    return commands(program.execute, capfd)


def leaves(command, path=()):
    """The commands below one, with their names."""
    if not hasattr(command, "commands"):
        yield " ".join(path), command
        return
    for name, below in command.commands.items():
        yield from leaves(below, (*path, name))


def test_every_whole_number_of_the_command_line_has_bounds():
    numbers = 0
    for name, command in leaves(get_command(program.app)):
        for parameter in command.params:
            kind = parameter.type_descriptor.annotation
            if kind not in (int, int | None):
                continue
            numbers += 1
            assert None not in (parameter.min, parameter.max), (name, parameter.name)
            assert abs(parameter.max) <= LARGEST_ID, (name, parameter.name)
    assert numbers > 20


def numbers_in(schema, document, name="", outer=()):
    """The numbers of a schema, with their names, once where it contains itself."""
    if "$ref" in schema:
        if schema["$ref"] in outer:
            return
        outer = (*outer, schema["$ref"])
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    if schema.get("type") in ("integer", "number"):
        yield name, schema
    for below in ("anyOf", "oneOf", "allOf"):
        for part in schema.get(below, ()):
            yield from numbers_in(part, document, name, outer)
    for below, part in schema.get("properties", {}).items():
        yield from numbers_in(part, document, below, outer)
    for below in ("items", "additionalProperties"):
        if isinstance(part := schema.get(below), dict):
            yield from numbers_in(part, document, name, outer)


@pytest.mark.slow
def test_every_number_of_a_request_has_bounds(one):
    document = one.app.openapi()
    numbers = 0
    for path, operations in document["paths"].items():
        for operation in operations.values():
            asked = [(part["schema"], part["name"]) for part in operation.get("parameters", ())]
            body = operation.get("requestBody", {}).get("content", {}).get("application/json")
            asked += [] if body is None else [(body["schema"], "")]
            for schema, outer in asked:
                for name, number in numbers_in(schema, document, outer):
                    numbers += 1
                    assert {"minimum", "exclusiveMinimum"} & number.keys(), (path, name)
                    high = number.get("maximum", number.get("exclusiveMaximum"))
                    assert high is not None, (path, name)
                    assert high <= LARGEST_ID, (path, name)
    assert numbers > 15


def test_commands_say_that_a_number_is_no_job_s(command, tmp_path):
    for text in ("99999999999999999999999", str(2**63), str(2**53)):
        answer = command("report", text, "--db", f"sqlite:///{tmp_path}/new.db")
        assert (answer.code, answer.err) == (2, f"error: JOB must be at most {LARGEST_ID}, not {text}\n")
        for verb in ("show", "watch", "cancel", "pause", "resume"):
            answer = command("jobs", verb, text, "--server", "http://127.0.0.1:1")
            assert (answer.code, answer.err) == (2, f"error: ID must be at most {LARGEST_ID}, not {text}\n")


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("trials", [0, 1_000_001, 10**23, 1.5, True, "5"], [1, 1_000_000]),
        ("minutes", [0, 1e-9, 0.0099, 525_601, 1e300, float("inf"), float("nan"), True, "5"], [0.01, 525_600]),
        ("until", [0, 1, -0.5, float("nan"), "2%"], [1e-9, 0.99]),
        ("seed", [-1, 2**32, 0.5, None], [0, 2**32 - 1]),
        ("priority", [-101, 101, 10**30, None], [-100, 100]),
    ],
)
def test_all_ways_in_have_the_same_bounds(one, client, kit, name, wrong, right):
    """Python's functions, the client, the service, and by the test below the command line."""
    check = getattr(arguments, f"check_{name}")
    model = kit.send(client, 8)
    with Client("http://127.0.0.1:1", patience_s=0) as offline:
        for value in wrong:
            for refuse in (check, lambda value: offline.submit(b"", **{name: value})):
                with pytest.raises(Refused, match=f"^{name} is .*; it must be "):
                    refuse(value)
            if name != "priority":
                with pytest.raises(Refused, match=f"^{name} is .*; it must be "):
                    tune(b"", **{name: value})
            text = json.dumps({"model": model, name: value})  # NaN too
            answer = client.post("/v1/jobs", content=text, headers={"Content-Type": "application/json"})
            assert answer.status_code in (400, 422), (value, answer.text)
    for value in right:
        assert check(value) == value
        assert client.post("/v1/jobs", json={"model": model, name: value}).status_code == 202


@pytest.mark.parametrize("name", ["tune", "submit"])
def test_options_have_them_too(name):
    expected = {
        "trials": (1, arguments.MOST_TRIALS),
        "minutes": (arguments.LEAST_MINUTES, arguments.MOST_MINUTES),
        "seed": (0, arguments.MOST_SEED),
    }
    command = dict(leaves(get_command(program.app)))[name]
    assert {one.name: (one.min, one.max) for one in command.params if one.name in expected} == expected
