"""Tuner processes over HTTP: the same store as at hand, by a key, and no more of it than they need."""

import ast
import asyncio
import inspect
import math
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewright.api.client.work.call_form import CallForm, from_json, to_json
from tunewright.api.client.work.operations import FORM, PARTS
from tunewright.api.client.work.remote_store import Calls, RemoteStore, open_remote_store
from tunewright.api.http import queue_watch
from tunewright.api.http.queue_watch import QueueWatch
from tunewright.db.access import KeyScope
from tunewright.db.errors import NotFound, StoreError, Unreachable
from tunewright.db.fleet import TunerDevice, TunerWish
from tunewright.db.job import (
    RETIME,
    EventKind,
    JobSpec,
    JobState,
    LeaseLost,
    NewEvent,
    SearchBudget,
    SpecTask,
    Wish,
)
from tunewright.db.snapshot import NewSnapshot
from tunewright.search_space.measurement import Measurement, Record, Status
from tunewright.search_space.schedule import Schedule
from tunewright.tuner.errors import Refused
from tunewright.tuner.known_times import present_versions
from tunewright.tuner.lookup import experience, ladder
from tunewright.tuner.search import (
    confirmation,
    context,
    learning,
    lease_keeper,
    loop,
    retiming,
    whole_model,
    worker,
)
from tunewright.tuner.search import job as job_module
from tunewright.tuner.search.whole_model import ModelTimes
from tunewright.tuner.search.worker import TunerProcess

from ..tuner.fake_pool import FakePool, Openable, took
from .conftest import TARGET, make_task, measured, problem, send

TASK = make_task()


@pytest.fixture
def far(one, monkeypatch):
    monkeypatch.setenv("TUNEWRIGHT_API_KEY", one.key(KeyScope.WORK))
    with open_remote_store(one.url, 30.0) as store:
        yield store


@pytest.fixture
def job(one):
    """A queued job of one task."""
    one.store.add_task(TASK)
    one.store.add_target(TARGET)
    spec = JobSpec("", TARGET.key, (SpecTask(TASK.key, 1),), {"seed": 0, "strategy": "evolutionary"})
    return one.store.jobs.submit(spec, "far", SearchBudget(3)).job


def record(number=0, measurement=None):
    return Record(TASK.key, TARGET.key, Schedule("tiled", 1, (("trial", number),)), measurement or measured())


ASKING = [
    *(confirmation, context, job_module, learning, lease_keeper, loop, retiming, worker, whole_model),
    *(ladder, experience),
]
"""The modules by which a tuner process does a job."""


def _path(node):
    """The names of a chain of attributes that is called: ["self", "_store", "jobs", "get"]."""
    names, node = [], node.func if isinstance(node, ast.Call) else None
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [node.id, *names[::-1]] if isinstance(node, ast.Name) else []


class Machine(Openable):
    def targets(self):
        return [TARGET]

    def devices(self):
        return []

    def rest(self, device, reason, left_s):
        raise AssertionError("nobody ordered that")

    def pool(self, target):
        return FakePool(lambda candidate: took(1e-3))


def work(store, folder):
    """Do all jobs; how many there were."""

    def untimed(wanted):
        return ModelTimes(reason="a test")

    tuner = TunerProcess(
        store, Machine(), pool="told", lease_s=30.0, objects=folder, timing=lambda job, target: untimed
    )
    return tuner.run(once=True)


class TestTheFormOfCalls:
    def test_one_with_a_type_that_has_none_is_refused(self):
        class Part:
            def find(self, keys: complex) -> None: ...

        with pytest.raises(TypeError, match="no form for"):
            CallForm.of(Part.find)

    @pytest.mark.parametrize(
        ("kind", "value"),
        [
            (float, math.inf),
            (float, -math.inf),
            (float, 1.5),
            (bytes, b"\x00\xff"),
            (datetime, datetime(2026, 11, 30, tzinfo=UTC)),
            (JobState, JobState.PAUSED),
            (Wish | None, None),
            (set[str], {"a", "b"}),
            (tuple[str, int], ("a", 1)),
            (tuple[float, ...], (1.0, math.inf)),
            (dict[Status, int], {Status.OK: 3}),
            (dict[tuple[str, str], int], {("a", "b"): 1}),
            (dict[tuple[str, str], int], {}),
            (Mapping[str, int] | None, None),
            (Record, record(1)),
            (Record, record(2, Measurement(Status.WRONG_RESULT, max_rel_err=math.inf, error="off"))),
            (SearchBudget, SearchBudget(None, 60.0)),
            (TunerDevice, TunerDevice("m/cpu", "ab", datetime(2026, 11, 30, tzinfo=UTC), "hot")),
        ],
    )
    def test_what_comes_back_is_what_went(self, kind, value):
        assert from_json(kind, to_json(value)) == value

    @given(
        st.builds(
            Measurement,
            st.sampled_from(Status),
            st.lists(st.floats(allow_nan=False)).map(tuple),
            st.none() | st.floats(allow_nan=False),
            max_rel_err=st.none() | st.floats(allow_nan=False),
            error=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
            provenance=st.dictionaries(st.sampled_from(["llvm", "noise"]), st.just("x")),
        )
    )
    def test_measurements(self, measurement):
        assert from_json(Measurement, to_json(measurement)) == measurement

    @pytest.mark.parametrize(
        ("kind", "data", "says"),
        [
            (int, 2.5, "2.5"),
            (int, True, "true"),
            (int, 10**30, "too large"),
            (float, "1.0", "not a number"),
            (float, 10**400, "too large"),
            (bytes, "?", "base64"),
            (JobState, "gone", "gone"),
            (tuple[str, int], ["a"], "1 items, not 2"),
            (list[str], {}, "array"),
            (Record, {"task_key": "a"}, "measurement"),
        ],
    )
    def test_anything_else_is_refused_in_words(self, kind, data, says):
        with pytest.raises(ValueError, match=says):
            from_json(kind, data)

    def test_texts_that_no_database_keeps_are_cleaned(self):
        assert from_json(str, "a\0b\ud800") == "a\N{REPLACEMENT CHARACTER}b?"

    def test_the_keys_of_a_mapping_are_items(self):
        class Part:
            def find(self, keys: Iterable[str], others: Collection[int] | None = None) -> None: ...

        form = CallForm.of(Part.find)
        assert form.arguments_json([{"a": 1}], {"others": {2: None}}) == {"keys": ["a"], "others": [2]}
        assert form.arguments({"keys": ["a"]}) == {"keys": ["a"]}
        for wrong in ({}, {"keys": [], "more": 1}):
            with pytest.raises(ValueError, match=r"more|keys"):
                form.arguments(wrong)


class TestAtAServer:
    def test_a_job_is_done_from_elsewhere(self, far, one, job, tmp_path):
        class Machine(Openable):
            def targets(self):
                return [TARGET]

            def devices(self):
                return []

            def rest(self, device, reason, left_s):
                raise AssertionError("nobody ordered that")

            def pool(self, target):
                return FakePool(lambda candidate: took(1e-3))

        untimed = ModelTimes(reason="a test")
        tuner = TunerProcess(
            far,
            Machine(),
            pool="told",
            lease_s=30.0,
            objects=tmp_path,
            timing=lambda job, target: lambda wanted: untimed,
        )
        assert tuner.run(once=True) == 1
        done = one.store.jobs.get(job.id)
        assert (done.state, done.error, done.result["trials"]) == (JobState.SUCCEEDED, "", 1)
        assert len(one.store.jobs.trials(job.id)) == 1  # the task has no other schedule
        assert one.store.confirmations([TASK.key], TARGET.key)
        assert "told" not in {tuner.pool for tuner in one.store.fleet.tuners()}

    def test_what_is_stale_is_timed_again_from_elsewhere(self, far, one, job, tmp_path):
        current = make_task(16)
        one.store.add_task(current)
        for task, changes in ((TASK, {"llvm": "1.0"}), (current, present_versions("cpu"))):
            found = record(0, replace(measured(), provenance={**measured().provenance, **changes}))
            one.store.record(replace(found, task_key=task.key))
            one.store.confirm(replace(found, task_key=task.key))
        one.store.jobs.cancel(job.id)
        both = (*job.spec.tasks, SpecTask(current.key, 1))
        spec = replace(job.spec, tasks=both, settings=job.spec.settings | {RETIME: 5})
        again = one.store.jobs.submit(spec, "again", SearchBudget(None)).job
        assert work(far, tmp_path) == 1
        done = one.store.jobs.get(again.id)
        assert (done.state, done.error) == (JobState.SUCCEEDED, "")
        assert done.result["upgrade"]["tasks"] == 1

    def test_a_tuner_is_listed_with_its_key(self, far, one):
        far.fleet.enlist("t", "host", 7, "0.1", "local")
        far.fleet.report("t", [TunerDevice("host/cpu", TARGET.key)], None, False)
        [tuner] = [tuner for tuner in one.store.fleet.tuners() if tuner.id == "t"]
        assert tuner.owner in {key.id for key in one.store.keys.list()}
        one.store.fleet.leave("t")
        far.fleet.report("t", [], None, False)  # it enlists again
        assert "t" in {tuner.id for tuner in one.store.fleet.tuners()}

    def test_no_other_key_speaks_for_a_tuner(self, far, one):
        far.fleet.enlist("t", "host", 7, "0.1", "local")
        far.fleet.report("t", [TunerDevice("host/cpu", TARGET.key)], None, False)
        one.store.fleet.drain("t")
        before = one.store.fleet.tuners()
        client = one.client(one.key(KeyScope.WORK))
        calls: dict[str, dict[str, object]] = {
            "enlist": {"host": "other", "pid": 8, "version": "0.1", "pool": "ray"},
            "report": {"devices": []},
            "leave": {},
        }
        for tuner_id in ("t", "t1"):  # of another key, and of a process that has the database
            for method, arguments in calls.items():
                body = {"form": FORM, "arguments": {"tuner_id": tuner_id} | arguments}
                problem(client.post(f"/v1/work/fleet.{method}", json=body), "not-stored", 404)
        assert one.store.fleet.tuners() == before
        assert far.fleet.report("t", [], None, False).wish is TunerWish.DRAIN

    def test_reads_are_those_of_the_store(self, far, one, job):
        for number in range(3):
            one.store.record(record(number))
        one.store.confirm(record(1))
        one.store.snapshots.keep(NewSnapshot("cpu", "1", b"trees\x00", 3, 3, {"pairwise": 0.9}))
        for read in (
            lambda store: store.tasks([TASK.key, "00" * 32]),
            lambda store: store.target(TARGET.key),
            lambda store: store.targets("cpu"),
            lambda store: store.records(TASK.key, TARGET.key, [Status.OK]),
            lambda store: store.schedule_keys(TASK.key, TARGET.key),
            lambda store: store.best_many({TASK.key: 1}, TARGET.key),
            lambda store: store.standings([TASK.key], TARGET.key),
            lambda store: list(store.examples("cpu")),
            lambda store: store.jobs.get(job.id),
            lambda store: store.jobs.list([JobState.QUEUED], limit=1),
            lambda store: store.jobs.queued_targets(),
            lambda store: store.jobs.events(job.id, kinds=[EventKind.QUEUED]),
            lambda store: store.catalog.best([TASK.key], [TARGET.key]),
            lambda store: store.catalog.definitions([TASK.key]),
            lambda store: store.snapshots.newest("cpu", "1"),
        ):
            assert read(far) == read(one.store)

    def test_a_model_is_read_in_pieces(self, far, one, monkeypatch):
        from tunewright.db import uploads

        monkeypatch.setattr(uploads, "PIECE_BYTES", 5)
        sha256 = send(one.client(), 8)
        assert b"".join(far.uploads.read(sha256)) == b"".join(one.store.uploads.read(sha256))
        with pytest.raises(NotFound):
            list(far.uploads.read("00" * 32))

    def test_a_lost_lease_ends_the_work(self, far, one, job):
        lease = far.jobs.lease([TARGET.key], "h")
        one.store.jobs.take_from("h")
        assert one.store.jobs.lease([TARGET.key], "other") is not None
        with pytest.raises(LeaseLost):
            far.record(record(), lease)
        with pytest.raises(LeaseLost):
            far.jobs.renew(lease)
        assert one.store.jobs.trials(job.id) == []

    def test_wishes_come_with_renewals(self, far, one, job):
        lease = far.jobs.lease([TARGET.key], "h")
        one.store.jobs.pause(job.id)
        event = NewEvent(EventKind.STAGE, {"stage": "searching"})
        assert far.jobs.renew(lease, progress={"trials": 1}, events=[event], spent_s=1.5).wish is Wish.PAUSE
        assert one.store.jobs.get(job.id).spent_s == 1.5


class TestAWriteThatIsSentTwice:
    """As when its answer is lost on the way."""

    @pytest.fixture
    def twice(self, far, one):
        """The store, whose requests are sent twice each; the second answer counts."""

        class Twice(Calls):
            def post(self, name, request):
                super().post(name, request)
                return super().post(name, request)

        with RemoteStore(Twice(one.url, one.key(KeyScope.WORK), 30.0)) as store:
            yield store

    def test_it_is_done_once(self, twice, far, one, job):
        lease = far.jobs.lease([TARGET.key], "h")
        improved = NewEvent(EventKind.IMPROVED, {"task_key": TASK.key})
        assert twice.record(record(0), lease, [improved])
        twice.jobs.renew(lease, spent_s=2.0, events=[improved])
        twice.confirm(record(0), lease, [improved])
        assert twice.jobs.claim(lease, TASK.key)
        twice.jobs.release_claims(lease)
        twice.jobs.finish(lease, JobState.SUCCEEDED, result={"trials": 1})
        done = one.store.jobs.get(job.id)
        assert (done.state, done.spent_s, done.trials) == (JobState.SUCCEEDED, 2.0, 1)
        kinds = [event.kind for event in one.store.jobs.events(job.id)]
        assert kinds.count(EventKind.IMPROVED) == 3 and kinds.count(EventKind.SUCCEEDED) == 1


class TestWhatIsRefused:
    @pytest.mark.parametrize("scope", sorted(set(KeyScope) - {KeyScope.WORK, KeyScope.LOGIN}))
    def test_keys_without_the_scope(self, one, scope):
        answer = one.client(one.key(scope)).post("/v1/work/jobs.get", json={"form": FORM, "arguments": {"job_id": 1}})
        assert answer.status_code == 403

    def test_a_key_for_work_does_nothing_else(self, one):
        client = one.client(one.key(KeyScope.WORK))
        for path in ("/v1/jobs", "/v1/records", "/v1/logs", "/v1/workers", "/metrics"):
            assert client.get(path).status_code == 403

    @pytest.mark.parametrize(
        ("name", "arguments", "status"),
        [
            ("jobs.cancel", {"job_id": 1}, 404),
            ("keys.create", {}, 404),
            ("store.import_", {"lines": []}, 404),
            ("store.record", {"record": to_json(record())}, 422),
            ("store.record", {"record": to_json(record()), "lease": None}, 422),
            ("jobs.get", {"job_id": 99}, 404),
            ("jobs.get", {"job_id": "1"}, 422),
            ("jobs.get", {"job_id": 1, "session": 1}, 422),
            ("jobs.lease", {"target_keys": [], "holder": "h", "devices": [{"kind": "cpu"}]}, 422),
        ],
    )
    def test_what_is_no_operation_of_tuners(self, one, name, arguments, status):
        client = one.client(one.key(KeyScope.WORK))
        assert client.post(f"/v1/work/{name}", json={"form": FORM, "arguments": arguments}).status_code == status

    def test_a_write_without_an_id(self, far, one, job):
        lease = far.jobs.lease([TARGET.key], "h")
        arguments = {"record": to_json(record()), "lease": to_json(lease)}
        client = one.client(one.key(KeyScope.WORK))
        assert client.post("/v1/work/store.record", json={"form": FORM, "arguments": arguments}).status_code == 422
        assert one.store.jobs.trials(job.id) == []

    def test_a_tuner_of_another_version(self, one):
        client = one.client(one.key(KeyScope.WORK))
        for path, body in (("jobs.queued_targets", {"arguments": {}}), ("wait", {"seen": [], "timeout_s": 0.0})):
            answer = client.post(f"/v1/work/{path}", json={"form": FORM + 1} | body)
            assert (answer.status_code, answer.json()["type"].rpartition("/")[2]) == (409, "other-version")

    def test_errors_are_those_of_a_store(self, one, monkeypatch):
        monkeypatch.setenv("TUNEWRIGHT_API_KEY", one.key(KeyScope.METRICS))
        with open_remote_store(one.url, 0.0) as store, pytest.raises(StoreError, match="work"):
            store.newest_trial()
        with open_remote_store("http://127.0.0.1:9", 0.0) as store, pytest.raises(Unreachable):
            store.newest_trial()
        with pytest.raises(Refused):
            open_remote_store("ftp://example.org", 0.0)

    @pytest.mark.parametrize("module", ASKING, ids=lambda module: module.__name__.rpartition(".")[2])
    def test_all_that_a_job_asks_of_its_store_is_there(self, far, module):
        """By the names in the code: a job that meets what is missing fails, however far it came."""
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            path = _path(node)
            if "store" in path[:-1] or "_store" in path[:-1]:
                part = far
                for name in path[max(i for i, name in enumerate(path[:-1]) if name in ("store", "_store")) + 1 :]:
                    part = getattr(part, name)

    def test_a_server_that_is_away_is_told_of_once(self, one, far, monkeypatch, caplog):
        """And waited for once, however many calls there are."""
        far.newest_trial()
        pauses: list[float] = []
        monkeypatch.setattr(time, "sleep", pauses.append)
        answers = iter([httpx.ConnectError("no"), httpx.ConnectError("no"), None, httpx.ConnectError("no"), None])
        stream = httpx.Client.stream

        def flaky(self, *args, **kwargs):
            if (fault := next(answers, None)) is not None:
                raise fault
            return stream(self, *args, **kwargs)

        monkeypatch.setattr(httpx.Client, "stream", flaky)
        for _ in range(2):
            far.newest_trial()
        said = [record.message.partition(";")[0] for record in caplog.records if record.name == "tunewright.work"]
        assert len(said) == 4 and said[1] == said[3] == f"{one.url} answers again"
        assert len(pauses) == 3

    def test_other_methods_are_not_there(self, far):
        with pytest.raises(AttributeError, match="no operation"):
            far.jobs.submit()
        assert all(hasattr(kind, method) for kind, methods in PARTS.values() for method in methods)


class TestWaiting:
    def test_it_ends_with_a_job(self, far, one, job):
        one.store.jobs.cancel(job.id)
        assert far.jobs.queued_targets() == []
        answers = []
        thread = threading.Thread(target=lambda: answers.append(far.jobs.wait(60.0, 0)))
        thread.start()
        one.store.jobs.submit(job.spec, "again", SearchBudget(1))
        thread.join(30)
        assert answers == [True]

    def test_one_read_of_the_queue_is_for_all(self, monkeypatch):
        monkeypatch.setattr(queue_watch, "LOOK_S", 0.001)
        reads: list[None] = []
        now = [0.0]

        async def read():
            reads.append(None)
            return [None]

        async def ask():
            watch = QueueWatch(read, lambda: now[0])
            assert await watch.differs([], 0.0, lambda: False)
            assert not await watch.differs([None], 0.0, lambda: False)
            assert not await watch.differs([], 9.0, lambda: True)
            now[0] = 1.0
            assert await watch.targets() == [None]

        asyncio.run(ask())
        assert len(reads) == 2
