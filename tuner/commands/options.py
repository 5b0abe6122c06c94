"""Options that are more than a word or a number."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import Refused


def parse_dims(texts: Iterable[str] | None) -> dict[str, int]:
    """Dimensions by name, from "NAME=1" and so on; None where the option is not given. Raises Refused."""
    dims: dict[str, int] = {}
    for text in texts or ():
        name, equals, value = text.rpartition("=")
        if not equals or not name or not value.isdecimal() or not value.isascii():
            raise Refused(f"--dim {text!r} is not NAME=NUMBER")
        if dims.setdefault(name, int(value)) != int(value):
            raise Refused(f"--dim gives {name!r} two values, {dims[name]} and {int(value)}")
    return dims


def parse_names(option: str, text: str) -> list[str]:
    """Names from "a,b". Raises Refused where there are none."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise Refused(f"{option} names nothing")
    return list(dict.fromkeys(names))
