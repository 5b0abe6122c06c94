"""The error of a precision: how far it moves the outputs of a whole model."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from tunewright.codegen.llvm.build import BuildError, ObjectCache
from tunewright.graph.onnx_import.outline import outline

from ..models.model import open_for
from ..session.agreement import float_errors
from ..session.executable import Executable, executable_of_schedules
from ..session.session import InferenceSession
from ..session.vendor import VendorModel

_log = logging.getLogger("tunewright")


def precision_errors(
    executable: Executable, source: VendorModel, feeds: Mapping[str, Any], objects: ObjectCache | None
) -> dict[str, float | None]:
    """The errors of a compiled model beside `source`, the same model as it is given, on the same inputs.

    As `float_errors`; the model as given runs on its default schedules. None are told of a structure, whose weights are
    made up, nor where the compiler refuses one of these.
    """
    if not outline(source.model).is_whole:
        return {}
    ours = _outputs(executable, feeds)
    given = open_for(executable.target, source.model, source.dims)
    try:
        reference = executable_of_schedules(given, executable.target, {}, objects)
    except BuildError as fault:  # the findings of the job stand
        _log.warning("the error of the precision is not known: %s", fault)
        return {}
    labels = [port.label for port in executable.image.outputs]
    return float_errors(labels, ours, _outputs(reference, feeds))


def _outputs(executable: Executable, feeds: Mapping[str, Any]) -> list[Any]:
    with InferenceSession.of_executable(executable) as session:
        return session.run(None, feeds)
