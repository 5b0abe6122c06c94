"""Base classes and types of all schemas."""

from __future__ import annotations

from typing import Annotated, Self

from fastapi import Path
from pydantic import BaseModel, BeforeValidator, ConfigDict, StringConstraints

SHA256 = "[0-9a-f]{64}"
NOT_BLANK = r"\S"
"""Pattern of texts that say something."""

LARGEST_ID = 2**53 - 1
"""JavaScript's largest whole number."""

EXAMPLE_MODEL = "3f0a5b1f" * 8
EXAMPLE_TARGET = "9b1c0d2e" * 8
EXAMPLE_TASK = "c4d7e8f9" * 8
EXAMPLE_MOMENT = "2026-11-20T09:30:00Z"

Digest = Annotated[str, StringConstraints(pattern=f"^{SHA256}$")]
DigestInPath = Annotated[str, Path(pattern=f"^{SHA256}$", description="SHA-256 of the model's bytes, in hexadecimal.")]
JobId = Annotated[int, Path(ge=1, le=LARGEST_ID, description="Number of the job.")]


def _whole(value: object) -> object:
    """A number without a fraction as JSON schemas see it: 5.0 is whole."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]
"""A whole number of a request body."""


class Answer(BaseModel):
    """Base of all responses."""

    model_config = ConfigDict(frozen=True, from_attributes=True)

    @classmethod
    def show(cls, source: object, **others: object) -> Self:
        """The answer with the attributes of an object, by the names of its fields; and with `others` instead of some.

        A field that the object calls otherwise says so by its `validation_alias`.
        """
        names = {name: str(field.validation_alias or name) for name, field in cls.model_fields.items()}
        shown = {alias: getattr(source, alias) for name, alias in names.items() if name not in others}
        return cls.model_validate(shown | others)


class RequestModel(BaseModel):
    """Base of all request bodies. A text or a boolean is no number, whatever it could be read as."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
