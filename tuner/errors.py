"""Errors that the user can mend: they end in one line, not in a traceback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

MENDS: dict[type[OSError], str] = {
    FileExistsError: "it is a file, where a folder is needed: name another one",
    NotADirectoryError: "a part of it is a file, where a folder is needed: name another place",
    IsADirectoryError: "it is a folder, where a file is needed: name a file in it",
    FileNotFoundError: "check the name",
    PermissionError: "this account may not; name another place, or let it",
}
"""What to do where the system only says what is wrong with a path."""


class Refused(Exception):
    """A request that can't be carried out and that the user can mend: one line says how."""


class Unavailable(Exception):
    """A required service or device that does not work or can't be reached: one line says which."""


class InputError(ValueError):
    """The arrays given to a session are not what the model takes: one line."""


def refusals() -> tuple[type[BaseException], ...]:
    """Every exception that is meant for the user. For an `except` clause, which evaluates it when one is raised."""
    from tunewright.codegen.cuda.driver import DeviceFault, Unloadable
    from tunewright.codegen.llvm.build import BuildError
    from tunewright.codegen.runtime.control import ProgramStop
    from tunewright.db.errors import StoreError
    from tunewright.graph.evaluation.fallback import EvaluationError
    from tunewright.graph.onnx_import import ModelError

    ours = Refused, ModelError, InputError, StoreError, EvaluationError, ProgramStop, BuildError
    return *ours, DeviceFault, Unloadable, OSError, MemoryError


def message(error: BaseException) -> str:
    """One line for people."""
    match error:
        case OSError(strerror=str(reason), filename=name) if name is not None:
            mend = _mend(error, name)
            return f"{name!r}: {reason}; {mend}" if mend else f"{name!r}: {reason}"
        case OSError(strerror=str(reason)):
            return reason
        case MemoryError():
            return f"not enough memory: {error}" if str(error) else "not enough memory"
        case _:
            return " ".join(str(error).split()) or type(error).__name__


def _mend(error: OSError, name: Any) -> str | None:
    """What to do about a path that the system refused; None where it has said enough."""
    if isinstance(error, FileNotFoundError) and isinstance(name, str) and not (folder := Path(name).parent).is_dir():
        return f"check the name: there is no folder {str(folder)!r}"
    return MENDS.get(type(error))
