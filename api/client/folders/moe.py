"""Tables of fused mixtures of experts: a JSON file for each sizes, device and precision, by which it is named.

    E=256,N=128,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json
    {"triton_version": "3.6.0", "1": {"BLOCK_SIZE_M": 16, ...}, "64": {...}}

vLLM has them in one folder, and some files say for which Triton they are; it reads them for any. SGLang has a folder
for each version of Triton, `configs/triton_3_6_0`. The key is the name; the device and Triton are the environment.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

from tunewright.db.logs.entry import LogEntry, LogEnvironment

from .folder_format import TunedFile, read_object
from .tuned_folder import Place, TunedFolder

NAME = (
    r"(?=.{1,200}\Z)E=\d{1,9},N=\d{1,9},device_name=([A-Za-z0-9_.()+-]+)"
    r"((,[A-Za-z_]+=(\[[0-9, ]+\][a-z_]*|[A-Za-z0-9_.+-]+))*)\.json"
)
"""Of a file. SGLang's second product has `_down` at the end; its shapes of blocks have a space in them."""

SECOND = "_down"

TRITON_FOLDER = r"triton_[A-Za-z0-9_+-]{1,60}"

TRITON = "triton"

VERSION = "triton_version"
"""In tables of vLLM, beside the sizes of batches."""


class MoeTables(ABC):
    """What both have."""

    name: str
    above: Place

    def files(self, folder: TunedFolder) -> Iterator[TunedFile]:
        """The tables."""
        for place, data in folder.find(*self.above, NAME):
            try:
                entry = LogEntry(place[-1], data, self._environment(place, check_table(data)))
                yield TunedFile(place, entry)
            except ValueError as error:
                folder.left_out[place] = str(error)

    def _environment(self, place: Place, table: Mapping[str, Any]) -> LogEnvironment:
        found = re.fullmatch(NAME, place[-1])
        if found is None:
            raise ValueError("no table has such a name")
        triton = self._triton(place, table)
        return LogEnvironment(found[1].removesuffix(SECOND), self.name, {TRITON: triton} if triton else {})

    @abstractmethod
    def _triton(self, place: Place, table: Mapping[str, Any]) -> str:
        """The version that a table is for; empty where nothing says."""

    def place(self, entry: LogEntry) -> Place:
        """Where it looks for a table."""
        place = (*self._folders(entry.environment), entry.key)
        if self._environment(place, check_table(entry.value)) != entry.environment:
            raise ValueError("its environment is not what the file says")
        return place

    @abstractmethod
    def _folders(self, environment: LogEnvironment) -> Place:
        """The folders that a table is in. Raises ValueError."""


class VllmMoe(MoeTables):
    """`VLLM_TUNED_CONFIG_FOLDER`."""

    name = "vllm-moe"
    above = ()

    def _triton(self, place: Place, table: Mapping[str, Any]) -> str:
        return str(table.get(VERSION, ""))

    def _folders(self, environment: LogEnvironment) -> Place:
        return ()


class SglangMoe(MoeTables):
    """`SGLANG_MOE_CONFIG_DIR`."""

    name = "sglang-moe"
    above = ("configs", TRITON_FOLDER)

    def _triton(self, place: Place, table: Mapping[str, Any]) -> str:
        return place[1].removeprefix("triton_").replace("_", ".")

    def _folders(self, environment: LogEnvironment) -> Place:
        folder = f"triton_{environment.versions.get(TRITON, '').replace('.', '_')}"
        if re.fullmatch(TRITON_FOLDER, folder) is None:
            raise ValueError("it is of no version of Triton")
        return "configs", folder


VLLM_MOE, SGLANG_MOE = VllmMoe(), SglangMoe()


def check_table(data: bytes) -> Mapping[str, Any]:
    """A table, if the programs can read it. Raises ValueError."""
    table = read_object(data)
    if not isinstance(table.get(VERSION, ""), str):
        raise ValueError("its version of Triton is no text")
    rows = {size: row for size, row in table.items() if size != VERSION}
    if not rows or not all(re.fullmatch(r"[0-9]{1,9}", size) and _is_row(row) for size, row in rows.items()):
        raise ValueError("it is no table of configs by sizes of batches")
    return table


def _is_row(row: Any) -> bool:
    return isinstance(row, dict) and bool(row) and not any(isinstance(value, dict | list) for value in row.values())
