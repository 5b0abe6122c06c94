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

from tunewright.db.access import Key, KeyScope
from tunewright.db.errors import NotFound
from tunewright.db.job import Conflict
from tunewright.db.uploads import Upload

from ..access import count_as_change, needs
from ..openapi import MODEL_BYTES, also, problems
from ..paging import Cursor, Limit, Page, bad_cursor, cut, text_of
from ..problems import Problem, ProblemKind
from ..schemas.base import DigestInPath
from ..schemas.models import ModelSent
from ..service import Service, ServiceDep, in_thread, place_in

PIECE_BYTES = 1 << 20

Label = Annotated[str, Query(max_length=200, description="A name for people, e.g. the file's.")]
ContentDigest = Annotated[
    str | None, Header(max_length=1000, description="Digest of the body (RFC 9530); `sha-256` is looked at.")
]

router = APIRouter(prefix="/v1/models", tags=["models"])


@dataclass(frozen=True, slots=True)
class ModelTransfer:
    """A model that comes in as a body: what is told beside it, and who sends it."""

    request: Request
    answer: Response
    service: ServiceDep
    key: Annotated[Key, needs(KeyScope.JOBS_WRITE)]
    label: Label = ""
    content_digest: ContentDigest = None


Transfer = Annotated[ModelTransfer, Depends()]


@router.put(
    "/{sha256}",
    status_code=201,
    summary="Send a model",
    response_description="The model is kept now.",
    responses=also(200, "The model was known.", ModelSent)
    | problems(ProblemKind.INVALID, ProblemKind.DIGEST_MISMATCH, ProblemKind.BAD_MODEL, ProblemKind.BUSY),
    openapi_extra={"requestBody": MODEL_BYTES},
    dependencies=[Depends(count_as_change)],
)
async def send_model(transfer: Transfer, sha256: DigestInPath) -> ModelSent:
    """Keep an ONNX model, so that jobs can be submitted for it.

    The body is the ONNX file: the whole of it, or better the structure that the client makes of it, which has no
    weights. Sending a model that is known changes nothing.
    """
    return await _receive_model(transfer, {sha256})


@router.post(
    "",
    status_code=201,
    summary="Send a model whose digest is not known",
    response_description="The model is kept now; `Location` says where.",
    responses=also(200, "The model was known.", ModelSent)
    | problems(ProblemKind.INVALID, ProblemKind.DIGEST_MISMATCH, ProblemKind.BAD_MODEL, ProblemKind.BUSY),
    openapi_extra={"requestBody": MODEL_BYTES},
    dependencies=[Depends(count_as_change)],
)
async def take_model(transfer: Transfer) -> ModelSent:
    """As `PUT /v1/models/{sha256}`, for those who can't work the digest out themselves, such as pages."""
    return await _receive_model(transfer, set())


async def _receive_model(transfer: ModelTransfer, digests: set[str]) -> ModelSent:
    """Receive a model, and keep it where it is new. Its digest must be all of `digests`, and all that are declared."""
    digests, service, answer = digests | _declared_digests(transfer.content_digest), transfer.service, transfer.answer
    with (
        place_to_receive(service),
        tempfile.NamedTemporaryFile(prefix="tunewright-", suffix=".onnx", dir=service.options.folder) as file,
    ):
        body = await receive(transfer.request, file)
        sha256 = body.sha256
        service.metrics.upload_bytes.inc(body.size_bytes)
        if digests - {sha256}:
            service.metrics.uploads.labels("refused").inc()
            raise Problem(ProblemKind.DIGEST_MISMATCH, f"the body's SHA-256 is {sha256}")
        answer.headers["Location"] = f"/v1/models/{sha256}"
        try:
            upload = await in_thread(partial(service.store.uploads.use, sha256))
        except NotFound:
            upload = await _keep(service, Path(file.name), sha256, transfer.label, transfer.key.owner)
            service.metrics.uploads.labels("new").inc()
        else:
            answer.status_code = 200
            service.metrics.uploads.labels("known").inc()
    return ModelSent.show(upload)


@router.get(
    "",
    summary="List the models",
    responses=problems(ProblemKind.INVALID),
    dependencies=[needs(KeyScope.JOBS_READ)],
)
def list_models(service: ServiceDep, cursor: Cursor = None, limit: Limit = 50) -> Page[ModelSent]:
    """The models that were sent, the newest first."""
    try:
        uploads = service.store.uploads.list(text_of(cursor), limit + 1)
    except NotFound:
        raise bad_cursor() from None
    page, following = cut(uploads, limit, lambda upload: upload.sha256)
    return Page(items=[ModelSent.show(upload) for upload in page], next=following)


@router.get(
    "/{sha256}",
    summary="Look at a model",
    responses=problems(ProblemKind.NO_SUCH_MODEL, ProblemKind.INVALID),
    dependencies=[needs(KeyScope.JOBS_READ)],
)
def get_model(service: ServiceDep, sha256: DigestInPath) -> ModelSent:
    """What is known of a model."""
    return ModelSent.show(find_upload(service, sha256))


@router.delete(
    "/{sha256}",
    status_code=204,
    summary="Delete a model",
    response_description="The model is gone.",
    responses=problems(
        ProblemKind.NO_SUCH_MODEL, ProblemKind.MODEL_NEEDED, ProblemKind.INVALID, ProblemKind.UNWRITABLE
    ),
    dependencies=[needs(KeyScope.JOBS_WRITE), Depends(count_as_change)],
)
def delete_model(service: ServiceDep, sha256: DigestInPath) -> None:
    """Delete a model that no unfinished job needs. Finished jobs of it stay as they are."""
    try:
        service.store.uploads.delete(sha256)
    except NotFound:
        raise not_sent(sha256) from None
    except Conflict as error:
        raise Problem(ProblemKind.MODEL_NEEDED, str(error)) from None


def find_upload(service: Service, sha256: str) -> Upload:
    """Raises Problem where it was not sent."""
    try:
        return service.store.uploads.get(sha256)
    except NotFound:
        raise not_sent(sha256) from None


@contextmanager
def model_file(service: Service, upload: Upload) -> Iterator[Path]:
    """A model that was sent, as a file. Raises Problem where it was deleted meanwhile."""
    with tempfile.NamedTemporaryFile(prefix="tunewright-", suffix=".onnx", dir=service.options.folder) as file:
        with suppress(NotFound):
            for piece in service.store.uploads.read(upload.sha256):
                file.write(piece)
        if file.tell() != upload.size_bytes:
            raise not_sent(upload.sha256)
        file.flush()
        yield Path(file.name)


def not_sent(sha256: str) -> Problem:
    """The problem of a model that is not here."""
    return Problem(ProblemKind.NO_SUCH_MODEL, f"no model {sha256} was sent")


def place_to_receive(service: Service) -> AbstractContextManager[None]:
    """One of the places for those who send large bodies."""
    return place_in(service.upload_slots, "too many large bodies are being received")


@dataclass(frozen=True, slots=True)
class BodyDigest:
    """A body that was received."""

    sha256: str
    size_bytes: int


async def receive(request: Request, file: IO[bytes]) -> BodyDigest:
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
    return BodyDigest(digest.hexdigest(), size_bytes + len(held))


def _declared_digests(header: str | None) -> set[str]:
    """The SHA-256 that a header Content-Digest tells, in hexadecimal; nothing where it tells other digests alone."""
    texts = re.findall(r"(?:^|,)\s*sha-256=:([^:]*):", header or "")
    try:
        return {base64.b64decode(text, validate=True).hex() for text in texts}
    except binascii.Error:
        raise Problem(ProblemKind.DIGEST_MISMATCH, "the header Content-Digest is malformed") from None


async def _keep(service: Service, path: Path, sha256: str, label: str, owner: str) -> Upload:
    """Read a model that is new, and store it. Raises Problem where it can't be read."""
    try:
        description = await service.readers.read(lambda reader: reader.describe(path))
    except Problem:
        service.metrics.uploads.labels("refused").inc()
        raise

    def store_upload() -> Upload:
        with path.open("rb") as file:
            service.store.uploads.add(
                sha256,
                iter(partial(file.read, PIECE_BYTES), b""),
                label=label,
                with_weights=description.with_weights,
                description=description.to_json(),
                owner=owner,
            )
        return service.store.uploads.get(sha256)

    return await in_thread(store_upload)
