"""Tuning specs of IREE: a folder of MLIR files, which `--iree-codegen-tuning-spec-path` is given one of.

    gfx942.mlir    module attributes { iree_codegen.tuning_spec_with_default_entrypoint } { ... @__kernel_config ... }

The key is the name of the file, which IREE's own are called by the device; a spec tells all else itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tunewright.db.logs.entry import LogEntry, LogEnvironment

from .folder_format import TunedFile
from .tuned_folder import Place, TunedFolder

NAME = r"(?=.{1,200}\Z)[A-Za-z0-9_+-][A-Za-z0-9_.+-]*\.mlir"

MARKS = ("iree_codegen.tuning_spec", "@__kernel_config")
"""What each spec has: an attribute of its module, or of the entry, and the entry."""

ENVIRONMENT = LogEnvironment(toolchain="iree")


class IreeSpecs:
    """A folder of tuning specs."""

    name = "iree"

    def files(self, folder: TunedFolder) -> Iterator[TunedFile]:
        """The specs."""
        for place, data in folder.find(NAME):
            try:
                check_spec(data)
                yield TunedFile(place, LogEntry(place[-1], data, ENVIRONMENT))
            except ValueError as error:
                folder.left_out[place] = str(error)

    def place(self, entry: LogEntry) -> Place:
        """Where a spec is."""
        check_spec(entry.value)
        if re.fullmatch(NAME, entry.key) is None:
            raise ValueError("no tuning spec has such a name")
        if entry.environment != ENVIRONMENT:
            raise ValueError("its environment is not that of tuning specs")
        return (entry.key,)


IREE = IreeSpecs()


def check_spec(data: bytes) -> None:
    """Raises ValueError for what is no tuning spec, as a text: bytecode is of one version of IREE alone."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ValueError("it is no text, such as MLIR is") from error
    if not all(mark in text for mark in MARKS) or "\0" in text:
        raise ValueError("it is no tuning spec of IREE, which has an entry @__kernel_config")
