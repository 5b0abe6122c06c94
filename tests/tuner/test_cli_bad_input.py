"""Whatever a user can hand over by mistake or malice ends in one clear line and exit code 2."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tunewright.db.store import open_store
from tunewright.graph.evaluation.onnx_form import MAX_ELEMENTS
from tunewright.tuner.arguments import MOST_SIZE

from ..commands import Command
from .conftest import small_model

HUGE = 1 << 40


def refused(answer, *words: str) -> None:
    assert answer.code == 2, answer
    [line] = answer.err.splitlines()
    assert line.startswith("error: ")
    assert len(line) < 500
    assert line.isprintable()
    assert "Traceback" not in line
    for word in words:
        assert line.endswith(word[:-1]) if word.endswith("$") else word in line, line
    assert answer.out == ""


def truncated(folder: Path) -> Path:
    path = folder / "cut.onnx"
    path.write_bytes(small_model().SerializeToString()[:-200])
    return path


def no_onnx(folder: Path) -> Path:
    path = folder / "text.onnx"
    path.write_text("a letter to my bank\n" * 40)
    return path


def empty(folder: Path) -> Path:
    path = folder / "empty.onnx"
    path.touch()
    return path


def external(folder: Path) -> Path:
    (folder / "secret").write_bytes(bytes(8 * 24 * 4))
    inner = folder / "inner"
    inner.mkdir()
    proto = small_model()
    weight = proto.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "../secret"), ("offset", "0"), ("length", str(8 * 24 * 4))):
        weight.external_data.add(key=key, value=value)
    path = inner / "external.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def dynamic(folder: Path) -> Path:
    path = folder / "dynamic.onnx"
    onnx.save(small_model("batch"), path)
    return path


def odd_type(folder: Path) -> Path:
    proto = small_model()
    proto.graph.input[0].type.tensor_type.elem_type = 99
    path = folder / "type.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def huge_input(folder: Path) -> Path:
    proto = small_model()
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = HUGE
    path = folder / "huge.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def huge_weight(folder: Path) -> Path:
    proto = small_model()
    proto.graph.initializer[0].dims[0] = HUGE
    path = folder / "weight.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def huge_filled(folder: Path) -> Path:
    shape = helper.make_tensor("shape", TensorProto.INT64, [2], [HUGE, 24])
    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["filled"]),
        helper.make_node("ReduceSum", ["filled"], ["y"], keepdims=0),
    ]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [])
    graph = helper.make_graph(nodes, "huge", [], [result], [shape])
    path = folder / "filled.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def missing(folder: Path) -> Path:
    return folder / "missing.onnx"


def a_folder(folder: Path) -> Path:
    return folder


CASES = [
    (truncated, ["cut short"]),
    (no_onnx, ["text.onnx': not an ONNX model"]),
    (empty, ["empty"]),
    (external, ["secret"]),
    (dynamic, ["'batch'", "--dim batch=1"]),
    (odd_type, ["type"]),
    (huge_input, [f"{HUGE}"]),
    (huge_weight, []),
    (huge_filled, [f"{HUGE}"]),
    (missing, ["missing.onnx': No such file or directory; check the name$"]),
    (a_folder, ["directory; it is a folder, where a file is needed: name a file in it"]),
]


@pytest.mark.parametrize("name", ["tune", "bench", "run", "lookup", "tasks"])
@pytest.mark.parametrize(("make", "words"), CASES, ids=[make.__name__ for make, _ in CASES])
def test_models(name: str, make: Callable[[Path], Path], words: list[str], command: Command, tmp_path: Path) -> None:
    answer = command(name, make(tmp_path), "--db", f"sqlite:///{tmp_path / 'tuning.db'}")
    refused(answer if name != "tune" else without_progress(answer), *words)


def test_what_is_wrong_with_a_place_to_write_to(model: Path, command: Command, tmp_path: Path) -> None:
    url, file = f"sqlite:///{tmp_path / 'tuning.db'}", tmp_path / "file"
    file.write_text("")
    with open_store(url):
        pass
    refused(command("run", model, "--output", file, "--db", url), "file': File exists", "name another one")
    refused(command("run", model, "--output", file / "out", "--db", url), "Not a directory", "name another place")


def test_a_file_that_is_not_there(model: Path, command: Command, tmp_path: Path) -> None:
    """Where only it is missing, no folder is missed, and where nothing is written, none need be there."""
    file, url = tmp_path / "no", f"sqlite:///{tmp_path / 'tuning.db'}"
    said = f"error: {str(file)!r}: No such file or directory; check the name$"
    refused(command("import", file, "--db", url), said)
    refused(command("restore", file, "--db", url), said)
    refused(command("run", model, "--input", f"x={file}"), said)
    refused(command("tasks", file / "m.onnx"), f"check the name: there is no folder {str(file)!r}$")


def without_progress(answer):
    lines = [line for line in answer.err.splitlines() if line != "reading the model"]
    return type(answer)(answer.code, answer.out, "\n".join(lines))


def test_the_message_is_in_the_json_object(command: Command, tmp_path: Path) -> None:
    answer = command("tasks", dynamic(tmp_path), "--json")
    assert answer.code == 2
    assert "'batch'" in json.loads(answer.out)["error"]["message"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--dim", "batch"], "NAME=NUMBER"),
        (["--dim", "batch="], "NAME=NUMBER"),
        (["--dim", "batch=0"], "'0' is no size; give a whole number from 1 to 2,147,483,647, as in --dim batch=1"),
        (["--dim", "batch=-1"], "'-1' is no size"),
        (["--dim", "batch=1.5"], "'1.5' is no size"),
        (["--dim", f"batch={'9' * 5000}"], "...' is no size"),
        (["--dim", "batch=2", "--dim", "batch=3"], "two values"),
        (["--dim", f"batch={HUGE}"], f"{HUGE}"),
        (["--dim", "batch=2", "--dim", "other=2"], "no dimension 'other' is open in the model; open ones: 'batch'"),
        (["--dim", "bat=2"], "dynamic.onnx': no dimension 'bat' is open in the model; open ones: 'batch'"),
        (["--threads", "0"], "--threads"),
        (["--dim", "batch=2", "--db", "nonsense"], "database URL"),
        (["--dim", "batch=2", "--db", "mysql://localhost/x"], "mysql"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_options(arguments: list[str], word: str, command: Command, tmp_path: Path) -> None:
    refused(command("tasks", dynamic(tmp_path), *arguments), word)


def test_the_largest_size_is_that_of_a_tensor() -> None:
    assert MOST_SIZE == MAX_ELEMENTS


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["tune", "m", "--trials", "0"], "error: --trials must be at least 1, not 0"),
        (["tune", "m", "--trials", "few"], "error: --trials must be a whole number, not few"),
        (["tune", "m", "--trials"], "error: --trials needs a value"),
        (["tune", "m", "--minutes", "0"], "error: --minutes must be at least 0.01, not 0"),
        (["tune", "m", "--minutes", "inf"], "error: --minutes must be at most 525600, not inf"),
        (["tune", "m", "--minutes", "nan"], "error: --minutes must be a"),
        (["tune", "m", "--minutes", "1e300"], "error: --minutes must be at most 525600, not 1e300"),
        (["tune", "m", "--trials", "9" * 23], f"error: --trials must be at most 1000000, not {'9' * 23}"),
        (["tune", "m", "--seed", str(2**32)], "error: --seed must be at most 4294967295, not 4294967296"),
        (["void", "012345", "--reason", "r", "--target", "nope"], "and by their keys, or 6 digits of one, those of"),
        (["tune", "m", "--minutes", "long"], "error: --minutes must be a number, not long"),
        *(
            (["tune", "m", "--until", text], f"error: --until {text!r} is not a percentage above 0 and below 100, such")
            for text in ("", "0%", "100", "nan", "-1%", "two", "2%%")
        ),
        (["tune", "m", "--threads", "5000"], "error: --threads must be at most 4096, not 5000"),
        (["tune", "m", "--pool", "moon"], "error: --pool must be local or ray, not 'moon'"),
        (["tune", "m", "--ray-address", "a"], "error: --pool local takes no --ray-address; --pool ray does"),
        (["work", "--ray-address", "a"], "error: --pool local takes no --ray-address; --pool ray does"),
        (["tune", "m", "--strategy", "luck"], "error: --strategy must be evolutionary or random, not 'luck'"),
        (["tune", "m", "--target", "tpu"], "error: --target must be auto, cpu or cuda, not 'tpu'"),
        (["tune", "m", "more"], "error: 'more' is one argument too many; see tunewright tune --help"),
        (["tune", "m", "--db", ""], "error: --db is empty"),
        (["tune", "m", "--nonsense"], "error: no option --nonsense; see tunewright tune --help"),
        (["bench", "m", "--against", "tensorrt"], "'tensorrt'"),
        (["bench", "m", "--against", ","], "--against"),
        (["show", "no-key"], "key"),
        (["show", "0123"], "--model"),
        (["dance"], "error: no command 'dance'; see tunewright --help"),
        (["db", "dance"], "error: no command 'dance'; see tunewright db --help"),
        (["tune"], "error: MODEL is missing; see tunewright tune --help"),
    ],
)
def test_words(arguments: list[str], word: str, command: Command) -> None:
    refused(command(*arguments), word)


def test_a_bound_dimension_helps(command: Command, tmp_path: Path) -> None:
    answer = command("tasks", dynamic(tmp_path), "--dim", "batch=3", "--json")
    assert answer.data["tasks"][0]["inputs"][0]["shape"][0] == 3


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "array"),
        (b"\x93NUMPY\x01\x00", "array"),
        (b"not numpy", "array"),
    ],
)
def test_arrays_that_are_none(content: bytes, word: str, command: Command, model: Path, tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_bytes(content)
    refused(command("run", model, "--input", f"x={tmp_path / 'x.npy'}"), word)


def test_arrays_that_are_pickled(command: Command, model: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{}]), allow_pickle=True)
    answer = command("run", model, "--input", f"x={tmp_path / 'x.npy'}")
    refused(answer, "array")
    assert "allow_pickle" not in answer.err


def test_arrays_that_promise_too_much(command: Command, model: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((4, 8), np.float32))
    content = (tmp_path / "x.npy").read_bytes().replace(b"(4, 8), }      ", b"(400000000, 8),}", 1)
    (tmp_path / "x.npy").write_bytes(content)
    refused(command("run", model, "--input", f"x={tmp_path / 'x.npy'}"), "array")


@pytest.mark.parametrize(
    ("array", "word"), [(np.zeros((4, 9), np.float32), "[4, 9]"), (np.zeros((4, 8), np.float64), "float64")]
)
def test_arrays_that_do_not_fit(array, word: str, command: Command, model: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", array)
    refused(command("run", model, "--input", f"x={tmp_path / 'x.npy'}"), word)


@pytest.mark.parametrize("text", ["z=x.npy", "x", "=x.npy", "x=missing.npy"])
def test_inputs_that_are_none(text: str, command: Command, model: Path) -> None:
    refused(command("run", model, "--input", text))


@pytest.mark.parametrize("level", ["7", "-1", "many"])
def test_debug(level: str, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEBUG", level)
    refused(command("doctor"), "DEBUG")


def test_database_that_is_none(command: Command, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    path.write_text("not a database, and longer than a header of SQLite's would be: " * 20)
    refused(command("tasks", model, "--db", f"sqlite:///{path}"), "tuning.db")
    assert path.read_text().startswith("not a database")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{}\n", ["is not a Tunewright export", "line 1"]),
        (b"nonsense\n", ["is not a Tunewright export", "line 1"]),
        (b"\n\xff\xfe\n", ["is not a Tunewright export", "line 2", "no text"]),
        (b'{"exported": 3}\n', ["3", "0 records"]),
        (b'{"exported": \n', ["line 1"]),
        (b'{"schema": 2, "kind": "tri', ["line 1: it is cut short; nothing was stored"]),
        (b'{"schema": 2, "kind": "trail"}\n', ["records.jsonl', line 1: kind is 'trail'", "; nothing was stored"]),
        (b'{"schema": 9}\n', ["records.jsonl', line 1: its schema is 9", "; nothing was stored"]),
    ],
)
def test_records_that_are_none(content: bytes, words: list[str], command: Command, tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").write_bytes(content)
    answer = command("import", tmp_path / "records.jsonl", "--db", f"sqlite:///{tmp_path / 'tuning.db'}")
    refused(answer, "records.jsonl", *words)


@pytest.mark.parametrize("name", ["bench", "run", "lookup", "tasks"])
def test_mistyped_databases(name: str, command: Command, model: Path, tmp_path: Path) -> None:
    """Whoever only reads makes none."""
    url = f"sqlite:///{tmp_path / 'folder' / 'typo.db'}"
    refused(command(name, model, "--db", url), "typo.db", "there is no such database")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["tune", "{model}"], ["db", "upgrade"], ["import", "-"], ["key", "create", "k"]])
def test_no_folder_is_made_for_a_database(
    arguments: list[str], command: Command, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever writes makes the file; but for the data folder nobody makes the folder."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    given = [argument.format(model=model) for argument in arguments]
    url = f"sqlite:///{tmp_path / 'folder' / 'deep' / 'typo.db'}"
    answer = command(*given, "--db", url)
    assert answer.code == 2 and answer.err.endswith(f"there is no folder '{tmp_path}/folder/deep'; make it first\n")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("TUNEWRIGHT_HOME", str(tmp_path / "data" / "home"))
    assert command("db", "upgrade").code == 0
    assert (tmp_path / "data" / "home" / "tuning.db").exists()


@pytest.mark.parametrize("arguments", [["show", "0123"], ["export"]])
def test_mistyped_databases_without_a_model(arguments: list[str], command: Command, tmp_path: Path) -> None:
    refused(command(*arguments, "--db", f"sqlite:///{tmp_path / 'folder' / 'typo.db'}"), "there is no such database")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["run", "tasks", "lookup"])
def test_no_default_database_yet(
    name: str, command: Command, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNEWRIGHT_HOME", str(tmp_path / "home"))
    answer = command(name, model)
    assert answer.code == 0
    assert answer.err == ""
    assert not (tmp_path / "home" / "tuning.db").exists()


HOSTILE = "a'\"; --\n\x1b[2J[bold]../../etc/%s{0}`id`"


def test_hostile_names_are_data(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "[red]it's\n\x1b[2J.onnx"
    onnx.save(small_model(names=(HOSTILE, HOSTILE + "out")), path)
    np.save(tmp_path / "x.npy", np.ones((4, 8), np.float32))
    database = f"sqlite:///{tmp_path / 'tuning.db'}"
    assert command("db", "upgrade", "--db", database).code == 0
    given = ["--input", f"{HOSTILE}={tmp_path / 'x.npy'}"]
    plain = command("run", path, *given, "--output", tmp_path / "out", "--db", database)
    assert plain.code == 0, plain.err
    assert "out/output_0.npy" in plain.out.replace("\n", "")
    for text in (plain.out, plain.err, command("tasks", path, "--db", database).out):
        assert all(line.isprintable() for line in text.split("\n"))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["manifest.json", "output_0.npy"]
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["outputs"][0]["name"] == HOSTILE + "out"
    assert manifest["outputs"][0]["file"] == "output_0.npy"
    answer = command("run", path, *given, "--json", "--db", database)
    assert [entry["source"] for entry in answer.data["inputs"]] == [str(tmp_path / "x.npy")]
    assert re.fullmatch(r"[\x20-\x7e]+\n", answer.out)


def test_hostile_names_reach_no_code(command: Command, tmp_path: Path) -> None:
    texts = []
    for name in ("x", HOSTILE):
        onnx.save(small_model(names=(name, name + "out")), tmp_path / "model.onnx")
        listed = command("tasks", tmp_path / "model.onnx", "--json").data["tasks"]
        task = listed[0]["key"]
        texts.append((listed, command("show", task, "--model", tmp_path / "model.onnx", "--json").data))
    assert texts[0] == texts[1]
