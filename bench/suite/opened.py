"""Models of the suite with open dimensions: `OPEN_MODELS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx
from onnx import ModelProto, helper, numpy_helper

from .convolutional import resnet18
from .detection import ocr_detector, ocr_recogniser
from .language import whisper_decoder_merged
from .sequential import bert_base_s128


@dataclass(frozen=True, slots=True)
class SizeSteps:
    """Sizes of an open dimension: from the least to the largest, in steps."""

    least: int
    most: int
    step: int = 1


@dataclass(frozen=True, slots=True)
class OpenForm:
    """A static model, and which axes of its inputs are opened by name."""

    build: Callable[[], bytes]
    axes: Mapping[str, Mapping[int, str]]  # input -> axis -> dimension
    dimensions: Mapping[str, SizeSteps]
    words: str = ""  # the input whose second axis tells how many rows of the table of places are read

    def model(self) -> bytes:
        """The model with these axes open, and shapes told by what is there."""
        model = onnx.shape_inference.infer_shapes(onnx.load_from_string(self.build()))
        shapes = _shapes(model)
        tables = {tensor.name: tensor for tensor in model.graph.initializer}
        for node in model.graph.node:
            if node.op_type == "Reshape" and node.input[1] in tables:
                wanted = numpy_helper.to_array(tables[node.input[1]]).tolist()
                target = _open_target(shapes[node.input[0]], wanted)
                model.graph.initializer.append(numpy_helper.from_array(np.array(target), f"{node.output[0]}_target"))
                node.input[1] = f"{node.output[0]}_target"
        if self.words:
            _cut_places(model, self.words)
        for value in model.graph.input:
            for axis, name in self.axes.get(value.name, {}).items():
                dim = value.type.tensor_type.shape.dim[axis]
                dim.Clear()
                dim.dim_param = name
        for output in model.graph.output:
            output.CopyFrom(helper.make_tensor_value_info(output.name, output.type.tensor_type.elem_type, None))
        del model.graph.value_info[:]
        return bytes(model.SerializeToString())


def _shapes(model: ModelProto) -> dict[str, list[int]]:
    values = (*model.graph.input, *model.graph.value_info, *model.graph.output)
    shapes = {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in values}
    return shapes | {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}


def _open_target(shape: Sequence[int], target: Sequence[int]) -> list[int]:
    """A target that holds for other sizes of the leading axes: what is copied from them, then what is left over."""
    same = 0
    while same < min(len(shape), len(target)) and shape[same] == target[same]:
        same += 1
    rest = list(target[same:])
    if prod(shape[same:]) > 1 and rest and shape[same:] != rest and len(shape) - same == 1:
        rest[rest.index(max(rest))] = -1
    return [0] * same + rest


def _cut_places(model: ModelProto, ids: str) -> None:
    """Cut the table of places, [1, places, features], to as many as there are words."""
    [table] = [tensor.name for tensor in model.graph.initializer if len(tensor.dims) == 3 and tensor.dims[0] == 1]
    for name, value in (("places_0", [0]), ("places_1", [1])):
        model.graph.initializer.append(numpy_helper.from_array(np.array(value), name))
    for node in model.graph.node:
        node.input[:] = ["places" if name == table else name for name in node.input]
    count = helper.make_node("Shape", [ids], ["words"], start=1, end=2)
    cut = helper.make_node("Slice", [table, "places_0", "words", "places_1"], ["places"])
    nodes = [count, cut, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


PAST = {f"past.{layer}.{part}": {2: "past"} for layer in range(4) for part in ("key", "value")}

OPEN_MODELS: Mapping[str, OpenForm] = {
    "ocr_recogniser": OpenForm(ocr_recogniser, {"line": {3: "width"}}, {"width": SizeSteps(32, 640, 8)}),
    "ocr_detector": OpenForm(
        ocr_detector,
        {"image": {2: "height", 3: "width"}},
        {"height": SizeSteps(64, 320, 32), "width": SizeSteps(64, 320, 32)},
    ),
    "bert_base": OpenForm(
        bert_base_s128,
        {"ids": {0: "batch", 1: "words"}, "mask": {0: "batch", 1: "words"}},
        {"batch": SizeSteps(1, 4), "words": SizeSteps(4, 128)},
        words="ids",
    ),
    "resnet18": OpenForm(
        resnet18,
        {"image": {0: "batch", 2: "height", 3: "width"}},
        {"batch": SizeSteps(1, 4), "height": SizeSteps(64, 288, 32), "width": SizeSteps(64, 288, 32)},
    ),
    "whisper_decoder": OpenForm(whisper_decoder_merged, PAST, {"past": SizeSteps(1, 224)}),
}
"""Their names in `./dev bench sizes`."""
