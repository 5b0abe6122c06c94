"""A graph of ATen ops as an ONNX model, with the translations that PyTorch's own exporter has.

The exporter is asked node by node, so that a node it has no translation for is known by name, and the others can
still be taken. PyTorch makes no promise about these modules: all that is used of them is used here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx_ir as ir
from torch.onnx._internal.exporter import _core, _ir_passes, _registration
from torch.onnx._internal.fx.passes import InsertTypePromotion

from tunewright.tuner.peers.runtimes import FOREIGN_FAULTS, one_line

from .translations import TRANSLATIONS

WRITTEN_OPSET, OPSET, IR_VERSION = 18, 22, 10
"""What the exporter's translations are of, what takes bfloat16 everywhere, and the file's version that has it."""

CHANGED = frozenset({"DFT", "GridSample", "GroupNormalization"})
"""Ops that mean something else in the later opset."""

MOST_BYTES = 1 << 30
"""Of weights in the model itself. Such messages have two GiB at most."""


class Untranslated(Exception):
    """A node that has no translation: its name, "" where it is not known, and why."""

    def __init__(self, node: str, why: str) -> None:
        super().__init__(why)
        self.node = node


@cache
def registry() -> Any:
    """The translations by op. The first time takes a second."""
    with _silent(_registration):  # it warns of packages that are not installed
        known = _registration.ONNXRegistry.from_torchlib(WRITTEN_OPSET)
    for target, function in TRANSLATIONS.items():
        known.register_op(target, function)
    return known


@contextmanager
def _silent(module: ModuleType) -> Iterator[None]:
    """Have a module of the exporter warn of nothing: what matters is raised."""
    log = logging.getLogger(module.__name__)
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def is_known(target: Any) -> bool:
    """Whether there is a translation of the op, for some of its arguments at least."""
    return bool(registry().is_registered(target))


class OnnxWriter:
    """Writes a graph, of which some inputs are weights: constants whose values come last."""

    def __init__(self, module: Any) -> None:
        """`module` is an fx module of ATen ops, with examples. Raises Untranslated."""
        try:
            InsertTypePromotion(module).run()
        except FOREIGN_FAULTS as error:
            raise Untranslated("", one_line(error)) from error
        graph = ir.Graph([], [], nodes=[], name="graph")
        self._model = ir.Model(graph, ir_version=IR_VERSION, producer_name="tunewright")
        self._values: dict[str, Any] = {}
        self._inputs: list[Any] = []
        with _silent(_core):  # it warns where it can't tell of which module a node was
            self._translate(module.graph.nodes)
        for node in self._model.graph:
            node.metadata_props.clear()  # where in the program it comes from: paths of this machine
            node.doc_string = None
        _ir_passes.add_opset_imports(self._model)
        if CHANGED.isdisjoint(node.op_type for node in graph):
            graph.opset_imports[""] = OPSET

    def _translate(self, nodes: Sequence[Any]) -> None:
        constants: dict[Any, Any] = {}
        opset = _core._get_onnxscript_opset(registry().opset_version)  # noqa: SLF001
        graph = self._model.graph
        for node in nodes:
            match node.op:
                case "placeholder":
                    _core._handle_placeholder_node(  # noqa: SLF001
                        node, self._values, graph_like=graph, lower="at_conversion", opset=opset
                    )
                    self._inputs.append(self._values[node.name])
                case "call_function":
                    self._translate_call(node, constants, opset)
                case "output":
                    graph.outputs.extend(self._output(result) for result in node.args[0])

    def _translate_call(self, node: Any, constants: dict[Any, Any], opset: Any) -> None:
        try:
            _core._handle_call_function_node_with_lowering(  # noqa: SLF001
                self._model,
                node,
                self._values,
                graph_like=self._model.graph,
                constant_farm=constants,
                registry=registry(),
                opset=opset,
                node_name_to_local_functions={},
            )
        except FOREIGN_FAULTS as error:
            raise Untranslated(node.name, one_line(error)) from error

    def _output(self, node: Any) -> Any:
        """The value of an output, which nothing else may have: an input or an output twice gets a node of its own."""
        value = self._values[node.name]
        if value.producer() is not None and not value.is_graph_output():
            return value
        copy = ir.node("Identity", [value])
        self._model.graph.append(copy)
        copy.outputs[0].dtype, copy.outputs[0].shape = value.dtype, value.shape
        copy.outputs[0].name = f"{value.name}_copy{len(self._model.graph.outputs)}"
        return copy.outputs[0]

    @property
    def labels(self) -> list[str]:
        """The inputs' names, weights too."""
        return [value.name for value in self._inputs]

    def sizes(self, shapes: Mapping[int, Sequence[int]]) -> dict[str, int]:
        """The open dimensions by name, for these shapes by the number of the input."""
        return {
            str(extent.value): size
            for number, shape in shapes.items()
            for extent, size in zip(self._inputs[number].shape, shape, strict=True)
            if not isinstance(extent, int)
        }

    def model(self, weights: Mapping[int, Any], folder: Callable[[], Path]) -> bytes | Path:
        """The model with these weights, by the number of the input; what is none of them is an input.

        Where it is more than MOST_BYTES, a file in the folder.
        """
        graph = self._model.graph
        graph.inputs.clear()
        graph.initializers.clear()
        try:
            for number, value in enumerate(self._inputs):
                if number in weights:
                    value.const_value = _core.TorchTensor(weights[number].detach(), name=value.name)
                    graph.initializers[value.name] = value
                else:
                    graph.inputs.append(value)
            if sum(weight.nbytes for weight in weights.values()) <= MOST_BYTES:
                return bytes(ir.to_proto(self._model).SerializeToString())
            path = folder() / "graph.onnx"
            ir.save(self._model, path, external_data="weights")
            return path
        finally:
            for value in self._inputs:
                value.const_value = None
