"""`tunewright log add`: files in which other tuners left what they found, as entries of the log."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from tunewright.db.logs.entry import LogEntry, LogEnvironment
from tunewright.db.logs.lines import entry_to_json
from tunewright.tuner.errors import Refused

from .folders.command import parse_texts
from .log_commands import post_lines


@dataclass(frozen=True, slots=True)
class FileKind:
    """What one tuner leaves in files."""

    name: str  # on the command line
    reader: str  # has `entries_of`; a module above this folder, so it is found by its name when it is needed
    toolchain: str | None = None  # of all in files that tell neither kernel nor device; None: they tell all themselves

    def origin(self, key: str | None, device: str, versions: Sequence[str]) -> tuple[()] | tuple[str, LogEnvironment]:
        """Key and environment of what is in the files, where they tell none. Raises Refused for options to no end."""
        if self.toolchain is None:
            if key is not None or device or versions:
                raise Refused(
                    f"files of {self.name} tell keys and environments: leave out --key, --device and --version"
                )
            return ()
        if key is None or not device:
            raise Refused(f"files of {self.name} tell neither kernel nor device: give --key KERNEL and --device DEVICE")
        return key, LogEnvironment(device, self.toolchain, parse_texts("--version", versions))


FILE_KINDS = {
    kind.name: kind
    for kind in (
        FileKind("tvm", "tunewright.integrations.tvm.files"),
        FileKind("t4", "tunewright.integrations.kernel_tuner.t4", toolchain="kernel_tuner"),
    )
}
"""By the name that the command line calls them."""


def add_files(
    server: str | None,
    namespace: str,
    files: Sequence[Path],
    kind: str,
    key: str | None = None,
    device: str = "",
    versions: Sequence[str] = (),
) -> dict[str, Any]:
    """Add what files of a kind tell. Raises Refused for options that mean nothing, and for files of another kind."""
    file_kind = FILE_KINDS[kind]
    try:
        origin = file_kind.origin(key, device, versions)
        entries = import_module(file_kind.reader).entries_of(files, *origin)
        with tempfile.TemporaryFile() as lines:
            lines.writelines(_lines(entries))
            return post_lines(server, namespace, lines)
    except ValueError as error:
        raise Refused(str(error)) from error


def _lines(entries: Iterator[LogEntry]) -> Iterator[bytes]:
    for entry in entries:
        yield json.dumps(entry_to_json(entry)).encode() + b"\n"
