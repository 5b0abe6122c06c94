"""PickFile: picks on disk, as a task need not be scored twice by one cost model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tunewright.codegen.private_folder import PrivateFolder
from tunewright.search_space.schedule import Schedule

from ..files import SOURCES, code_digest
from .result import Pick

MOST_PICKS = 4000
"""Tasks of a file, the last ones: a pick takes 300 bytes."""

LIMIT_BYTES = 64 << 20
"""Bytes of all files; those not written for longest go."""


class PickFile:
    """The picks of one cost model for one target, by task key; None where nothing is better than the default.

    They are read when it is made, and written by `save`. A file that can't be read counts as empty, and one that can't
    be written is no error.
    """

    def __init__(self, folder: Path, key: Sequence[str]) -> None:
        self._path = folder / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()}.json"
        self._picks = self._read()
        self._fresh: dict[str, Pick | None] = {}

    @staticmethod
    def of(folder: Path, model: Sequence[str], target_key: str) -> PickFile | None:
        """The file of a cost model, told by the digests of its layers; None where the code can't be read.

        A pick depends on the code of the spaces and of the features too.
        """
        code = code_digest((*SOURCES, "costmodel"))
        return None if code is None else PickFile(folder, [code, *model, target_key])

    def __contains__(self, task_key: str) -> bool:
        return task_key in self._picks

    def __getitem__(self, task_key: str) -> Pick | None:
        return self._picks[task_key]

    def __setitem__(self, task_key: str, pick: Pick | None) -> None:
        self._picks[task_key] = self._fresh[task_key] = pick

    def save(self) -> None:
        """Write what was added, beside what others have written meanwhile."""
        if not self._fresh:
            return
        picks = list((self._read() | self._fresh).items())[-MOST_PICKS:]
        content = json.dumps({key: None if pick is None else _form(pick) for key, pick in picks})
        with suppress(OSError):
            files = PrivateFolder(self._path.parent)
            files.tidy(LIMIT_BYTES)
            files.write(self._path, [content.encode()])
        self._fresh = {}

    def _read(self) -> dict[str, Pick | None]:
        try:
            forms = json.loads(self._path.read_bytes())
            return {key: None if form is None else _pick(form) for key, form in forms.items()}
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return {}


def _form(pick: Pick) -> list[Any]:
    return [pick.schedule.to_json(), pick.time_s]


def _pick(form: Sequence[Any]) -> Pick:
    schedule, time_s = form
    return Pick(Schedule.from_json(schedule), float(time_s))
