"""InferenceSession: like ONNX Runtime's, and for several threads."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tunewright.codegen.host import detect
from tunewright.codegen.runtime import native
from tunewright.codegen.runtime.library import Library
from tunewright.codegen.target import Target
from tunewright.db.store import open_store
from tunewright.search_space.measurement import Measurement, Record, Status
from tunewright.search_space.sketches import spaces
from tunewright.tuner.errors import InputError, Refused
from tunewright.tuner.lookup.source import ScheduleSource
from tunewright.tuner.models.model import open_model
from tunewright.tuner.session import execution
from tunewright.tuner.session.execution import CompiledModel
from tunewright.tuner.session.session import InferenceSession

from .conftest import small_model, static_model


@pytest.fixture(scope="module")
def session() -> Iterator[InferenceSession]:
    with InferenceSession.of(open_model(small_model().SerializeToString()), detect(1), {}) as opened:
        yield opened


def test_threads_share_a_session(session: InferenceSession) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((4, 8)).astype(np.float32) for _ in range(4)]
    right = [session.run(None, {"x": array})[0] for array in arrays]
    at_once = threading.Barrier(4)

    def work(number: int) -> bool:
        at_once.wait()
        return all(np.array_equal(session.run(None, {"x": arrays[number]})[0], right[number]) for _ in range(300))

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(work, range(4)))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_during_a_run(session: InferenceSession) -> None:
    """The child runs the session too, although the thread that had its turn is not there."""
    array = np.ones((4, 8), np.float32)
    [right] = session.run(None, {"x": array})
    model = static_model(session)._kernels
    assert isinstance(model, CompiledModel)
    turn = model._turn
    with turn:
        child = os.fork()
        if not child:
            os._exit(0 if np.array_equal(session.run(None, {"x": array})[0], right) else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0


@pytest.mark.parametrize("order", ["<", ">"])
def test_any_byte_order_is_taken(order: Literal["<", ">"], session: InferenceSession) -> None:
    array = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    [right] = session.run(["y"], {"x": array})
    [output] = session.run(["y"], {"x": array.astype(array.dtype.newbyteorder(order))})
    assert output.dtype.isnative
    np.testing.assert_array_equal(output, right)


def wide_session() -> InferenceSession:
    """y = x * w + x, y and x too large to be copied."""
    shape = [64, 999]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy")
    w = helper.make_tensor("w", TensorProto.FLOAT, [999], np.arange(999, dtype=np.float32))
    nodes = [helper.make_node("Mul", ["x", "w"], ["p"]), helper.make_node("Add", ["p", "x"], ["y"])]
    model = helper.make_model(
        helper.make_graph(nodes, "wide", [x], [y], [w]), opset_imports=[helper.make_opsetid("", 17)]
    )
    return InferenceSession.of(open_model(model.SerializeToString()), detect(1), {})


@pytest.mark.parametrize(("vector_bits", "vector_registers"), [(512, 32), (256, 16), (128, 32), (128, 8)])
def test_a_pool_that_no_tile_of_windows_is_small_enough_for_is_run_otherwise(
    vector_bits: int, vector_registers: int
) -> None:
    target = replace(detect(2), vector_bits=vector_bits, vector_registers=vector_registers)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8, 13, 13]) for name in "xy")
    eye = numpy_helper.from_array(np.eye(8, dtype=np.float32).reshape(8, 8, 1, 1), "w")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node("MaxPool", ["a"], ["b"], kernel_shape=[13, 13], pads=[6, 6, 6, 6]),
        helper.make_node("Conv", ["b", "w"], ["y"]),
    ]
    model = helper.make_model(
        helper.make_graph(nodes, "pyramid", [x], [y], [eye]), opset_imports=[helper.make_opsetid("", 17)]
    )
    given = np.random.default_rng(0).standard_normal((1, 8, 13, 13)).astype(np.float32)
    around = np.pad(given, ((0, 0), (0, 0), (6, 6), (6, 6)), constant_values=-np.inf)
    wanted = np.lib.stride_tricks.sliding_window_view(around, (13, 13), (2, 3)).max((4, 5))
    with InferenceSession.of(open_model(model.SerializeToString()), target, {}) as session:
        np.testing.assert_array_equal(session.run(None, {"x": given})[0], wanted)
        assert not session.coverage().fallback


@pytest.mark.parametrize("offset_bytes", [0, 4, 16, 1])
def test_an_input_may_begin_anywhere(offset_bytes: int) -> None:
    memory = np.zeros(64 * 999 * 4 + 64, np.uint8)
    array = memory[offset_bytes:][: 64 * 999 * 4].view(np.float32).reshape(64, 999)
    array[...] = np.random.default_rng(0).standard_normal(array.shape)
    with wide_session() as session:
        for given in (array, array[::-1]):
            [output] = session.run(None, {"x": given})
            np.testing.assert_allclose(output, given * np.arange(999, dtype=np.float32) + given, rtol=1e-6)


def test_results_are_the_callers_to_keep() -> None:
    with wide_session() as session:
        assert session.kernels_s({"x": np.ones((64, 999), np.float32)}) > 0  # it runs in the same memory
        arrays = [np.full((64, 999), number, np.float32) for number in range(5)]
        outputs = [session.run(None, {"x": array})[0] for array in arrays]
        part = session.run(None, {"x": arrays[4]})[0][:, 1]
        again = session.run(None, {"x": arrays[3]})[0]
    assert [float(output[0, 1]) for output in outputs] == [0, 2, 4, 6, 8]
    assert (part == 8).all()
    assert again[63, 1] == 6


def test_a_model_without_kernels_takes_no_time_of_theirs() -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.STRING, [2]) for name in "xy")
    nodes = [helper.make_node("StringNormalizer", ["x"], ["y"], case_change_action="UPPER")]
    graph = helper.make_graph(nodes, "texts", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    feed = {"x": np.array(["a", "b"], object)}
    with InferenceSession.of(open_model(model.SerializeToString()), detect(1), {}) as session:
        assert session.run(None, feed)[0].tolist() == ["A", "B"]
        assert session.kernels_s(feed) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        [[1.0, 2.0], [3.0]],
        np.ones((4, 8)),
        np.ones((4, 8), np.complex64),
        np.zeros((4, 8), [("a", "f4")]),
        np.full((4, 8), None),
        np.full((4, 8), "1"),
        np.zeros((4, 8), "M8[s]"),
        np.ones((8, 4), np.float32),
        None,
    ],
)
def test_other_arrays_are_refused(wrong: object, session: InferenceSession) -> None:
    with pytest.raises(InputError, match="input 'x' is"):
        session.run(None, {"x": wrong})


class Failing(dict[str, Any]):
    """Has a name and can't give what it stands for."""

    def __getitem__(self, name: str) -> Any:
        raise KeyError("the file\nis gone")


def test_a_mapping_that_fails_for_a_name_it_has(session: InferenceSession) -> None:
    with pytest.raises(InputError, match=r"^input 'x' could not be got: KeyError: .*is gone'$") as caught:
        session.run(None, Failing(x=1))
    assert isinstance(caught.value.__cause__, KeyError)
    assert "\n" not in str(caught.value)


def test_inputs_are_given_by_name(session: InferenceSession) -> None:
    array = np.ones((4, 8), np.float32)
    takes = r"; the model takes 'x' \(float32\[4, ?8\]\)$"
    for feed, name in (([array], "list"), (array, "ndarray"), (None, "NoneType")):
        with pytest.raises(InputError, match=f"given by name, in a dict, not a {name}{takes}"):
            session.run(None, feed)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=f"^input 'x' is missing{takes}"):
        session.run(None, {})
    with pytest.raises(InputError, match=f"^the model has no input 'X', and input 'x' is missing{takes}"):
        session.run(None, {"X": array})
    with pytest.raises(InputError, match=f"^the model has no input 'z'{takes}"):
        session.run(None, {"x": array, "z": array})


def test_outputs_are_named_in_a_list(session: InferenceSession) -> None:
    feed = {"x": np.ones((4, 8), np.float32)}
    with pytest.raises(InputError, match=r"named in a list, \['y'\]"):
        session.run("y", feed)
    with pytest.raises(InputError, match="no output 'z'; its outputs are 'y'"):
        session.run(["y", "z"], feed)


def test_settings_are_given_by_name() -> None:
    with pytest.raises(TypeError, match="positional"):
        InferenceSession(b"", "sqlite://")  # type: ignore[call-arg]


def test_a_model_is_a_path_or_bytes() -> None:
    with pytest.raises(
        Refused, match=r"model is a ModelProto; give its path, or its bytes: model.SerializeToString\(\)"
    ):
        InferenceSession(small_model())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"server": 5}, "server is a int; it must be a text, such as http://HOST:PORT"),
        ({"db": Path("x.db")}, "db is a PosixPath; it must be a text, such as sqlite:///tuning.db"),
        ({"lock": 5}, "lock is a int; it must be the path of a file"),
        ({"background": "yes"}, "background is 'yes'; it must be True or False"),
        ({"background": 1}, "background is 1; it must be True or False"),
        ({"background": None}, "background is None; it must be True or False"),
        ({"target": None}, "no target is called None; there are auto, cpu, cuda"),
        ({"target": ["cpu"]}, r"no target is called \['cpu'\]; there are auto, cpu, cuda"),
    ],
)
def test_an_argument_that_means_nothing_is_refused(given: Any, said: str) -> None:
    with pytest.raises(Refused, match=f"^{said}$"):
        InferenceSession("model.onnx", **given)


def test_a_time_to_wait_is_a_number(session: InferenceSession) -> None:
    with pytest.raises(Refused, match=r"^timeout_s is 'long'; it must be a number of seconds, or None for no limit$"):
        session.wait("long")  # type: ignore[arg-type]
    with pytest.raises(Refused, match=r"^timeout_s is nan; it must be a number of seconds"):
        session.wait(nan)
    assert session.wait(1) and session.wait(None) and session.wait(inf)


@pytest.mark.slow
def test_as_many_run_at_a_time_as_processors_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one run goes on, another takes a copy with memory of its own; a third one waits."""
    monkeypatch.setattr(execution, "available_cores", lambda: {0, 1})
    feeds = {"x": np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)}
    with InferenceSession(small_model().SerializeToString(), threads=1) as session:
        [expected] = session.run(None, feeds)
        model = static_model(session)._kernels
        assert isinstance(model, CompiledModel)
        with model._turn, ThreadPoolExecutor(2) as threads:
            for _ in range(3):
                [y] = threads.submit(session.run, None, feeds).result(60)
                assert np.array_equal(y, expected)
            [copy] = model._copies
            assert copy._arena is not model._arena and copy.image is model.image
            with copy._turn:  # one of the two waits for it, the other one for the model
                runs = [threads.submit(session.run, None, feeds) for _ in range(2)]
                assert not any(run.done() for run in runs)
                model._turn.release()
                assert wait(runs, 60, FIRST_COMPLETED).done
                model._turn.acquire()
            assert all(np.array_equal(run.result(60)[0], expected) for run in runs)
        assert len(model._copies) == 1
    with pytest.raises(Refused, match="closed"):
        session.run(None, feeds)


@pytest.mark.parametrize("threads", [0, -1, 4097, "2", 1.5, True])
def test_threads_have_a_range(threads: Any) -> None:
    with pytest.raises(Refused, match=r"threads is .*; it must be a whole number from 1 to 4096"):
        InferenceSession(small_model().SerializeToString(), threads=threads)


@pytest.mark.parametrize("dims", [{"n": "1"}, {"n": 1.5}, {"n": True}, {"n": None}, {1: 1}, [("n", 1)], "n=1"])
def test_dims_are_whole_numbers_by_name(dims: Any) -> None:
    with pytest.raises(Refused, match=r"^dims .*names to whole numbers: dims=\{'batch': 1\}$"):
        InferenceSession(small_model("n").SerializeToString(), dims=dims)


@pytest.mark.parametrize("size", [0, -1, 2**31])
def test_sizes_have_a_range(size: int) -> None:
    with pytest.raises(Refused, match=f"^dims maps 'n' to {size}; a size is a whole number from 1 to 2,147,483,647$"):
        InferenceSession(small_model("n").SerializeToString(), dims={"n": size})


def test_a_session_that_is_closed_refuses_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEWRIGHT_HOME", str(tmp_path))
    session = InferenceSession(small_model().SerializeToString(), threads=1)
    feed = {"x": np.ones((4, 8), np.float32)}
    session.close()
    for call in (lambda: session.run(None, feed), lambda: session.kernels_s(feed)):
        with pytest.raises(Refused, match=r"^the session is closed; open the model again to run it$"):
            call()


def test_whole_numbers_of_numpy_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEWRIGHT_HOME", str(tmp_path))
    numbers: Any = {"dims": {"n": np.int64(5)}, "threads": np.int32(1)}
    with InferenceSession(small_model("n").SerializeToString(), **numbers) as session:
        assert session.get_inputs()[0].shape == [5, 8]


def test_notes_say_what_costs_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model = open_model(small_model().SerializeToString())
    monkeypatch.setattr("tunewright.tuner.session.notes.available_cores", lambda: [0])
    with InferenceSession.of(model, detect(2), {}) as opened:
        untuned, many = opened.notes
        tasks = opened.coverage().untuned
    assert untuned.startswith(f"{tasks} of {tasks} tasks run untuned")
    assert many == "threads=2 is more than the 1 processor that this process may use"


def test_arguments_are_described_as_onnx_runtime_does() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    kinds = {"f": TensorProto.FLOAT, "d": TensorProto.DOUBLE, "i": TensorProto.INT64, "b": TensorProto.BOOL}
    kinds |= {"s": TensorProto.STRING, "h": TensorProto.FLOAT16, "u": TensorProto.UINT8}
    inputs = [helper.make_tensor_value_info(name, kind, [2, 3]) for name, kind in kinds.items()]
    outputs = [helper.make_tensor_value_info(f"{name}_", kind, [2, 3]) for name, kind in kinds.items()]
    nodes = [helper.make_node("Identity", [name], [f"{name}_"]) for name in kinds]
    graph = helper.make_graph(nodes, "kinds", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    theirs = onnxruntime.InferenceSession(model)
    with InferenceSession.of(open_model(model), detect(1), {}) as ours:
        for mine, right in ((ours.get_inputs(), theirs.get_inputs()), (ours.get_outputs(), theirs.get_outputs())):
            assert [(a.name, a.type, a.shape) for a in mine] == [(a.name, a.type, a.shape) for a in right]


def test_half_floats_are_computed_in_float32() -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float16) for shape in ((5, 33), (33, 7)))
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["t"]), helper.make_node("Relu", ["t"], ["y"])],
        "half",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT16, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT16, (5, 7))],
        [numpy_helper.from_array(w, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    opened = open_model(model)
    assert not opened.fallbacks
    with InferenceSession.of(opened, detect(1), {}) as session:
        [y] = session.run(None, {"x": x})
    assert y.dtype == np.float16
    right = np.maximum(x.astype(np.float64) @ w.astype(np.float64), 0)
    np.testing.assert_allclose(y.astype(np.float64), right, rtol=2**-10, atol=1e-5)


class TestPlaces:
    """Where a session takes its schedules from."""

    def test_one_place_at_most(self, tmp_path: Path) -> None:
        with pytest.raises(Refused, match="give one of db and server"):
            InferenceSession(small_model().SerializeToString(), db="sqlite://", server="http://127.0.0.1:1")

    def test_a_server_that_is_away_costs_nothing_but_speed(self, tmp_path: Path, monkeypatch) -> None:
        monkeypatch.setenv("TUNEWRIGHT_HOME", str(tmp_path))
        with InferenceSession(small_model().SerializeToString(), server="http://127.0.0.1:1") as session:
            assert (session.coverage().tuned, session.coverage().untuned) == (0, 2)
            assert "kept answers and defaults are used" in session.notes[0]
            assert session.notes[-1].startswith("2 of 2 tasks run untuned")
            assert session.run(None, {"x": np.ones((4, 8), np.float32)})[0].shape == (4, 24)

    def test_an_address_that_is_none_is_refused(self) -> None:
        with pytest.raises(Refused, match="a server is http"):
            InferenceSession(small_model().SerializeToString(), server="localhost:8433")

    @staticmethod
    def record_all(url: str, target: Target) -> None:
        """Have a good record of each task of the small model on a target."""
        with open_store(url) as store:
            store.add_target(target)
            for task, _ in open_model(small_model().SerializeToString()).tasks.values():
                [space, *_] = spaces(task, target)
                store.add_task(task)
                good = Measurement(Status.OK, (1e-6,), 1e-6)
                store.record(Record(task.key, target.key, space.schedule(space.points[-1]), good))

    def test_what_was_imported_is_not_tuned_here(self, tmp_path: Path) -> None:
        there, here = (f"sqlite:///{tmp_path / name}.db" for name in ("there", "here"))
        self.record_all(there, detect(1))
        with open_store(there) as source, open_store(here) as store:
            store.import_([json.dumps(line) for line in source.export()])
        with InferenceSession(small_model().SerializeToString(), db=here, threads=1) as session:
            coverage = session.coverage()
            assert (coverage.tuned, coverage.transferred, coverage.untuned) == (0, 2, 0)

    def test_what_is_known_of_a_sibling_is_transferred(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path / 'tuning.db'}"
        self.record_all(url, replace(detect(1), threads=64))
        with InferenceSession(small_model().SerializeToString(), db=url, threads=1) as session:
            coverage = session.coverage()
            assert (coverage.tuned, coverage.transferred, coverage.untuned) == (0, 2, 0)
            assert session.notes == ()

    def test_the_environment_names_a_server_where_options_name_nothing(self, monkeypatch) -> None:
        monkeypatch.setenv("TUNEWRIGHT_SERVER", "http://127.0.0.1:1")
        assert ScheduleSource.of_options() == ScheduleSource(server="http://127.0.0.1:1")
        assert ScheduleSource.of_options("sqlite://") == ScheduleSource("sqlite://")
        assert ScheduleSource.of_options(lock=Path("f")) == ScheduleSource(lock=Path("f"))
        monkeypatch.setenv("TUNEWRIGHT_SERVER", "")
        assert ScheduleSource.of_options() == ScheduleSource()


def _opened(nodes: list[Any], **outputs: Any) -> InferenceSession:
    """A session of a model of x, two floats, and of these outputs by name and element type."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])]
    results = [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()]
    model = helper.make_model(
        helper.make_graph(nodes, "g", inputs, results), opset_imports=[helper.make_opsetid("", 18)], ir_version=10
    )
    return InferenceSession.of(open_model(model.SerializeToString()), detect(1), {})


def test_a_sequence_keeps_its_tensors_while_their_memory_is_used_again() -> None:
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["m"]),
        helper.make_node("SequenceConstruct", ["x", "m"], ["s"]),
        helper.make_node("Neg", ["x"], ["b"]),
        helper.make_node("SequenceInsert", ["s", "b"], ["t"]),
        helper.make_node("ConcatFromSequence", ["t"], ["y"], axis=0),
    ]
    with _opened(nodes, y=TensorProto.FLOAT) as session:
        [y] = session.run(None, {"x": np.array([2, 3], np.float32)})
    assert y.tolist() == [2, 3, 4, 9, -2, -3]


def test_values_that_may_be_absent() -> None:
    nodes = [
        helper.make_node("Optional", ["x"], ["o"]),
        helper.make_node("OptionalHasElement", ["o"], ["there"]),
        helper.make_node("OptionalGetElement", ["o"], ["y"]),
    ]
    with _opened(nodes, y=TensorProto.FLOAT, there=TensorProto.BOOL) as session:
        y, there = session.run(None, {"x": np.array([2, 3], np.float32)})
    assert y.tolist() == [2, 3] and there


def test_a_chain_of_thousands_of_nodes_runs() -> None:
    ops = {"Neg": np.negative, "Tanh": np.tanh, "Abs": np.abs, "Sqrt": np.sqrt}
    names = [list(ops)[n % len(ops)] for n in range(2000)]
    nodes = [helper.make_node(op, [f"t{n}"], [f"t{n + 1}"]) for n, op in enumerate(names)]
    given = [helper.make_tensor_value_info("t0", TensorProto.FLOAT, (3, 5))]
    made = [helper.make_tensor_value_info("t2000", TensorProto.FLOAT, (3, 5))]
    model = helper.make_model(
        helper.make_graph(nodes, "deep", given, made), opset_imports=[helper.make_opsetid("", 18)]
    )
    x = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    right = x
    for op in names:
        right = ops[op](right)
    with InferenceSession.of(open_model(model.SerializeToString()), detect(1), {}) as session:
        assert session.coverage().fallback == {}
        [result] = session.run(None, {"t0": x})
    np.testing.assert_allclose(result, right, rtol=1e-5)


def test_kernels_between_nodes_without_one_are_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []

    def counted(groups: Any) -> Library:
        loaded.append(groups)
        return Library(groups)

    monkeypatch.setattr(native, "Library", counted)
    nodes = [helper.make_node(("Asinh", "Tanh")[n % 2], [f"t{n}"], [f"t{n + 1}"]) for n in range(10)]
    given, made = (helper.make_tensor_value_info(name, TensorProto.FLOAT, (3, 5)) for name in ("t0", "t10"))
    graph = helper.make_graph(nodes, "mixed", [given], [made])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    x = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    right = x
    for _ in range(5):
        right = np.tanh(np.arcsinh(right))
    with InferenceSession.of(open_model(model.SerializeToString()), detect(1), {}) as session:
        [result] = session.run(None, {"t0": x})
    assert len(loaded) == 1
    np.testing.assert_allclose(result, right, rtol=1e-5)
