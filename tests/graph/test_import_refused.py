"""Models that can't be used are refused with one clear line, and nothing of them reaches the process."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import AttributeProto, ModelProto, TensorProto, helper, numpy_helper, parser

from tunewright.graph.evaluation import fallback
from tunewright.graph.onnx_import import ModelError, dimensions, load
from tunewright.graph.onnx_import import check as checks

HOSTILE = 'x"\n\x1b[31m../../etc\u202e' + "y" * 200


def parsed(body: str, opset: int = 18) -> ModelProto:
    return parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]> {body}')


def refused(model: ModelProto | bytes | Path, *words: str, dims: Mapping[str, int] | None = None) -> str:
    source = model.SerializeToString() if isinstance(model, ModelProto) else model
    with pytest.raises(ModelError) as error:
        load(source, dims)
    line = str(error.value)
    assert "\n" not in line and line.isprintable() and len(line) < 500
    for word in words:
        assert word in line
    return line


IF_BODY = """
    g (float[2] x{condition}) => (float[2] y) {{
        {compute}
        y = If (c) <then_branch = t () => (float[2] r) {{ r = Relu(x) }},
                    else_branch = e () => (float[2] q) {{ z = Neg(x) q = Neg(z) }}>
    }}
"""


GOOD = "g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }"


def test_bytes_that_are_no_model():
    refused(b"", "empty")
    refused(b"PK\x03\x04 a zip, not a model", "a zip archive, as PyTorch saves its models, not ONNX")
    refused(b"\x00" * 100, "not an ONNX model")
    refused(ModelProto(ir_version=8), "not an ONNX model")
    model = parsed(GOOD)
    model.graph.initializer.append(numpy_helper.from_array(np.ones(100, np.float32), "w"))
    data = model.SerializeToString()
    for cut in range(1, len(data), 17):
        try:
            load(data[:cut])
        except ModelError as error:
            assert "\n" not in str(error)


def test_too_large_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "large.onnx"
    with path.open("wb") as file:
        file.truncate(2**31)
    refused(path, "2,147,483,648", "2,147,483,647", "external files")
    monkeypatch.setattr("tunewright.graph.onnx_import.MAX_MODEL_BYTES", 10)
    refused(parsed(GOOD), "more than the 10")


def test_a_path_that_is_not_there(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.onnx")


def test_open_dimensions_say_how_to_bind_them(monkeypatch: pytest.MonkeyPatch):
    body = "g (float[batch,?] x) => (float[batch,N] y) { y = Relu(x) }"
    refused(
        parsed(body),
        "2 dimensions are open: 'batch' of input 'x', 1 of input 'x'",
        "--dim batch=1 --dim 'x:1=1', in Python dims={'batch': 1, 'x:1': 1}, in a request \"dims\" likewise",
    )
    refused(
        parsed(body), "dimension 1 of input 'x' is open", "--dim 'x:1=1', in Python dims={'x:1': 1}", dims={"batch": 1}
    )
    refused(parsed(body), "no dimension 'other'", "'batch', 'x:1'", dims={"batch": 1, "x:1": 2, "other": 3})
    refused(parsed(body), "-1 is not between", dims={"batch": -1})
    assert load(parsed(body).SerializeToString(), {"batch": 0, "x:1": 3}).types["v0"].shape == (0, 3)
    several = parsed("g (float[batch,2] x, float[n,batch] z, float[n] w) => (float[n] y) { y = Relu(w) }")
    refused(
        several,
        "2 dimensions are open: 'batch' of input 'x' (and at 1 more place), 'n' of input 'z' (and at 1 more place);",
        "--dim batch=1 --dim n=1, in Python dims={'batch': 1, 'n': 1}",
    )
    refused(several, "dimension 'n' of input 'w' is open", dims={"batch": 1, "z:0": 1})
    hostile = parsed("g (float[batch] x) => (float[batch] y) { y = Relu(x) }")
    hostile.graph.input[0].type.tensor_type.shape.dim[0].dim_param = HOSTILE
    refused(hostile, "is open", "\\n")
    many = parsed(f"g (float[{','.join('?' * 8)}] x) => (float[A] y) {{ y = Relu(x) }}")
    monkeypatch.setattr(dimensions, "MAX_NAMED", 3)
    refused(many, "8 dimensions are open", "2 of input 'x', and 5 more", "--dim 'x:2=1' and 5 more", "'x:2': 1, and 5")


def test_inputs_of_no_use():
    kind = "float8e4m3fn"
    refused(parsed(f"g ({kind}[2] x) => ({kind}[2] y) {{ y = Identity(x) }}"), "input 'x'", kind.upper(), "float32")
    refused(parsed("g (seq(float[2]) x) => (float[2] y) { y = ConcatFromSequence<axis = 0>(x) }"), "no tensor")
    model = parsed(GOOD)
    model.graph.input[0].type.tensor_type.ClearField("shape")
    refused(model, "no shape")
    model = parsed(GOOD)
    model.graph.input[0].type.tensor_type.elem_type = 999
    refused(model, "999")


def test_tensors_beyond_the_limits():
    refused(
        parsed("g (float[1048576,1048576] x) => (float[A,B] y) { y = Relu(x) }"), "1,099,511,627,776", "2,147,483,647"
    )
    refused(parsed("g (float[1,1,1,1,1,1,1,1,1] x) => (float y) { y = Relu(x) }"), "9 dimensions", "8")
    huge = parsed(
        "g (float[2] x) => (float y) <int64[2] s = {1048576, 1048576}> { w = ConstantOfShape(s) y = Add(x, w) }"
    )
    refused(huge, "1,099,511,627,776", "ConstantOfShape")
    refused(parsed("g (float[65536,1] x, float[1,65536] z) => (float y) { y = Add(x, z) }"), "4,294,967,296", "Add")
    model = parsed(GOOD)
    model.graph.initializer.append(TensorProto(name="w", data_type=1, dims=[2**20, 2**20], raw_data=b"1234"))
    refused(model, "weight 'w'", "1,099,511,627,776")


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (TensorProto(name="w", data_type=1, dims=[3], raw_data=b"12345678"), ("8 bytes", "12", "damaged")),
        (TensorProto(name="w", data_type=1, dims=[3], float_data=[1.0]), ("1 values", "3")),
        (TensorProto(name="w", data_type=1, dims=[-3]), ("-3",)),
        (TensorProto(name="w", data_type=17, dims=[1], raw_data=b"1"), ("FLOAT8E4M3FN", "not supported")),
        (TensorProto(name="w", data_type=77, dims=[1]), ("77",)),
        (TensorProto(name="", data_type=1, dims=[]), ("",)),
    ],
)
def test_damaged_weights(tensor: TensorProto, words: tuple[str, ...]):
    model = parsed(GOOD)
    model.graph.initializer.append(tensor)
    refused(model, *words)


def _with(model: ModelProto, change: Callable[[ModelProto], Any]) -> ModelProto:
    change(model)
    return model


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: setattr(m.opset_import[0], "version", 5), ("opset 5", "older than 6")),
        (lambda m: setattr(m.opset_import[0], "version", 999), ("opset 999", "newer")),
        (lambda m: m.ClearField("opset_import"), ("opset",)),
        (lambda m: m.opset_import.append(helper.make_opsetid("ai.onnx", 17)), ("versions 18 and 17",)),
        (lambda m: m.opset_import.append(helper.make_opsetid("other", 2**40)), ("opset versions are", "1099511627776")),
        (lambda m: m.opset_import.append(helper.make_opsetid("other", -(2**63))), ("opset versions are",)),
        (lambda m: setattr(m, "ir_version", 1000), ("1000",)),
        (lambda m: setattr(m, "ir_version", 2), ("version 2",)),
        (lambda m: setattr(m.graph.node[0], "domain", "com.example"), ("com.example", "not supported")),
        (lambda m: setattr(m.graph.node[0], "domain", "ai.onnx@999999"), ("'ai.onnx@999999' is not supported",)),
        (lambda m: setattr(m.graph.node[0], "domain", "ai.onnx@1"), ("'ai.onnx@1' is not supported",)),
        (lambda m: setattr(m.graph.node[0], "op_type", "Rleu"), ("no op 'Rleu'",)),
        (lambda m: setattr(m.graph.node[0], "op_type", "Upsample"), ("Upsample",)),
        (lambda m: setattr(m.graph.node[0], "op_type", HOSTILE), ("\\n",)),
        (lambda m: m.graph.node.append(m.graph.node[0]), ("'y' is defined twice",)),
        (lambda m: m.graph.input.append(m.graph.input[0]), ("'x' is defined twice",)),
        (lambda m: setattr(m.graph.output[0], "name", "other"), ("nothing computes", "'other'")),
        (lambda m: m.graph.node[0].input.append("x"), ("Relu",)),
        (lambda m: m.graph.node[0].input.__setitem__(0, HOSTILE), ("nothing computes", "\\n")),
        (lambda m: m.graph.node[0].input.__setitem__(0, "y"), ("circle",)),
        (lambda m: m.graph.node[0].attribute.append(helper.make_attribute("axis", 1)), ("axis",)),
        (lambda m: m.graph.sparse_initializer.add(), ("weight ''", "UNDEFINED")),
        (lambda m: m.graph.ClearField("output") or m.graph.ClearField("node"), ("no graph",)),
    ],
)
def test_malformed_models(change: Callable[[ModelProto], Any], words: tuple[str, ...]):
    refused(_with(parsed(GOOD), change), *words)


def _function(name: str, *calls: str) -> Any:
    nodes = [helper.make_node(call, ["a"], [f"t{k}"], domain="mine") for k, call in enumerate(calls)]
    nodes.append(helper.make_node("Relu", ["a"], ["b"]))
    return helper.make_function("mine", name, ["a"], ["b"], nodes, [helper.make_opsetid("", 18)])


def _calling(name: str, *functions: Any) -> ModelProto:
    model = parsed(f"g (float[2] x) => (float[2] y) {{ y = mine.{name}(x) }}")
    model.opset_import.append(helper.make_opsetid("mine", 1))
    model.functions.extend(functions)
    return model


def test_functions_that_never_end():
    refused(_calling("a", _function("a", "b"), _function("b", "a")), "calls itself")
    bomb = [_function(f"f{k}", f"f{k + 1}", f"f{k + 1}") for k in range(40)] + [_function("f40")]
    refused(_calling("f0", *bomb), "nodes", "200,000")
    chain = [_function(f"f{k}", f"f{k + 1}") for k in range(100)] + [_function("f100")]
    refused(_calling("f0", *chain), "deep")
    refused(_calling("a", _function("a"), _function("a")), "same name")
    refused(_calling("gone", _function("a")), "mine")


def test_a_function_whose_opset_is_no_text():
    model = _calling("a", _function("a"))
    model.functions[0].opset_import.append(helper.make_opsetid("zz", 1))
    refused(model.SerializeToString().replace(b"zz", b"\xff\xfe"), "UTF-8")


def test_a_bias_without_extents():
    model = parsed("g (float[1, 3, 4, 4] x, float[2, 3, 1, 1] w, float b) => (float[] y) { y = Conv(x, w, b) }")
    refused(model, "channels")


def test_a_check_that_looks_for_no_file():
    """A tensor among the attributes that lies in a file must not be looked for by anybody but `Weights`."""
    model = parsed("g (float[4] x) => (float[4] y) { y = Relu(x) }")
    tensor = TensorProto(data_type=1, dims=[4], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="/etc/hostname")
    model.graph.node.append(helper.make_node("ConstantOfShape", ["s"], ["z"], value=tensor))
    model.graph.initializer.append(numpy_helper.from_array(np.array([4]), "s"))
    refused(model, "external file")


def test_too_deep_and_too_many(monkeypatch: pytest.MonkeyPatch):
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["r"])], "g", [], [helper.make_empty_tensor_value_info("r")]
    )
    for _ in range(checks.MAX_SUBGRAPH_DEPTH + 1):
        node = helper.make_node("If", ["c"], ["r"], then_branch=graph, else_branch=graph)
        graph = helper.make_graph([node], "g", [], [helper.make_empty_tensor_value_info("r")])
        monkeypatch.setattr(checks, "MAX_SUBGRAPH_DEPTH", 3)
        if len(graph.SerializeToString()) > 1 << 12:
            break
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    refused(model, "3 deep")
    monkeypatch.setattr(checks, "MAX_NODES", 1)
    refused(parsed("g (float[2] x) => (float[2] y) { t = Relu(x) y = Relu(t) }"), "2 nodes", "1")


CRASHES = [
    "g (float[2,3,4] x, float[4] s) => (float y) { y = LayerNormalization<axis = 2147483648>(x, s) }",
    "g (float[2,3,4] x, float[4] s) => (float y) { y = LayerNormalization<axis = 3>(x, s) }",
    "g (int32[2,2,2] x, int64[2,1] i) => (int32 y) { y = GatherND<batch_dims = -2>(x, i) }",
    "g (float[7] x) => (float a, float b, float c) { a, b, c = Split<num_outputs = 2>(x) }",
    "g (float[3,4] x) => (float y) <int64[2] p = {1, 1}, int64[2] a = {0, 99}> { y = Pad(x, p, , a) }",
    "g (float[1,3,8,8] x, float[4,3,3,3] w) => (float y) { y = Conv<strides = [0, 1]>(x, w) }",
    "g (float[1,3,8,8] x, float[4,3,3,3] w) => (float y) { y = Conv<group = 0>(x, w) }",
    "g (float[1,3,8,8] x) => (float y) { y = MaxPool<kernel_shape = [2]>(x) }",
]

MISFITS = [
    "g (float[2,3] x) => (float y) <int64[2] s = {2, 359}> { y = Reshape(x, s) }",
    "g (float[1,3,8,8] x, float[4,5,3,3] w) => (float y) { y = Conv(x, w) }",
    "g (float[1,3,8,8] x, float[4,3,3,3] w, float[9] b) => (float y) { y = Conv(x, w, b) }",
    "g (float[1,3,8,8] x, float[4,4,3,3] w) => (float y) { y = ConvTranspose(x, w) }",
    "g (float[3,6] a, float[6,4] b, float[100,4] c) => (float y) { y = Gemm(a, b, c) }",
    "g (float[2,3,4] x, float[5] s) => (float y) { y = LayerNormalization(x, s) }",
    "g (float[2,3,4] x, float[7] s) => (float y) { y = BatchNormalization(x, s, s, s, s) }",
    "g (float[2,3] x, float[2,4] z) => (float y) { y = Add(x, z) }",
    "g (float[2,3] x, float[4,5] z) => (float y) { y = MatMul(x, z) }",
    "g (float[4,3] x, int64[9,9] i) => (float y) { y = GatherElements(x, i) }",
    "g (float[7] x) => (float a, float b) <int64[2] s = {3, 9}> { a, b = Split(x, s) }",
    "g (float[2,3] x, float[6] s) => (float y) { y = PRelu(x, s) }",
    "g (float[1,6,4,4] x) => (float y) { y = DepthToSpace<blocksize = 2>(x) }",
    "g (float[2] x, int64 i) => (float y) <bool c = {1}> { y = Where(c, x, i) }",
]


@pytest.mark.parametrize("body", CRASHES + MISFITS)
def test_operands_that_do_not_fit(body: str):
    refused(parsed(body))


def test_bodies_are_checked_as_well():
    body = """
        g (float[2,3] x, bool c, float[3] s) => (float[2,3] y) {
            y = If (c) <then_branch = t () => (float[2,3] r) { r = LayerNormalization<axis = 2147483648>(x, s) },
                        else_branch = e () => (float[2,3] q) { q = Neg(x) }>
        }
    """
    refused(parsed(body), "LayerNormalization")
    refused(parsed(body.replace("Neg(x)", "Neg(gone)")), "'gone'")


# External data


def _external(location: str, **entries: int) -> ModelProto:
    model = parsed("g (float[4] x) => (float[4] y) { y = Add(x, w) }")
    tensor = TensorProto(name="w", data_type=1, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    model.graph.initializer.append(tensor)
    return model


def _saved(folder: Path, model: ModelProto) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inside = tmp_path / "models"
    (inside / "data").mkdir(parents=True)
    values = np.arange(8, dtype=np.float32).tobytes()
    (inside / "w.bin").write_bytes(values)
    (inside / "data" / "w.bin").write_bytes(values)
    (tmp_path / "secret.bin").write_bytes(values)
    (inside / "linked.bin").symlink_to(tmp_path / "secret.bin")
    (inside / "elsewhere").symlink_to(tmp_path)
    os.link(tmp_path / "secret.bin", inside / "hard.bin")
    os.mkfifo(inside / "pipe.bin")
    return inside


@pytest.mark.parametrize("location", ["w.bin", "data/w.bin", "./w.bin"])
def test_external_data_inside_the_folder(folder: Path, location: str):
    graph = load(_saved(folder, _external(location, offset=8, length=16)))
    (array,) = graph.constants.values()
    assert array.tolist() == [2, 3, 4, 5]


@pytest.mark.parametrize(
    "location",
    ["../secret.bin", "/etc/hostname", "data/../../secret.bin", "linked.bin", "elsewhere/secret.bin", "hard.bin",
     "pipe.bin", "data", "gone.bin", "", "w.bin\0", "a\\b", HOSTILE],
)  # fmt: skip
def test_external_data_outside_the_folder(folder: Path, location: str):
    refused(_saved(folder, _external(location)), "weight 'w'", "external file")


@pytest.mark.parametrize(
    "entries", [{"length": 12}, {"length": 1 << 40}, {"offset": 24}, {"offset": -4}, {"length": -1}]
)
def test_external_data_that_is_not_there(folder: Path, entries: dict[str, int]):
    refused(_saved(folder, _external("w.bin", **entries)), "weight 'w'")


def test_external_data_needs_a_path():
    refused(_external("w.bin"), "external file", "by path")
    model = parsed("g (float[4] x) => (float[4] y) { w = Constant<value = float[4] {1, 2, 3, 4}>() y = Add(x, w) }")
    tensor = model.graph.node[0].attribute[0].t
    tensor.CopyFrom(_external("w.bin").graph.initializer[0])
    refused(model, "external file")


def test_external_data_inside_a_body(folder: Path):
    model = parsed(IF_BODY.format(condition=", bool c", compute=""))
    branch = next(a.g for a in model.graph.node[0].attribute if a.type == AttributeProto.GRAPH)
    branch.initializer.append(_external("../secret.bin").graph.initializer[0])
    refused(_saved(folder, model), "external file")


def test_nothing_external_is_left_for_run_time(folder: Path):
    model = parsed(IF_BODY.format(condition=", bool c", compute=""))
    branch = next(a.g for a in model.graph.node[0].attribute if a.name == "then_branch")
    tensor = _external("w.bin", length=16).graph.initializer[0]
    tensor.dims[:] = [2, 2]
    branch.initializer.append(tensor)
    branch.node.append(helper.make_node("ReduceMax", ["w"], ["unused"]))
    (node,) = load(_saved(folder, model)).nodes
    assert b"w.bin" not in node.attrs["then_branch"]
    fallback.evaluate(node, [np.asarray(True), np.zeros(2, np.float32)])


def test_an_op_that_nothing_here_runs():
    body = "g (float[2,3] x) => (int32[2,4] y) { y = Multinomial <sample_size = 4> (x) }"
    refused(parsed(body, 17), "node 'y'", "op Multinomial of opset 17", "nothing here runs it")
    inside = """
        g (float[2,3] x, bool c) => (int32[2,4] y) {
            y = If (c) <then_branch = t () => (int32[2,4] a) { a = Multinomial <sample_size = 4> (x) },
                        else_branch = e () => (int32[2,4] b) { b = Multinomial <sample_size = 4> (x) }>
        }
    """
    refused(parsed(inside, 17), "op Multinomial of opset 17")


@pytest.mark.parametrize(
    ("scale", "words"),
    [(1e9, "are more than"), (-3.0, "above 0"), (0.0, "above 0"), (float("nan"), "below"), (3e38, "below")],
)
def test_scales_that_no_tensor_has_room_for(scale: float, words: str):
    model = parsed("g (float[1,1,9,9] x) => (float y) { y = Resize(x, , s) }", 13)
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 1, 1, scale], np.float32), "s"))
    refused(model, "Resize", words)


@pytest.mark.parametrize(
    ("w", "r", "b"), [("6,3", "5,2", "12"), ("6,3", "6,3", "12"), ("5,3", "6,2", "12"), ("6,3", "6,2", "6")]
)
def test_weights_of_recurrent_ops_have_the_shapes_that_they_are_taken_apart_by(w: str, r: str, b: str):
    """Inference does not look, and a kernel would read beyond them."""
    body = f"""g (float[4,1,3] x, float[1,{w}] w, float[1,{r}] r, float[1,{b}] b) => (float[a,c,d,e] y)
        {{ y = GRU <hidden_size = 2> (x, w, r, b) }}"""
    refused(parsed(body), "weights don't have the shapes")


def test_a_term_has_one_ellipsis():
    """With two, inference never comes back."""
    body = 'g (float[1,4,8,8] x) => (float y) { y = Einsum <equation = "a...b...->"> (x) }'
    refused(parsed(body), "more than one ellipsis in a term of 'a...b...->'")
