"""RESP, the protocol of Redis: commands of a client, and answers.

Source: Redis serialization protocol specification, versions 2 and 3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

MOST_PARTS = 1025
"""Parts of a command: its name, and as many keys as a lookup may have."""

PART_BYTES = 1 << 20
"""Longest part of a command. Values of caches that are longer are not kept, but read."""

COMMAND_BYTES = 4 << 20
"""Longest command."""

LINE_BYTES = 64
"""Longest line that says how many parts or bytes follow."""


class RespError(Exception):
    """What a client sent is no command: it is told so, and the connection ends."""


async def read_command(reader: asyncio.StreamReader, limit_bytes: int = COMMAND_BYTES) -> list[bytes] | None:
    """The parts of the next command, of so many bytes at most; None where the client is gone. Raises RespError."""
    try:
        count = _number(await _line(reader), b"*", MOST_PARTS)
        parts, total_bytes = [], 0
        for _ in range(count):
            size = _number(await _line(reader), b"$", PART_BYTES)
            total_bytes += size
            if total_bytes > limit_bytes:
                raise RespError(f"a command of more than {limit_bytes} bytes")
            part = await reader.readexactly(size + 2)
            if not part.endswith(b"\r\n"):
                raise RespError("a part without its end")
            parts.append(part[:-2])
        return parts
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        line = await reader.readuntil(b"\r\n")
    except asyncio.LimitOverrunError as error:
        raise RespError("a line without an end") from error
    if len(line) > LINE_BYTES:
        raise RespError("a line that is too long")
    return line[:-2]


def _number(line: bytes, kind: bytes, most: int) -> int:
    digits = line.removeprefix(kind)
    if digits == line or not digits.isdigit() or len(digits) > 9 or int(digits) > most:
        raise RespError(f"{kind.decode()} and a number of at most {most} are expected")
    return int(digits)


class RespWriter:
    """Answers as one client wants them: version 2 of the protocol until it asks for 3."""

    def __init__(self) -> None:
        self.version = 2

    def text(self, text: str) -> bytes:
        """A short word."""
        return f"+{text}\r\n".encode("ascii")

    def error(self, kind: str, text: str) -> bytes:
        """An error: clients tell errors apart by the first word."""
        return f"-{kind} {text}\r\n".encode("ascii", "replace")

    def value(self, value: bytes | None) -> bytes:
        """Bytes; None: there are none."""
        if value is None:
            return b"_\r\n" if self.version == 3 else b"$-1\r\n"
        return b"$%d\r\n%s\r\n" % (len(value), value)

    def values(self, values: Sequence[bytes | None]) -> bytes:
        """Several of them."""
        return b"*%d\r\n" % len(values) + b"".join(map(self.value, values))

    def facts(self, facts: Mapping[str, str | int]) -> bytes:
        """Names and what they are."""
        parts = [part for name, fact in facts.items() for part in (self.value(name.encode()), self._fact(fact))]
        head = b"%%%d\r\n" % len(facts) if self.version == 3 else b"*%d\r\n" % len(parts)
        return head + b"".join(parts)

    def _fact(self, fact: str | int) -> bytes:
        return b":%d\r\n" % fact if isinstance(fact, int) else self.value(fact.encode())
