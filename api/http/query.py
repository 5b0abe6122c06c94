"""Query: parameters that a route does not know, or takes once and got twice, are refused, as fields of bodies are.

Misspelt ones would do nothing, and of several values one would count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from fastapi import Request
from fastapi.dependencies.models import Dependant
from pydantic import BaseModel

from .paths import is_for_programs
from .problems import Problem, ProblemKind, invalid, pointer
from .request_faults import MOST_ERRORS


async def only_known_query(request: Request) -> None:
    """A dependency of every route. Raises Problem for parameters that it does not know, naming those it does.

    Also for several values where it takes one. Addresses of pages, and of what they load, get parameters from all over
    the web.
    """
    if not request.query_params or not is_for_programs(request.url.path):
        return
    dependant = request.scope["route"].dependant
    faults = _faults(request, _parameters(dependant), tuple(_prefixes(dependant)))
    if not faults:
        return
    errors = [
        {"in": "query", "pointer": pointer([name]), "detail": detail}
        for name, detail in list(faults.items())[:MOST_ERRORS]
    ]
    more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
    raise Problem(ProblemKind.INVALID, f"query {errors[0]['pointer']}: {errors[0]['detail']}{more}", errors=errors)


@dataclass(frozen=True, slots=True)
class PrefixedQuery:
    """A dependency: parameters whose names begin with a prefix, as rest of the name -> value. Raises Problem.

    Those without a value are left out: a form sends all its fields. The OpenAPI document has no form for these: what
    a route says of itself tells of them.
    """

    prefix: str
    longest_name: int
    longest: int  # text of a value
    most: int = 100

    def __call__(self, request: Request) -> dict[str, str]:
        found = {
            name.removeprefix(self.prefix): value
            for name, value in request.query_params.items()
            if name.startswith(self.prefix) and value.strip()
        }
        if len(found) > self.most:
            raise invalid("query", [self.prefix], f"at most {self.most} such parameters are taken, not {len(found)}")
        for name, value in found.items():
            if len(name) > self.longest_name or len(value) > self.longest:
                detail = f"a name has at most {self.longest_name} characters, its value {self.longest}"
                raise invalid("query", [self.prefix + name], detail)
        return found


def _faults(request: Request, takes_many: Mapping[str, bool], prefixes: tuple[str, ...]) -> dict[str, str]:
    """What is wrong with each parameter that is; those with one of the prefixes are taken once."""
    has = f"this route has {', '.join(sorted(takes_many))}" if takes_many else "this route has none"
    faults = {}
    for name in dict.fromkeys(request.query_params):
        count = len(request.query_params.getlist(name))
        if name not in takes_many and not name.startswith(prefixes):
            faults[name] = f"there is no such parameter; {has}"
        elif count > 1 and not takes_many.get(name):
            faults[name] = f"it is given {count} times; give it once"
    return faults


def _parameters(dependant: Dependant) -> dict[str, bool]:
    """The names of what a route, and all that it depends on, take from the query; whether they take several values."""
    own: dict[str, bool] = {}
    for field in dependant.query_params:
        kind = field.field_info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):  # it has them as its fields
            own |= {name: _is_list(part.annotation) for name, part in kind.model_fields.items()}
        else:
            own[field.alias] = _is_list(kind)
    for part in dependant.dependencies:
        own |= _parameters(part)
    return own


def _prefixes(dependant: Dependant) -> Iterator[str]:
    """The prefixes of the names of further parameters that a route takes."""
    for part in dependant.dependencies:
        if isinstance(part.call, PrefixedQuery):
            yield part.call.prefix
        yield from _prefixes(part)


def _is_list(kind: Any) -> bool:
    """Whether a type is of several values, or may be."""
    return any(get_origin(part) in (list, tuple) for part in (kind, *get_args(kind)))
