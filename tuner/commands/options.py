"""Options that are more than a word or a number."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite

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


def parse_share(option: str, text: str | None) -> float | None:
    """The share that a percentage is, from "2%" or "0.5"; None where the option is not given. Raises Refused."""
    if text is None:
        return None
    try:
        percent = float(text.strip().removesuffix("%"))
    except ValueError:
        percent = 0.0
    if not isfinite(percent) or not 0 < percent < 100:
        raise Refused(f"{option} {text!r} is not a percentage above 0 and below 100, such as 2% or 0.5%")
    return percent / 100


def parse_names(option: str, text: str) -> list[str]:
    """Names from "a,b". Raises Refused where there are none."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise Refused(f"{option} names nothing")
    return list(dict.fromkeys(names))
