"""Tables in terminals of any width: every number is whole."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tunewright.tuner import text
from tunewright.tuner.cli import bench_report, comparison, lookup_tables, task_details, tune, tune_report
from tunewright.tuner.explain.peak import DOUBT, FEWER_MULTIPLICATIONS
from tunewright.tuner.lookup.result import Match
from tunewright.tuner.search.report import ENDINGS, SearchEnd
from tunewright.tuner.session.image_store import fallback_share

from ..commands import Command

OP = "Conv + BatchNormalization + Relu + Add + Clip + MaxPool of a name that never ends"

TASK: dict[str, Any] = {
    "key": "0123456789abcdef" * 4,
    "op": OP,
    "occurrences": 12,
    "chosen": 12,
    "trials": 86420,
    "job_trials": 1234,
    "flops": 3.4e9,
    "default_ms": 123.4,
    "best_ms": 0.0987,
    "gflops": 1234.5,
    "fraction_of_peak": 0.543,
    "inputs": [{"shape": [1, 64, 112, 112]}, {"shape": [64, 64, 3, 3]}],
    "outputs": [{"shape": [1, 64, 112, 112]}],
    "match": "exact",
    "basis": "measured",
    "confirmed": True,
    "noise": "",
    "provenance": {},
    "stale": False,
    "expected_ms": 0.0987,
    "interval_ms": None,
    "schedule": {"sketch": "contraction", "version": 1, "values": {f"knob{n}": n for n in range(12)}},
}

TUNED: dict[str, Any] = {
    "model": "m.onnx",
    "target": "cpu:x:8x256",
    "tasks": [TASK],
    "trials": 1234,
    "peak_gflops": 500.0,
    "failed": {},
    "fallback": {},
    "default_ms": 1480.8,
    "tuned_ms": 1.1844,
    "whole_model": "",
    "flops": 3.4e9,
    "coverage": {"native": 12, "fallback": {}, "reasons": []},
    "notes": [],
    "kept": None,
}

MEASURED: dict[str, Any] = {
    "model": "m.onnx",
    "target": "cpu:x:8x256",
    "threads": 8,
    "tunewright_ms": 123.41,
    "default_ms": 987.61,
    "peers": {"onnxruntime": 223.41, "openvino": 323.41},
    "intervals_ms": dict.fromkeys(("tunewright", comparison.DEFAULT, "onnxruntime", "openvino"), (123.41, 124.51)),
    "least_ms": dict.fromkeys(("tunewright", comparison.DEFAULT, "onnxruntime", "openvino"), 121.21),
    "kernels_ms": 119.41,
    "runtime": "",
    "runtime_nodes": 0,
    "peak_mb": {"tunewright": 101.4, "onnxruntime": 202.6},
    "versions": {"tunewright": "0.1.0", "onnxruntime": "1.27.1", "openvino": "2026.4.0"},
    "failures": {},
    "machine": {"processor": "a processor"},
    "samples": 15,
    "device": None,
    "noise": "",
    "mismatch": None,
    "reference": None,
    "plain_rel_err": {},
    "reference_saturates": False,
    "tasks": {"tuned": 1, "transferred": 0, "default": 0, "kept": 0},
    "fallback": {},
}

MEASURED_ON_GPU: dict[str, Any] = MEASURED | {
    "threads": None,
    "peers": {"onnxruntime": 223.41, "torch.compile": 323.41},
    "device": {
        "name": "NVIDIA H200",
        "driver": "580.159.04",
        "cuda": "13.0",
        "clock_mhz": [1755, 1980],
        "ms": {"tunewright": 98.123, comparison.DEFAULT: 187.61, "onnxruntime": 201.41, "torch.compile": 99.123},
        "intervals_ms": dict.fromkeys(
            ("tunewright", comparison.DEFAULT, "onnxruntime", "torch.compile"), (98.1234, 99.1234)
        ),
        "samples": 9,
    },
    "peak_mb": {},
    "versions": {"tunewright": "0.1.0", "onnxruntime": "1.27.1", "torch.compile": "2.11.0+cu130"},
}
"""Of runs on a GPU."""


def printed(render: Callable[[Console, Any], None], data: Mapping[str, Any], width: int) -> str:
    out = io.StringIO()
    render(Console(file=out, width=width, markup=False, emoji=False, highlight=False), data)
    return out.getvalue()


@pytest.mark.parametrize("width", [40, 80, 100, 160])
@pytest.mark.parametrize(
    ("render", "data", "numbers"),
    [
        (tune_report.render, TUNED, ["12", "1234", "123 ms", "98.7 \N{MICRO SIGN}s", "1250.25x"]),
        (lookup_tables.render_tasks, TUNED, ["3.4 G", "12", "98.7 \N{MICRO SIGN}s"]),
        (lookup_tables.render_lookup, TUNED, ["exact", "98.7 \N{MICRO SIGN}s"]),
        (bench_report.render, MEASURED, ["987.6 ms", "123.4 ms to 124.5 ms", "8.00x", "2026.4.0", "tunewright 101 MB"]),
        (
            bench_report.render,
            MEASURED_ON_GPU,
            ["98.12 ms", "98.12 ms to 99.12 ms", "1.91x", "987.6 ms", "2.11.0+cu130", "1755 to 1980 MHz", "580.159.04"],
        ),
    ],
    ids=["tune", "tasks", "lookup", "bench", "bench on a GPU"],
)
def test_numbers_are_whole(
    render: Callable[..., None], data: Mapping[str, Any], numbers: list[str], width: int
) -> None:
    out = printed(render, data, width)
    for number in numbers:
        assert any(number in line for line in out.splitlines()), number
    assert "\N{HORIZONTAL ELLIPSIS}" not in out
    if width >= 80:
        assert all(len(line) <= width for line in out.splitlines())


RETIMED = TUNED | {
    "tasks": [
        TASK | {"retimed": {"versions": {"llvm": "3.4"}, "default_ms": 140.0, "best_ms": 0.0912, "payoff": payoff}}
        for payoff in ("pays", "other", "unsure", "default", "fails")
    ]
    + [TASK | {"noise": "others were busy"}],
    "upgrade": {
        "schedules": 5,
        "versions": {"llvm": "22.1"},
        "seconds": 61.0,
        "tuning_seconds": 6100.0,
        "tasks": 5,
        "payoffs": dict.fromkeys(("pays", "other", "unsure", "default", "fails"), 1),
        "before_default_ms": 840.0,
        "before_ms": 1.0,
        "default_ms": 740.0,
        "best_ms": 2.0,
    },
}
"""Of a job that times stale tasks again."""


@pytest.mark.parametrize("width", [40, 80, 100, 160])
def test_what_was_timed_again_is_a_table(width: int) -> None:
    table, begin, rest = printed(tune_report.render, RETIMED, width).partition("tuning still pays for 2")
    for number in ("91.2 µs", "98.7 µs", "~98.7 µs", "123 ms"):
        assert any(number in line for line in table.splitlines()), number
    assert width < 80 or all(len(line) <= width for line in table.splitlines())
    words = " ".join((begin + rest).split())
    for sentence in (
        "tuning still pays for 2 of 5 tasks that were stale, for 1 by another schedule; no longer for 1, where the",
        "default is as fast now; it is too close to tell for 1; no schedule works any more for 1",
        "on their best 1.00 ms before, 2.00 ms now: 0.50x as fast; on their defaults 840 ms before, 740 ms now: 1.14x",
        "tuning now makes them 370.00x as fast as their defaults",
        "the versions now: llvm 22.1",
        "timing them again took 1:01, 1.0% of the 1:41:40 that their tuning had taken",
    ):
        assert sentence in words
    assert ("others were busy" in words) and "stale" not in printed(tune_report.render, TUNED, width)


def test_all_that_was_stale_is_told_of_where_tuning_pays_nowhere() -> None:
    upgrade = RETIMED["upgrade"] | {"payoffs": {"default": 5}, "tuning_seconds": 0.0, "best_ms": None}
    out = printed(tune_report.render, RETIMED | {"upgrade": upgrade}, 160)
    assert "tuning no longer pays: the default is as fast now for 5 tasks that were stale" in out
    assert "how long their tuning had taken is not known" in out and "tuning now makes" not in out
    nothing = printed(tune_report.render, RETIMED | {"upgrade": upgrade | {"tasks": 0}}, 160)
    assert "nothing was stale: what is known was found by the present versions, llvm 22.1" in nothing


def test_what_an_upgrade_did_of_another_version_is_passed_over() -> None:
    odd = RETIMED | {"upgrade": {"tasks": "many"}, "tasks": [TASK | {"retimed": {"payoff": "glorious"}}]}
    assert "not stale" in printed(tune_report.render, odd, 160)


def test_all_of_a_name_is_there() -> None:
    rows = printed(tune_report.render, TUNED, 80).splitlines()
    assert all(any(word in row for row in rows) for word in ("BatchNormalization", "MaxPool", "ends"))


@pytest.mark.parametrize("width", [72, 80, 100])
@pytest.mark.parametrize("render", [tune_report.render, lookup_tables.render_tasks, lookup_tables.render_lookup])
def test_names_of_ops_break_behind_a_plus(render: Callable[..., None], width: int) -> None:
    """And not within a word, as long as a word has room."""
    intervals = {"default_interval_ms": [120.0, 125.0], "best_interval_ms": [100.0, 105.0], "best_ms": 102.0}
    op = "QLinear+Conv+Relu+Max+Add+Sub+Clip+Softmax+Resize"
    cells = [op[4 * n :] for n in range(5)]
    data = TUNED | {"tasks": [TASK | intervals | {"op": cell} for cell in cells]}
    words = {word for cell in cells for word in cell.split("+")}
    place = slice(10 if width < 100 else 14, None)
    lines = [row[place].split("  ")[0].strip() for row in printed(render, data, width).splitlines()[3:]]
    shown = "".join(lines)
    assert shown.startswith("".join(cells)), shown
    for line in lines[: lines.index("")]:
        assert set(line.strip("+").split("+")) <= words, line


def test_what_was_taken_back_since_is_marked() -> None:
    gone = TUNED | {"tasks": [TASK | {"best_voided": True}], "voided": 1}
    out = printed(tune_report.render, gone, 160)
    assert "123 ms " in out and "98.7 µs†" in out and "1250.25x†" in out and "54.3%†" in out
    assert f"† {text.VOID_LEGEND}" in out and "1 trial was taken back" in out
    assert "†" not in printed(tune_report.render, TUNED, 160)


def test_a_job_of_tune_is_told_with_its_sizes(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "tune_model", lambda console, model, **options: TUNED)
    assert "m.onnx, sr=16000, n=2 on cpu:" in command("tune", "m.onnx", "--dim", "n=2", "--bind", "sr=16000").out
    assert "m.onnx on cpu:" in command("tune", "m.onnx").out


@pytest.mark.parametrize("ended_by", SearchEnd)
def test_why_a_search_ended(ended_by: SearchEnd) -> None:
    lines = printed(tune_report.render, TUNED | {"ended_by": ended_by.value}, 160).splitlines()
    [line] = [line for line in lines if line.startswith("the search ended: ")]
    assert ENDINGS[ended_by] in line
    assert "the search ended" not in printed(tune_report.render, TUNED | {"ended_by": None}, 160)


def test_a_prediction_beside_what_was_measured() -> None:
    because = [{"feature": "level0_volume", "value": 8.0, "log2_speed": -1.0}]
    prediction = {"expected_ms": 1.1, "deviation": 0.5, "judged_on": 12, "contributions": because}
    data = {"prediction": prediction, "measured": None}
    lines = printed(task_details.render_prediction, data, 120).splitlines()
    assert lines[0] == "the cost model expects 1.10 ms, give or take 41%"
    assert lines[1] == "it was judged on 12 tasks that it has not learned from"
    alone = printed(
        task_details.render_prediction, {"prediction": prediction | {"judged_on": 1}, "measured": None}, 120
    )
    assert "on 1 task that it has not learned from, which says nothing of others" in alone
    unknown = printed(
        task_details.render_prediction, {"prediction": prediction | {"judged_on": 0}, "measured": None}, 120
    )
    assert "nobody has judged it" in unknown
    assert lines[-1] == "  level0_volume = 8: -50.0%"
    measured = {"status": "ok", "median_ms": 2.0, "low_ms": 1.9, "high_ms": 2.1, "noise": "", "trial_ms": 1.0}
    beside = printed(task_details.render_prediction, data | {"measured": measured}, 120).splitlines()
    assert beside[1] == "that is +10% beside its trial's 1.00 ms°: models learn from times of trials"
    assert beside[-1] == "° by trials, not confirmed"
    failed = {"status": "crash", "median_ms": None, "low_ms": None, "high_ms": None, "noise": "", "trial_ms": None}
    assert "beside" not in printed(task_details.render_prediction, data | {"measured": failed}, 120)


@pytest.mark.parametrize(
    ("count", "nouns", "said"),
    [
        (0, ("trial",), "0 trials"),
        (1, ("trial",), "1 trial"),
        (1200, ("trial",), "1200 trials"),
        (12_345, ("trial",), "12,345 trials"),
        (0.5, ("minute",), "0.5 minutes"),
        (1.0, ("minute",), "1 minute"),
        (1, ("task is", "tasks are"), "1 task is"),
        (2, ("task is", "tasks are"), "2 tasks are"),
    ],
)
def test_counted_nouns(count: float, nouns: tuple[str, ...], said: str) -> None:
    assert text.counted(count, *nouns) == said


def test_no_number_stands_before_a_plural_by_itself() -> None:
    """`text.counted` knows when there is one."""
    counted = "files jobs keys minutes nodes processors records samples targets tasks threads trials tuners"
    alone = re.compile(rf"\}} (?:{'|'.join(counted.split())})\b")
    folders = Path(text.__file__).parent, Path(text.__file__).parents[1] / "api"
    sources = {file: file.read_text(encoding="utf-8") for folder in folders for file in folder.rglob("*.py")}
    assert len(sources) > 100
    assert {file.name: found for file, source in sources.items() if (found := alone.findall(source))} == {}


def within(edges: tuple[float, float], best: tuple[float, float]) -> dict[str, Any]:
    """Tuned with intervals of the one task."""
    return TUNED | {"tasks": [TASK | {"default_interval_ms": edges, "best_interval_ms": best}]}


@pytest.mark.parametrize("width", [80, 100, 160])
def test_gains_of_tasks_have_their_intervals(width: int) -> None:
    lines = printed(tune_report.render, within((123.0, 124.0), (0.098, 0.099)), width).splitlines()
    assert any("1250.25x [1242.42, 1265.31]" in line for line in lines)
    assert all(len(line) <= min(width, 100) for line in lines)


@pytest.mark.parametrize(
    ("sketches", "said"),
    [
        (["winograd4"], [FEWER_MULTIPLICATIONS]),
        (["contraction", "contraction"], [DOUBT]),
        (["contraction", "winograd2"], [DOUBT, FEWER_MULTIPLICATIONS]),
    ],
)
def test_why_a_share_is_above_the_peak(sketches: list[str], said: list[str]) -> None:
    tasks = [TASK | {"fraction_of_peak": 1.3, "schedule": TASK["schedule"] | {"sketch": one}} for one in sketches]
    lines = printed(tune_report.render, TUNED | {"tasks": tasks}, 160).splitlines()
    assert [line for line in lines if line.startswith("above")] == [f"above 100% of peak: {one}" for one in said]


@pytest.mark.parametrize(("edges", "said"), [((0.93, 0.99), "slower"), ((0.93, 1.01), "no gain for certain")])
def test_what_was_found_is_called_slower_where_that_is_certain(edges: tuple[float, float], said: str) -> None:
    kept = {"outcome": "defaults_kept", "tuned_ms": 1480.8, "rejected_ms": 1575.0, "rejected_interval": edges}
    assert f"x), {said}, so it keeps its defaults" in printed(tune_report.render, TUNED | kept, 160)


def test_columns_are_left_out_for_intervals() -> None:
    slim = TASK | {"op": "Conv + Relu"}
    assert "1234.5" in printed(tune_report.render, TUNED | {"tasks": [slim]}, 160)
    task = slim | {"default_interval_ms": (123.0, 124.0), "best_interval_ms": (0.098, 0.099)}
    out = printed(tune_report.render, TUNED | {"tasks": [task]}, 160)
    assert "1234.5" not in out and "54.3%" in out


@pytest.mark.parametrize(
    "known",
    [
        {"default_interval_ms": None, "best_interval_ms": None},
        {"best_ms": 123.4, "best_interval_ms": (123.0, 124.0)},  # it is the default
        {"confirmed": False},
        {"default_interval_ms": (123.4, 123.4), "best_interval_ms": (0.0987, 0.0987)},  # of one sample
        {"best_interval_ms": (0.0987, 0.0987)},  # its samples were divided by themselves
    ],
)
def test_no_interval_is_better_than_a_false_one(known: dict[str, Any]) -> None:
    edges = {"default_interval_ms": (123.0, 124.0), "best_interval_ms": (0.098, 0.099)}
    out = printed(tune_report.render, TUNED | {"tasks": [TASK | edges | known]}, 100)
    assert "[" not in out


@pytest.mark.parametrize(
    ("edges", "said"),
    [
        (None, ""),
        ((1.0, 1.0), ""),
        ((1.0, 1.0 + 1e-12), ""),
        ((0.98, 1.04), " (0.98x to 1.04x)"),
        ((1.0011, 1.0042), " (1.001x to 1.004x)"),
    ],
)
def test_intervals_have_the_digits_that_tell_their_ends_apart(edges: tuple[float, float] | None, said: str) -> None:
    assert text.between(edges) == said
    assert text.between_ms((1.2341, 1.2349)) == " (1.234 ms to 1.235 ms)"


@pytest.mark.parametrize(("kept", "untuned"), [(0, 2), (1, 1), (2, 0)])
def test_a_bench_does_not_send_to_tune_what_was_tuned(kept: int, untuned: int) -> None:
    out = printed(bench_report.render, MEASURED | {"tasks": MEASURED["tasks"] | {"default": 2, "kept": kept}}, 160)
    assert (f"{untuned} of 3 tasks are not tuned" in out) == (untuned > 0)
    assert ("not tuned" in out) == (untuned > 0)


@pytest.mark.parametrize(
    ("data", "threads", "said"),
    [
        (MEASURED, 8, "tunewright tune"),
        (MEASURED, 1, "tunewright tune --threads 1"),
        (MEASURED_ON_GPU, None, "tunewright tune --target cuda"),
    ],
)
def test_a_bench_names_the_command_that_tunes_for_what_it_measured(
    monkeypatch: pytest.MonkeyPatch, data: Mapping[str, Any], threads: int | None, said: str
) -> None:
    monkeypatch.setattr(bench_report, "available_cores", lambda: list(range(8)))
    untuned = {"tuned": 0, "transferred": 0, "default": 1, "kept": 0}
    out = printed(bench_report.render, {**data, "threads": threads, "tasks": untuned}, 40)
    assert out.endswith(f"1 of 1 task is not tuned for cpu:x:8x256: {said}\n")


def test_nothing_to_tune() -> None:
    out = printed(tune_report.render, TUNED | {"tasks": [], "fallback": {"Relu": 2}}, 160)
    assert "no op of the model has a native kernel: 2 Relu\n" in out
    assert "nothing to tune: no op of the model needs a kernel" in printed(
        tune_report.render, TUNED | {"tasks": []}, 80
    )


def test_trials_of_a_table_are_those_of_the_job() -> None:
    rows = printed(tune_report.render, TUNED, 160)
    assert "1234" in rows and "86420" not in rows
    before = {name: value for name, value in TASK.items() if name != "job_trials"}  # of another version
    assert "86420" not in printed(tune_report.render, TUNED | {"tasks": [before]}, 160)


@pytest.mark.parametrize(
    ("ours", "reference", "said"),
    [
        (
            0.004,
            0.29,
            "tunewright 0.004, onnxruntime itself 0.29; so it is onnxruntime's optimised kernels that are off",
        ),
        (0.29, 0.0, "tunewright 0.29, onnxruntime itself 0; so it is tunewright that is off: tell the maintainers"),
        (0.2, 0.2, "so they don't tell who is off"),
    ],
)
def test_who_is_off(ours: float, reference: float, said: str) -> None:
    differing = MEASURED | {"reference": "onnxruntime", "max_rel_err": 0.29}
    errors = {"plain_rel_err": {"tunewright": ours, "onnxruntime": reference}}
    out = printed(bench_report.render, differing | errors, 160)
    assert "largest error against onnxruntime: 0.29 of an output's magnitude\n" in out
    assert "against onnxruntime without its graph optimisations: " in out and said in out
    assert "optimisations" not in printed(bench_report.render, differing, 160)


def test_what_saturates_is_no_measure() -> None:
    differing = MEASURED | {"reference": "onnxruntime", "reference_saturates": True}
    assert "they may saturate; ours are exact" in printed(bench_report.render, differing | {"max_rel_err": 0.02}, 160)
    assert "saturate" not in printed(bench_report.render, differing | {"max_rel_err": 1e-6}, 160)


def test_a_part_is_not_told_as_more_than_the_whole() -> None:
    assert "of tunewright's time, kernels take 119 ms" in printed(bench_report.render, MEASURED, 160)
    out = printed(bench_report.render, MEASURED | {"kernels_ms": 124.41, "noise": "others"}, 160)
    assert "kernels take all of tunewright's time, as far as can be told: ~124 ms in a loop without" in out
    assert "of tunewright's time, kernels take" not in out


def test_a_peak_of_bad_moments_is_marked_with_all_shares_of_it() -> None:
    out = printed(tune_report.render, TUNED | {"peak_gflops": 92.0, "peak_noise": "it was busy"}, 160)
    assert "the peak measured on it is ~92 GFLOP/s\n" in out and "to rely on it: it was busy\n" in out
    rows = printed(tune_report.render, TUNED, 160).splitlines(), out.splitlines()
    [(before, marked)] = [(one, two) for one, two in zip(*rows, strict=False) if "%" in one and one != two]
    assert marked.count("~") == before.count("~") + 1


@pytest.mark.parametrize(("count", "said"), [(1, "1 node is no task: the runtime itself does it"),
                                             (2, "2 nodes are no task: the runtime itself does them")])  # fmt: skip
@pytest.mark.parametrize(
    ("render", "data"),
    [
        (tune_report.render, TUNED | dict.fromkeys(("tasks_default_ms", "tasks_tuned_ms", "tasks_apart_ms"), 1.0)),
        (bench_report.render, MEASURED),
    ],
    ids=["tune", "bench"],
)
def test_what_is_no_task_is_told_beside_times_of_tasks_and_kernels(
    render: Callable[..., None], data: dict[str, Any], count: int, said: str
) -> None:
    assert "no task" not in printed(render, data, 160)
    assert said in printed(render, data | {"runtime_nodes": count}, 160)


SLOW = {"fallback": {"Resize": 1, "Sin": 2}}


@pytest.mark.parametrize(
    ("render", "data"), [(tune_report.render, TUNED), (bench_report.render, MEASURED)], ids=["tune", "bench"]
)
def test_how_much_of_a_model_has_no_kernel(render: Callable[..., None], data: dict[str, Any]) -> None:
    out = printed(render, data | SLOW | {"fallback_share": 0.9912}, 160)
    where = "99% of the model's time is in 1 Resize, 2 Sin"
    wanted = f"{where}, which have no kernel; tuning can't help with that"
    assert wanted in out.splitlines()
    unknown = printed(render, data | SLOW | {"fallback_share": None}, 160)
    assert (
        "nodes without a kernel, run by ONNX Runtime or, slower, by ONNX's reference evaluator: 1 Resize, 2 Sin"
        in unknown.splitlines()
    )
    assert "no kernel" not in printed(render, data, 160)


@pytest.mark.parametrize(
    ("fallback", "kernels_ms", "whole_ms", "part"),
    [
        ({}, 1.0, 4.0, 0.0),
        ({"Sin": 1}, 1.0, 4.0, 0.75),
        ({"Sin": 1}, 5.0, 4.0, None),
        ({"Sin": 1}, 4.0, 4.0, 0.0),
        ({"Sin": 1}, 0.0, 4.0, 1.0),
        ({"Sin": 1}, 1.0, None, None),
        ({"Sin": 1}, None, 4.0, None),
    ],
)
def test_what_kernels_do_not_take(
    fallback: dict[str, int], kernels_ms: float | None, whole_ms: float | None, part: float | None
) -> None:
    assert fallback_share(fallback, kernels_ms, whole_ms) == part


@pytest.mark.parametrize(
    ("factor", "shown"),
    [(None, "-"), (1250.247, "1250.25x"), (1.624, "1.62x"), (1.0, "1.00x"), (0.82, "0.82x"), (0.0099, "0.0099x"),
     (0.0123, "0.012x"), (0.5, "0.50x"), (0.0, "0.00x"), (2.5e-6, "0.0000025x")],
)  # fmt: skip
def test_ratios(factor: float | None, shown: str) -> None:
    assert text.times(factor) == shown


@pytest.mark.parametrize(("tuned_ms", "said"), [(1480.0, "no gain"), (1495.0, "no gain"), (1800.0, "0.82x as fast")])
def test_noise_is_no_gain(tuned_ms: float, said: str) -> None:
    last = printed(
        tune_report.render, TUNED | {"tuned_ms": tuned_ms, "tasks": [TASK | {"best_ms": 123.3}]}, 80
    ).splitlines()
    assert last[-1].endswith(f" tuned: {said}")
    assert any(line.split()[-1:] == ["gain"] for line in last[:-1])


@pytest.mark.parametrize(
    ("tuned_ms", "said"),
    [
        (1.0, "2.40 ms by default, 1.00 ms tuned: 2.40x as fast, 1.20x by schedules and 2.00x by segments"),
        (2.0, "2.40 ms by default, 2.00 ms tuned: 1.20x as fast"),
    ],
)
def test_a_gain_that_tasks_do_not_show_is_explained(tuned_ms: float, said: str) -> None:
    sums = {"tasks_default_ms": 2.4, "tasks_apart_ms": 2.0, "tasks_tuned_ms": tuned_ms}
    because = "; a task by itself finds what it reads nearer or farther away than in the model, and the machine at "
    begin, _, end = printed(tune_report.render, TUNED | sums, 160).splitlines()[-1].partition(because)
    assert (begin, end) == (f"the sum of its tasks: {said}", "another moment")
    kept = TUNED | sums | {"outcome": "defaults_kept", "tuned_ms": TUNED["default_ms"]}
    begin, _, end = printed(tune_report.render, kept, 160).splitlines()[-1].partition(because)
    assert (begin, end) == ("the sum of its tasks: 2.40 ms by default", "another moment")
    assert "the sum of" not in printed(tune_report.render, kept | {"tasks_default_ms": None}, 160)
    assert " 2.40 ms by default" in printed(tune_report.render, TUNED | sums | {"noise": "of the run"}, 160)
    noisy = TUNED | sums | {"tasks": [TASK | {"noise": "a test"}]}
    assert " ~2.40 ms by default" in printed(tune_report.render, noisy, 160)
    tried = TUNED | sums | {"tasks": [TASK | {"confirmed": False}]}
    assert " 2.40 ms° by default" in printed(tune_report.render, tried, 160)


def test_what_is_not_known_of_another_machine() -> None:
    """Where the process that ran the job could neither run the model nor measure the peak."""
    unknown = {"peak_gflops": None, "default_ms": None, "tuned_ms": None, "whole_model": "it is no cpu:x:8x256"}
    tasks, whole = printed(tune_report.render, TUNED | unknown, 160).splitlines()[-2:]
    assert tasks == "m.onnx on cpu:x:8x256: 1234 trials"
    assert whole == "the whole model was not timed: it is no cpu:x:8x256"


def test_what_ran_on_its_tuned_schedules_alone_has_that_time() -> None:
    """And not the sum of its tasks, which is told as such."""
    why = "the default schedule of 1 task was taken back"
    result = TUNED | {"default_ms": None, "tasks_tuned_ms": 0.9, "default_fault": why}
    whole, total = printed(tune_report.render, result, 160).splitlines()[-2:]
    assert whole == f"the whole model: 1.18 ms tuned; it was not timed by default: {why}"
    assert total.startswith("the sum of its tasks: 900 \N{MICRO SIGN}s tuned; ")
    old = printed(tune_report.render, result | {"default_fault": ""}, 160)  # of before it was told
    assert "the whole model: 1.18 ms tuned; it was not timed by default\n" in old


def test_what_was_not_timed_of_a_size_is_told() -> None:
    sums = {"tasks_default_ms": 2.4, "tasks_tuned_ms": 1.2}
    sizes = [
        TUNED | {"dims": {"n": 1}},
        TUNED | sums | {"dims": {"n": 2}, "default_ms": None, "default_fault": "it fails"},
        TUNED | sums | {"dims": {"n": 4}, "default_ms": None, "tuned_ms": None, "whole_model": "no weights"},
    ]
    shown = printed(tune_report.render_sizes, {"sizes": sizes}, 160)
    assert "n=2: the whole model was not timed by default: it fails\n" in shown
    assert "n=4: the whole model was not timed: no weights; its times are the sums of its tasks\n" in shown
    assert "n=1:" not in shown


@pytest.mark.parametrize(
    ("value_ms", "shown"),
    [
        (None, "-"),
        (0, "0 ns"),
        (1.2e-5, "12.0 ns"),
        (0.3741, "374 \N{MICRO SIGN}s"),
        (0.99999, "1.00 ms"),
        (1.4912, "1.49 ms"),
        (999.4, "999 ms"),
        (999.6, "1.00 s"),
        (123456.0, "123 s"),
        (3e6, "3000 s"),
    ],
)
def test_durations(value_ms: float | None, shown: str) -> None:
    assert text.duration(value_ms) == shown


def test_reasons_name_the_op_once() -> None:
    lines = text.slow_nodes({"Relu": 2, "Conv": 1}, ["Relu: no kernels for float16"]).splitlines()
    assert lines[1:] == ["  2 Relu: no kernels for float16", "  1 Conv"]


def test_what_is_known_of_tasks_adds_up() -> None:
    """Each task that runs is in one part of the sentence, whatever its match and basis."""
    cases = {
        ("exact", "measured"): "",
        ("exact", "imported"): "by what was imported",
        ("default", "measured"): "on the default, as the model keeps its defaults",
        ("sibling", "sibling"): "as on a similar target",
        ("nearest", "scaled"): "as a similar task",
        ("predicted", "predicted"): "as the cost model picks",
        ("default", "none"): "on the default, as nothing usable is known",
        ("untried", "none"): "on a schedule nobody tried, as the default fails",
        ("none", "none"): "without a schedule, as all that were looked at fail",
    }
    assert {match for match, _ in cases} == set(Match)
    tasks = [
        TASK | {"match": match, "basis": basis, "expected_ms": 1.0}
        for number, (match, basis) in enumerate(cases, 1)
        for _ in range(number)
    ]
    told = ", ".join(f"{number} {how}" for number, how in enumerate(cases.values(), 1) if how)
    unused = [TASK | {"chosen": 0, "match": "nearest", "basis": "scaled"}]
    out = " ".join(printed(lookup_tables.render_lookup, TUNED | {"tasks": tasks + unused, "kept": None}, 400).split())
    assert f"1 of 45 tasks are tuned for cpu:x:8x256, {told} " in f"{out} "


def test_what_is_many_times_as_much_is_no_percentage() -> None:
    assert (text.change(10.0), text.change(407.99)) == ("+900%", "408x")
    assert (text.share(10.0), text.share(4070.1)) == ("1000.0%", "4,070x")
    assert [text.percentage(part, "that") for part in (0.25, 10.0, 406.99)] == [
        "25%",
        "1000%",
        "more than 10 times that",
    ]


def test_no_share_is_minus_nothing() -> None:
    assert (text.change(0.9999), text.change(1.0001), text.change(0.7), text.change(0.99999, 1)) == (
        "+0%",
        "+0%",
        "-30%",
        "+0.0%",
    )
    assert text.beside_trial(0.9999, 1.0).startswith("+0% beside")
    assert (text.share(-1e-9), text.slow_share({"Sin": 1}, -1e-9)[:2]) == ("0.0%", "0%")
