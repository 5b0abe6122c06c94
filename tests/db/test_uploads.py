"""The contract of Uploads, checked on every database."""

import hashlib
import random

import pytest

from tunewright.db import uploads
from tunewright.db.errors import NotFound

DESCRIPTION = {"inputs": [{"name": "x\0<script>", "dims": ["n", 3]}], "ops": {"Conv": 2}}


@pytest.fixture
def add(store):
    """A function that keeps bytes as a model; their digest."""

    def keep(data, chunks=None, **options):
        sha256 = hashlib.sha256(data).hexdigest()
        arguments = {"label": "m.onnx", "with_weights": False, "description": DESCRIPTION, **options}
        return sha256, store.uploads.add(sha256, chunks or [data], **arguments)

    return keep


def test_a_model_comes_back_equal(store, add, clock):
    sha256, new = add(b"model", label="a'\0\n<b>", with_weights=True, owner="k1")
    assert new
    upload = store.uploads.get(sha256)
    assert (upload.sha256, upload.size_bytes, upload.label) == (sha256, 5, "a'\ufffd\n<b>")
    assert (upload.with_weights, upload.description, upload.owner) == (True, DESCRIPTION, "k1")
    assert upload.created_at == clock.now
    assert b"".join(store.uploads.read(sha256)) == b"model"
    assert store.uploads.list() == [upload]


def test_one_that_is_known_stays(store, add):
    sha256, _ = add(b"model", label="first")
    assert add(b"model", label="second") == (sha256, False)
    assert store.uploads.get(sha256).label == "first"


@pytest.mark.parametrize("size", [0, 1, 999, 1000, 1001, 2000, 4567])
def test_it_is_kept_in_pieces(store, add, monkeypatch, size):
    monkeypatch.setattr(uploads, "PIECE_BYTES", 1000)
    data = random.Random(size).randbytes(size)
    cuts = sorted(random.Random(size).choices(range(size + 1), k=5))
    chunks = [data[i:j] for i, j in zip([0, *cuts], [*cuts, size], strict=True)]
    sha256, _ = add(data, chunks)
    pieces = list(store.uploads.read(sha256))
    assert b"".join(pieces) == data
    assert [len(piece) for piece in pieces] == [1000] * (size // 1000) + [size % 1000] * bool(size % 1000)
    assert store.uploads.get(sha256).size_bytes == size


def test_one_that_breaks_off_leaves_nothing(store, add):
    def broken():
        yield b"x" * 3_000_000
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        add(b"model", broken())
    with pytest.raises(ValueError, match="the digest of what was sent is"):
        add(b"model", [b"mod"])
    assert store.uploads.list() == []
    assert add(b"model")[1]


def test_unknown_ones_are_not_found(store):
    for call in (store.uploads.get, store.uploads.read, store.uploads.list):
        with pytest.raises(NotFound, match="no model 00"):
            call("00")


def test_lists_are_paged_newest_first(store, add, clock):
    digests = []
    for number in range(6):
        digests.append(add(b"%d" % number)[0])
        clock.advance(number % 2)  # pairs of the same moment
    newest = [upload.sha256 for upload in store.uploads.list()]
    assert sorted(newest) == sorted(digests)
    assert [set(newest[i : i + 2]) for i in (0, 2, 4)] == [set(digests[i : i + 2]) for i in (4, 2, 0)]
    paged = [upload.sha256 for upload in store.uploads.list(limit=2)]
    while page := store.uploads.list(paged[-1], limit=2):
        paged += [upload.sha256 for upload in page]
    assert paged == newest
