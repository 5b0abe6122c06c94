"""Routes of models: they are sent by digest, read in a limited child, and kept as they came."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Annotated

from fastapi import APIRouter, Depends, Header, Query, Request, Response

from tunewright.db.access import Key, Scope
from tunewright.db.errors import NotFound
from tunewright.db.uploads import Upload

from ..access import counted_as_change, needs
from ..openapi import MODEL_BYTES, also, problems
from ..paging import Cursor, Limit, Page, bad_cursor, cut, text_of
from ..problems import Kind, Problem
from ..schemas import DigestInPath, ModelSent
from ..service import Here, Service, in_thread, place_in

PIECE_BYTES = 1 << 20

Label = Annotated[str, Query(max_length=200, description="A name for people, e.g. the file's.")]
ContentDigest = Annotated[
    str | None, Header(max_length=1000, description="Digest of the body (RFC 9530); `sha-256` is looked at.")
]

router = APIRouter(prefix="/v1/models", tags=["models"])


@router.put(
    "/{sha256}",
    status_code=201,
    summary="Send a model",
    response_description="The model is kept now.",
    responses=also(200, "The model was known.", ModelSent)
    | problems(Kind.INVALID, Kind.DIGEST_MISMATCH, Kind.BAD_MODEL, Kind.BUSY),
    openapi_extra={"requestBody": MODEL_BYTES},
    dependencies=[Depends(counted_as_change)],
)
async def send_model(
    request: Request,
    answer: Response,
    here: Here,
    key: Annotated[Key, needs(Scope.JOBS_WRITE)],
    sha256: DigestInPath,
    label: Label = "",
    content_digest: ContentDigest = None,
) -> ModelSent:
    """Keep an ONNX model, so that jobs can be submitted for it.

    The body is the ONNX file: the whole of it, or better the structure that the client makes of it, which has no
    weights. Sending a model that is known changes nothing.
    """
    return await _take_in(request, answer, here, {sha256} | _declared(content_digest), label, key.owner)


@router.post(
    "",
    status_code=201,
    summary="Send a model whose digest is not known",
    response_description="The model is kept now; `Location` says where.",
    responses=also(200, "The model was known.", ModelSent)
    | problems(Kind.INVALID, Kind.DIGEST_MISMATCH, Kind.BAD_MODEL, Kind.BUSY),
    openapi_extra={"requestBody": MODEL_BYTES},
    dependencies=[Depends(counted_as_change)],
)
async def take_model(
    request: Request,
    answer: Response,
    here: Here,
    key: Annotated[Key, needs(Scope.JOBS_WRITE)],
    label: Label = "",
    content_digest: ContentDigest = None,
) -> ModelSent:
    """As `PUT /v1/models/{sha256}`, for those who can't work the digest out themselves, such as pages."""
    return await _take_in(request, answer, here, _declared(content_digest), label, key.owner)


async def _take_in(
    request: Request, answer: Response, here: Service, expected: set[str], label: str, owner: str
) -> ModelSent:
    """Receive a model, and keep it where it is new. Its digest must be all of those that are `expected`."""
    with (
        place_to_receive(here),
        tempfile.NamedTemporaryFile(prefix="tunewright-", suffix=".onnx", dir=here.options.folder) as file,
    ):
        received = await receive(request, file)
        sha256 = received.sha256
        here.metrics.upload_bytes.inc(received.size_bytes)
        if expected - {sha256}:
            here.metrics.uploads.labels("refused").inc()
            raise Problem(Kind.DIGEST_MISMATCH, f"the body's SHA-256 is {sha256}")
        answer.headers["Location"] = f"/v1/models/{sha256}"
        try:
            upload = await in_thread(partial(here.store.uploads.get, sha256))
        except NotFound:
            upload = await _keep(here, Path(file.name), sha256, label, owner)
            here.metrics.uploads.labels("new").inc()
        else:
            answer.status_code = 200
            here.metrics.uploads.labels("known").inc()
    return ModelSent.of(upload)


@router.get(
    "",
    summary="List the models",
    responses=problems(Kind.INVALID),
    dependencies=[needs(Scope.JOBS_READ)],
)
def list_models(here: Here, cursor: Cursor = None, limit: Limit = 50) -> Page[ModelSent]:
    """The models that were sent, the newest first."""
    try:
        uploads = here.store.uploads.list(text_of(cursor), limit + 1)
    except NotFound:
        raise bad_cursor() from None
    page, following = cut(uploads, limit, lambda upload: upload.sha256)
    return Page(items=[ModelSent.of(upload) for upload in page], next=following)


@router.get(
    "/{sha256}",
    summary="Look at a model",
    responses=problems(Kind.NO_SUCH_MODEL, Kind.INVALID),
    dependencies=[needs(Scope.JOBS_READ)],
)
def get_model(here: Here, sha256: DigestInPath) -> ModelSent:
    """What is known of a model."""
    return ModelSent.of(find_upload(here, sha256))


def find_upload(here: Service, sha256: str) -> Upload:
    """Raises Problem where it was not sent."""
    try:
        return here.store.uploads.get(sha256)
    except NotFound:
        raise _not_sent(sha256) from None


@contextmanager
def model_file(here: Service, upload: Upload) -> Iterator[Path]:
    """A model that was sent, as a file. Raises Problem where it was deleted meanwhile."""
    with tempfile.NamedTemporaryFile(prefix="tunewright-", suffix=".onnx", dir=here.options.folder) as file:
        with suppress(NotFound):
            for piece in here.store.uploads.read(upload.sha256):
                file.write(piece)
        if file.tell() != upload.size_bytes:
            raise _not_sent(upload.sha256)
        file.flush()
        yield Path(file.name)


def _not_sent(sha256: str) -> Problem:
    return Problem(Kind.NO_SUCH_MODEL, f"no model {sha256} was sent")


def place_to_receive(here: Service) -> AbstractContextManager[None]:
    """One of the places for those who send large bodies."""
    return place_in(here.receiving, "too many large bodies are being received")


@dataclass(frozen=True, slots=True)
class Received:
    """A body that was received."""

    sha256: str
    size_bytes: int


async def receive(request: Request, file: IO[bytes]) -> Received:
    """Write the body to a file, beside the event loop: disks make one wait."""
    digest, size_bytes, held = hashlib.sha256(), 0, bytearray()

    def keep() -> None:
        digest.update(held)
        file.write(held)

    async for piece in request.stream():
        held += piece
        if len(held) >= PIECE_BYTES:
            await in_thread(keep)
            size_bytes += len(held)
            held.clear()
    await in_thread(keep)
    await in_thread(file.flush)
    return Received(digest.hexdigest(), size_bytes + len(held))


def _declared(header: str | None) -> set[str]:
    """The SHA-256 that a header Content-Digest tells, in hexadecimal; nothing where it tells other digests alone."""
    found = re.findall(r"(?:^|,)\s*sha-256=:([^:]*):", header or "")
    try:
        return {base64.b64decode(text, validate=True).hex() for text in found}
    except binascii.Error:
        raise Problem(Kind.DIGEST_MISMATCH, "the header Content-Digest is malformed") from None


async def _keep(here: Service, path: Path, sha256: str, label: str, owner: str) -> Upload:
    """Read a model that is new, and store it. Raises Problem where it can't be read."""
    try:
        description = await here.readers.read(lambda reader: reader.describe(path))
    except Problem:
        here.metrics.uploads.labels("refused").inc()
        raise

    def stored() -> Upload:
        with path.open("rb") as file:
            here.store.uploads.add(
                sha256,
                iter(partial(file.read, PIECE_BYTES), b""),
                label=label,
                with_weights=description.with_weights,
                description=description.to_json(),
                owner=owner,
            )
        return here.store.uploads.get(sha256)

    return await in_thread(stored)
