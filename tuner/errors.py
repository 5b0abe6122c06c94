"""Errors that the user can mend: they end in one line, not in a traceback."""

from __future__ import annotations


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
            return f"{name!r}: {reason}"
        case MemoryError():
            return f"not enough memory: {error}" if str(error) else "not enough memory"
        case _:
            return " ".join(str(error).split()) or type(error).__name__
