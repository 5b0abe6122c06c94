"""Query: parameters that a route does not know are refused, as fields of bodies are: misspelt ones would do nothing."""

from __future__ import annotations

from fastapi import Request
from fastapi.dependencies.models import Dependant

from .problems import MOST_ERRORS, Kind, Problem, pointer

STRICT = "/v1/"
"""Where the paths of routes begin that programs ask. Addresses of pages get parameters from all over the web."""


async def only_known_query(request: Request) -> None:
    """A dependency of every route. Raises Problem for parameters that it does not know, and names those it does."""
    if not request.query_params or not request.url.path.startswith(STRICT):
        return
    known = sorted(_parameters(request.scope["route"].dependant))
    unknown = [name for name in dict.fromkeys(request.query_params) if name not in known]
    if not unknown:
        return
    has = f"this route has {', '.join(known)}" if known else "this route has none"
    said = f"there is no such parameter; {has}"
    errors = [{"in": "query", "pointer": pointer([name]), "detail": said} for name in unknown[:MOST_ERRORS]]
    more = f", and {len(unknown) - 1} more" if len(unknown) > 1 else ""
    raise Problem(Kind.INVALID, f"query {errors[0]['pointer']}: {said}{more}", errors=errors)


def _parameters(dependant: Dependant) -> set[str]:
    """The names of what a route, and all that it depends on, take from the query."""
    own = {field.alias for field in dependant.query_params}
    return own.union(*map(_parameters, dependant.dependencies))
