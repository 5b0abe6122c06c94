"""Words: what is wrong with a command line, said plainly."""

from __future__ import annotations

import re
from typing import Any

from typer.exceptions import TyperException

BOUNDS = {"greater than or equal to": "at least", "less than or equal to": "at most"}
"""What the parser says of numbers, and what people say."""


def plain(error: TyperException) -> str:
    """One line that says what is wrong and what would be right. Empty where help was printed instead."""
    said = error.format_message()
    context = getattr(error, "ctx", None)
    program = context.command_path if context else "tunewright"
    if found := re.search(r"No such command '(.*)'\.", said, re.DOTALL):
        return f"no command {found[1]!r}; see {program} --help"
    if found := re.fullmatch(r"No such option: (\S+)(.*)", said, re.DOTALL):
        return f"no option {found[1]}; see {program} --help"
    if found := re.fullmatch(r"Missing (?:argument|option) '(.*)'\.", said, re.DOTALL):
        return f"{found[1]} is missing; see {program} --help"
    if found := re.fullmatch(r"Option '(\S+)' requires an argument\.", said):
        return f"{found[1]} needs a value"
    if found := re.fullmatch(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", said, re.DOTALL):
        return f"{found[1]!r} is one argument too many; see {program} --help"
    return _of_value(said, _given(error))


def _of_value(said: str, given: str) -> str:
    found = re.fullmatch(r"Invalid value for '(.*?)': (?:Value error, )?(.*)", said, re.DOTALL)
    if not found:
        return said
    name, fault = found[1], found[2]
    if bound := re.search(r"(greater than or equal to|less than or equal to) ([\d.]+)", fault):
        return f"{name} must be {BOUNDS[bound[1]]} {bound[2]}{given}"
    if "valid integer" in fault:
        return f"{name} must be a whole number{given}"
    if "valid number" in fault or "finite number" in fault:
        return f"{name} must be a number{given}"
    if choices := re.fullmatch(r"'(.*)' is not one of (.*?)\.?", fault, re.DOTALL):
        return f"{name} must be {_either(choices[2])}, not {choices[1]!r}"
    return f"{name}: {fault}"


def _given(error: TyperException) -> str:
    """What was given instead, where the parser tells."""
    faults: Any = getattr(error.__cause__, "errors", None)
    found = faults() if callable(faults) else []
    return f", not {str(found[0]['input'])[:40]}" if found and "input" in found[0] else ""


def _either(quoted: str) -> str:
    """The names in "'a', 'b', 'c'" as "a, b or c"."""
    *others, last = re.findall(r"'([^']*)'", quoted)
    return f"{', '.join(others)} or {last}" if others else str(last)
