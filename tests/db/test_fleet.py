"""The contract of Fleet, checked on every database."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select

from tunewright.db import exchange
from tunewright.db.errors import NotFound
from tunewright.db.fleet import MOST_REST_S, DeviceOrder, DueOrder, TunerDevice, TunerOrders, TunerWish
from tunewright.db.job import SearchBudget
from tunewright.db.tables import DeviceOrderRow


@pytest.fixture
def fleet(filled):
    return filled.fleet


def device(samples, threads=2, **options):
    return TunerDevice(f"host/cpu{threads}", samples.target(threads).key, **options)


def test_a_tuner_comes_back_as_it_said(filled, fleet, samples, clock):
    lease = filled.jobs.open(samples.spec(), "", SearchBudget(1), "h")
    fleet.enlist("t1", "host\0", 42, "1.2.3", "ray")
    began = clock.now
    clock.advance(5)
    sick = device(samples, 4, quarantined_until=clock.now + timedelta(seconds=9), reason="two\nlines <b>")
    fleet.report("t1", [device(samples), sick], lease.job_id, draining=True)
    (tuner,) = fleet.tuners()
    assert (tuner.id, tuner.host, tuner.pid, tuner.version, tuner.pool) == ("t1", "host\ufffd", 42, "1.2.3", "ray")
    assert (tuner.started_at, tuner.seen_at) == (began, clock.now)
    assert tuner.devices == (device(samples), sick)
    assert (tuner.job_id, tuner.draining) == (lease.job_id, True)
    fleet.report("t1", [])
    (tuner,) = fleet.tuners()
    assert (tuner.devices, tuner.job_id, tuner.draining) == ((), None, False)


def test_the_longest_at_work_come_first_and_the_silent_ones_not(fleet, clock):
    for name in ("t2", "t1", "t3"):
        fleet.enlist(name, "h", 1, "1", "local")
        clock.advance(20)
    assert [tuner.id for tuner in fleet.tuners(50)] == ["t1", "t3"]
    fleet.report("t2", [])
    assert [tuner.id for tuner in fleet.tuners(50)] == ["t2", "t1", "t3"]


def test_leaving(fleet):
    fleet.enlist("t1", "h", 1, "1", "local")
    fleet.leave("t1")
    fleet.leave("t1")
    assert fleet.tuners() == []
    with pytest.raises(NotFound, match="no tuner t1"):
        fleet.report("t1", [])


def test_beginning_again_is_a_new_beginning(fleet, samples, clock):
    fleet.enlist("t1", "h", 1, "1", "local")
    fleet.report("t1", [device(samples)])
    clock.advance(5)
    fleet.enlist("t1", "h", 2, "2", "local")
    (tuner,) = fleet.tuners()
    assert (tuner.pid, tuner.started_at, tuner.devices) == (2, clock.now, ())


def test_who_was_forgotten_is_enlisted_anew(fleet, samples, clock):
    fleet.enlist("t1", "h", 1, "1", "local")
    clock.advance(48 * 3600)
    fleet.enlist("t2", "h", 2, "1", "local")
    assert [tuner.id for tuner in fleet.tuners(silent_s=1e6)] == ["t2"]
    fleet.report("t1", [device(samples)])
    assert [(tuner.id, tuner.pid) for tuner in fleet.tuners()] == [("t1", 1), ("t2", 2)]


def test_what_can_be_tuned_for(fleet, samples, clock):
    assert fleet.targets() == []
    for name in ("t1", "t2"):
        fleet.enlist(name, "h", 1, "1", "local")
    sick = device(samples, 4, quarantined_until=clock.now + timedelta(seconds=10))
    fleet.report("t1", [device(samples), device(samples), sick])
    fleet.report("t2", [device(samples, threads=77), device(samples)])
    assert fleet.targets() == [samples.target(2)]
    clock.advance(11)
    assert fleet.targets() == [samples.target(2), samples.target(4)]
    clock.advance(60)
    assert fleet.targets() == []
    assert fleet.targets(silent_s=100) == [samples.target(2), samples.target(4)]


def test_a_tuner_that_drains_tunes_for_nothing(fleet, samples):
    for number, name in enumerate(("t1", "t2")):
        fleet.enlist(name, "h", 1, "1", "local")
        fleet.report(name, [device(samples, 2 + 2 * number)])
    fleet.report("t1", [device(samples)], draining=True)
    assert fleet.targets() == [samples.target(4)]
    assert len(fleet.tuners()) == 2


def test_what_can_be_tuned_for_is_what_a_process_had(filled, fleet, samples):
    """An import may name any target; it is none to offer until a process here has it, or took up a job for it."""
    record = samples.record(threads=7)
    entry = exchange.to_json(
        samples.task().to_json(), samples.target(7).to_json(), record, datetime(2026, 1, 1, tzinfo=UTC)
    )
    assert filled.import_([json.dumps(entry)]).added == 1
    filled.jobs.submit(samples.spec(threads=4), "", SearchBudget(1))
    assert fleet.all_targets() == []
    filled.record(samples.record())
    assert fleet.all_targets() == [samples.target()]
    filled.jobs.lease([samples.target(4).key], "h")
    fleet.enlist("t1", "h", 1, "1", "local")
    fleet.report("t1", [device(samples, 7)])
    assert {target.threads for target in fleet.all_targets()} == {2, 4, 7}


class TestOrders:
    """What people want of processes and devices."""

    def test_a_process_hears_that_it_is_to_drain(self, fleet, clock):
        fleet.enlist("t1", "h", 1, "1", "local")
        assert fleet.report("t1", []) == TunerOrders()
        for _ in range(2):
            assert fleet.drain("t1").wish is TunerWish.DRAIN
        assert fleet.report("t1", []) == TunerOrders(TunerWish.DRAIN)
        fleet.enlist("t1", "h", 2, "1", "local")
        assert fleet.report("t1", []) == TunerOrders()

    def test_only_who_was_heard_of_can_be_drained(self, fleet, clock):
        fleet.enlist("t1", "h", 1, "1", "local")
        clock.advance(61)
        for name in ("t1", "t2", "", "x\0"):
            with pytest.raises(NotFound):
                fleet.drain(name)

    def test_an_order_is_for_each_process_that_has_the_device(self, fleet, samples, clock):
        for name in ("t1", "t2", "t3"):
            fleet.enlist(name, "h", 1, "1", "ray")
            fleet.report(name, [device(samples), device(samples, 4)] if name != "t3" else [device(samples, 4)])
        name = device(samples).name
        assert [tuner.id for tuner in fleet.order(name, 90.0, "its fan\0")] == ["t1", "t2"]
        order = DueOrder(name, 90.0, "its fan\ufffd", clock.now)
        devices = [device(samples), device(samples, 4)]
        assert fleet.report("t1", devices) == fleet.report("t2", devices) == TunerOrders(None, (order,))
        assert fleet.report("t3", []) == TunerOrders()
        assert fleet.tuners()[0].devices == tuple(devices)
        stored = DeviceOrder(name, clock.now + timedelta(seconds=90), order.reason, clock.now)
        assert fleet.tuners()[0].orders == (stored,)
        clock.advance(5)
        assert fleet.report("t1", devices).devices == (replace(order, left_s=85.0),)
        fleet.order(name, None)
        [lifted] = fleet.report("t1", devices).devices
        assert (lifted.left_s, lifted.given_at) == (None, clock.now)
        assert {target.key for target in fleet.targets()} == {samples.target(2).key, samples.target(4).key}

    def test_a_rest_that_was_over_before_it_was_heard_of_is_no_order(self, fleet, samples, clock):
        fleet.enlist("t1", "h", 1, "1", "local")
        fleet.report("t1", [device(samples)])
        fleet.order(device(samples).name, 30.0)
        clock.advance(30)
        assert fleet.report("t1", [device(samples)]) == TunerOrders()
        assert fleet.tuners()[0].orders == ()

    def test_processes_that_start_later_hear_of_an_order_until_it_is_over(self, fleet, samples, clock):
        """Something may start a process again, or a node of a growing cluster comes back."""
        rested, lifted = device(samples), device(samples, 4)
        fleet.enlist("t1", "h", 1, "1", "ray")
        fleet.report("t1", [rested, lifted])
        fleet.order(rested.name, 7200.0, "its fan")
        fleet.order(lifted.name, None)
        fleet.leave("t1")
        clock.advance(7199)
        fleet.enlist("t2", "h", 2, "1", "ray")
        assert fleet.report("t2", []) == TunerOrders()
        assert fleet.tuners()[0].orders == ()
        orders = fleet.report("t2", [rested, lifted]).devices
        assert [(order.device, order.left_s) for order in orders] == [(rested.name, 1.0), (lifted.name, None)]
        assert [order.device for order in fleet.tuners()[0].orders] == [rested.name, lifted.name]
        clock.advance(1)
        assert [order.device for order in fleet.report("t2", [rested, lifted]).devices] == [lifted.name]
        clock.advance(MOST_REST_S)
        assert fleet.report("t2", [rested, lifted]) == TunerOrders()

    def test_a_quarantine_is_lifted_while_no_process_has_the_device(self, fleet, samples, clock):
        fleet.enlist("t1", "h", 1, "1", "local")
        fleet.report("t1", [device(samples)])
        fleet.order(device(samples).name, 7200.0)
        fleet.leave("t1")
        with pytest.raises(NotFound):
            fleet.order(device(samples).name, 60.0)
        assert fleet.order(device(samples).name, None) == []
        fleet.enlist("t1", "h", 2, "1", "local")
        assert [order.left_s for order in fleet.report("t1", [device(samples)]).devices] == [None]

    def test_orders_that_are_over_are_forgotten_with_the_next(self, filled, fleet, samples, clock):
        fleet.enlist("t1", "h", 1, "1", "local")
        for rest_s in (60.0, 30.0, None, 90.0):
            fleet.report("t1", [device(samples), device(samples, 4)])
            fleet.order(device(samples).name, rest_s)
            fleet.report("t1", [device(samples), device(samples, 4)])
            fleet.order(device(samples, 4).name, 10.0)
            clock.advance(10)
            with filled.database.read() as session:
                left = session.scalars(select(DeviceOrderRow.device).order_by(DeviceOrderRow.device)).all()
            assert left == [device(samples).name, device(samples, 4).name]

    def test_an_order_has_a_device_and_an_end(self, fleet, samples):
        fleet.enlist("t1", "h", 1, "1", "local")
        with pytest.raises(NotFound):
            fleet.order("nothing", 60.0)
        fleet.report("t1", [device(samples)])
        for rest_s in (0.0, -1.0, float("inf"), float("nan"), 8 * 24 * 3600.0):
            with pytest.raises(ValueError, match="no length of a quarantine"):
                fleet.order(device(samples).name, rest_s)
        assert fleet.report("t1", []) == TunerOrders()


class TestOwners:
    """Tuners that come with a key: no other key speaks for them."""

    @pytest.mark.parametrize("owner", ["mine", ""])
    def test_what_another_key_enlisted_is_not_there(self, fleet, samples, clock, owner):
        fleet.enlist("t1", "h", 1, "1", "local", owner=owner)
        fleet.report("t1", [device(samples)], owner=owner)
        fleet.drain("t1")
        fleet.order(device(samples).name, 60.0)
        [before] = fleet.tuners()
        for foreign in (
            lambda: fleet.enlist("t1", "other", 2, "2", "ray", owner="yours"),
            lambda: fleet.report("t1", [], owner="yours"),
            lambda: fleet.leave("t1", owner="yours"),
        ):
            with pytest.raises(NotFound, match="there is no tuner t1"):
                foreign()
            assert fleet.tuners() == [before]
        fleet.leave("t1", owner=owner)
        assert fleet.tuners() == []

    def test_one_that_was_deleted_comes_back_for_its_owner_alone(self, fleet, clock):
        fleet.enlist("t1", "h", 1, "1", "local", owner="mine")
        clock.advance(2 * 24 * 3600)
        fleet.enlist("t2", "h", 2, "1", "local")
        with pytest.raises(NotFound):
            fleet.report("t1", [], owner="yours")
        fleet.report("t1", [], owner="mine")
        assert {tuner.id: tuner.owner for tuner in fleet.tuners()} == {"t1": "mine", "t2": ""}

    def test_who_enlists_again_keeps_its_orders(self, fleet, samples, clock):
        fleet.enlist("t1", "h", 1, "1", "local", owner="mine")
        fleet.report("t1", [device(samples)], owner="mine")
        fleet.drain("t1")
        fleet.order(device(samples).name, 60.0)
        expected = fleet.report("t1", [device(samples)], owner="mine")
        fleet.enlist("t1", "h", 2, "2", "local", owner="mine")
        assert fleet.tuners()[0].devices == ()
        assert fleet.report("t1", [device(samples)], owner="mine") == expected
        assert expected.wish is TunerWish.DRAIN and len(expected.devices) == 1
