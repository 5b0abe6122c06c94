"""Damaged ONNX models: small ones of many kinds, and seeded ways to spoil their bytes.

`Mutations(seed).model(n)` is the n-th damaged model, the same for the same seed. Some damage is blind (bytes flipped,
cut off, moved), most knows protobuf's wire format, so that what comes out still parses and gets further in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tunewright.bench.light import light_model
from tunewright.graph.onnx_import.structure import strip

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

EXTREMES = (
    0, 1, 2, 7, 8, 16, 127, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, 1 << 63,
    (1 << 64) - 1,
)  # fmt: skip
"""Numbers that programs stumble over."""

TEXTS = (
    b"", b"\0", b"x", b"w", b"b", b"\xff\xfe", "ü\u202e\u0000".encode(), b"'; DROP TABLE jobs; --", b"A" * 5000,
    b"<script>alert(1)</script>", b"../../etc/passwd", b"\x1b[2J\r\n", b"ai.onnx.ml", b"If", b"Loop", b"Constant",
    b"Resize", b"Expand", b"tunewright:structure", b"batch", b"axis", b"value",
)  # fmt: skip
"""Texts that programs stumble over, and names that ONNX models have."""

DEPTH = 6
"""The deepest nesting of messages that are damaged."""


@dataclass(slots=True)
class Field:
    """One field of a message: its number, wire type, and value."""

    number: int
    wire: int
    value: int | bytes


class MalformedMessage(ValueError):
    """Bytes that are no protobuf message."""


def parse(data: bytes) -> list[Field]:
    """The fields of a message. Raises MalformedMessage."""
    fields, at = [], 0
    while at < len(data):
        tag, at = _decode_varint(data, at)
        number, wire = tag >> 3, tag & 7
        value: int | bytes
        if wire == 0:
            value, at = _decode_varint(data, at)
        elif wire == 2:
            length, at = _decode_varint(data, at)
            value, at = data[at : at + length], at + length
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            value, at = data[at : at + size], at + size
        else:
            raise MalformedMessage(f"wire type {wire}")
        if at > len(data) or number == 0:
            raise MalformedMessage("cut short")
        fields.append(Field(number, wire, value))
    return fields


def unparse(fields: Sequence[Field]) -> bytes:
    """The message of the fields."""
    data = bytearray()
    for field in fields:
        data += _encode_varint(field.number << 3 | field.wire)
        if isinstance(field.value, int):
            data += _encode_varint(field.value)
        else:
            data += (_encode_varint(len(field.value)) if field.wire == 2 else b"") + field.value
    return bytes(data)


def _decode_varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        value |= (data[at] & 127) << shift
        at += 1
        if data[at - 1] < 128:
            return value, at
    raise MalformedMessage("a number without end")


def _encode_varint(value: int) -> bytes:
    data = bytearray()
    while value > 127:
        data.append(value & 127 | 128)
        value >>= 7
    data.append(value)
    return bytes(data)


class Mutations:
    """Damaged models; each follows from the seed and its number."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self.corpus = corpus()

    def model(self, number: int) -> bytes:
        """The model of a number. Every hundredth is not damaged."""
        rng = np.random.default_rng([self._seed, number])
        data = self._pick_model(rng)
        if number % 100 == 0:
            return data
        for _ in range(int(rng.choice([1, 1, 1, 2, 4]))):
            damage = DAMAGES[int(rng.integers(len(DAMAGES)))]
            data = damage(self, rng, data)
        return data

    def _pick_model(self, rng: np.random.Generator) -> bytes:
        return self.corpus[rng.integers(len(self.corpus))]

    # Blind

    def flip_bytes(self, rng: np.random.Generator, data: bytes) -> bytes:
        """Change some bytes."""
        spoiled = bytearray(data)
        for _ in range(int(rng.integers(1, 17)) if spoiled else 0):
            spoiled[rng.integers(len(spoiled))] = int(rng.integers(256))
        return bytes(spoiled)

    def cut_short(self, rng: np.random.Generator, data: bytes) -> bytes:
        """Keep only a beginning."""
        return data[: rng.integers(len(data) + 1)]

    def splice(self, rng: np.random.Generator, data: bytes) -> bytes:
        """Replace a part by a part of another model, or insert that."""
        other = self._pick_model(rng)
        start, end = sorted(rng.integers(len(data) + 1, size=2))
        first, last = sorted(rng.integers(len(other) + 1, size=2))
        return data[:start] + other[first:last] + data[start if rng.random() < 0.5 else end :]

    # By messages

    def change_message(self, rng: np.random.Generator, data: bytes, depth: int = DEPTH) -> bytes:
        """Leave out, repeat, exchange, renumber or change fields of the message or of one inside."""
        try:
            fields = parse(data)
        except MalformedMessage:
            return self.flip_bytes(rng, data)
        if not fields:
            return data + unparse([Field(int(rng.integers(1, 30)), 0, int(rng.choice(EXTREMES[:12])))])
        sizes = np.sqrt([len(field.value) + 1 if isinstance(field.value, bytes) else 1 for field in fields])
        place = int(rng.choice(len(fields), p=sizes / sizes.sum()))
        field = fields[place]
        if depth and isinstance(field.value, bytes) and field.wire == 2 and rng.random() < 0.8:
            field.value = self.change_message(rng, field.value, depth - 1) if rng.random() < 0.9 else self._payload(rng)
            return unparse(fields)
        match int(rng.integers(6)):
            case 0:
                del fields[place]
            case 1:
                fields[place:place] = [field] * int(rng.choice([1, 2, 50]))
            case 2:
                other = int(rng.integers(len(fields)))
                fields[place].value, fields[other].value = fields[other].value, fields[place].value
                fields[place].wire, fields[other].wire = fields[other].wire, fields[place].wire
            case 3:
                field.number = int(rng.integers(1, 40))
            case _:
                field.value = EXTREMES[rng.integers(len(EXTREMES))] if field.wire == 0 else self._value(rng, field)
        return unparse(fields)

    def _value(self, rng: np.random.Generator, field: Field) -> bytes:
        assert isinstance(field.value, bytes)
        return self._payload(rng) if field.wire == 2 else rng.bytes(len(field.value))

    def _payload(self, rng: np.random.Generator) -> bytes:
        """A value for a field of bytes: a text, numbers, or a field of any model."""
        match int(rng.integers(3)):
            case 0:
                return TEXTS[rng.integers(len(TEXTS))]
            case 1:
                return b"".join(
                    _encode_varint(EXTREMES[rng.integers(len(EXTREMES))]) for _ in range(rng.integers(1, 9))
                )
        data = self._pick_model(rng)
        for _ in range(int(rng.integers(1, DEPTH))):
            try:
                parts = [field.value for field in parse(data) if isinstance(field.value, bytes)]
            except MalformedMessage:
                break
            if not parts:
                break
            data = parts[rng.integers(len(parts))]
        return data


Damage = Callable[[Mutations, np.random.Generator, bytes], bytes]

DAMAGES: Sequence[Damage] = (
    Mutations.flip_bytes, Mutations.cut_short, Mutations.splice, *[Mutations.change_message] * 15
)  # fmt: skip
"""Ways of damage, repeated by their frequency."""


def corpus() -> list[bytes]:
    """Small models: convolutions, control flow, functions, quantisation, texts; and the structures of all."""
    models = [
        model.SerializeToString()
        for model in (
            _network_model(),
            _if_model(),
            _function_model(),
            _quantised_model(),
            _text_model(),
            _loop_model(),
        )
    ]
    light = [light_model(name).SerializeToString() for name in ("squeezenet", "shufflenet")]
    return [*models, *(strip(data).data for data in (*models, *light))]


def _model(nodes: Sequence[NodeProto], weights: dict[str, object], **further: object) -> ModelProto:
    """A model with input "x", images of an open batch, and output "y"."""
    from onnx import TensorProto, helper, numpy_helper

    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 8, 8])
    y = helper.make_empty_tensor_value_info("y")
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()]
    graph = helper.make_graph(list(nodes), "g", [x], [y], tensors)
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10, **further)


def _random(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def _network_model() -> ModelProto:
    from onnx import helper

    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"]),
        node("Clip", ["n", "low", "high"], ["r"]),
        node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Shape", ["p"], ["shape"], end=1),
        node("Concat", ["shape", "rest"], ["flat"], axis=0),
        node("Reshape", ["p", "flat"], ["f"]),
        node("Gemm", ["f", "g"], ["z"], transB=1),
        node("Slice", ["z", "from", "to", "axis"], ["part"]),
        node("Softmax", ["part"], ["y"], axis=-1),
    ]
    rows = {name: abs(_random(12)) for name in ("b", "s", "m", "v")}
    numbers = {"low": np.float32(0), "high": np.float32(6), "rest": np.array([192])}
    slices = {"from": np.array([0]), "to": np.array([10]), "axis": np.array([1])}
    return _model(nodes, {"w": _random(12, 3, 3, 3), "g": _random(20, 192), **rows, **numbers, **slices})


def _if_model() -> ModelProto:
    from onnx import helper

    empty = helper.make_empty_tensor_value_info
    branches = [
        helper.make_graph([helper.make_node(op, ["x"], [op])], op, [], [empty(op)]) for op in ("Relu", "Sigmoid")
    ]
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], keepdims=0),
        helper.make_node("Greater", ["mean", "zero"], ["choice"]),
        helper.make_node("If", ["choice"], ["y"], then_branch=branches[0], else_branch=branches[1]),
    ]
    return _model(nodes, {"zero": np.float32(0)})


def _loop_model() -> ModelProto:
    from onnx import TensorProto, helper

    body = helper.make_graph(
        [helper.make_node("Mul", ["state", "w"], ["next"]), helper.make_node("Identity", ["go"], ["on"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, None),
        ],
        [helper.make_empty_tensor_value_info("on"), helper.make_empty_tensor_value_info("next")],
    )
    return _model([helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)], {"n": np.int64(2), "w": _random(8, 8)})


def _function_model() -> ModelProto:
    from onnx import helper

    inner = helper.make_node("Mul", ["a", "t"], ["b"])
    body = [helper.make_node("Tanh", ["a"], ["t"], name="tanh"), inner]
    function = helper.make_function("own", "Gate", ["a"], ["b"], body, [helper.make_opsetid("", 18)])
    calls = [helper.make_node("Gate", ["x"], ["h"], domain="own"), helper.make_node("Gate", ["h"], ["y"], domain="own")]
    return _model(calls, {}, functions=[function])


def _quantised_model() -> ModelProto:
    from onnx import helper

    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s", "p"], ["w"], axis=0),
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Resize", ["c", "", "scales"], ["y"], mode="nearest"),
    ]
    numbers = np.random.default_rng(0).integers(-128, 127, (12, 3, 3, 3)).astype(np.int8)
    scales = {"s": abs(_random(12)), "p": np.zeros(12, np.int8), "scales": np.array([1, 1, 2, 2], np.float32)}
    return _model(nodes, {"q": numbers, **scales})


def _text_model() -> ModelProto:
    from onnx import helper

    nodes = [
        helper.make_node("Constant", [], ["k"], value_ints=[0, 2, 1]),
        helper.make_node("Gather", ["x", "k"], ["g"], axis=1),
        helper.make_node("Einsum", ["g", "w"], ["e"], equation="nchw,wv->nchv"),
        helper.make_node("Pad", ["e", "pads"], ["y"], mode="reflect"),
    ]
    model = _model(nodes, {"w": _random(8, 9), "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1])})
    model.doc_string = "<b>a model</b>"
    model.metadata_props.add(key="author", value="'; DROP TABLE jobs; --")
    return model
