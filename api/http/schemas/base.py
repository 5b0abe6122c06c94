"""Base classes and types of all schemas."""

from __future__ import annotations

from typing import Annotated, Self

from fastapi import Path
from pydantic import BaseModel, BeforeValidator, ConfigDict, StringConstraints

from tunewright.db.access import ID_LETTERS
from tunewright.db.bounds import LARGEST_ID
from tunewright.db.logs.entry import DIGEST_BYTES
from tunewright.tuner.units import in_ms

SHA256 = "[0-9a-f]{64}"
DIGITS = f"[0-9a-f]{{{2 * DIGEST_BYTES}}}"
"""Pattern of the digests of the log."""

OWNER = f"me|[A-Za-z0-9]{{{ID_LETTERS}}}"
"""Pattern of what jobs are asked for by their owner: the id of a key, or the one that asks."""

NOT_BLANK = r"[^\s\x1c-\x1f\x85\ufeff]"
"""Pattern of texts that say something. What Python and what ECMAScript, whose patterns JSON schemas have, take for
space differs by the last three: here none of them says anything."""

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


AS_WHOLE = BeforeValidator(_whole)

Whole = Annotated[int, AS_WHOLE]
"""A whole number of a request body. Bounds come before AS_WHOLE in a type of its own, or JSON schemas lack them."""


FEW_HAVE_NONE = "95% interval of the median; null: not known, or of fewer than five samples."
"""What is said of an interval."""


class Answer(BaseModel):
    """Base of all responses."""

    model_config = ConfigDict(frozen=True, from_attributes=True)

    @classmethod
    def show(cls, *sources: object, **values: object) -> Self:
        """The answer whose fields are `values`, and else the attributes of their names of the first source with them.

        A field that sources call otherwise says so by its `validation_alias`. Objects in these become answers likewise.
        A time `x_ms` may also come of an attribute `x_s`, and `interval_ms` of `interval_s`. Raises
        AttributeError for a field that no source has.
        """
        names = {name: str(field.validation_alias or name) for name, field in cls.model_fields.items()}
        return cls.model_validate(
            {alias: values[name] if name in values else _read(sources, alias) for name, alias in names.items()}
        )


def _read(sources: tuple[object, ...], name: str) -> object:
    if name == "interval_ms":
        return _interval_ms(sources)
    name_s = f"{name.removesuffix('_ms')}_s" if name.endswith("_ms") else name
    for source in sources:
        if hasattr(source, name):
            value: object = getattr(source, name)
            return value
        if hasattr(source, name_s):
            return in_ms(getattr(source, name_s))
    raise AttributeError(f"none of the sources has {name}")


def _interval_ms(sources: tuple[object, ...]) -> tuple[float, float] | None:
    for source in sources:
        if hasattr(source, "interval_ms"):
            given: tuple[float, float] | None = source.interval_ms
            return given
        if hasattr(source, "interval_s"):
            edges_s: tuple[float, float] | None = source.interval_s
            return None if edges_s is None else (1e3 * edges_s[0], 1e3 * edges_s[1])
    raise AttributeError("none of the sources has interval_ms or interval_s")


class RequestModel(BaseModel):
    """Base of all request bodies. A text or a boolean is no number, whatever it could be read as."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
