"""Faults of requests: what is wrong with one before its route sees it, in words for people."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError

from tunewright.codegen.fields import abridge, json_fault, quote
from tunewright.db.job import TAG
from tunewright.db.logs.entry import LINE, NAMESPACE
from tunewright.db.logs.release import RELEASE
from tunewright.search_space.counts import counted

from .problems import MOST_LETTERS, Problem, ProblemKind, invalid, pointer
from .schemas.base import DIGITS, NOT_BLANK, OWNER, SHA256

MOST_ERRORS = 20
"""Faults of one request that are listed."""

WORDS = {
    "missing": "it is missing",
    "extra_forbidden": "there is no such field",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a number; NaN and Infinity are none",
    "int_parsing_size": "has too many digits",
    "string_unicode": "must be a text; half a surrogate pair is no character",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": "must be a text",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "list_type": "must be an array",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "string_too_short": "must have at least {characters}",
    "string_too_long": "must have at most {characters}",
    "too_short": "must have at least {items}",
    "too_long": "must have at most {items}",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
}
"""Messages by pydantic's type of a fault; in braces what `_bounds` has of its context."""

PATTERNS = {
    f"^{SHA256}$": "must be 64 hexadecimal digits, in lower case",
    f"^{LINE}$": "must be one line of printable ASCII",
    f"^{NAMESPACE}$": "must be small letters, digits and . _ -, with a letter or digit at each end",
    f"^{RELEASE}$": "must be small letters, digits and . _ -, with a letter or digit at the begin",
    f"^({RELEASE})?$": "must be small letters, digits and . _ -, with a letter or digit at the begin, or empty",
    f"^{DIGITS}$": "must be 32 hexadecimal digits, in lower case",
    f"^({DIGITS})?$": "must be 32 hexadecimal digits, in lower case, or empty",
    f"^({SHA256})?$": "must be 64 hexadecimal digits, in lower case, or empty",
    "^[a-z_]+[.][a-z_]+$": "must be a part and a method of it, with a dot between",
    "^[A-Za-z0-9]{12}$": "must be 12 letters and digits",
    "^[A-Za-z0-9_-]+$": "must be letters, digits, _ and -",
    "^[0-9a-f]{16}$": "must be 16 hexadecimal digits, in lower case",
    "^[0-9]{1,15}$": "must be a number of at most 15 digits",
    "^(cpu|cuda)?$": "must be cpu or cuda",
    f"^{TAG}$": "must be small letters, digits and . _ : -, and begin with a letter or digit",
    f"^({TAG})?$": "must be small letters, digits and . _ : -, and begin with a letter or digit, or be empty",
    f"^({OWNER})$": "must be the id of a key, or me",
    f"^({OWNER})?$": "must be the id of a key, me, or empty",
    NOT_BLANK: "must not be empty or blank",
    r"^[\x21-\x7e]+$": "must be ASCII characters that can be seen, without blanks",
}
"""Messages for texts that do not match a pattern."""


OTHER_FORM = "has not the form that the description of the route tells of"
"""Message of any other fault: pydantic's own words are about Python."""


def fault_text(fault: Mapping[str, Any]) -> str:
    """The message of a fault that pydantic lists."""
    kind, context = str(fault["type"]), fault.get("ctx") or {}
    if kind == "string_pattern_mismatch":
        return PATTERNS.get(context["pattern"], OTHER_FORM)
    if kind == "value_error":
        return re.sub("^Value error, ", "", str(fault["msg"]))
    if kind == "json_invalid":
        return f"this is no JSON: {json_fault(context['error'])} at character {fault['loc'][-1] + 1}"
    return WORDS.get(kind, OTHER_FORM).format_map(_bounds(context))


def _bounds(context: Mapping[str, Any]) -> dict[str, object]:
    """The values of a fault's context as people write them, and its length as `characters` and `items`."""
    length = context.get("min_length", context.get("max_length", 0))
    units = {"characters": counted(length, "character"), "items": counted(length, "item")}
    return units | {name: _plain(value) for name, value in context.items()}


def _plain(value: object) -> object:
    """2**53 with all its digits, no .0 behind a whole number, and an empty choice as a word."""
    if isinstance(value, str):
        return value.replace("''", "empty")
    return int(value) if isinstance(value, float) and value.is_integer() else value


def unreadable_body(cause: BaseException) -> Problem:
    """The problem of a body that could not be read as JSON, though it may have its form."""
    match cause:
        case UnicodeDecodeError():
            why = f"it is no text in UTF-8, from byte {cause.start + 1} on"
        case RecursionError():
            why = "it is nested too deeply"
        case ValueError():  # Python reads so many digits at most
            why = "a number in it has too many digits"
        case _:
            why = "it can't be read"
    return invalid("body", (), why)


def untyped_body_problem(request: Request, error: RequestValidationError) -> Problem | None:
    """The problem of a body that was not read as JSON, since its header does not call it that."""
    if not isinstance(error.body, bytes) or not any(tuple(fault["loc"]) == ("body",) for fault in error.errors()):
        return None
    kind = request.headers.get("content-type")
    what = "it is missing" if kind is None else f"it is {quote(kind, 100)}"
    fault = {"in": "header", "pointer": "#/content-type", "detail": f"{what}; a JSON body needs application/json"}
    return Problem(ProblemKind.INVALID, f"header Content-Type: {fault['detail']}", errors=[fault])


def validation_problem(error: RequestValidationError) -> Problem:
    """The problem of a request that has not the form that its route takes."""
    texts: dict[tuple[str, str], list[str]] = {}  # by part and place: a value may be of one form or another
    for fault in error.errors():
        place = _place(fault["loc"])
        parts = _path_in(error.body, fault) if place == "body" else fault["loc"][1:]
        texts.setdefault((place, pointer(parts)), []).append(fault_text(fault))
    errors = [
        {"in": place, "pointer": where, "detail": abridge(_either(details), MOST_LETTERS)}
        for (place, where), details in list(texts.items())[:MOST_ERRORS]
    ]
    first = errors[0]
    more = f", and {len(texts) - 1} more" if len(texts) > 1 else ""
    return Problem(ProblemKind.INVALID, f"{first['in']} {first['pointer']}: {first['detail']}{more}", errors=errors)


def _path_in(body: object, fault: Mapping[str, Any]) -> list[int | str]:
    """The parts of a fault's location that lead into the body; pydantic puts names of types in between."""
    parts = fault["loc"][1:]
    path: list[int | str] = []
    for number, part in enumerate(parts, 1):
        is_there = part in body if isinstance(body, Mapping) else isinstance(body, list) and isinstance(part, int)
        if is_there:
            body = body[part]  # type: ignore[index]
        elif fault["type"] != "missing" or number < len(parts):
            continue
        path.append(part)
    return path


def _either(details: Sequence[str]) -> str:
    """What a value must be: one of these."""
    first, *others = dict.fromkeys(details)
    return ", or ".join([first, *(text.removeprefix("must be ") for text in others)])


def _place(location: Sequence[int | str]) -> str:
    """The part of the request that has the fault: body, query, path or header."""
    return str(location[0]) if location else "body"
