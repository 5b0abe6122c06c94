"""The count of conformance cases that run natively."""

from __future__ import annotations

from tunewright.bench import conformance
from tunewright.bench.conformance import CaseKind, judge_case, report
from tunewright.bench.onnx_cases import all_cases


def kinds(*names: str) -> list[CaseKind]:
    cases = {case.name: case for case in all_cases()}
    return [kind for name in names for kind in judge_case(cases[name])]


def test_cases_are_judged_by_their_nodes_and_types() -> None:
    relu, told, back = kinds("test_relu", "test_reduce_sum_keepdims_random", "test_dft_inverse")
    assert (relu.group, relu.result, relu.op) == ("float32", "native", "")
    assert (told.result, told.op) == ("native if told", "")
    [window] = kinds("test_hannwindow_expanded")  # from what is given, others come by Range
    assert window.result == "native if told"
    assert back.op == "DFT"
    assert back.result.startswith("DFT: ")


def test_only_static_cases_of_these_types_count() -> None:
    assert kinds("test_string_concat", "test_sequence_insert_at_back", "test_cast_FLOAT_to_FLOAT16") == []


def test_the_report_counts_each_case_once() -> None:
    found = [
        CaseKind("a", "float32", "native"),
        CaseKind("d", "bool", "native if told"),
        CaseKind("b", "float32", "Mod: none", "Mod"),
        CaseKind("c", "bool", "Mod: none", "Mod"),
    ]
    lines = list(report(found, 9, with_names=True))
    assert lines[-3:] == ["     2  Mod: none", "        b (float32)", "        c (bool)"]
    assert [line.split() for line in lines if line.startswith(("float32", "all"))] == [
        ["float32", "2", "1", "50.0%"],
        ["all", "4", "2", "50.0%"],
    ]
    assert "1 of these as soon as inputs that are parameters are told" in lines
    assert conformance.by_group(found)["bool"] == {"cases": 2, "native": 1}
