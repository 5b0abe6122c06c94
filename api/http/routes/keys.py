"""Routes of API keys: who may use the service. No key but one that is just made is in any answer."""

from __future__ import annotations

import logging
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Response

from tunewright.db.access import ID_LETTERS, Key, KeyScope
from tunewright.db.errors import NotFound
from tunewright.db.keys import NotGranted

from ..access import count_as_change, needs
from ..openapi import problems
from ..paging import Page
from ..problems import Problem, ProblemKind
from ..schemas.keys import KeyAsked, KeyCreated, KeyRevoked, KeyShown, shown_key
from ..service import ServiceDep

router = APIRouter(prefix="/v1/keys", tags=["keys"])

Giver = Annotated[Key, needs(KeyScope.KEYS_WRITE)]
CHANGES = [Depends(count_as_change)]
DAY_S = 24 * 3600.0

KeyId = Annotated[str, Path(pattern=f"^[A-Za-z0-9]{{{ID_LETTERS}}}$", description="Id of the key.")]

_log = logging.getLogger("tunewright.api")


@router.get("", summary="List the keys", dependencies=[needs(KeyScope.KEYS_WRITE)])
def list_keys(service: ServiceDep) -> Page[KeyShown]:
    """The keys, the newest first, all on one page; not the sessions of browsers."""
    return Page(items=[KeyShown.show(key, **shown_key(key)) for key in service.store.keys.list()], next=None)


@router.post(
    "",
    status_code=201,
    summary="Create a key",
    responses=problems(ProblemKind.INVALID, ProblemKind.NOT_GRANTED, ProblemKind.UNWRITABLE),
    dependencies=CHANGES,
)
def create_key(request: KeyAsked, answer: Response, service: ServiceDep, giver: Giver) -> KeyCreated:
    """Make a key that may do what the key of this request may, or less: of a session the key that it began with. It
    ends with that at the latest, and after 90 days where a session or the local key makes it. Its text is in this
    answer alone: the database keeps a digest.
    """
    scopes = [KeyScope(scope) for scope in request.scopes]
    lasts_s = None if request.days is None else request.days * DAY_S
    try:
        key, token = service.store.keys.grant(giver.id, request.name, scopes, lasts_s, namespaces=request.namespaces)
    except NotGranted as error:
        raise Problem(ProblemKind.NOT_GRANTED, str(error)) from error
    _log.info("key %s was made", key.id, extra={"key": giver.owner})
    answer.headers["Location"] = "/v1/keys"
    return KeyCreated.show(key, key=token, **shown_key(key))


@router.post(
    "/{key_id}:revoke",
    summary="Revoke a key",
    responses=problems(ProblemKind.INVALID, ProblemKind.NOT_GRANTED, ProblemKind.NO_SUCH_KEY, ProblemKind.UNWRITABLE),
    dependencies=CHANGES,
)
def revoke_key(service: ServiceDep, giver: Giver, key_id: KeyId) -> KeyRevoked:
    """Make a key and its sessions worthless for good, within a few seconds everywhere. Twice is harmless. The key of
    this request may do what that one may, or more: of a session the key that it began with. What the key made stays
    in force.
    """
    try:
        key = service.store.keys.revoke(key_id, giver.id)
    except NotGranted as error:
        raise Problem(ProblemKind.NOT_GRANTED, str(error)) from error
    except NotFound as error:
        raise Problem(ProblemKind.NO_SUCH_KEY, "there is no such key") from error
    _log.info("key %s was revoked", key.id, extra={"key": giver.owner})
    return KeyRevoked.show(key, **shown_key(key), note=key.leaves)
