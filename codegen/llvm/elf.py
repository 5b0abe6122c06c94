"""Relocatable objects as LLVM writes them (ELF of 64 bits, little end first), read.

Source: System V ABI, "Object Files"; its supplement for x86-64.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import NamedTuple

RELOCATABLE, SHARED = 1, 3
"""Types of files."""

X86_64 = 62
"""The machine."""

UNDEFINED, ABSOLUTE, COMMON = 0, 0xFFF1, 0xFFF2
"""Numbers in the place of a section's."""

HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
RELOCATION = struct.Struct("<QQq")
IDENTITY = b"\x7fELF\x02\x01\x01"

_SYMBOLS, _RELOCATIONS, _NO_BITS = 2, 4, 8  # types of sections


class SectionFlag(IntFlag):
    """What a section is used for."""

    WRITE = 1
    ALLOCATE = 2
    EXECUTE = 4
    THREAD_LOCAL = 0x400


class SectionKind(IntEnum):
    """Types of sections that a shared object tells programs that link to it."""

    NONE = 0
    PROGRAM = 1
    TEXTS = 3
    HASHES = 5
    DYNAMIC = 6
    LINKED_SYMBOLS = 11


class ObjectFault(ValueError):
    """An object can't be read, or has something that is not linked here. One line."""


@dataclass(frozen=True, slots=True)
class Relocation:
    """A word of a section that gets the address of a symbol, by the rule of its kind."""

    offset: int
    kind: int
    symbol: int  # its number
    addend: int


@dataclass(frozen=True, slots=True)
class Section:
    """A part of what is loaded. `content` is empty where it is zeros."""

    name: str
    flags: SectionFlag
    alignment: int
    size_bytes: int
    content: bytes | memoryview
    relocations: tuple[Relocation, ...]


class Symbol(NamedTuple):
    """A name for an address. `section` is None where another file has it."""

    name: str
    section: int | None  # its number among all of the file
    value: int
    is_local: bool


@dataclass(frozen=True, slots=True)
class RelocatableObject:
    """The sections that are loaded, by their number in the file, and all symbols."""

    sections: dict[int, Section]
    symbols: tuple[Symbol, ...]


class _Header(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_bytes: int


def read_object(data: bytes) -> RelocatableObject:
    """The parts of a relocatable object for x86-64. Raises ObjectFault."""
    try:
        return _read(data)
    except ObjectFault:
        raise
    except (struct.error, IndexError, OverflowError, ValueError) as error:
        raise ObjectFault(f"the object of {len(data):,} bytes is damaged: {error}") from error


def _read(data: bytes) -> RelocatableObject:
    (
        identity,
        kind,
        machine,
        *_,
    ) = HEADER.unpack_from(data)
    if not identity.startswith(IDENTITY) or kind != RELOCATABLE or machine != X86_64:
        raise ObjectFault("what is to be linked is no relocatable object for x86-64")
    offset, count, names_number = _section_table(data)
    headers = [_Header(*SECTION_HEADER.unpack_from(data, offset + n * SECTION_HEADER.size)) for n in range(count)]
    names = _content(data, headers[names_number])
    relocations: dict[int, list[Relocation]] = {}
    symbols: tuple[Symbol, ...] = ()
    for header in headers:
        if header.kind == _SYMBOLS:
            symbols = tuple(_symbols(_content(data, header), _content(data, headers[header.link])))
        elif header.kind == _RELOCATIONS:
            relocations.setdefault(header.info, []).extend(_relocations(_content(data, header)))
    sections = {
        number: Section(
            _text(names, header.name),
            SectionFlag(header.flags),
            max(header.alignment, 1),
            header.size,
            b"" if header.kind == _NO_BITS else _content(data, header),
            tuple(relocations.get(number, ())),
        )
        for number, header in enumerate(headers)
        if header.flags & SectionFlag.ALLOCATE
    }
    return RelocatableObject(sections, symbols)


def _section_table(data: bytes) -> tuple[int, int, int]:
    """Where the headers of sections begin, how many there are, and the number of the one with their names."""
    fields = HEADER.unpack_from(data)
    return fields[6], fields[12], fields[13]


def _content(data: bytes, header: _Header) -> bytes:
    content = data[header.offset : header.offset + header.size]
    if len(content) != header.size:
        raise ObjectFault(f"the object of {len(data):,} bytes is cut short")
    return content


def _symbols(table: bytes, names: bytes) -> Iterator[Symbol]:
    for name, info, _, section, value, _ in SYMBOL.iter_unpack(table):
        if section in (ABSOLUTE, COMMON) and info & 15 != 4:  # 4: the name of the source
            raise ObjectFault(f"symbol {_text(names, name)!r} lies in no section")
        yield Symbol(_text(names, name), None if section == UNDEFINED else section, value, info >> 4 == 0)


def _relocations(table: bytes) -> Iterator[Relocation]:
    for offset, info, addend in RELOCATION.iter_unpack(table):
        yield Relocation(offset, info & 0xFFFFFFFF, info >> 32, addend)


def _text(names: bytes, start: int) -> str:
    return names[start : names.index(b"\0", start)].decode()


@dataclass(frozen=True, slots=True)
class SectionEntry:
    """A section of a shared object for programs that link to it: where it is; `link` is the number of another."""

    name: str
    kind: SectionKind
    flags: SectionFlag
    start: int
    size_bytes: int
    link: int = 0
    entry_bytes: int = 0


def section_table(entries: Sequence[SectionEntry], start: int) -> tuple[bytes, int, int]:
    """A table of sections that begins with their names at `start` of the file: its bytes, where the headers begin, and
    how many there are. The first is none, the last has the names.
    """
    texts = b"\0"
    offsets = []
    for name in (*(entry.name for entry in entries), ".shstrtab"):
        offsets.append(len(texts))
        texts += name.encode() + b"\0"
    padding = -(start + len(texts)) % 8
    rows = [bytes(SECTION_HEADER.size)]
    for offset, entry in zip(offsets, entries, strict=False):
        locals_end = int(entry.kind is SectionKind.LINKED_SYMBOLS)  # none but the first is local
        extent = (entry.start, entry.start, entry.size_bytes)  # address, offset in the file, size
        rest = (entry.link, locals_end, 8, entry.entry_bytes)
        rows.append(SECTION_HEADER.pack(offset, entry.kind, entry.flags, *extent, *rest))
    rows.append(SECTION_HEADER.pack(offsets[-1], SectionKind.TEXTS, 0, 0, start, len(texts), 0, 0, 1, 0))
    return texts + bytes(padding) + b"".join(rows), start + len(texts) + padding, len(rows)
