"""Responses as gzip streams, for clients that accept them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator


def gzip_stream(pieces: Iterator[bytes], *, flush_each: bool = False) -> Iterator[bytes]:
    """The pieces as one gzip stream; with `flush_each` a piece can be read once it has arrived."""
    deflate = zlib.compressobj(6, wbits=zlib.MAX_WBITS | 16)
    for piece in pieces:
        output = deflate.compress(piece) + (deflate.flush(zlib.Z_SYNC_FLUSH) if flush_each else b"")
        if output:
            yield output
    yield deflate.flush()


def accepts_gzip(header: str) -> bool:
    """Whether an Accept-Encoding allows gzip (RFC 9110, 12.5.3), `*` not being taken for it."""
    for part in header.split(","):
        name, _, weight = part.partition(";")
        if name.strip().lower() == "gzip":
            return weight.replace(" ", "").lower() not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
