"""The bench of the search: what is taken from events, how cases are kept, and which goals they meet."""

from __future__ import annotations

import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tunewright.bench import entries, search, turns
from tunewright.bench.entries import Entries
from tunewright.bench.files import ROOT
from tunewright.bench.rivals.process import RequestTimeout, ServedProcess, ServedProcessError
from tunewright.bench.rivals.serving import rest
from tunewright.bench.search_parts import agreement, knowledge, searches, workloads
from tunewright.bench.search_parts.curve import CurvePoint, SearchCurve
from tunewright.bench.search_parts.goals import goals, lines
from tunewright.bench.search_parts.plan import Budgets, MissingEntry, SearchPlan, case_name
from tunewright.bench.search_parts.plot import draw_curves, steps
from tunewright.bench.search_parts.workloads import WORKLOADS
from tunewright.bench.suite.network import Network
from tunewright.tuner.models.model import open_model

GEMM = "gemm 384x512x512"

FAKE = """
import time
from pathlib import Path
from tunewright.bench.rivals.serving import serve

def about(tell, cpu, cores):
    print("noise")
    return {"tvm": "0"}

def tune(tell, folder, trials, **rest):
    Path(folder).mkdir(parents=True, exist_ok=True)
    tell({"began": True, "at_s": 100.0})
    for trial, time_s in enumerate([4e-3, None, 2e-3, 3e-3, 1e-3], 1):
        event = {"at_s": 100.0 + trial, "time_s": time_s}
        if time_s in (4e-3, 2e-3, 1e-3):
            event["built"] = f"{folder}/best-{trial}.tar"
            Path(event["built"]).touch()
        tell(event)
    time.sleep(60)

def load(tell, built, kind):
    return {"number": int(built[-5])}

def sample(tell, number):
    return {3: 2e-3, 5: 1e-3}[number]

def fail(tell):
    raise ValueError("no way")

def echo(tell, value):
    tell({"said": value})
    return value

serve({"about": about, "tune": tune, "load": load, "sample": sample, "fail": fail, "echo": echo})
"""


@pytest.fixture
def start_process(tmp_path: Path) -> Callable[[str], ServedProcess]:
    def start(program: str = FAKE) -> ServedProcess:
        path = tmp_path / f"fake{len(list(tmp_path.glob('fake*.py')))}.py"
        path.write_text(program)
        environment = {"PYTHONPATH": str(ROOT / ".types")}
        return ServedProcess([sys.executable, "-P", str(path)], [0], tmp_path / "fake.log", environment)

    return start


@pytest.fixture
def plan(tmp_path: Path) -> SearchPlan:
    order = [case_name(part, name) for part, search_part in search.PARTS.items() for name in search_part.names]
    results = Entries(tmp_path / "search.json", order)
    return SearchPlan(
        tmp_path / "build", results, Budgets(rival_trials=4, rival_seconds=5.0, rounds=3, starts=2), lambda line: None
    )


def arguments(**changes: Any) -> Namespace:
    defaults = {"part": "all", "names": [GEMM, "conv"], "threads": [1], "within": inf, "again": False}
    return Namespace(**(defaults | changes))


def curve(*times_s: float | None) -> SearchCurve:
    search_curve = SearchCurve()
    for number, time_s in enumerate(times_s, 1):
        search_curve.add(2.0 * number, time_s)
    return search_curve


def test_a_curve_keeps_what_was_the_fastest_so_far() -> None:
    search_curve = curve(None, 4.0, 5.0, 2.0, 3.0, 1.95)
    assert search_curve.points == [CurvePoint(2, 4.0, 4.0), CurvePoint(4, 8.0, 2.0), CurvePoint(6, 12.0, 1.95)]
    assert (search_curve.trials, search_curve.seconds, search_curve.trials_a_second) == (6, 12.0, 0.5)
    assert search_curve.best_after(trials=5) == CurvePoint(4, 8.0, 2.0)
    assert search_curve.best_after(seconds=7.9) == CurvePoint(2, 4.0, 4.0)
    assert search_curve.best_after(trials=1) is None
    assert SearchCurve.from_json(search_curve.to_json()) == search_curve
    assert curve().trials_a_second is None
    assert search_curve.running_trials_a_second == 0.5
    assert SearchCurve([CurvePoint(3, 90.0, 1.0)], 13, 100.0).running_trials_a_second == 1.0  # after a long start
    assert curve(1.0).running_trials_a_second is None


def test_steps_of_a_plot_go_on_to_the_end(tmp_path: Path) -> None:
    assert list(steps(curve(4.0, 5.0), "trials")) == [(1.0, 4.0), (2.0, 4.0)]
    assert list(steps(curve(None), "seconds")) == []
    pytest.importorskip("matplotlib")
    paths = [tmp_path / "one.svg", tmp_path / "two.svg"]
    for path in paths:
        draw_curves(path, {"a": {"tunewright": curve(4.0, 2.0), "tvm": curve(8.0)}, "b": {"tvm": curve(None)}})
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_a_served_process_tells_and_answers(start_process: Callable[..., ServedProcess]) -> None:
    events: list[Any] = []
    with start_process() as child:
        assert child.request("echo", 20.0, events.append, value="ä\n") == "ä\n"
        assert child.request("about", 20.0, cpu="x", cores=1) == {"tvm": "0"}
    assert events == [{"said": "ä\n"}]


def test_a_served_process_that_dies_says_why(start_process: Callable[..., ServedProcess]) -> None:
    with start_process() as child, pytest.raises(ServedProcessError, match="no way"):
        child.request("fail", 20.0)
    with start_process("raise SystemExit(3)") as child, pytest.raises(ServedProcessError, match="code 3"):
        child.request("fail", 20.0)
        child.request("fail", 20.0)
    with start_process("print('hello', flush=True)") as child, pytest.raises(ServedProcessError, match="hello"):
        child.request("fail", 20.0)


def test_a_served_process_is_killed_when_its_time_is_over(start_process: Callable[..., ServedProcess]) -> None:
    begun_s = time.monotonic()
    with start_process("import time; time.sleep(60)") as child, pytest.raises(RequestTimeout):
        child.request("echo", 0.1)
    assert time.monotonic() - begun_s < 20


def test_a_rival_is_ended_when_both_budgets_are_spent(
    plan: SearchPlan, start_process: Callable[..., ServedProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SearchPlan, "rival", lambda self, name, threads: start_process())
    entry = searches.measure_metaschedule(plan, GEMM, 1)
    assert entry["curve"]["trials"] == 5
    assert entry["trials_a_second"] == 1.0
    assert not entry["exhausted"]
    assert entry["after_trials"]["best_s"] == 2e-3
    assert entry["after_seconds"] | {"built": ""} == {"trial": 5, "at_s": 5.0, "best_s": 1e-3, "built": ""}
    assert (plan.folder / entry["after_trials"]["built"]).exists()


def test_what_was_the_fastest_so_far_is_timed_once_more(
    plan: SearchPlan, start_process: Callable[..., ServedProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = searches.Listener(lambda line: None)
    listener.hear({"began": True, "at_s": 100.0})
    for trial, time_s in enumerate((None, 4.0, 3.5, 3.7, 3.0), 1):
        listener.hear({"at_s": 100.0 + trial, "time_s": time_s, "schedule": {"n": trial}})
    assert [(leader.trial, leader.at_s) for leader in listener.leaders] == [(2, 2.0), (3, 3.0), (5, 5.0)]
    program = """
from tunewright.bench.rivals.serving import serve
TIMES_S = {2: 3.0, 3: 2.05, 5: 2.0}
serve({"kernels": lambda tell, schedules, **rest: [[TIMES_S[schedule["n"]]] * 3 for schedule in schedules]})
"""
    monkeypatch.setattr(SearchPlan, "ours", lambda self, name, threads: start_process(program))
    leaders = [leader._asdict() for leader in listener.leaders]
    assert searches.time_near_best(plan, GEMM, 1, "model", leaders) == {"trial": 3, "at_s": 3.0}
    assert searches.time_near_best(plan, GEMM, 1, "model", []) is None


def test_the_best_of_both_are_timed_in_turn(
    plan: SearchPlan, start_process: Callable[..., ServedProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SearchPlan, "rival", lambda self, name, threads: start_process())
    program = FAKE.replace("built, kind", "model, threads, schedule").replace("int(built[-5])", "schedule")
    monkeypatch.setattr(
        SearchPlan,
        "ours",
        lambda self, name, threads: start_process(program.replace("(tell, number)", "(tell, number, warm)")),
    )
    with pytest.raises(MissingEntry, match=r"ours of .* comes first"):
        searches.measure_versus(plan, GEMM, 1)
    plan.entries.put(case_name("ours", GEMM), 1, {"error": "no kernel"})
    with pytest.raises(MissingEntry, match=r"ours of .* has failed: no kernel"):
        searches.measure_versus(plan, GEMM, 1)
    rival = searches.measure_metaschedule(plan, GEMM, 1)
    own_entry = {"trials": {"schedule": 5}, "seconds": {"schedule": 5}}
    plan.entries.put(case_name("ours", GEMM), 1, own_entry)
    plan.entries.put(case_name("metaschedule", GEMM), 1, rival)
    entry = searches.measure_versus(plan, GEMM, 1)
    assert entry["ratios"] == {"trials": 2.0, "seconds": 1.0}
    assert entry["times"]["ours cold, trials"]["placements"] == 2 * searches.PLACEMENTS


def test_samples_are_taken_in_an_order_that_goes_round() -> None:
    order: list[str] = []

    def sample(label: str) -> Callable[[], float]:
        def take() -> float:
            order.append(label)
            return 1.0

        return take

    assert turns.sample_in_turn({"a": sample("a"), "b": sample("b")}, 2) == {"a": [1.0, 1.0], "b": [1.0, 1.0]}
    assert order == ["a", "b", "b", "a"]


def test_a_process_rests_when_its_threads_do() -> None:
    over = threading.Event()

    def work() -> None:
        until_s = time.monotonic() + 0.3
        while time.monotonic() < until_s:
            pass
        over.set()

    threading.Thread(target=work).start()
    rest()
    assert over.is_set()


def interval_of(median_s: float, low_s: float, high_s: float) -> dict[str, float]:
    return {"median_s": median_s, "low_s": low_s, "high_s": high_s}


def test_what_two_measurements_of_one_kernel_differ_by() -> None:
    same, other = interval_of(1.0, 0.9, 1.1), interval_of(1.5, 1.4, 1.6)
    entry = agreement.same_kernel([(same, same), (same, other), (other, same)], [same, same, other])
    assert (entry["pairs"], entry["disjoint"]) == (3, 2)
    assert entry["largest_gap"] == 0.5
    assert entry["largest_alone"] == 0.5


def test_what_tunes_of_one_task_differ_by() -> None:
    tunes = [{"seed": seed, "curve": {"trials": 9}, "schedule": {}} for seed in range(4)]
    default = [0.9, 1.0, 1.05]
    samples_s = [default, [0.7, 0.8, 0.9], default, [0.95, 1.001, 1.1], [1.1, 1.2, 1.3]]
    entry = agreement.same_task(samples_s, tunes)
    assert entry["regrets"][0] == 0.0 and entry["regrets"][-1] == pytest.approx(0.5)
    assert entry["beside_default"] == pytest.approx(1.2)
    assert entry["slower_than_default"] == 2  # one by a thousandth; the default itself is not
    assert entry["surely_slower"] == 1


def test_the_share_of_a_gain() -> None:
    times_s = {"default": 4.0, "tuned": 2.0, "taught": 2.5}
    assert knowledge.gain_share(times_s, "taught") == 0.75
    assert knowledge.gain_share(times_s | {"tuned": 4.0}, "taught") is None


def test_the_middle_share_of_several_searches_counts(monkeypatch: pytest.MonkeyPatch, plan: SearchPlan) -> None:
    shares = dict(zip(knowledge.SEEDS, [0.9, 0.7, 0.8, 0.6, 1.1], strict=True))

    def measure(plan: SearchPlan, name: str, threads: int, seed: int) -> dict[str, Any]:
        return {"share": shares[seed], "share_short": None if seed == knowledge.SEEDS[-1] else 0.5}

    monkeypatch.setattr(knowledge, "_measure_seed", measure)
    entry = knowledge.measure_transfer(plan, "one after another", 1)
    assert (entry["share"], entry["share_short"], len(entry["seeds"])) == (0.8, None, 5)


def test_each_workload_is_one_task() -> None:
    for name, build in knowledge.TASKS.items():
        model = open_model(build())
        assert len(model.tasks) == 1, name
        assert not model.fallbacks, name
    assert len(knowledge.TASKS) > len(WORKLOADS) == 7


def test_a_case_is_measured_once(plan: SearchPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def measure(search_plan: SearchPlan, name: str, threads: int) -> dict[str, Any]:
        calls.append(name)
        if "conv" in name:
            raise ServedProcessError("it died")
        return {"share": 1.0}

    part = search.SearchPart(measure, [GEMM, "conv"], ("trials",))
    rival = search.SearchPart(measure, [GEMM], ("rival_trials",), is_rival=True)
    monkeypatch.setattr(search, "PARTS", {"ours": part, "metaschedule": rival})
    assert search.run(plan, arguments(within=-1.0)) == 0
    assert search.run(plan, arguments(names=[GEMM])) == 0
    assert calls == [GEMM, GEMM]
    assert search.run(plan, arguments()) == 1
    assert calls[2:] == ["conv"]  # what failed is measured again
    assert plan.entries.get("ours: conv", 1) is not None
    assert [name for name, _ in plan.entries.of(1)] == [case_name("ours", GEMM), case_name("metaschedule", GEMM)]
    changed = SearchPlan(plan.folder, plan.entries, Budgets(trials=3, rival_trials=4), plan.say)
    changed.__dict__["settings"] = plan.settings | {"code_sha256": "another"}
    assert list(search._pending_cases(changed, arguments(names=[GEMM]))) == [("ours", GEMM, 1)]
    assert list(search._pending_cases(plan, arguments(part="metaschedule", again=True))) == [("metaschedule", GEMM, 1)]


def test_what_lacks_something_is_no_failure_of_its_case(plan: SearchPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a measurement stays; that of what fails doesn't, which would pass for one of the code at hand."""
    lines: list[str] = []
    plan = SearchPlan(plan.folder, plan.entries, plan.budgets, lines.append)
    old_entry, outcomes = {"ratios": {"trials": 2.0}}, [MissingEntry("ours comes first"), ServedProcessError("it died")]
    measure = Mock(side_effect=outcomes)
    monkeypatch.setattr(search, "PARTS", {"versus": search.SearchPart(measure, [GEMM], ())})
    plan.entries.put(case_name("versus", GEMM), 1, old_entry)
    assert search.run(plan, arguments()) == 1
    assert plan.entries.get(case_name("versus", GEMM), 1) == old_entry
    assert lines[-1] == "  not measured: ours comes first"
    assert search.run(plan, arguments()) == 1
    entry = plan.entries.get(case_name("versus", GEMM), 1)
    assert entry is not None and entry["error"] == "it died"


def test_another_base_model_makes_our_results_stale_and_no_rivals(
    plan: SearchPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {part: search.settings(plan, part) for part in search.PARTS}
    monkeypatch.setattr(entries, "base", lambda kind: None)
    other = SearchPlan(plan.folder, plan.entries, plan.budgets, plan.say)
    changed = {part for part, known in before.items() if search.settings(other, part) != known}
    assert changed == {part for part, search_part in search.PARTS.items() if not search_part.is_rival}


def test_another_version_of_a_rival_makes_all_that_times_it_stale(
    plan: SearchPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {part: search.settings(plan, part) for part in search.PARTS}
    monkeypatch.setattr(search, "PACKAGES", ("apache-tvm==0.1",))
    assert {part for part in before if search.settings(plan, part) != before[part]} == {"metaschedule", "versus"}


def test_another_workload_makes_our_results_stale(plan: SearchPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    before = search.settings(plan, "ours")
    monkeypatch.setattr(workloads, "UNSEEN", {})
    assert search.settings(SearchPlan(plan.folder, plan.entries, plan.budgets, plan.say), "ours") != before


def test_goals_of_nothing() -> None:
    empty_goals = goals(Entries(Path("/nowhere/search.json"), []), 1)
    assert {goal.met for goal in empty_goals} == {None}
    assert all(line.startswith("not measured") for line in lines(empty_goals))


def test_goals_of_results(plan: SearchPlan) -> None:
    search_entry = {"trials_a_second": 40.0, "trials_a_second_of_all": 30.0, "curve": curve(1.0).to_json()}
    near = {"trial": 12, "at_s": 1.5}
    worse = {"trial": 30, "at_s": 2.5}
    first, second = list(WORKLOADS)[:2]
    put = plan.entries.put
    put(case_name("ours", first), 1, {"seconds": search_entry, "near": near})
    put(case_name("ours", second), 1, {"seconds": search_entry, "near": worse})
    put(case_name("metaschedule", first), 1, {"trials_a_second": 1.0, "curve": curve(2.0).to_json()})
    late = SearchCurve([CurvePoint(1, 60.0, 1.0)], 321, 100.0)
    put(case_name("metaschedule", second), 1, {"trials_a_second": 2.0, "curve": late.to_json()})
    budget = {"trials": 64, "seconds": 60.0, "rival_trials": 256, "rival_seconds": 600.0, "rounds": 15}
    put(case_name("versus", first), 1, {"ratios": {"trials": 1.1, "seconds": 1.2}, "budget": budget})
    longer = budget | {"trials": 32, "rival_seconds": 900.0}
    put(case_name("versus", second), 1, {"ratios": {"trials": 0.9, "seconds": 1.3}, "budget": longer})
    put(case_name("zero", first), 1, {"share": 0.8, "default_share": 0.5})
    put(case_name("zero", second), 1, {"share": 0.95, "default_share": 0.5})
    put(case_name("scoring", first), 1, {"slowest": 120_000.0})
    put(case_name("transfer", "resnet18 after resnet50"), 1, {"share": 0.93, "share_short": 0.7})
    same_task: dict[str, Any] = {"regrets": [0.0, 0.02, 0.04], "best_ms": [1.0, 1.02, 1.04]}
    same_task |= {"beside_default": 1.001, "slower_than_default": 1, "surely_slower": 0}
    put(case_name("agreement", first), 1, {"same_task": same_task, "same_kernel": {"pairs": 3, "disjoint": 1}})
    quality = {"tasks": 9, "pairwise": 0.91, "peak_1": 0.89, "peak_5": 0.98}
    goals_by_text = {goal.text: goal for goal in goals(plan.entries, 1, quality)}
    rate = goals_by_text["trials a second / MetaSchedule's, the lowest"]
    assert (rate.figure, rate.met, rate.where) == (20.0, False, second)
    assert rate.detail == "of the whole job at least 15.0, beside MetaSchedule's after its start at least 5.0"
    assert goals_by_text["speed after 64 trials / after its 256, the lowest"].met
    assert goals_by_text["speed after 60 s / after its 600 s, the lowest"].figure == 1.2
    assert goals_by_text["speed after 32 trials / after its 256, the lowest"].met is False
    assert goals_by_text["speed after 60 s / after its 900 s, the lowest"].where == second
    assert goals_by_text["trials to 95% of the own best, median"].figure == 21
    assert goals_by_text["seconds to 95% of the own best, median"].met
    assert goals_by_text["share of the tuned best with no trial, geometric mean"].met
    assert goals_by_text["pairs in the right order, of tasks held out"].met
    assert goals_by_text["speed of the first pick, of tasks held out"].met is False
    assert goals_by_text["winners whose median time is above the default's"].met is False
    apart = goals_by_text["two tunes of a task apart, median of the tasks"]
    assert apart.figure == pytest.approx((0.02 + 0.04 + 1.04 / 1.02 - 1) / 3) and apart.met
    assert apart.detail.startswith("all of a task: 4.00%")
    assert goals_by_text["share of a cold start's gain in a tenth of its trials"].met
    search.conclude(plan.entries, plan.folder.parent / "search.json", [1, 2])
    assert list(plan.entries._path.parent.glob("search_*.svg"))


@pytest.mark.slow
def test_a_search_of_ours(plan: SearchPlan) -> None:
    def product() -> bytes:
        net = Network("product")
        return net.onnx(net.add("Relu", net.gemm(net.input("x", (16, 64)), 64, 32)))

    model = plan.model("product", product)
    entry = searches.tune_fresh(plan, "product", model, 1, "few", trials=4)
    assert entry["curve"]["trials"] == 4
    assert entry["leaders"][0]["trial"] == 1
    assert searches.time_near_best(plan, "product", 1, model, entry["leaders"])["trial"] <= 4  # type: ignore[index]
    assert 0 < entry["search_s"] < entry["whole_s"]
    assert entry["best_ms"] <= entry["default_ms"]
    with plan.ours("product", 1) as child:
        arguments: dict[str, Any] = {"model": model, "threads": 1}
        number = child.request("load", 60.0, schedule=entry["schedule"], **arguments)["number"]
        assert child.request("sample", 60.0, number=number, warm=True) > 0
        assert child.request("sample", 60.0, number=number, warm=False) > 0
        picked = child.request("pick", 60.0, db=plan.empty_database("product", 1), **arguments)
        schedules = [picked["default"], entry["schedule"], picked["default"]]
        measurements = child.request("compare", 60.0, schedules=schedules[:2], **arguments)
        assert [measurement["status"] for measurement in measurements] == ["ok", "ok"]
        samples_s = searches.sample_kernels(child, model, 1, schedules)
        assert [len(times_s) for times_s in samples_s] == [5, 5, 5] and min(map(min, samples_s)) > 0
        assert samples_s[0] == samples_s[2]
        placed = searches.sample_in_processes(plan, "product", model, 1, schedules)
        assert [len(times_s) for times_s in placed] == [5 * plan.budgets.starts] * 3
        assert placed[0] == placed[2]
        rates = child.request("score", 60.0, db=plan.database("product", 1, "few"), seed=0, **arguments)
        assert min(space["whole"] for space in rates) > 0
        variants: dict[str, Any] = {"default": {"schedules": {}, "times_s": {}}}
        assert child.request("time_whole", 60.0, variants=variants, **arguments)["default"] > 0
