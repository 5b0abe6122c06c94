"""Frames: messages between a process and its child, JSON behind a length of four bytes. Never pickle."""

from __future__ import annotations

import json
import struct
from typing import Any, BinaryIO

LENGTH = struct.Struct(">I")

LARGEST_BYTES = 256 << 20
"""More than any message has; a length above it is not one of ours."""


class BrokenFrame(Exception):
    """What was read is no frame."""


def frame(message: dict[str, Any]) -> bytes:
    """The message as bytes."""
    body = json.dumps(message, allow_nan=False, separators=(",", ":")).encode()
    return LENGTH.pack(len(body)) + body


def take(buffer: bytearray, largest_bytes: int = LARGEST_BYTES) -> dict[str, Any] | None:
    """The first message of what was received so far, taken out of it; None if it is not whole. Raises BrokenFrame."""
    if len(buffer) < LENGTH.size:
        return None
    [size_bytes] = LENGTH.unpack_from(buffer)
    if size_bytes > largest_bytes:
        raise BrokenFrame(f"a message of {size_bytes} bytes")
    end = LENGTH.size + size_bytes
    if len(buffer) < end:
        return None
    body = bytes(buffer[LENGTH.size : end])
    del buffer[:end]
    return _decoded(body)


def read(stream: BinaryIO) -> dict[str, Any] | None:
    """The next message, waiting for it; None where the stream ends. Raises BrokenFrame."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    [size_bytes] = LENGTH.unpack(head)
    body = stream.read(size_bytes)
    return _decoded(body) if len(body) == size_bytes else None


def _decoded(body: bytes) -> dict[str, Any]:
    try:
        message = json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise BrokenFrame("a message that is not JSON") from error
    if not isinstance(message, dict):
        raise BrokenFrame("a message that is no object")
    return message


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
