"""A shared object of relocatable ones, for hosts that load libraries: what a linker would make. x86-64 alone.

It needs the C library and its mathematics, and nothing else. A group of objects sees no symbols of another group.
Source: System V ABI, "Program Loading and Dynamic Linking"; its supplement for x86-64, table of relocations.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from .elf import (
    HEADER,
    IDENTITY,
    RELOCATION,
    SECTION_HEADER,
    SHARED,
    SYMBOL,
    X86_64,
    ObjectFault,
    RelocatableObject,
    Relocation,
    Section,
    SectionEntry,
    SectionFlag,
    SectionKind,
    Symbol,
    read_object,
    section_table,
)

LIBRARIES = ("libm.so.6", "libpthread.so.0", "libc.so.6")
"""What a shared object needs. From glibc 2.34 on the second one is empty, and part of the last."""

PAGE_BYTES = 4096
WORD_BYTES = 8
STUB_BYTES = 16

_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
_LOAD, _DYNAMIC, _STACK = 1, 2, 0x6474E551  # types of segments
_READ, _WRITE, _EXECUTE = 4, 2, 1

# Relocations of x86-64.
_ABSOLUTE_64, _RELATIVE_32, _CALL_32, _TABLE_32 = 1, 2, 4, 9
_TABLE_32_RELAXED, _TABLE_32_RELAXED_REX = 41, 42
_FILL_TABLE, _ADD_BASE = 6, 8  # what the loader does
_RELATIVE = {_RELATIVE_32, _CALL_32}
_TABLE = {_TABLE_32, _TABLE_32_RELAXED, _TABLE_32_RELAXED_REX}

# Keys of the dynamic section.
_NEEDED, _HASH, _NAMES, _SYMBOLS, _RELOCATIONS = 1, 4, 5, 6, 7
_RELOCATIONS_BYTES, _RELOCATION_BYTES, _NAMES_BYTES, _SYMBOL_BYTES = 8, 9, 10, 11

_SKIPPED = (".eh_frame",)
"""Sections that nothing here reads: no exception passes through kernels."""

Group = tuple[Sequence[bytes | RelocatableObject], Mapping[str, str]]
"""Objects that see each other, and which of their symbols other groups see: symbol -> name there."""


@dataclass(frozen=True, slots=True)
class DataBlock:
    """Memory under a name that starts with a content. `pointers` are the words in it that get an address.

    By their offset: the name of what they point to, and a number of bytes to be added.
    """

    name: str
    content: bytes | memoryview
    pointers: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    alignment: int = 64


def data_object(blocks: Sequence[DataBlock]) -> RelocatableObject:
    """An object of data alone."""
    names = dict.fromkeys(name for block in blocks for name, _ in block.pointers.values())
    own = {block.name: number for number, block in enumerate(blocks)}
    symbols = [Symbol(block.name, number, 0, is_local=False) for number, block in enumerate(blocks)]
    symbols += [Symbol(name, None, 0, is_local=False) for name in names if name not in own]
    numbers = {symbol.name: number for number, symbol in enumerate(symbols)}
    sections = {
        number: Section(
            block.name,
            SectionFlag.ALLOCATE,
            block.alignment,
            len(block.content),
            block.content,
            tuple(Relocation(at, _ABSOLUTE_64, numbers[name], add) for at, (name, add) in block.pointers.items()),
        )
        for number, block in enumerate(blocks)
    }
    return RelocatableObject(sections, tuple(symbols))


class _Segment(Enum):
    """Parts of the file with one protection."""

    CONSTANT = _READ
    CODE = _READ | _EXECUTE
    DATA = _READ | _WRITE


_PARTS = (
    (_Segment.CONSTANT, ".rodata", SectionFlag.ALLOCATE),
    (_Segment.CODE, ".text", SectionFlag.ALLOCATE | SectionFlag.EXECUTE),
    (_Segment.DATA, ".data", SectionFlag.ALLOCATE | SectionFlag.WRITE),
)
"""The segments as sections, in the order of the file; the first of these is number 1."""


class _SectionId(NamedTuple):
    """A section of one of the objects."""

    group: int
    object: int
    section: int


def link(groups: Sequence[Group], exports: Collection[str]) -> bytearray:
    """The shared object as the bytes of its file, of which programs see `exports`, names that groups show each other.

    What a group takes and neither has nor is shown is taken from LIBRARIES when the object is loaded. Raises
    ObjectFault where objects are damaged or of another kind, and where one lacks a symbol that is to be seen.
    """
    return _Link(groups, exports).file()


@dataclass
class _Link:
    groups: Sequence[Group]
    exports: Collection[str]
    _shown: dict[str, tuple[int, str]] = field(init=False)  # name -> group, symbol
    _objects: list[list[RelocatableObject]] = field(init=False)
    _definitions: list[dict[str, tuple[int, int]]] = field(init=False)  # by group: name -> object, symbol's number
    _addresses: dict[_SectionId, int] = field(init=False, default_factory=dict)
    _imports: dict[str, int] = field(init=False, default_factory=dict)  # name -> its number
    _table: dict[tuple[int, int, int] | str, int] = field(
        init=False, default_factory=dict
    )  # symbol -> number of a word
    _stubs: dict[str, int] = field(init=False, default_factory=dict)  # import -> number of a stub
    _fixed: list[tuple[int, int]] = field(init=False, default_factory=list)  # address of a word, address in it

    def __post_init__(self) -> None:
        self._objects = [
            [item if isinstance(item, RelocatableObject) else read_object(item) for item in objects]
            for objects, _ in self.groups
        ]
        self._definitions = [_definitions(objects) for objects in self._objects]
        self._shown = {name: (n, symbol) for n, (_, shown) in enumerate(self.groups) for symbol, name in shown.items()}
        for name in (*self._shown, *self.exports):
            self._definition(name)
        self._collect()

    def _collect(self) -> None:
        """Count what is taken from elsewhere, and the words and stubs that stand for it."""
        for section_id, section in self._sections():
            for relocation in section.relocations:
                key = self._key(section_id, relocation.symbol)
                if isinstance(key, str) and relocation.kind == _ABSOLUTE_64:
                    raise ObjectFault(f"section {section.name} points to {key!r}, which no object has")
                if isinstance(key, str):
                    self._imports.setdefault(key, len(self._imports))
                if relocation.kind in _TABLE or isinstance(key, str):
                    self._table.setdefault(key, len(self._table))
                if relocation.kind in _RELATIVE and isinstance(key, str):
                    self._stubs.setdefault(key, len(self._stubs))

    def _sections(self) -> Iterator[tuple[_SectionId, Section]]:
        for group, objects in enumerate(self._objects):
            for number, item in enumerate(objects):
                for index, section in item.sections.items():
                    if section.flags & SectionFlag.THREAD_LOCAL:
                        raise ObjectFault(f"section {section.name} is for each thread, which is not linked here")
                    if not section.name.startswith(_SKIPPED):
                        yield _SectionId(group, number, index), section

    def _key(self, section_id: _SectionId, number: int) -> tuple[int, int, int] | str:
        """What a symbol of an object means: group, object and number of its definition, or the name of an import."""
        symbol = self._objects[section_id.group][section_id.object].symbols[number]
        if symbol.section is not None:
            return section_id.group, section_id.object, number
        if symbol.name in self._definitions[section_id.group]:
            return self._own_key(section_id.group, symbol.name)
        if symbol.name in self._shown:
            return self._own_key(*self._shown[symbol.name])
        return symbol.name

    def _own_key(self, group: int, name: str) -> tuple[int, int, int]:
        owner, number = self._definitions[group][name]
        return group, owner, number

    def _definition(self, name: str) -> tuple[int, int, Symbol]:
        """Group, object and symbol of what is shown under a name. Raises ObjectFault where no object has it."""
        group, symbol = self._shown.get(name, (0, name))
        if name not in self._shown or symbol not in self._definitions[group]:
            raise ObjectFault(f"no object has the symbol {symbol!r}, to be seen as {name!r}")
        owner, number = self._definitions[group][symbol]
        return group, owner, self._objects[group][owner].symbols[number]

    def _address(self, key: tuple[int, int, int]) -> int:
        group, owner, number = key
        symbol = self._objects[group][owner].symbols[number]
        assert symbol.section is not None
        return self._addresses[_SectionId(group, owner, symbol.section)] + symbol.value

    # The file

    def file(self) -> bytearray:
        tables = _DynamicTables(tuple(self._imports), tuple(self.exports))
        offsets = self._lay_out_file(tables)
        image = bytearray(offsets.end)
        self._write_sections(image, offsets)
        self._write_table(offsets)
        for name, number in self._stubs.items():
            _write_stub(image, offsets.stub(number), offsets.word(self._table[name]))
        loader = [(at, _ADD_BASE, address) for at, address in self._fixed]
        loader += [
            (offsets.word(self._table[name]), (1 + number) << 32 | _FILL_TABLE, 0)
            for name, number in self._imports.items()
        ]
        exports = [self._export(name) for name in self.exports]
        _put(image, offsets.symbols, tables.symbols([*[None] * len(self._imports), *exports]))
        _put(image, offsets.names, tables.names)
        _put(image, offsets.hashes, tables.hashes)
        _put(image, offsets.loader, b"".join(RELOCATION.pack(*entry) for entry in loader))
        _put(image, offsets.dynamic, tables.dynamic(offsets, len(loader)))
        sections, headers_at, count = section_table(_sections(offsets, tables), len(image))
        image += sections
        _put(image, 0, _headers(offsets.bounds, (offsets.dynamic, tables.dynamic_bytes), headers_at, count))
        return image

    def _lay_out_file(self, tables: _DynamicTables) -> _PartOffsets:
        """Room for all parts of the file."""
        words = sum(r.kind == _ABSOLUTE_64 for _, section in self._sections() for r in section.relocations)
        words += len(self._table)
        layout = _Layout(HEADER.size + 5 * _PROGRAM_HEADER.size)
        symbols = layout.room(tables.count * SYMBOL.size, WORD_BYTES)
        names = layout.room(len(tables.names), 1)
        hashes = layout.room(len(tables.hashes), WORD_BYTES)
        loader = layout.room(words * RELOCATION.size, WORD_BYTES)
        self._lay_out(layout, _Segment.CONSTANT)
        bounds = {_Segment.CONSTANT: (0, layout.end)}
        code = layout.page()
        self._lay_out(layout, _Segment.CODE)
        stubs = layout.room(len(self._stubs) * STUB_BYTES, STUB_BYTES)
        bounds[_Segment.CODE] = code, layout.end
        data = layout.page()
        dynamic = layout.room(tables.dynamic_bytes, WORD_BYTES)
        table = layout.room(len(self._table) * WORD_BYTES, WORD_BYTES)
        self._lay_out(layout, _Segment.DATA)
        bounds[_Segment.DATA] = data, layout.end
        return _PartOffsets(symbols, names, hashes, loader, stubs, dynamic, table, bounds)

    def _lay_out(self, layout: _Layout, segment: _Segment) -> None:
        for section_id, section in self._sections():
            if _segment(section) is segment:
                self._addresses[section_id] = layout.room(section.size_bytes, section.alignment)

    def _write_sections(self, image: bytearray, offsets: _PartOffsets) -> None:
        for section_id, section in self._sections():
            start = self._addresses[section_id]
            _put(image, start, section.content)
            for relocation in section.relocations:
                at, key = start + relocation.offset, self._key(section_id, relocation.symbol)
                if relocation.kind == _ABSOLUTE_64:
                    assert not isinstance(key, str)
                    self._fixed.append((at, self._address(key) + relocation.addend))
                    continue
                if relocation.kind in _TABLE:
                    target = offsets.word(self._table[key])
                elif relocation.kind in _RELATIVE:
                    target = offsets.stub(self._stubs[key]) if isinstance(key, str) else self._address(key)
                else:
                    raise ObjectFault(f"section {section.name} has a relocation of type {relocation.kind}")
                image[at : at + 4] = _distance(target + relocation.addend - at)

    def _write_table(self, offsets: _PartOffsets) -> None:
        for key, number in self._table.items():
            if not isinstance(key, str):
                self._fixed.append((offsets.word(number), self._address(key)))

    def _export(self, name: str) -> tuple[int, int, int]:
        """Address of a symbol, and the numbers of its kind and section."""
        group, owner, symbol = self._definition(name)
        assert symbol.section is not None
        section = self._objects[group][owner].sections[symbol.section]
        address = self._addresses[_SectionId(group, owner, symbol.section)] + symbol.value
        segments = [segment for segment, _, _ in _PARTS]
        number = 1 + segments.index(_segment(section))
        return address, 2 if section.flags & SectionFlag.EXECUTE else 1, number


def _definitions(objects: Sequence[RelocatableObject]) -> dict[str, tuple[int, int]]:
    """The symbols that the objects of a group give each other. Raises ObjectFault where two have one name."""
    found: dict[str, tuple[int, int]] = {}
    for owner, item in enumerate(objects):
        for number, symbol in enumerate(item.symbols):
            if symbol.section is None or symbol.is_local:
                continue
            if symbol.name in found:
                raise ObjectFault(f"two objects have the symbol {symbol.name!r}")
            found[symbol.name] = owner, number
    return found


@dataclass(frozen=True, slots=True)
class _PartOffsets:
    """Where the parts of the file are; addresses are offsets in it. `bounds` are those of segments."""

    symbols: int
    names: int
    hashes: int
    loader: int  # what the loader has to do
    stubs: int
    dynamic: int
    table: int
    bounds: Mapping[_Segment, tuple[int, int]]

    @property
    def end(self) -> int:
        return self.bounds[_Segment.DATA][1]

    def word(self, number: int) -> int:
        """A word of the table."""
        return self.table + number * WORD_BYTES

    def stub(self, number: int) -> int:
        return self.stubs + number * STUB_BYTES


class _DynamicTables:
    """What the loader reads: names, symbols, their hashes, and where all of it is."""

    def __init__(self, imports: Sequence[str], exports: Sequence[str]) -> None:
        self.names = b"\0"
        self._needed = [self._add(name) for name in LIBRARIES]
        self._offsets = [self._add(name) for name in (*imports, *exports)]
        self.count = 1 + len(self._offsets)  # the first is none
        chain = (number + 1 if 0 < number < self.count - 1 else 0 for number in range(self.count))
        one_bucket = (1, self.count, min(1, self.count - 1))
        self.hashes = struct.pack(f"<{3 + self.count}I", *one_bucket, *chain)
        self.dynamic_bytes = (len(LIBRARIES) + 9) * 2 * WORD_BYTES

    def _add(self, name: str) -> int:
        """Where the name begins."""
        start = len(self.names)
        self.names += name.encode() + b"\0"
        return start

    def symbols(self, definitions: Sequence[tuple[int, int, int] | None]) -> bytes:
        """Symbols with their address, kind and section, or None for imports."""
        rows = [SYMBOL.pack(0, 0, 0, 0, 0, 0)]
        for name, definition in zip(self._offsets, definitions, strict=True):
            address, kind, section = definition or (0, 0, 0)
            rows.append(SYMBOL.pack(name, 0x10 | kind, 0, section, address, 0))
        return b"".join(rows)

    def dynamic(self, offsets: _PartOffsets, loader_entries: int) -> bytes:
        entries = [(_NEEDED, offset) for offset in self._needed]
        entries += [(_HASH, offsets.hashes), (_NAMES, offsets.names), (_SYMBOLS, offsets.symbols)]
        entries += [(_RELOCATIONS, offsets.loader), (_RELOCATIONS_BYTES, loader_entries * RELOCATION.size)]
        entries += [(_RELOCATION_BYTES, RELOCATION.size), (_NAMES_BYTES, len(self.names))]
        entries += [(_SYMBOL_BYTES, SYMBOL.size), (0, 0)]
        return b"".join(struct.pack("<QQ", *entry) for entry in entries)


class _Layout:
    """Hands out room, from the beginning of the file on; addresses are offsets in it."""

    def __init__(self, start: int) -> None:
        self.end = start

    def room(self, size_bytes: int, alignment: int) -> int:
        start = -(-self.end // alignment) * alignment
        self.end = start + size_bytes
        return start

    def page(self) -> int:
        return self.room(0, PAGE_BYTES)


def _segment(section: Section) -> _Segment:
    if section.flags & SectionFlag.EXECUTE:
        return _Segment.CODE
    has_words = any(relocation.kind == _ABSOLUTE_64 for relocation in section.relocations)  # which the loader writes
    return _Segment.DATA if section.flags & SectionFlag.WRITE or has_words else _Segment.CONSTANT


def _put(image: bytearray, at: int, content: bytes | memoryview) -> None:
    image[at : at + len(content)] = content


def _distance(number: int) -> bytes:
    try:
        return struct.pack("<i", number)
    except struct.error as error:
        raise ObjectFault(f"two parts are {number:,} bytes apart, more than code can reach") from error


def _write_stub(image: bytearray, at: int, word_at: int) -> None:
    """`jmp *[rip + distance]`: Intel SDM, volume 2, JMP, FF /4."""
    _put(image, at, b"\xff\x25" + _distance(word_at - (at + 6)))


def _sections(offsets: _PartOffsets, tables: _DynamicTables) -> list[SectionEntry]:
    """What programs that link to the file look for: its symbols, and the parts that these lie in."""
    loaded = SectionFlag.ALLOCATE
    parts = [
        SectionEntry(name, SectionKind.PROGRAM, flags, start, end - start)
        for (_, name, flags), (start, end) in zip(_PARTS, offsets.bounds.values(), strict=True)
    ]
    return [
        *parts,
        SectionEntry(".dynstr", SectionKind.TEXTS, loaded, offsets.names, len(tables.names)),
        SectionEntry(
            ".dynsym", SectionKind.LINKED_SYMBOLS, loaded, offsets.symbols, tables.count * SYMBOL.size, 4, SYMBOL.size
        ),
        SectionEntry(".hash", SectionKind.HASHES, loaded, offsets.hashes, len(tables.hashes), 5, 4),
        SectionEntry(
            ".dynamic", SectionKind.DYNAMIC, loaded | SectionFlag.WRITE, offsets.dynamic, tables.dynamic_bytes, 4, 16
        ),
    ]


def _headers(
    bounds: Mapping[_Segment, tuple[int, int]], dynamic: tuple[int, int], sections_at: int, count: int
) -> bytes:
    """The header of the file, and those of its segments."""
    segments = [
        _PROGRAM_HEADER.pack(_LOAD, segment.value, start, start, start, end - start, end - start, PAGE_BYTES)
        for segment, (start, end) in bounds.items()
    ]
    at, size = dynamic
    segments.append(_PROGRAM_HEADER.pack(_DYNAMIC, _READ | _WRITE, at, at, at, size, size, WORD_BYTES))
    segments.append(_PROGRAM_HEADER.pack(_STACK, _READ | _WRITE, 0, 0, 0, 0, 0, 16))
    header = HEADER.pack(
        IDENTITY.ljust(16, b"\0"), SHARED, X86_64, 1, 0, HEADER.size, sections_at, 0,
        HEADER.size, _PROGRAM_HEADER.size, len(segments), SECTION_HEADER.size, count, count - 1,
    )  # fmt: skip
    return header + b"".join(segments)
