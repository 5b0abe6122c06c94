"""MetaSchedule on the log: who tunes goes on where others stopped, who builds gets what they found."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
relax = pytest.importorskip("tvm.relax")
pytest.importorskip("psutil")  # which MetaSchedule needs

from tvm.s_tir import meta_schedule as ms  # noqa: E402
from tvm.s_tir.meta_schedule.database import TuningRecord  # noqa: E402

from tunewright.api.client.breaker import breaker_of  # noqa: E402
from tunewright.api.client.log import LogClient  # noqa: E402
from tunewright.db.logs.entry import Cost, CostEvidence, LogEntry  # noqa: E402
from tunewright.integrations.tvm import Database, entries_of, form, search  # noqa: E402
from tunewright.integrations.tvm.outbox import Outbox  # noqa: E402
from tunewright.integrations.tvm.strategy import Unmeasured  # noqa: E402

from ...api.planted import NO_SERVERS, planted  # noqa: E402
from .programs import TARGET, is_scheduled, model, product, tune  # noqa: E402

OTHER = TARGET | {"num-cores": 2}


def quick() -> Any:
    return ms.search_strategy.EvolutionarySearch(
        population_size=16, genetic_num_iters=1, init_min_unmeasured=4, genetic_max_fail_count=1
    )


def record(database: Any, size: int = 4, run_secs: Any = (2e-6,), factor: int = 2) -> Any:
    """One that a search could have found."""
    workload = database.commit_workload(product(size))
    schedule = tvm.s_tir.Schedule(workload.mod)
    [block, *_] = schedule.get_child_blocks(schedule.get_sblock("root"))
    schedule.split(schedule.get_loops(block)[0], [None, factor])
    arguments = ms.arg_info.ArgInfo.from_entry_func(workload.mod, remove_preproc=True)
    return TuningRecord(schedule.trace, workload, list(run_secs), tvm.target.Target(TARGET), arguments)


def times(records: Any) -> list[float]:
    return [float(one.run_secs[0]) for one in records]


@pytest.fixture
def fresh(server: str, request: pytest.FixtureRequest) -> Any:
    """Makes databases of a namespace that is this test's own, each as another process would have it."""
    namespace = f"t{abs(hash(request.node.name))}"

    def make(target: Any = TARGET) -> Any:
        return Database(target, server, namespace)

    make.client = LogClient(namespace, server, timeout_s=30)  # type: ignore[attr-defined]
    return make


def flush(database: Any) -> None:
    assert database.records._outbox.flush(30)


def test_what_one_commits_another_has(fresh):
    one, other = fresh(), fresh()
    assert not other.has_workload(product(4))
    assert len(other) == 0
    for factor, time_s in ((1, 3e-6), (2, 1e-6), (4, 2e-6)):
        one.commit_tuning_record(record(one, run_secs=[time_s], factor=factor))
    flush(one)
    assert other.has_workload(product(4))
    assert not other.has_workload(product(5))
    workload = other.commit_workload(product(4))
    assert times(other.get_top_k(workload, 2)) == pytest.approx([1e-6, 2e-6])
    assert times(other.get_top_k(workload, 0)) == []
    assert times(fresh().get_all_tuning_records()) == pytest.approx([1e-6, 2e-6, 3e-6])
    assert len(fresh()) == len(one) == 3
    [best] = other.get_top_k(workload, 1)
    [known] = one.get_top_k(one.commit_workload(product(4)), 1)
    assert str(best.trace) == str(known.trace)
    assert best.as_json()[2:] == known.as_json()[2:]


def test_nothing_of_another_target_is_returned(fresh):
    one, other = fresh(), fresh(OTHER)
    one.commit_tuning_record(record(one))
    flush(one)
    assert list(other.get_top_k(other.commit_workload(product(4)), 5)) == []
    assert list(other.get_all_tuning_records()) == []
    assert len(other) == 0
    assert other.query_tuning_record(product(4), tvm.target.Target(OTHER), "main") is None
    assert one.query_tuning_record(product(4), tvm.target.Target(OTHER), "main") is None
    assert other.query_tuning_record(product(4), tvm.target.Target(TARGET), "main") is not None


def test_what_is_served_is_the_same_to_all(fresh):
    one = fresh()
    one.commit_tuning_record(record(one, run_secs=[2e-6], factor=2))
    one.commit_tuning_record(record(one, run_secs=[1e-6], factor=4))
    flush(one)
    target = tvm.target.Target(TARGET)
    assert times([fresh().query_tuning_record(product(4), target, "main")]) == pytest.approx([1e-6])
    assert fresh().query_schedule(product(4), target, "main") is not None
    assert fresh().query_ir_module(product(4), target, "main") is not None
    assert fresh().query_tuning_record(product(5), target, "main") is None


def test_a_candidate_that_is_timed_again_is_the_same_value(fresh):
    one, other = fresh(), fresh()
    one.commit_tuning_record(record(one, run_secs=[2e-6]))
    flush(one)
    other.commit_tuning_record(record(other, run_secs=[3e-6, 5e-6, 4e-6]))
    flush(other)
    [entry] = [entry for entry in fresh.client.entries() if entry.key.startswith("records")]
    assert (*entry.cost.interval_s, entry.cost.time_s) == pytest.approx((3e-6, 5e-6, 4e-6))
    assert (entry.cost.samples, entry.cost.evidence) == (3, CostEvidence.TIMED)
    assert entry.environment.device == "llvm -mcpu=x86-64-v2 -num-cores=1"
    assert entry.environment.toolchain == "tvm"
    assert dict(entry.environment.versions) == {"tvm": tvm.__version__}


def test_a_candidate_that_failed_is_known_and_never_returned(fresh):
    one, other = fresh(), fresh()
    one.commit_tuning_record(record(one, run_secs=[form.UNTIMED_S]))
    flush(one)
    workload = other.commit_workload(product(4))
    assert list(other.get_top_k(workload, 5)) == []
    assert len(other.records.candidates(other.records.place(workload.mod, other.target))) == 1
    assert other.query_tuning_record(product(4), tvm.target.Target(TARGET), "main") is None


def test_values_that_are_none_of_this_tvm_are_left_out(fresh, caplog):
    one, other = fresh(), fresh()
    one.commit_tuning_record(record(one))
    flush(one)
    place = one.records.place(product(4), one.target)
    cost = Cost(1e-9, evidence=CostEvidence.TIMED)
    bad = [b"x", b"[]", b"[[[],[]],null,null,null]", b"\xff", b"[" * 60000, b'[["NoSuch"],null,{"kind":"zzz"},[]]']
    assert fresh.client.write([LogEntry(place.key, value, place.environment, cost) for value in bad])
    assert times(other.get_top_k(other.commit_workload(product(4)), 9))[-1:] == pytest.approx([2e-6])
    assert other.query_tuning_record(product(4), tvm.target.Target(TARGET), "main") is not None
    assert "no record of this TVM" in caplog.text


def test_two_processes_measure_nothing_twice(process, server):
    one = process("search", 2, 12, 1, server=server)
    other = process("search", 2, 12, 1, server=server)
    assert (one["known"], other["known"]) == (0, 12)
    assert len(one["measured"]) == len(other["measured"]) == 12
    assert len({*one["measured"], *other["measured"]}) == other["length"] == 24


def test_another_process_builds_with_what_one_found(process, server):
    process("search", 3, 4, 1, server=server)
    told = [process("build", 3, cores, server=server) for cores in (1, 2)]
    assert [one["scheduled"] for one in told] == [True, False]
    assert [one["right"] for one in told] == [True, True]


def test_the_cost_model_learns_what_others_timed(fresh):
    one, learned = fresh(), []

    @tvm.ir.utils.derived_object
    class Model(ms.cost_model.PyCostModel):
        def load(self, path):
            pass

        def save(self, path):
            pass

        def update(self, context, candidates, results):
            learned.append([float(result.run_secs[0]) for result in results])

        def predict(self, context, candidates):
            return np.ones(len(candidates))

    one.commit_tuning_record(record(one, run_secs=[1.5e-6]))
    flush(one)
    other = fresh()
    tune(other, 4, 4, 1, search(other, quick()), Model())
    assert learned[0] == pytest.approx([1.5e-6])
    assert [len(lesson) for lesson in learned] == [1, 4]


def test_what_another_measures_meanwhile_is_dropped(fresh):
    one, other = fresh(), fresh()
    made = [record(other, factor=factor) for factor in (2, 4)]

    class Inner:
        def generate_measure_candidates(self):
            return [one.as_measure_candidate() for one in made]

        def _initialize_with_tune_context(self, context):
            pass

        def pre_tuning(self, *arguments):
            pass

    strategy = Unmeasured(other.records, Inner())
    context = ms.TuneContext(mod=product(4), target=tvm.target.Target(TARGET), num_threads=1)
    strategy._initialize_with_tune_context(context)
    strategy.pre_tuning(4, 4, [])
    assert len(strategy.generate_measure_candidates() or ()) == 2
    for factor, left in ((2, 1), (4, 0)):
        one.commit_tuning_record(record(one, factor=factor))
        flush(one)
        assert len(strategy.generate_measure_candidates() or ()) == left


@pytest.mark.parametrize("name", ["slow", "garbage", "html", "500", "closes at once", "a list"])
def test_tuning_and_building_go_on_without_a_server(name, monkeypatch):
    monkeypatch.setenv("TUNEWRIGHT_API_KEY", "k")
    with planted(NO_SERVERS[name]) as url:
        database = Database(TARGET, url)
        started_s = time.monotonic()
        workload = database.commit_workload(product(4))
        assert not database.has_workload(product(5))
        assert list(database.get_top_k(workload, 5)) == []
        assert breaker_of(url).rest_s > 0
        assert time.monotonic() - started_s < 5  # with room for a busy machine
        measured = tune(database, 4, 4, 1, search(database, quick()))
        assert len(measured) == len(set(measured)) == 4
        assert len(database) == len(database.get_all_tuning_records()) == 4
        best = database.get_top_k(workload, 1)[0]
        found = database.query_tuning_record(product(4), tvm.target.Target(TARGET), "main")
        assert times([best]) == times([found])


def test_without_a_server_it_is_a_database_in_memory(monkeypatch):
    monkeypatch.delenv("TUNEWRIGHT_SERVER", raising=False)
    database = Database(TARGET)
    database.commit_tuning_record(record(database))
    assert len(database) == 1
    with tvm.target.Target(TARGET), database:
        applied = relax.get_pipeline("zero")(model(4))
    assert is_scheduled(applied)


def test_entries_wait_for_a_server_that_comes_back():
    class Client:
        server, is_resting, works = "http://x", False, False

        def write(self, entries):
            sent.extend(entries if self.works else [])
            return self.works

    sent: list[LogEntry] = []
    client = Client()
    outbox = Outbox(client)  # type: ignore[arg-type]
    outbox.add([LogEntry("a", b"")])
    assert not outbox.flush(10)
    client.works = True
    outbox.add([LogEntry("b", b"")])
    assert outbox.flush(10)
    assert [entry.key for entry in sent] == ["a", "b"]


def test_a_module_that_is_too_long_is_told_and_not_kept(fresh, caplog, monkeypatch):
    monkeypatch.setattr(form, "VALUE_BYTES", 10)
    one = fresh()
    one.commit_tuning_record(record(one))
    flush(one)
    assert "is not kept in the log" in caplog.text
    assert [entry.key[:8] for entry in fresh.client.entries()] == ["records-"]
    assert times(fresh().get_top_k(one.commit_workload(product(4)), 1)) == pytest.approx([2e-6])


def test_records_of_files_are_found(fresh, tmp_path):
    files = [tmp_path / name for name in ("database_workload.json", "database_tuning_record.json")]
    theirs = ms.database.JSONDatabase(*map(str, files))
    for factor, time_s in ((2, 2e-6), (4, 1e-6)):
        theirs.commit_tuning_record(record(theirs, run_secs=[time_s], factor=factor))
    assert fresh.client.write(list(entries_of(files)))
    one = fresh()
    assert times(one.get_top_k(one.commit_workload(product(4)), 5)) == pytest.approx([1e-6, 2e-6])
    assert times(fresh().get_all_tuning_records()) == pytest.approx([1e-6, 2e-6])


def test_a_retired_record_is_not_returned(fresh, service):
    one = fresh()
    for factor, time_s in ((2, 2e-6), (4, 1e-6)):
        one.commit_tuning_record(record(one, run_secs=[time_s], factor=factor))
    flush(one)
    [best] = [entry for entry in fresh.client.entries() if entry.is_served and entry.key.startswith("records")]
    asked = {"key": best.key, "environment": best.environment.to_json(), "choice": best.choice, "state": "retired"}
    answer = service.ask("POST", f"/v1/logs/{fresh.client.namespace}:decide", json=asked)
    assert answer.status_code == 200, answer.text
    other = fresh()
    assert times(other.get_top_k(other.commit_workload(product(4)), 5)) == pytest.approx([2e-6])
    assert times([other.query_tuning_record(product(4), tvm.target.Target(TARGET), "main")]) == pytest.approx([2e-6])
    assert times(other.get_all_tuning_records()) == pytest.approx([2e-6])
    assert len(other) == 1


def test_the_key_is_the_one_that_files_have():
    workload = ms.database.Workload(product(4))
    place = Database(TARGET).records.place(workload.mod, tvm.target.Target(TARGET))
    assert form.key_of(form.RECORDS, int(workload.as_json()[0])) == place.key
    config = record(Database(TARGET)).as_json()[2]
    assert form.device_of(config) == place.environment.device == form.device_of(json.loads(json.dumps(config)))
