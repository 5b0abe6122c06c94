"""What MetaSchedule and AutoTVM left in files becomes entries of the log, without TVM."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tunewright.db.logs.entry import Cost, CostEvidence, LogEntry, LogEnvironment
from tunewright.integrations.tvm import entries_of, form

CUDA = {"kind": "cuda", "tag": "", "keys": ["cuda", "gpu"], "arch": "sm_90", "host": {"kind": "llvm"}}

TRACE = [[["Split", ["l2", 4], [1, 0], ["l3", "l4"]]], [[0, [1, 4]]]]


def workload(version: str = "0.27.0", structural_hash: int = 1 << 63) -> list[str]:
    module = json.dumps({"root_index": 0, "nodes": [], "metadata": {"tvm_version": version}}).encode()
    return [str(structural_hash), base64.b64encode(len(module).to_bytes(8, "little") + module).decode()]


def record(*run_secs: float, target: Any = CUDA, number: int = 0) -> list[Any]:
    return [number, [TRACE, list(run_secs), target, [["TENSOR", "float32", [4]]]]]


def autotvm(target: str = "cuda -keys=cuda,gpu -arch=sm_80 -max_num_threads=1024", *times_s: float, **more: Any) -> Any:
    line = {
        "input": [target, "conv2d_nchw.cuda", [["TENSOR", [1, 3, 8, 8], "float32"], [1, 1]], {}],
        "config": {"index": 7, "code_hash": None, "entity": [["tile_f", "sp", [-1, 2]]]},
        "result": [list(times_s), 0, 1.25, 1600000000.0],
        "version": 0.2,
        "tvm_version": "0.9.0",
    }
    return line | more


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def written(name: str, *lines: Any) -> Path:
        file = tmp_path / name
        file.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
        return file

    return written


def test_files_of_metaschedule(write):
    workloads = write("database_workload.json", workload(), workload("0.20.0", 3))
    records = write("database_tuning_record.json", record(2e-3, 1e-3, 9e-3), record(1e10), record(5e-3, number=1))
    first, older, *found = entries_of([records, workloads])
    assert (first.key, first.environment) == (
        "workloads-8000000000000000",
        LogEnvironment("", "tvm", {"tvm": "0.27.0"}),
    )
    assert form.unpack(first.value) == workload()
    assert older.key == "workloads-0000000000000003"
    assert [entry.key for entry in found] == ["records-8000000000000000"] * 2 + ["records-0000000000000003"]
    assert [entry.cost for entry in found] == [
        Cost(2e-3, 1e-3, 9e-3, 3, CostEvidence.TIMED),
        Cost(),
        Cost(5e-3, samples=1, evidence=CostEvidence.TIMED),
    ]
    assert found[0].environment == LogEnvironment("cuda -arch=sm_90", "tvm", {"tvm": "0.27.0"})
    assert found[2].environment == LogEnvironment("cuda -arch=sm_90", "tvm", {"tvm": "0.20.0"})
    assert form.unpack(found[0].value) == [TRACE, None, CUDA, [["TENSOR", "float32", [4]]]]
    assert found[0].choice == found[1].choice  # one candidate, that failed once
    assert list(entries_of([workloads])) == [first, older, *found]


def test_logs_of_autotvm(write):
    file = write("a.log", autotvm("cuda -keys=cuda,gpu -arch=sm_80", 1e-3), "\n", autotvm(), autotvm("llvm", 2e-3))
    failed = write("b.log", autotvm("llvm", 1e9, result=[[1e9], 4, 1.0, 1.0]))
    [one, other] = entries_of([file, failed])
    assert one.key == other.key
    assert one.key.startswith("autotvm-conv2d_nchw.cuda-")
    assert one.environment == LogEnvironment("cuda -arch=sm_80", "autotvm", {"tvm": "0.9.0"})
    assert other.environment.device == "llvm"
    assert other.cost == Cost(2e-3, samples=1, evidence=CostEvidence.TIMED)
    assert form.unpack(one.value)["config"]["index"] == 7


@pytest.mark.parametrize(
    ("name", "lines", "why"),
    [
        ("notes.txt", ["hello\n"], "notes.txt, line 1: Expecting value"),
        ("notes.json", [[1]], "neither a log of AutoTVM nor a file of MetaSchedule's"),
        ("workload.json", [[1, 2]], "line 1: a workload is a list of its hash and its module"),
        ("workload.json", [["x", workload()[1]]], "line 1: invalid literal"),
        ("workload.json", [["1", "%"]], "line 1: the module of the workload can't be read"),
        ("workload.json", ["[" * 100_000], "line 1: maximum recursion"),
        ("a.log", [autotvm(), {"v": 0.1, "i": "gANdcQA="}], "line 2: .* one with pickles is not read"),
        ("a.log", [autotvm(result=[["x"], 0])], "line 1: times are a list of numbers"),
        ("a.log", [autotvm(input=[1, 2, 3])], "line 1: an input of AutoTVM has a target"),
    ],
)
def test_what_is_none_of_these_is_refused(write, name, lines, why):
    with pytest.raises(ValueError, match=why):
        list(entries_of([write(name, *lines)]))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (record(1e-3, number=1), "there is no workload 1"),
        (record(1e-3, number=-1), "there is no workload -1"),
        (record(1e-3, target=None), "the record has no target"),
        ([0, []], "a tuning record is a list of four"),
        ([True, record()[1]], "the number of a workload"),
        (record("x"), "times are a list of numbers"),  # type: ignore[arg-type]
    ],
)
def test_a_line_that_is_no_record_is_refused(write, line, why):
    write("workload.json", workload())
    with pytest.raises(ValueError, match=f"tuning_record.json, line 2: .*{why}"):
        list(entries_of([write("tuning_record.json", record(1e-3), line)]))


def test_what_is_too_long_is_left_out_and_told(write, monkeypatch, caplog):
    monkeypatch.setattr(form, "VALUE_BYTES", 100)
    monkeypatch.setattr(form, "PLAIN_BYTES", 100)
    write("workload.json", workload())
    assert list(entries_of([write("tuning_record.json", record(1e-3))])) == []
    assert "workload.json, line 1: it has" in caplog.text


def test_long_values_are_compressed_and_come_back():
    data = ["a" * 10_000]
    value = form.pack(form.text_of(data))
    assert len(value) < 100
    assert form.unpack(value) == data
    assert form.pack(b"[1]") == b"[1]"
    for bad in (value[:-9], b"x", b"x" * 100, b"", b"[" * 100_000):
        with pytest.raises(ValueError, match=r"."):
            form.unpack(bad)


def test_a_value_that_unpacks_to_too_much_is_refused(monkeypatch):
    value = form.pack(form.text_of(["a" * 10_000]))
    monkeypatch.setattr(form, "UNPACKED_BYTES", 5000)
    with pytest.raises(ValueError, match="unpacks to too much"):
        form.unpack(value)


@pytest.mark.parametrize(
    ("target", "device"),
    [
        (
            {"kind": "llvm", "tag": "t", "keys": ["cpu"], "mcpu": "znver3", "num-cores": 4},
            "llvm -mcpu=znver3 -num-cores=4",
        ),
        ({"kind": "llvm", "mattr": ["+avx2", "+fma"]}, "llvm -mattr=+avx2,+fma"),
        ({"kind": "llvm\n\u00e9"}, "llvm\\n\\u00e9"),
        ({}, ""),
    ],
)
def test_a_target_in_one_line(target, device):
    assert form.device_of(target) == device


def test_a_long_target_has_a_digest():
    one, other = ({"kind": "llvm", "mattr": ["+a"] * 100 + [last]} for last in ("+b", "+c"))
    assert form.device_of(one) != form.device_of(other)
    assert LogEnvironment(form.device_of(one)).device.startswith("llvm -mattr=+a,+a")


@pytest.mark.parametrize("times_s", [[], [form.UNTIMED_S], [1e-3, float("nan")], [0.0], [-1.0], None])
def test_what_failed_has_no_cost(times_s):
    assert form.cost_of(times_s) == Cost()


def test_reading_files_needs_no_tvm():
    code = "import sys, tunewright.integrations.tvm.files; sys.exit('tvm' in sys.modules)"
    paths = Path(__file__).parents[3] / ".types"
    assert (
        subprocess.run([sys.executable, "-P", "-c", code], env={"PYTHONPATH": str(paths)}, check=False).returncode == 0
    )


def test_what_metaschedule_writes_is_what_the_database_writes(tmp_path, monkeypatch):
    tvm = pytest.importorskip("tvm")
    pytest.importorskip("psutil")
    from tvm.s_tir.meta_schedule.database import JSONDatabase

    from tunewright.integrations.tvm import Database

    from .test_database import record as made

    files = [tmp_path / name for name in ("database_workload.json", "database_tuning_record.json")]
    theirs, ours = JSONDatabase(*map(str, files)), Database({"kind": "llvm"})
    kept: list[LogEntry] = []
    monkeypatch.setattr(ours.records._outbox, "add", kept.extend)
    for database in (theirs, ours):
        database.commit_tuning_record(made(database))
    found = list(entries_of(files))
    assert len(found) == 2
    assert [(one.key, one.environment, one.cost, form.unpack(one.value)) for one in found] == [
        (one.key, one.environment, one.cost, form.unpack(one.value)) for one in kept
    ]
    assert found[1].value == kept[1].value
    assert found[1].environment.versions == {"tvm": tvm.__version__}
