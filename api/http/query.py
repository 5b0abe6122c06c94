"""Query: parameters that a route does not know are refused, as fields of bodies are: misspelt ones would do nothing."""

from __future__ import annotations

from fastapi import Request
from fastapi.dependencies.models import Dependant
from pydantic import BaseModel

from .paths import is_for_programs
from .problems import MOST_ERRORS, Problem, ProblemKind, pointer


async def only_known_query(request: Request) -> None:
    """A dependency of every route. Raises Problem for parameters that it does not know, and names those it does.

    Addresses of pages, and of what they load, get parameters from all over the web.
    """
    if not request.query_params or not is_for_programs(request.url.path):
        return
    parameters = sorted(_parameters(request.scope["route"].dependant))
    unknown = [name for name in dict.fromkeys(request.query_params) if name not in parameters]
    if not unknown:
        return
    has = f"this route has {', '.join(parameters)}" if parameters else "this route has none"
    detail = f"there is no such parameter; {has}"
    errors = [{"in": "query", "pointer": pointer([name]), "detail": detail} for name in unknown[:MOST_ERRORS]]
    more = f", and {len(unknown) - 1} more" if len(unknown) > 1 else ""
    raise Problem(ProblemKind.INVALID, f"query {errors[0]['pointer']}: {detail}{more}", errors=errors)


def _parameters(dependant: Dependant) -> set[str]:
    """The names of what a route, and all that it depends on, take from the query."""
    own: set[str] = set()
    for field in dependant.query_params:
        kind = field.field_info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):  # it has them as its fields
            own |= kind.model_fields.keys()
        else:
            own.add(field.alias)
    return own.union(*map(_parameters, dependant.dependencies))
