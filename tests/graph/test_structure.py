"""A structure has the tasks of the full model and nothing that was learned or named."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tunewright.bench.light import LIGHT_MODELS, light_model
from tunewright.bench.onnx_cases import all_cases, model_of
from tunewright.graph.fusion.fusion import Fallback, TaskCall
from tunewright.graph.onnx_import import ModelError, load
from tunewright.graph.onnx_import.placeholders import BLOCK, LOCATION, Placeholder
from tunewright.graph.onnx_import.structure import MAX_KEPT, Structure, strip
from tunewright.tuner.models.model import open_model

RNG = np.random.default_rng(7)


def outline(model: bytes, dims: dict[str, int] | None = None) -> list[Any]:
    """Everything that must be the same: tasks in order with their occurrences, and what falls back and why."""
    opened = open_model(model, dims)
    steps = [
        step.task.key if isinstance(step, TaskCall) else getattr(step, "reason", "view")
        for step in opened.steps
        if isinstance(step, TaskCall | Fallback)
    ]
    return [steps, [(key, count) for key, (_, count) in opened.tasks.items()]]


def check(model: bytes | Path, dims: dict[str, int] | None = None) -> Structure:
    """The structure, whose tasks are the model's, and whose structure it is itself."""
    full = model if isinstance(model, bytes) else model.read_bytes()
    structure = strip(model)
    if isinstance(model, bytes):
        assert outline(structure.data, dims) == outline(full, dims)
    else:
        assert list(open_model(structure.data, dims).tasks) == list(open_model(model, dims).tasks)
    assert strip(model).data == structure.data
    again = strip(structure.data)
    assert again.data == structure.data
    assert (again.left_out, again.left_out_bytes) == (structure.left_out, structure.left_out_bytes)
    return structure


def made(
    nodes: Sequence[Any],
    weights: dict[str, Any],
    x: Sequence[int | str] = (2, 8, 6, 6),
    opset: int = 18,
    outputs: Sequence[str] = ("y",),
    **further: Any,
) -> bytes:
    """A model of one input "x"."""
    graph = helper.make_graph(
        nodes,
        "secret_graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(x))],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    imports = [helper.make_opsetid("", opset), *further.pop("imports", ())]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10, **further)
    return bytes(model.SerializeToString())


def node(op: str, inputs: str, outputs: str = "y", **attrs: Any) -> Any:
    return helper.make_node(op, inputs.split(), outputs.split(), **attrs)


def random(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


HALVES = random(128, 256).astype(np.float16).astype(np.float32)
BRAINS = random(128, 256).astype(ml_dtypes.bfloat16).astype(np.float32)
"""Large enough to be kept in the type that has all their values."""

LIGHT = sorted({*LIGHT_MODELS} - {"vgg19", "zfnet512"})
"""Without those of which alexnet has every op, and which are hundreds of megabytes of the same."""


@pytest.mark.slow
@pytest.mark.parametrize("name", LIGHT)
def test_a_light_model(name: str) -> None:
    data = light_model(name).SerializeToString()
    structure = strip(data)
    assert outline(structure.data) == outline(data)
    assert strip(structure.data).data == structure.data
    assert structure.left_out_bytes > 0.99 * len(data) - 100_000
    assert len(structure.data) < 128 << 10


def arrays(case: Any) -> list[Any]:
    """The inputs of a case."""
    if case.data_sets:
        return list(case.data_sets[0][0])
    files = Path(case.model_dir or "none").glob("test_data_set_0/input_*.pb")
    return [numpy_helper.to_array(onnx.load_tensor(file)) for file in sorted(files, key=lambda f: int(f.stem[6:]))]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_conformance_cases_with_inputs_as_weights(part: int) -> None:
    """All inputs but the first become weights, which is hard on what depends on values."""
    checked = 0
    for case in all_cases()[part::8]:
        model = model_of(case)
        if any(value.type.WhichOneof("value") != "tensor_type" for value in model.graph.input):
            continue
        bound = ModelProto.FromString(model.SerializeToString())
        known = {tensor.name for tensor in model.graph.initializer}
        inputs = [value for value in model.graph.input if value.name not in known]
        for value, array in list(zip(inputs, arrays(case), strict=False))[1:]:
            if isinstance(array, np.ndarray | np.generic):
                bound.graph.initializer.append(numpy_helper.from_array(np.asarray(array), value.name))
        try:
            structure = strip(bound.SerializeToString())
            if structure.left_out:
                check(bound.SerializeToString())
                checked += 1
        except ModelError:
            with pytest.raises(ModelError):
                open_model(bound.SerializeToString())
    assert checked > 40


CHANNELS, H = 12, 32
"""Channels, and the extent of rows: more than MAX_KEPT."""

IMAGE = (2, 8, 6, 6)

GELU = [
    node("Mul", "x half_root", "a"),
    node("Erf", "a", "b"),
    node("Add", "b one", "c"),
    node("Mul", "x c", "d"),
    node("Mul", "d half"),
]

LAYER_NORM = [
    node("ReduceMean", "x", "m", axes=[-1]),
    node("Sub", "x m", "d"),
    node("Pow", "d two", "s"),
    node("ReduceMean", "s", "v", axes=[-1]),
    node("Add", "v epsilon", "e"),
    node("Sqrt", "e", "r"),
    node("Div", "d r", "q"),
    node("Mul", "q scale", "t"),
    node("Add", "t bias"),
]


def norm(**parameters: Any) -> dict[str, Any]:
    rows = {"scale": random(CHANNELS), "bias": random(CHANNELS), "mean": random(CHANNELS)}
    return {**rows, "variance": RNG.random(CHANNELS, np.float32) + 0.5, **parameters}


BATCH_NORM = node("BatchNormalization", "x scale bias mean variance")
ONES, ZEROS = np.ones(CHANNELS, np.float32), np.zeros(CHANNELS, np.float32)
FULL = np.float32
IMAGES = (2, CHANNELS, 6, 6)
TABLE = random(40, 16)

MODELS = {
    "batch norm": made([BATCH_NORM], norm(), IMAGES),
    "batch norm that does nothing": made(
        [node("BatchNormalization", "x scale bias mean variance", epsilon=0.0)],
        norm(scale=ONES, bias=ZEROS, mean=ZEROS, variance=ONES),
        IMAGES,
    ),
    "batch norm with one scale": made([BATCH_NORM], norm(scale=2 * ONES, mean=ZEROS, variance=ONES), IMAGES),
    "batch norm of dead channels": made([BATCH_NORM], norm(variance=np.abs(ZEROS), scale=ZEROS), IMAGES),
    "convolution and batch norm": made(
        [node("Conv", "x w", "c"), node("BatchNormalization", "c scale bias mean variance", "n"), node("Relu", "n")],
        norm(w=random(CHANNELS, 8, 3, 3)),
    ),
    "layer norm in pieces": made(
        LAYER_NORM,
        {"two": FULL(2), "epsilon": FULL(1e-5), "scale": random(H), "bias": random(H)},
        (4, H),
        opset=17,
    ),
    "layer norm of ones": made(
        LAYER_NORM,
        {"two": FULL(2), "epsilon": FULL(1e-5), "scale": np.ones(H, FULL), "bias": np.zeros(H, FULL)},
        (4, H),
        opset=17,
    ),
    "gelu": made(GELU, {"half_root": FULL(0.70710678), "one": FULL(1), "half": FULL(0.5)}),
    "gelu with full constants": made(
        GELU,
        {name: np.full(IMAGE, value, FULL) for name, value in [("half_root", 0.5**0.5), ("one", 1), ("half", 0.5)]},
    ),
    "no gelu": made(GELU, {"half_root": random(6, 6), "one": random(6, 6), "half": random(6, 6)}),
    "clip": made([node("Clip", "x low high")], {"low": FULL(0), "high": FULL(6)}),
    "power": made([node("Pow", "x e")], {"e": np.full((6, 6), 2, FULL)}),
    "mask": made(
        [node("Add", "x mask", "a"), node("Softmax", "a", axis=-1)],
        {"mask": np.triu(np.full((16, 16), -np.inf, FULL), 1)},
        (2, 4, 16, 16),
    ),
    "chosen by a mask": made([node("Where", "mask x w")], {"mask": RNG.random((6, 6)) > 0.5, "w": random(6, 6)}),
    "chosen everywhere": made([node("Where", "mask x w")], {"mask": np.ones((6, 6), bool), "w": random(6, 6)}),
    "pads": made(
        [node("Pad", "x pads zero", "p"), node("Conv", "p w")],
        {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "zero": FULL(0), "w": random(4, 8, 3, 3)},
    ),
    "quantised": made(
        [
            node("DequantizeLinear", "q scale point", "w", axis=0),
            node("Conv", "x w b", "c"),
            node("QuantizeLinear", "c s p", "i"),
            node("DequantizeLinear", "i s p"),
        ],
        {
            "q": RNG.integers(-128, 127, (CHANNELS, 8, 3, 3)).astype(np.int8),
            "scale": RNG.random(CHANNELS, FULL),
            "point": np.zeros(CHANNELS, np.int8),
            "b": random(CHANNELS),
            "s": FULL(0.1),
            "p": np.uint8(128),
        },
    ),
    "tied weights": made(
        [
            node("MatMul", "x w", "a"),
            node("Transpose", "w", "t"),
            node("MatMul", "a t", "b"),
            node("Gather", "w k", "row"),
            node("Add", "b row"),
        ],
        {"w": random(16, 16), "k": np.array([3])},
        (4, 16),
    ),
    "equal tensors": made(
        [node("Add", "x v", "a"), node("Add", "x w", "b"), node("Mul", "a b")], {"v": TABLE, "w": TABLE}, (40, 16)
    ),
    "equal tensors of other extents": made(
        [node("Reshape", "v s", "r"), node("Add", "x r", "a"), node("Add", "x w", "b"), node("Mul", "a b")],
        {"v": TABLE, "s": np.array([16, 40]), "w": TABLE.reshape(16, 40)},
        (16, 40),
    ),
    "unequal tensors": made(
        [node("Add", "x v", "a"), node("Add", "x w", "b"), node("Mul", "a b")], {"v": TABLE, "w": -TABLE}, (40, 16)
    ),
    "zeros and ones": made(
        [node("Mul", "x ones", "a"), node("Add", "a zeros", "b"), node("Add", "b mixed")],
        {
            "ones": np.ones((6, 6), FULL),
            "zeros": np.zeros((6, 6), FULL),
            "mixed": np.where(RNG.random((6, 6)) > 0.5, FULL(0), FULL(-0.0)),
        },
    ),
    "not a number": made([node("Add", "x w")], {"w": np.full((6, 6), np.nan, FULL)}),
    "divided by weights": made([node("Div", "x w")], {"w": RNG.random((6, 6), FULL) + 0.5}),
    "divided by zeros among others": made([node("Div", "x w")], {"w": np.arange(36, dtype=FULL).reshape(6, 6)}),
    "divided by tiny ones": made([node("Div", "x w")], {"w": np.geomspace(1e-44, 1, 36, dtype=FULL).reshape(6, 6)}),
    "scaled by the mean of a weight": made(
        [node("ReduceMean", "w", "m", keepdims=0), node("Mul", "x m")], {"w": random(40, 16)}
    ),
    "scaled by an element of a weight": made(
        [node("Gather", "w k", "e"), node("Mul", "x e", "a"), node("MatMul", "a v")],
        {"w": random(100), "k": np.int64(17), "v": random(6, 20)},
    ),
    "weights split to scalars": made(
        [node("Split", "w", "a b c", num_outputs=3), node("Mul", "x a", "d"), node("Add", "d b")], {"w": random(18)}
    ),
    "weights split to scalars and more": made(
        [node("Split", "w s", "a b"), node("Mul", "x a", "d"), node("Add", "d b")],
        {"w": random(37), "s": np.array([1, 36])},
        (4, 36),
    ),
    "pruned by value": made(
        [
            node("Greater", "w zero", "g"),
            node("NonZero", "g", "n"),
            node("Squeeze", "n axes", "k"),
            node("Gather", "x k", axis=1),
        ],
        {"w": random(8), "zero": FULL(0), "axes": np.array([0])},
        opset=13,
    ),
    "chosen by value": made(
        [
            node("ReduceMean", "w", "m", keepdims=0),
            node("Greater", "m zero", "g"),
            helper.make_node(
                "If",
                ["g"],
                ["y"],
                then_branch=helper.make_graph(
                    [node("Relu", "x", "inner")], "then", [], [helper.make_empty_tensor_value_info("inner")]
                ),
                else_branch=helper.make_graph(
                    [node("MatMul", "x v", "inner")],
                    "else",
                    [],
                    [helper.make_empty_tensor_value_info("inner")],
                    [numpy_helper.from_array(random(6, 20), "v")],
                ),
            ),
        ],
        {"w": random(40, 16), "zero": FULL(0)},
    ),
    "weights kept as indices": made([node("Cast", "w", "k", to=7), node("Gather", "x k", axis=1)], {"w": ZEROS + 3.0}),
    "indices of weights": made(
        [node("Cast", "w", "k", to=7), node("Gather", "x k", axis=1)],
        {"w": RNG.integers(0, 8, 20).astype(FULL)},
    ),
    "constants in nodes": made(
        [
            node("Constant", "", "w", value=numpy_helper.from_array(random(6, 20))),
            node("Constant", "", "b", value_floats=random(20).tolist()),
            node("Constant", "", "s", value_float=0.5),
            node("MatMul", "x w", "a"),
            node("Add", "a b", "c"),
            node("Mul", "c s"),
        ],
        {},
    ),
    "a constant as output": made(
        [node("Relu", "x", "y"), node("Identity", "w", "z")], {"w": random(3, 4)}, outputs=("y", "z")
    ),
    "a weight as output": made([node("Add", "x w")], {"w": random(6, 6)}, outputs=("y", "w")),
    "half precision": made(
        [node("Cast", "w", "v", to=1), node("MatMul", "x v")], {"w": random(6, 20).astype(np.float16)}
    ),
    "float16 in float32": made([node("MatMul", "x w")], {"w": HALVES}, (4, 128)),
    "bfloat16 in float32": made([node("MatMul", "x w")], {"w": BRAINS}, (4, 128)),
    "scaled float16": made(
        [node("Mul", "w s", "v"), node("MatMul", "x v")], {"w": HALVES, "s": np.float32(0.3)}, (4, 128)
    ),
    "table of float16": made(
        [node("ArgMax", "x", "i", axis=-1), node("Gather", "w i")], {"w": HALVES}, (4, 128)
    ),
    "large weights": made(
        [node("Gemm", "x w b", "a", transB=1), node("Gemm", "a v")],
        {"w": random(700, 512), "b": random(700), "v": random(700, 300)},
        (4, 512),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_what_depends_on_values(name: str) -> None:
    structure = check(MODELS[name])
    assert structure.left_out or name in ("clip", "gelu", "chosen everywhere", "pruned by value")


def loop(weight: Any) -> bytes:
    body = helper.make_graph(
        [
            node("MatMul", "state inner", "next"),
            node("Add", "next outer", "sum"),
            node("Identity", "condition", "again"),
        ],
        "secret_body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("condition", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, [4, 6]),
        ],
        [helper.make_empty_tensor_value_info("again"), helper.make_empty_tensor_value_info("sum")],
        [numpy_helper.from_array(weight, "inner")],
    )
    return made(
        [helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)], {"n": np.int64(3), "outer": random(6)}, (4, 6)
    )


def test_weights_inside_control_flow() -> None:
    model = loop(random(6, 6))
    structure = check(model)
    assert structure.left_out == 1  # the other has 6 elements
    assert b"secret" not in structure.data
    assert b"inner" not in structure.data


def test_weights_inside_functions() -> None:
    function = helper.make_function(
        "secret.domain",
        "SecretBlock",
        ["a"],
        ["b"],
        [node("Constant", "", "w", value=numpy_helper.from_array(random(6, 20))), node("MatMul", "a w", "b")],
        [helper.make_opsetid("", 18)],
    )
    call = helper.make_node("SecretBlock", ["x"], ["y"], domain="secret.domain")
    model = made([call], {}, imports=[helper.make_opsetid("secret.domain", 1)], functions=[function])
    structure = check(model)
    assert structure.left_out == 1
    assert b"ecret" not in structure.data


def test_external_data(tmp_path: Path) -> None:
    proto = ModelProto.FromString(MODELS["large weights"])
    path = tmp_path / "model.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    structure = check(path)
    assert structure.data == strip(MODELS["large weights"]).data
    with pytest.raises(ModelError, match="external file"):
        strip(path.read_bytes())


def test_names_and_documentation_are_gone() -> None:
    model = ModelProto.FromString(
        made(
            [
                helper.make_node("MatMul", ["x", "secret_w"], ["secret_t"], name="secret_node", doc_string="secret"),
                helper.make_node("Relu", ["secret_t"], ["y"]),
            ],
            {"secret_w": random(6, 20)},
            ("batch", 8, "height", 6),
        )
    )
    model.producer_name = model.producer_version = model.domain = model.doc_string = "secret"
    model.model_version = 17
    model.graph.doc_string = "secret"
    model.graph.input[0].doc_string = "secret"
    model.graph.input[0].type.tensor_type.shape.dim[1].denotation = "secret"
    model.graph.initializer[0].doc_string = "secret"
    for item in (model, model.graph, model.graph.node[0], model.graph.initializer[0], model.graph.input[0]):
        item.metadata_props.add(key="secret", value="secret")
    model.graph.value_info.append(helper.make_tensor_value_info("secret_t", TensorProto.FLOAT, ["secret_dim"] * 4))
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "secret_dim", 1, 1])
    model.graph.output[0].CopyFrom(output)
    model.opset_import.append(helper.make_opsetid("secret.domain", 3))
    unknown_field = b"\xba\x3e\x06secret"  # number 999 of length 6
    structure = check(model.SerializeToString() + unknown_field, {"batch": 2, "height": 4})
    assert b"secret" not in structure.data
    for name in (b"batch", b"height"):
        assert name in structure.data
    stripped = ModelProto.FromString(structure.data)
    assert [value.name for value in (*stripped.graph.input, *stripped.graph.output)] == ["x", "y"]
    assert (stripped.producer_name, stripped.model_version) == ("", 0)


def test_values_are_gone() -> None:
    weight = random(16, 24)
    structure = strip(made([node("MatMul", "x w")], {"w": weight}, (4, 16)))
    assert not any(value.tobytes() in structure.data for value in weight.flat)
    assert (structure.left_out, structure.left_out_bytes) == (1, weight.nbytes)
    trees = helper.make_node("LinearRegressor", ["x"], ["y"], domain="ai.onnx.ml", coefficients=weight.ravel().tolist())
    model = made([trees], {}, (4, 384), imports=[helper.make_opsetid("ai.onnx.ml", 1)])
    assert not any(value.tobytes() in strip(model).data for value in weight.flat if value != 0.5)


def test_two_models_that_differ_in_weights_have_one_structure() -> None:
    first, other = (strip(made([node("MatMul", "x w")], {"w": random(16, 24)}, (4, 16))) for _ in range(2))
    assert first == other
    assert first.sha256 == other.sha256


def test_names_in_use_are_not_given_again() -> None:
    model = made([node("MatMul", "x w", "t1"), node("Relu", "t1", "t0")], {"w": random(6, 20)}, outputs=("t0",))
    assert [value.name for value in ModelProto.FromString(check(model).data).graph.output] == ["t0"]


@pytest.mark.parametrize("opset", [7, 12])
def test_a_weight_that_is_an_input_too(opset: int) -> None:
    model = ModelProto.FromString(made([node("MatMul", "x w")], {"w": random(6, 20)}, opset=opset))
    model.ir_version = 3
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [6, 20]))
    structure = check(model.SerializeToString())
    assert [value.name for value in ModelProto.FromString(structure.data).graph.input] == ["x"]


@pytest.mark.parametrize(
    "change",
    [
        lambda tensor: tensor.external_data.add(key="fill", value="00000000"),
        lambda tensor: tensor.external_data.add(key="offset", value="0"),
        lambda tensor: tensor.external_data.add(key="group", value="-1"),
        lambda tensor: tensor.external_data.add(key="group", value="99999999"),
        lambda tensor: tensor.external_data.add(key="group", value="one"),
        lambda tensor: tensor.external_data.add(key="deviation", value="nan"),
        lambda tensor: tensor.external_data.add(key="deviation", value="-1"),
        lambda tensor: tensor.external_data.add(key="deviation", value="1e9"),
        lambda tensor: tensor.external_data.add(key="zero", value="2"),
        lambda tensor: tensor.external_data.add(key="range", value="0 5"),  # of floats
        lambda tensor: tensor.external_data.add(key="narrow", value="int8"),
        lambda tensor: tensor.dims.__setitem__(0, -1),
        lambda tensor: tensor.dims.__setitem__(0, 2**40),
        lambda tensor: setattr(tensor, "data_type", TensorProto.INT64),
        lambda tensor: setattr(tensor, "data_type", TensorProto.BFLOAT16),
    ],
)
def test_a_placeholder_that_strip_can_not_have_made_is_refused(change: Any) -> None:
    model = ModelProto.FromString(strip(made([node("MatMul", "x w")], {"w": random(6, 20)})).data)
    [tensor] = model.graph.initializer
    change(tensor)
    for use in (load, strip):
        with pytest.raises(ModelError) as caught:
            use(model.SerializeToString())
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("ends", ["5", "7 5", "0 999", "a b", "1 2 3", "-128 127 "])
def test_a_range_that_bytes_can_not_have_is_refused(ends: str) -> None:
    weight = np.arange(120, dtype=np.int8).reshape(6, 20)
    model = ModelProto.FromString(
        strip(made([node("Cast", "w", "c", to=1), node("MatMul", "x c")], {"w": weight})).data
    )
    [tensor] = model.graph.initializer
    [entry] = [entry for entry in tensor.external_data if entry.key == "range"]
    assert entry.value == "0 119"
    entry.value = ends
    with pytest.raises(ModelError):
        load(model.SerializeToString())


@pytest.mark.parametrize("ends", [(-64, 64), (-65, 64), (-128, 127)])
@pytest.mark.parametrize("shape", [(65,), (300, 300)])
def test_made_up_bytes_have_both_ends_of_their_range(ends: tuple[int, int], shape: tuple[int, ...]) -> None:
    values = Placeholder(group=3, range=ends).values(shape, np.dtype(np.int8))
    assert (values.min(), values.max()) == ends and values.all()


def test_what_is_made_up_is_limited() -> None:
    data = strip(made([node("MatMul", "x w")], {"w": random(6, 20)})).data
    load(data, most_left_out_bytes=480)
    with pytest.raises(ModelError, match="more than 479 bytes"):
        load(data, most_left_out_bytes=479)


@pytest.mark.parametrize(
    "shape", [(64,), (3 * BLOCK + 1,), (512, 256, 3, 3), (1, 70_000, 3), (2, 1, 40_000, 5), (9, 9999)]
)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "complex64"])
def test_values_of_placeholders(shape: tuple[int, ...], dtype: str) -> None:
    values = Placeholder(3, 0.05).values(shape, np.dtype(dtype))
    assert (values.shape, values.dtype) == (shape, np.dtype(dtype))
    assert 0 not in values.strides
    assert values.nbytes == np.prod(shape) * np.dtype(dtype).itemsize
    assert not values.flags.writeable
    again = Placeholder(3, 0.05).values(shape, np.dtype(dtype))
    np.testing.assert_array_equal(values, again)
    other = Placeholder(4, 0.05).values(shape, np.dtype(dtype))
    assert not np.array_equal(values, other)
    if dtype == "float32":
        assert abs(values.mean()) < 0.02
        assert 0.04 < values.std() < 0.06
        positive = Placeholder(3).values(shape, np.dtype(dtype))
        assert 0.5 <= positive.min() < positive.max() <= 1
    if dtype == "int8":
        assert 1 <= values.min() < values.max() <= 127


def test_large_placeholders_cost_no_memory() -> None:
    tracemalloc.start()
    arrays = [Placeholder(group, 0.01).values((20_000, 20_000), np.dtype("float32")) for group in range(50)]
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sum(array.nbytes for array in arrays) == 50 * 1_600_000_000
    assert most < 8 << 20


def test_a_deep_network_neither_overflows_nor_vanishes() -> None:
    weights = {f"w{k}": random(64, 64) for k in range(60)} | {f"b{k}": random(64) for k in range(60)}
    nodes = []
    for k in range(60):
        nodes += [node("Gemm", f"{'x' if k == 0 else f'r{k - 1}'} w{k} b{k}", f"g{k}")]
        nodes += [node("Relu", f"g{k}", f"r{k}" if k < 59 else "y")]
    graph = load(strip(made(nodes, weights, (4, 64))).data)
    from tunewright.graph.evaluation.fallback import evaluate

    values: dict[str, Any] = {**graph.constants, graph.inputs[0].tensor: random(4, 64)}
    for item in graph.nodes:
        values |= zip(item.outputs, evaluate(item, [values[name] for name in item.inputs]), strict=True)
    size = np.abs(values[graph.outputs[0].tensor]).max()
    assert 1e-3 < size < 1e6


def test_what_is_said_of_it() -> None:
    structure = strip(
        made([node("Conv", "x w b", "c"), node("Relu", "c")], {"w": random(12, 8, 3, 3), "b": random(8 + 4)})
    )
    assert (structure.left_out, structure.kept) == (2, 0)
    small = strip(made([node("Mul", "x s")], {"s": random(MAX_KEPT - 2)}))
    assert (small.left_out, small.kept, small.kept_bytes) == (0, 1, 24)


def test_valid_onnx() -> None:
    model = ModelProto.FromString(strip(light_model("squeezenet").SerializeToString()).data)
    assert all(
        entry.value == LOCATION for t in model.graph.initializer for entry in t.external_data if entry.key == "location"
    )
    inferred = onnx.shape_inference.infer_shapes(model)
    assert inferred.graph.value_info
