"""Models as shared libraries: the same bits as a session's, in programs without Python."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnx import ModelProto, helper, numpy_helper

from tunewright.codegen.host import detect
from tunewright.codegen.runtime.processor import UNUSED, requirements_of
from tunewright.graph.numerics import Numerics
from tunewright.tuner import cli
from tunewright.tuner.errors import Refused
from tunewright.tuner.models.model import open_model
from tunewright.tuner.session.session import InferenceSession
from tunewright.tuner.session.shared_library import check_prefix, header, shared_library

from .conftest import static_model

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="libraries are for x86-64")

RNG = np.random.default_rng(8)

NETWORK = """g (float[1, 8, 20, 20] x, float[1, 16] t) => (float[1, 5] y, float[1, 16] passed, float[3] fixed)
    { c = Conv <pads=[1, 1, 1, 1]> (x, w, b) r = Relu(c) p = GlobalAveragePool(r) f = Flatten(p)
      a = Add(f, t) y = MatMul(a, v) passed = Identity(t) fixed = Identity(k) }"""

LOOP = "g (float[64] x, int64 n) => (float[64] y, float[64] z) { y = Identity(x) z = Exp(x) }"


def network() -> bytes:
    graph = onnx.parser.parse_graph(NETWORK)
    shapes = {"w": (16, 8, 3, 3), "b": (16,), "v": (16, 5), "k": (3,)}
    for name, shape in shapes.items():
        graph.initializer.append(numpy_helper.from_array(RNG.standard_normal(shape).astype(np.float32), name))
    return made(graph)


def made(graph: Any) -> bytes:
    model: ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return bytes(model.SerializeToString())


def loop() -> bytes:
    """A loop with a number of iterations that a run tells, between kernels."""
    body = onnx.parser.parse_graph(
        "body (int64 i, bool c, float[64] a) => (bool d, float[64] b)"
        "{ d = Identity(c) e = Mul(a, half) b = Add(e, one) }"
    )
    graph = onnx.parser.parse_graph(LOOP)
    graph.node[0].CopyFrom(helper.make_node("Loop", ["n", "", "x"], ["y"], body=body))
    for name, value in (("half", 0.5), ("one", 1.0)):
        graph.initializer.append(numpy_helper.from_array(np.array(value, np.float32), name))
    return made(graph)


class Loaded:
    """A library in this process, with the functions of one prefix."""

    def __init__(self, path: Path, prefix: str) -> None:
        library = ctypes.CDLL(str(path))
        pointer = ctypes.c_void_p

        def function(name: str, result: Any, *arguments: Any) -> Any:
            found = getattr(library, f"{prefix}_{name}")
            found.restype, found.argtypes = result, arguments
            return found

        self.describe = function("describe", ctypes.c_char_p)
        self.missing = function("missing", ctypes.c_char_p)
        self.open = function("open", pointer, ctypes.c_int)
        self._run = function("run", None, pointer, pointer, pointer)
        self.close = function("close", None, pointer)

    def run(self, model: int, feeds: Mapping[str, Any]) -> list[Any]:
        told = json.loads(self.describe())
        inputs = [np.ascontiguousarray(feeds[port["name"]]) for port in told["inputs"]]
        outputs = [np.empty(port["shape"], port["type"]) for port in told["outputs"]]
        self._run(model, _addresses(inputs), _addresses(outputs))
        return outputs


def _addresses(arrays: Sequence[Any]) -> Any:
    return (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))


def library_of(content: bytes, path: Path, features: str = "") -> InferenceSession:
    """Write the library of a model, and give the session that has the same kernels."""
    target = detect(2)
    session = InferenceSession.of(open_model(content, numerics=Numerics(dots=target.has_dots)), target, {})
    other = replace(target, features=target.features + features)
    path.write_bytes(shared_library(static_model(session).image, other, "net", "of a model"))
    return session


def feeds_of(content: bytes, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    if content == CONTENTS["loop"]:
        return {"x": rng.standard_normal(64).astype(np.float32), "n": np.array(seed, np.int64)}
    if content == CONTENTS["views"]:
        return {"x": rng.standard_normal((2, 8)).astype(np.float32), "e": np.zeros((0, 4), np.float32)}
    return {
        "x": rng.standard_normal((1, 8, 20, 20)).astype(np.float32),
        "t": rng.standard_normal((1, 16)).astype(np.float32),
    }


def views() -> bytes:
    """Outputs that are views, twice the same, of no elements, inputs under another shape, and constants."""
    graph = onnx.parser.parse_graph(
        """g (float[2, 8] x, float[0, 4] e)
        => (float[16] y, float[2, 8] z, float[0, 4] n, float[8, 2] p, float[1, 16] q)
        { r = Relu(x) y = Reshape(r, flat) z = Identity(r) n = Neg(e) p = Reshape(x, tall) q = Flatten <axis=0> (r) }"""
    )
    for name, shape in (("flat", [16]), ("tall", [8, 2])):
        graph.initializer.append(numpy_helper.from_array(np.array(shape, np.int64), name))
    return made(graph)


CONTENTS = {"network": network(), "loop": loop(), "views": views()}


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_results_are_those_of_a_session(tmp_path: Path, name: str, threads: int) -> None:
    content = CONTENTS[name]
    with library_of(content, tmp_path / "net.so") as session:
        library = Loaded(tmp_path / "net.so", "net")
        assert library.missing() is None
        model = library.open(threads)
        for seed in range(4):
            feeds = feeds_of(content, seed)
            for own, expected in zip(library.run(model, feeds), session.run(None, feeds), strict=True):
                np.testing.assert_array_equal(own, expected)
        library.close(model)
        library.close(None)


def test_instances_and_threads_do_not_disturb_each_other(tmp_path: Path) -> None:
    content = CONTENTS["network"]
    with library_of(content, tmp_path / "net.so") as session:
        library = Loaded(tmp_path / "net.so", "net")
        models = [library.open(1), library.open(2)]
        expected = [session.run(None, feeds_of(content, seed)) for seed in range(8)]

        def run(number: int) -> None:
            for own, right in zip(
                library.run(models[number % 2], feeds_of(content, number % 8)), expected[number % 8], strict=True
            ):
                np.testing.assert_array_equal(own, right)

        with ThreadPoolExecutor(6) as threads:
            list(threads.map(run, range(200)))
        for model in models:
            library.close(model)


def test_what_the_processor_lacks_is_named(tmp_path: Path) -> None:
    present = set(detect().features.split(","))
    absent = next(name for name in ("amx-fp16", "avxvnniint8", "avx512fp16") if f"+{name}" not in present)
    library_of(CONTENTS["network"], tmp_path / "net.so", f",+{absent}").close()
    library = Loaded(tmp_path / "net.so", "net")
    assert library.missing() == absent.encode()
    assert library.open(1) is None


PROGRAM = """
#include "libsmall.h"
#include <stdio.h>
#include <stdlib.h>
int main(int count, char **arguments) {
    static float x[1 * 8 * 20 * 20], t[16], y[5], passed[16], fixed[3];
    FILE *file = fopen(arguments[1], "rb");
    if (!file || fread(x, sizeof x, 1, file) != 1 || fread(t, sizeof t, 1, file) != 1) return 2;
    small_model *model = small_open(2);
    if (!model) { printf("missing %s\\n", small_missing()); return 3; }
    const void *inputs[] = {x, t};
    void *outputs[] = {y, passed, fixed};
    small_run(model, inputs, outputs);
    small_close(model);
    for (int i = 0; i < 5; i++) printf("%.9g\\n", y[i]);
    return 0;
}
"""


needs_compiler = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")


@needs_compiler
def test_a_program_runs_what_the_command_made(tmp_path: Path) -> None:
    content = CONTENTS["network"]
    (tmp_path / "small.onnx").write_bytes(content)
    assert cli.exit_code(lambda: cli.execute(["compile", str(tmp_path / "small.onnx")])) == 0
    feeds = feeds_of(content, 3)
    (tmp_path / "input").write_bytes(feeds["x"].tobytes() + feeds["t"].tobytes())
    (tmp_path / "program.cc").write_text(PROGRAM)
    command = ["c++", "-Wall", "-Werror", "program.cc", "libsmall.so", "-Wl,-rpath,$ORIGIN", "-o", "program"]
    subprocess.run(command, cwd=tmp_path, check=True)
    done = subprocess.run(["./program", "input"], cwd=tmp_path, check=True, capture_output=True, text=True)
    with InferenceSession(content) as session:
        np.testing.assert_allclose([float(line) for line in done.stdout.split()], session.run(None, feeds)[0][0], 1e-6)


def test_other_names_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "small.onnx").write_bytes(CONTENTS["network"])
    words = ["compile", str(tmp_path / "small.onnx"), "-o", str(tmp_path / "tuned.dll")]
    assert cli.exit_code(lambda: cli.execute(words)) == 2
    assert "no name of a library" in capsys.readouterr().err
    assert not (tmp_path / "tuned.dll").exists()
    assert cli.exit_code(lambda: cli.execute(["compile", "/"])) == 2
    assert "folder" in capsys.readouterr().err


@needs_compiler
@pytest.mark.skipif(shutil.which("qemu-x86_64") is None, reason="needs qemu-user, to be another processor")
def test_an_older_processor_is_told_what_it_lacks(tmp_path: Path) -> None:
    library_of(CONTENTS["network"], tmp_path / "net.so").close()
    (tmp_path / "program.c").write_text(
        "#include <stdio.h>\nconst char *net_missing(void); void *net_open(int);\n"
        'int main(void) { printf("%s %d\\n", net_missing(), net_open(1) != NULL); }\n'
    )
    command = ["cc", "program.c", "net.so", "-Wl,-rpath,$ORIGIN", "-o", "program"]
    subprocess.run(command, cwd=tmp_path, check=True)
    emulated = ["qemu-x86_64", "-cpu", "Nehalem", "./program"]
    done = subprocess.run(emulated, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout == "osxsave 0\n"


SCRIPT = """
const koffi = require('koffi'), fs = require('fs');
const library = koffi.load('./net.so');
const describe = library.func('const char *net_describe()');
const open = library.func('void *net_open(int threads)');
const run = library.func('void net_run(void *model, const void **inputs, void **outputs)');
const close = library.func('void net_close(void *model)');
const told = JSON.parse(describe());
const size = (port) => port.shape.reduce((a, b) => a * b, 1);
const inputs = told.inputs.map((port) => new Float32Array(new Uint8Array(fs.readFileSync(port.name)).buffer));
const outputs = told.outputs.map((port) => new Float32Array(size(port)));
const model = open(2);
run(model, inputs, outputs);
close(model);
console.log(JSON.stringify(Array.from(outputs[0])));
"""


def _has_koffi() -> bool:
    """Whether there is Node.js with koffi, which calls functions of libraries: `npm install -g koffi`."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        return False
    return (
        subprocess.run(["node", "-e", "require('koffi')"], env=_node(), capture_output=True, check=False).returncode
        == 0
    )


def _node() -> dict[str, str]:
    root = subprocess.run(["npm", "root", "-g"], capture_output=True, text=True, check=True).stdout.strip()
    return os.environ | {"NODE_PATH": root}


def test_a_script_of_node_runs_a_library(tmp_path: Path) -> None:
    if not _has_koffi():
        pytest.skip("needs Node.js with koffi")
    content = CONTENTS["network"]
    feeds = feeds_of(content, 5)
    for name, array in feeds.items():
        (tmp_path / name).write_bytes(array.tobytes())
    (tmp_path / "run.js").write_text(SCRIPT)
    with library_of(content, tmp_path / "net.so") as session:
        command = ["node", "run.js"]
        done = subprocess.run(command, cwd=tmp_path, env=_node(), check=True, capture_output=True, text=True)
        own = np.array(json.loads(done.stdout), np.float32)
        np.testing.assert_array_equal(own, session.run(None, feeds)[0][0])


def test_models_that_need_python_are_refused() -> None:
    text = "g (float[4] x, string[4] s) => (float[4] y, string[4] t) { y = Relu(x) t = Identity(s) }"
    with InferenceSession.of(open_model(made(onnx.parser.parse_graph(text))), detect(1), {}) as session:
        image = static_model(session).image
        with pytest.raises(Refused, match="input 's' is no tensor of numbers"):
            shared_library(image, detect(1), "net", "")


def test_nodes_without_a_kernel_are_refused() -> None:
    text = "g (float[4] x) => (float[4] y) { s = Cast <to=8> (x) f = Cast <to=1> (s) y = Relu(f) }"
    with InferenceSession.of(open_model(made(onnx.parser.parse_graph(text))), detect(1), {}) as session:
        image = static_model(session).image
        with pytest.raises(Refused, match="there is no kernel for 2 Cast: such nodes need Python"):
            shared_library(image, detect(1), "net", "")


def test_features_of_this_processor_are_asked_for_or_known_as_unused() -> None:
    present = {feature[1:] for feature in detect().features.split(",") if feature.startswith("+")}
    asked_for = {requirement.name for requirement in requirements_of(detect().features).bits}
    assert present - asked_for - UNUSED == set()


@pytest.mark.parametrize("prefix", ["", "2d", "a-b", "int main", "x" * 40])
def test_prefixes_are_names(prefix: str) -> None:
    with pytest.raises(Refused, match="names of functions"):
        check_prefix(prefix)


def test_names_from_a_model_stay_in_the_comment() -> None:
    graph = onnx.parser.parse_graph("g (float[4] x) => (float[4] y) { y = Relu(x) }")
    graph.input[0].name = graph.node[0].input[0] = '*/ #include "/etc/passwd" \n'
    with InferenceSession.of(open_model(made(graph)), detect(1), {}) as session:
        text = header(static_model(session).image, detect(1), "net", "1")
        library = shared_library(static_model(session).image, detect(1), "net", "")
    assert text.count("*/") == text.count("/*")
    assert "#include" not in text
    assert b"#include" in library  # as JSON, for who asks for names
