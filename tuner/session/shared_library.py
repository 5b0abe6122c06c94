"""A compiled model as a shared library, for programs without Python: code, weights and pool of threads in one file."""

from __future__ import annotations

import json
import platform
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from string import Template
from typing import Any

from tunewright.codegen.artifact import Artifact
from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.llvm.shared_object import DataBlock, Group, data_object, link
from tunewright.codegen.runtime.control import Control
from tunewright.codegen.runtime.layout import BindingSlice, MovingOperand, Operand
from tunewright.codegen.runtime.library import ARCHITECTURES, STEP_SYMBOLS, emit_object, instance_text
from tunewright.codegen.runtime.pool import IDLE_S, PATIENCE_S, SPIN_S, STACK_BYTES
from tunewright.codegen.runtime.processor import requirements_of
from tunewright.codegen.runtime.static_program import (
    ARENA,
    AddressSpace,
    Source,
    StaticPort,
    functions_of,
    static_program,
)
from tunewright.codegen.target import Target

from ..errors import Refused
from ..text import op_counts
from .image import Area, Evaluation, Image, ImagePort, KernelCall, Location, is_whole_output

FUNCTIONS = ("describe", "missing", "open", "run", "close")
"""What programs call, each behind a prefix that the library has to itself."""

LONGEST_PREFIX = 31

PREFIX = re.compile(rf"[a-z][a-z0-9_]{{0,{LONGEST_PREFIX - 1}}}")


def shared_library(image: Image, target: Target, prefix: str, model_sha256: str) -> bytearray:
    """The library of a compiled model, whose functions are called `<prefix>_open` and so on: see `header`.

    `model_sha256` is the model's, for who asks the library to describe itself.

    Raises Refused where the model needs Python to run, or is not for an x86-64 processor.
    """
    if ARCHITECTURES.get(platform.machine().lower()) != "x86_64" or not target.triple.startswith("x86_64"):
        raise Refused(f"libraries are made on and for x86-64 processors, not for {target.triple}")
    return _Library(image, target, prefix, model_sha256).content()


class _Library:
    """Makes one library."""

    def __init__(self, image: Image, target: Target, prefix: str, model_sha256: str) -> None:
        self._image, self._target, self._prefix, self._model_sha256 = image, target, prefix, model_sha256
        self._space = AddressSpace()

    def content(self) -> bytearray:
        image = self._image
        if ops := Counter(node.op for step in image.steps if isinstance(step, Evaluation) for node in step.nodes):
            raise Refused(f"there is no kernel for {op_counts(ops)}: such nodes need Python and ONNX Runtime")
        calls: list[tuple[Artifact, Sequence[Operand]] | Control[Operand]] = []
        for step in image.steps:
            match step:
                case KernelCall(Artifact() as artifact, locations):
                    calls.append((artifact, [self._operand(location) for location in locations]))
                case Control():
                    calls.append(step.map(self._operand))
                case _:
                    raise Refused("libraries have kernels for processors alone")
        artifacts = [call[0] for call in calls if not isinstance(call, Control)]
        names = functions_of(artifacts)
        ports = (
            [self._port(port, "input", n) for n, port in enumerate(image.inputs)],
            [self._port(port, "output", n) for n, port in enumerate(image.outputs)],
        )
        requirements = requirements_of(self._target.features)
        try:
            blocks = static_program(calls, names, self._space, image.arena_bytes, ports, requirements)
            return link(self._groups(blocks, artifacts, names), list(self._exports().values()))
        except ValueError as error:
            raise Refused(f"no library can be made of the model: {error}") from error

    def _groups(
        self, blocks: list[DataBlock], artifacts: Sequence[Artifact], names: Sequence[Mapping[str, str]]
    ) -> list[Group]:
        """The data of the program, the constants, the kernels, and what runs them."""
        image = self._image
        constants = enumerate(image.constants)
        blocks += [DataBlock(f"{Area.CONSTANTS}{n}", block.data if block.nbytes else b"\0") for n, block in constants]
        blocks += [DataBlock(f"{Area.KEPT}{n}", array.tobytes() or b"\0") for n, array in enumerate(image.kept)]
        blocks.append(
            DataBlock("description", description(self._image, self._target, self._model_sha256).encode() + b"\0")
        )
        functions = {**self._exports(), **{name: name for name in STEP_SYMBOLS}}
        return [
            ([data_object(blocks)], {block.name: block.name for block in blocks}),
            *_kernel_groups(artifacts, names),
            ([emit_object(self._functions())], functions),
        ]

    def _exports(self) -> dict[str, str]:
        return {f"tw_model_{name}": f"{self._prefix}_{name}" for name in FUNCTIONS}

    def _operand(self, location: Location) -> Operand:
        base: int | BindingSlice
        match location.area:
            case Area.INPUT | Area.OUTPUT:
                base = BindingSlice(f"{location.area} {location.number}", location.offset_bytes)
            case _:
                base = self._space.address(_block(location), location.offset_bytes)
        return MovingOperand(base, location.moves) if location.moves else base

    def _port(self, port: ImagePort, side: str, number: int) -> StaticPort:
        kind, location = port.kind, port.value.location
        is_tensor = DType.of(kind.dtype) is not None and not (port.sizes or port.keys or port.map)
        if not is_tensor or kind.shape is None or location is None:
            raise Refused(f"{side} {port.label!r} is no tensor of numbers whose size is known before the model runs")
        of_bytes = kind.size_bytes
        name = f"{location.area} {location.number}"
        if location.area is Area.INPUT and side == "output":
            return StaticPort(of_bytes, "", Source("", location.offset_bytes, input=location.number))
        if side == "input":
            return StaticPort(of_bytes, name)
        if location.area is Area.OUTPUT:
            first = self._first_output(location.number)
            if first == number:
                return StaticPort(of_bytes, name)
            return StaticPort(of_bytes, "", Source("", location.offset_bytes, output=first))
        return StaticPort(of_bytes, "", Source(_block(location), location.offset_bytes))

    def _first_output(self, room: int) -> int:
        """The output that has all of a memory of outputs; others are copied from it. Raises Refused for none."""
        for number, port in enumerate(self._image.outputs):
            location = port.value.location
            if location is not None and location.number == room and is_whole_output(self._image, port):
                return number
        raise Refused(f"parts of output memory {room} alone are outputs, which no library gives")

    def _functions(self) -> str:
        """The functions that programs call, over those of instance.ll."""
        waits_ns = (round(wait_s * 1e9) for wait_s in (SPIN_S, PATIENCE_S, IDLE_S))
        times = ", ".join(f"i64 {number}" for number in (*waits_ns, STACK_BYTES))
        return f"""{instance_text("x86_64")}
@description = external global i8
define ptr @tw_model_describe() {{
  ret ptr @description
}}
define ptr @tw_model_missing() {{
  %name = call ptr @tw_missing()
  ret ptr %name
}}
define ptr @tw_model_open(i32 %threads) {{
  %count = sext i32 %threads to i64
  %instance = call ptr @tw_open(i64 %count, {times})
  ret ptr %instance
}}
define void @tw_model_run(ptr %instance, ptr %inputs, ptr %outputs) {{
  call void @tw_run_instance(ptr %instance, ptr %inputs, ptr %outputs)
  ret void
}}
define void @tw_model_close(ptr %instance) {{
  call void @tw_close(ptr %instance)
  ret void
}}
"""


def description(image: Image, target: Target, model_sha256: str) -> str:
    """What a library says of itself, as JSON."""

    def describe(ports: Sequence[ImagePort]) -> list[Mapping[str, Any]]:
        return [{"name": port.label, "type": port.kind.dtype, "shape": port.kind.shape} for port in ports]

    told = {"inputs": describe(image.inputs), "outputs": describe(image.outputs), "cpu": target.cpu}
    return json.dumps(told | {"model_sha256": model_sha256})


def _block(location: Location) -> str:
    """The name of the block that a location lies in."""
    return ARENA if location.area is Area.ARENA else f"{location.area}{location.number}"


def _kernel_groups(artifacts: Sequence[Artifact], names: Sequence[Mapping[str, str]]) -> list[Group]:
    """The objects of each kernel with the functions that steps call; equal code once."""
    shown: dict[tuple[bytes, ...], dict[str, str]] = {}
    for artifact, of_artifact in zip(artifacts, names, strict=True):
        shown.setdefault(artifact.objects, {}).update(of_artifact)
    return list(shown.items())


_HEADER = Template("""\
/* A model compiled by Tunewright $version for $cpu. Link the library, or load it by dlopen.
   Inputs and outputs are whole tensors, one element behind the other, the last axis fastest:
$ports */
#ifndef ${guard}_TUNEWRIGHT_H
#define ${guard}_TUNEWRIGHT_H
#ifdef __cplusplus
extern "C" {
#endif

typedef struct ${prefix}_model ${prefix}_model;

/* Inputs and outputs as JSON. */
const char *${prefix}_describe(void);
/* The name of what this processor lacks and the code needs; NULL if there is no such thing. */
const char *${prefix}_missing(void);
/* The model on so many threads, the caller's included; NULL where something is missing, or the system gives no more
   memory or threads. */
${prefix}_model *${prefix}_open(int threads);
/* Run it: an address of each input and output, in order, aligned to their elements; no two may overlap. Threads that
   share a model take turns. Kernels run on the caller's stack too, of which they may take megabytes. */
void ${prefix}_run(${prefix}_model *model, const void *const *inputs, void *const *outputs);
/* End it, when nobody runs it any more; nothing where it is NULL. */
void ${prefix}_close(${prefix}_model *model);

#ifdef __cplusplus
}
#endif
#endif
""")


def header(image: Image, target: Target, prefix: str, version: str) -> str:
    """The C header of the library."""
    lines = [
        f"     {side} {number}: {_comment(port.label)}, {port.kind}"
        for side, ports in (("input", image.inputs), ("output", image.outputs))
        for number, port in enumerate(ports)
    ]
    return _HEADER.substitute(
        version=version, cpu=target.cpu, ports="\n".join(lines), guard=prefix.upper(), prefix=prefix
    )


def _comment(text: str) -> str:
    """A name from a model within a comment: letters that can't end it."""
    return re.sub(r"[^A-Za-z0-9_.:\-\[\]]", "?", text)[:100]


def check_prefix(prefix: str) -> str:
    """The prefix. Raises Refused for one that is none of C's names."""
    if not PREFIX.fullmatch(prefix):
        raise Refused(
            f"{prefix[:80]!r} can't begin the names of functions: up to {LONGEST_PREFIX} small letters, digits and _ "
            "can, the first of them a letter; name the file otherwise with -o"
        )
    return prefix
