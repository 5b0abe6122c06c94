"""Compiled models: an ONNX file with one node for a model, whose library lies beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from onnx import ModelProto, ValueInfoProto, helper

from tunewright.codegen.host import machine
from tunewright.graph.evaluation.onnx_form import element_type
from tunewright.graph.numerics import Precision
from tunewright.graph.onnx_import import faults_named, open_signature, read_model
from tunewright.graph.onnx_import.op_schema import CONTEXT_DOMAIN, CONTEXT_OP
from tunewright.tuner.arguments import (
    check_dims,
    check_model,
    check_path,
    check_precision,
    check_source,
    check_threads,
)
from tunewright.tuner.errors import Refused
from tunewright.tuner.files import write_whole
from tunewright.tuner.integration import CompiledFiles
from tunewright.tuner.lookup.source import ScheduleSource
from tunewright.tuner.session.image import ImagePort
from tunewright.tuner.session.library_model import LibraryModel

from .compiled_group import PREFIX
from .options import NAME

IR_VERSION, OPSET = 10, 21


def compile_model(
    model: Path | str,
    output: Path | str,
    *,
    dims: Mapping[str, int] | None = None,
    threads: int | None = None,
    db: str | None = None,
    server: str | None = None,
    precision: str = Precision.AS_GIVEN,
) -> CompiledFiles:
    """Write `output`, an ONNX file that a session with our provider opens at once, and beside it a library of the model
    and the model itself, which runs instead where a processor lacks what the code needs.

    `threads` are those that schedules are for; `dims` gives open dimensions a size by their name; `precision` as for
    `InferenceSession`. All nodes need
    kernels, and the model's weights are in its own file. Raises as `InferenceSession`, and OSError.
    """
    check_source(db, server)
    source, path = check_model(model), check_path("output", output)
    if isinstance(source, bytes) or path is None:
        raise Refused("a model is compiled from a file to a file")
    source = Path(source)
    if path.suffix != ".onnx":
        raise Refused(f"{str(path)!r} can't be written: it has to end in .onnx")
    library, original = path.with_suffix(".so"), path.with_name(f"{path.stem}.original.onnx")
    if source.resolve() in (path.resolve(), original.resolve()):
        raise Refused(
            f"{str(path)!r} can't be written: the model itself lies there, and stays as it is; name another file"
        )
    sizes = check_dims(dims, None)
    with faults_named(source):
        if open_signature(read_model(source)[0], sizes).weight_files:
            raise Refused(f"{source.name} keeps weights in other files; save it with them inside, by onnx.save")
    threads, precision = check_threads(threads), check_precision(precision)
    compiled = LibraryModel.compile(ScheduleSource(db, server), source, sizes, threads, precision)
    content = compiled.library(PREFIX)
    write_whole(library, content)
    write_whole(original, source.read_bytes())
    size = len(content)
    write_whole(path, _model(compiled, library, original, size).SerializeToString())
    return CompiledFiles(compiled.label, str(compiled.target), path, library, original, size, compiled.notes)


def _model(compiled: LibraryModel, library: Path, original: Path, size_bytes: int) -> ModelProto:
    """The model of one node."""
    image = compiled.image
    node = helper.make_node(
        CONTEXT_OP,
        [port.label for port in image.inputs],
        [port.label for port in image.outputs],
        domain=CONTEXT_DOMAIN,
        source=NAME,
        main_context=1,
        embed_mode=0,
        ep_cache_context=library.name,
        ep_sdk_version=str(machine()["tunewright"]),
        hardware_architecture=compiled.target.cpu,
        notes=json.dumps({"model": original.name, "size_bytes": size_bytes, "library": compiled.description}),
    )
    inputs, outputs = ([_value(port) for port in ports] for ports in (image.inputs, image.outputs))
    graph = helper.make_graph([node], "compiled", inputs, outputs)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(CONTEXT_DOMAIN, 1)]
    model: ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
    return model


def _value(port: ImagePort) -> ValueInfoProto:
    return helper.make_tensor_value_info(port.label, element_type(port.kind.dtype), list(port.kind.shape or ()))
