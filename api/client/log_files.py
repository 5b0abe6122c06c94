"""`tunewright log add`: files in which other tuners left what they found, as entries of the log."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from tunewright.db.logs.entry import LogEntry, LogEnvironment
from tunewright.db.logs.lines import entry_to_json
from tunewright.tuner.errors import Refused

from .folders.command import parse_texts
from .log_commands import post_lines

READERS = {"tvm": "tunewright.integrations.tvm.files", "t4": "tunewright.integrations.kernel_tuner.t4"}
"""What reads each kind of file. They are above this folder, so they are found by their names when they are needed."""


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
    try:
        if kind == "t4":
            if key is None or not device:
                raise Refused("a T4 file tells neither kernel nor device: give --key KERNEL and --device DEVICE")
            environment = LogEnvironment(device, "kernel_tuner", parse_texts("--version", versions))
            entries = import_module(READERS[kind]).entries_of(files, key, environment)
        elif key is not None or device or versions:
            raise Refused(f"files of {kind} tell keys and environments: leave out --key, --device and --version")
        else:
            entries = import_module(READERS[kind]).entries_of(files)
        with tempfile.TemporaryFile() as lines:
            lines.writelines(_lines(entries))
            return post_lines(server, namespace, lines)
    except ValueError as error:
        raise Refused(str(error)) from error


def _lines(entries: Iterator[LogEntry]) -> Iterator[bytes]:
    for entry in entries:
        yield json.dumps(entry_to_json(entry)).encode() + b"\n"
