"""The OpenAPI document: kept in docs, complete, and true."""

import json
import tomllib
from pathlib import Path

import pytest
from openapi_spec_validator import validate

from tunewright.api.app import version
from tunewright.api.http.problems import MEDIA_TYPE, ProblemKind

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
RELEASE = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]


@pytest.fixture
def described(client):
    return client.get("/v1/openapi.json").json()


def operations(described):
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def test_it_is_the_one_in_the_docs(described, request):
    described["info"]["version"] = RELEASE  # of a checkout that is not installed the service knows none
    text = json.dumps(described, indent=1, ensure_ascii=False) + "\n"
    path = DOCS / "openapi.json"
    if request.config.getoption("--update-golden"):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text, "if it should change: pytest --update-golden"


def test_it_has_the_version_of_the_package(described):
    assert described["info"]["version"] == version()
    assert version() in (RELEASE, "0")


def test_every_operation_is_explained(described):
    for name, operation in operations(described):
        assert operation["summary"] and operation["description"], name
        assert operation["operationId"].isidentifier(), name
        assert all("description" in parameter for parameter in operation.get("parameters", [])), name
        for status, answer in operation["responses"].items():
            assert answer["description"], (name, status)
            assert answer.get("content") or status in ("204", "303", "304"), (name, status)


def test_every_operation_tells_its_problems(described):
    for name, operation in operations(described):
        if not operation["security"]:
            continue
        assert {"401", "403", "421", "429", "500", "503"} <= set(operation["responses"]), name
        for status, answer in operation["responses"].items():
            if status >= "400":
                assert list(answer["content"]) == [MEDIA_TYPE], (name, status)
                for example in answer["content"][MEDIA_TYPE]["examples"].values():
                    assert example["value"]["status"] == int(status)
    assert "HTTPValidationError" not in json.dumps(described)


UNTOLD = {"not-found", "method-not-allowed"}
"""Problems of paths and methods that are none."""


def test_every_problem_is_told_of(described):
    contents = [
        content
        for _, operation in operations(described)
        for answer in operation["responses"].values()
        for content in answer.get("content", {}).values()
    ]
    told = {slug for content in contents for slug in content.get("examples", {})}
    assert {kind.slug for kind in ProblemKind} - told <= UNTOLD


def test_it_is_valid(described):
    assert described["openapi"].startswith("3.1.")
    validate(described)


PLAIN_BODIES = {"application/json", "application/octet-stream", "application/x-www-form-urlencoded"}
"""What generators of clients can send: openapi-python-client leaves an operation out that offers none of them."""


def test_generators_make_all_operations_of_it(described):
    found = dict(operations(described))
    assert len({one["operationId"] for one in found.values()}) == len(found)
    for name, operation in found.items():
        assert len(operation["tags"]) == 1, name
        bodies = operation.get("requestBody", {"content": {"application/json": {"schema": {}}}})["content"]
        assert PLAIN_BODIES & set(bodies), name
        for content in bodies.values():
            assert "schema" in content, name
        for answer in operation["responses"].values():
            assert all("schema" in content for content in answer.get("content", {}).values()), name


def test_events_are_told_of_though_they_are_text(described):
    for path, schema in (("/v1/jobs/{job_id}/events", "EventShown"), ("/v1/changes", "ChangeShown")):
        content = described["paths"][path]["get"]["responses"]["200"]["content"]["text/event-stream"]
        assert content["schema"] == {"type": "string"}
        assert schema in json.dumps(content["x-item-schema"]) and schema in described["components"]["schemas"]


def test_every_schema_has_a_name_of_its_own(described):
    """Where two classes share one, each is called by its module: then even a name that was good changes."""
    assert not [name for name in described["components"]["schemas"] if "__" in name]


def test_requests_have_examples(described):
    for name in ("JobAsked", "JobChange", "JobShown"):
        assert described["components"]["schemas"][name]["examples"]
