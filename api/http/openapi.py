"""The OpenAPI document: what FastAPI makes of the routes, with the problems that each may come to.

`docs/openapi.json` is this document; a test compares them, so that no change of the interface goes unseen.
"""

from __future__ import annotations

from typing import Any, Literal

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from .paths import is_for_programs
from .problems import MEDIA_TYPE, ProblemKind
from .schemas.base import Answer
from .schemas.task import COMPONENTS


class Fault(Answer):
    """One fault of a request."""

    place: Literal["body", "query", "path", "header", "cookie"] = Field(alias="in")
    pointer: str = Field(description="JSON pointer to it.", examples=["#/trials"])
    detail: str


class ProblemDocument(Answer):
    """An RFC 9457 problem document: what every request gets that fails."""

    model_config = ConfigDict(title="Problem")

    type: Literal[tuple(kind.type for kind in ProblemKind)] = Field(  # type: ignore[valid-type]
        description="What kind of problem this is: stable, and a page of the service that explains it."
    )
    title: str
    status: int
    detail: str = Field(description="What is wrong with this request, for people.")
    instance: str = Field(description="The path of the request.")
    request_id: str = Field(description="Names the request in the service's log; also the header X-Request-ID.")
    errors: list[Fault] | None = Field(None, description="Where the faults are, of an invalid request.")


DESCRIPTION = """\
Tunewright finds fast kernels for ONNX models by measuring candidates, keeps every result, and answers compilers that
look the best schedule of a task up.

Every route but `/livez`, `/readyz` and `/login` needs a key. Whatever fails is answered by a problem document
(RFC 9457), whose `type` is stable. Lists come in pages: `next` of one is the `cursor` of the following.
"""

EVERYWHERE = (
    ProblemKind.NO_KEY,
    ProblemKind.MISSING_SCOPE,
    ProblemKind.CROSS_ORIGIN,
    ProblemKind.WRONG_HOST,
    ProblemKind.RATE,
    ProblemKind.INTERNAL,
    ProblemKind.UNAVAILABLE,
)
"""Problems that any route may come to that needs a key."""

MODEL_BYTES = {
    "required": True,
    "description": "The ONNX file.",
    "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
}


def json_lines_body(description: str) -> dict[str, Any]:
    """The body of a request that is JSON lines."""
    return {
        "required": True,
        "description": description,
        "content": {
            "application/octet-stream": {
                "schema": {"type": "string", "format": "binary"}
            },  # what every client can send
            "application/jsonl": {"schema": {"type": "string"}},
        },
    }


def json_lines_answer(description: str) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that answers with JSON lines."""
    return {200: {"description": description, "content": {"application/jsonl": {"schema": {"type": "string"}}}}}


WITH_BODY = (
    ProblemKind.UNREADABLE,
    ProblemKind.TOO_LARGE,
    ProblemKind.TOO_SLOW,
    ProblemKind.PACKED,
    ProblemKind.UNWRITABLE,
)
"""Problems that any route may come to that takes a body."""

SCHEMA = "#/components/schemas/Problem"


def problems(*kinds: ProblemKind) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that may come to these problems."""
    responses: dict[int | str, dict[str, Any]] = {}
    for kind in kinds:
        _add(responses, kind)
    return responses


def also(status: int, description: str, model: type[BaseModel] | None = None) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that may answer in another way than the usual one."""
    return {status: {"description": description} | ({"model": model} if model else {})}


def _add(responses: dict[Any, dict[str, Any]], kind: ProblemKind, key: int | str | None = None) -> None:
    """Tell of one more problem, beside others of the same status."""
    answer = responses.setdefault(kind.status if key is None else key, {"description": ""})
    if kind.title not in answer["description"]:
        answer["description"] = "; ".join(filter(None, (answer["description"], kind.title)))
    content = answer.setdefault("content", {}).setdefault(MEDIA_TYPE, {"schema": {"$ref": SCHEMA}, "examples": {}})
    content["examples"][kind.slug] = {"value": _example(kind)}


def _example(kind: ProblemKind) -> dict[str, Any]:
    return {
        "type": kind.type,
        "title": kind.title,
        "status": kind.status,
        "detail": kind.title.lower(),
        "instance": "/v1/jobs",
        "request_id": "5f0c1d2e3a4b5c6d",
    }


def complete(app: FastAPI) -> dict[str, Any]:
    """The document of an app, made once."""
    if app.openapi_schema is None:
        data = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes, tags=app.openapi_tags
        )
        schemas = data["components"]["schemas"]
        for name in ("HTTPValidationError", "ValidationError"):  # what FastAPI would answer, and this service does not
            schemas.pop(name, None)
        schemas["Problem"] = TypeAdapter(ProblemDocument).json_schema(ref_template="#/components/schemas/{model}")
        schemas |= schemas["Problem"].pop("$defs", {}) | COMPONENTS
        for path, operations in data["paths"].items():
            for operation in operations.values():
                _complete(operation)
                if is_for_programs(path):
                    _add(operation["responses"], ProblemKind.INVALID, str(ProblemKind.INVALID.status))
                operation["responses"] = dict(sorted(operation["responses"].items()))
        app.openapi_schema = data
    return app.openapi_schema


def _without_null(schema: dict[str, Any]) -> None:
    """A parameter may be left out, but there is no way to send null."""
    kinds = [kind for kind in schema.get("anyOf", []) if kind != {"type": "null"}]
    if len(kinds) == 1:
        del schema["anyOf"]
        schema |= kinds[0]


def _as_text(content: dict[str, Any]) -> None:
    """A stream of events is text by OpenAPI 3.1, which has no word for its items: 3.2 calls that `itemSchema`."""
    items = content.pop("itemSchema", None)
    if items is not None:
        content |= {"schema": {"type": "string"}, "x-item-schema": items}


def _complete(operation: dict[str, Any]) -> None:
    for parameter in operation.get("parameters", []):
        _without_null(parameter["schema"])
    responses = operation["responses"]
    for answer in responses.values():
        for content in answer.get("content", {}).values():
            _as_text(content)
    for status, answer in list(responses.items()):
        if any("HTTPValidationError" in str(content) for content in answer.get("content", {}).values()):
            if MEDIA_TYPE in answer["content"]:
                del answer["content"]["application/json"]
            else:
                del responses[status]
    if "security" in operation:
        for kind in EVERYWHERE + (WITH_BODY if "requestBody" in operation else ()):
            _add(responses, kind, str(kind.status))
    else:
        operation["security"] = []
