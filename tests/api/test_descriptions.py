"""What takes long to find out of schedules: found out in a child, told as far as it is known."""

import asyncio
import threading

import pytest

from tunewright.api.http import descriptions
from tunewright.api.http.descriptions import Descriptions, Failure
from tunewright.search_space.schedule import Illegal, Schedule
from tunewright.search_space.sketches import default_schedule
from tunewright.tuner.explain.describer import DescriptionError, ScheduleDescription
from tunewright.tuner.explain.texts import DiffKind
from tunewright.workers.sandbox.process import ChildStartError

from .examples import PlainShower, others, product


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    monkeypatch.setattr(descriptions, "PATIENCE_S", 60.0)
    monkeypatch.setattr(descriptions, "TEXT_PATIENCE_S", 60.0)


def test_in_a_child(kit):
    task, target = product(), kit.target()
    default, [other] = default_schedule(task, target), others(task, target, 1)

    async def look():
        descriptions = Descriptions()
        try:
            form = await descriptions.form(task, target, default)
            assert isinstance(form, ScheduleDescription)
            assert form.words and all(isinstance(line, str) for line in form.words)
            assert form.nest
            for part, word in [("ir", "param t0"), ("llvm", "define"), ("assembly", "ret")]:
                text = await descriptions.text(task, target, default, part)
                assert isinstance(text, str) and word in text
            lines = await descriptions.difference(task, target, other, default, "ir")
            assert lines is not None and not isinstance(lines, Failure)
            assert {DiffKind.ADDED, DiffKind.REMOVED} <= {line.kind for line in lines}
            gone = await descriptions.form(task, target, Schedule("generic", 1, (("knob", 1),)))
            assert isinstance(gone, Failure) and "no such schedule" in gone.why
        finally:
            await descriptions.close()

    asyncio.run(look())


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (DescriptionError("it takes too much memory"), "it takes too much memory"),
        (Illegal("tile=7 is none of (1, 2)"), "no such schedule"),
        (ChildStartError("fork failed"), "no process could be started"),
    ],
)
def test_what_goes_wrong_is_said(kit, error, words):
    class Broken(PlainShower):
        def picture(self, task, target, schedule):
            raise error

    task = product()

    async def look():
        descriptions = Descriptions(Broken)
        try:
            return await descriptions.form(task, kit.target(), default_schedule(task, kit.target()))
        finally:
            await descriptions.close()

    failure = asyncio.run(look())
    assert isinstance(failure, Failure) and words in failure.why


def test_a_bug_is_one(kit):
    class Broken(PlainShower):
        def text(self, task, target, schedule, part):
            raise ZeroDivisionError

    task = product()

    async def look():
        descriptions = Descriptions(Broken)
        with pytest.raises(ZeroDivisionError):
            await descriptions.text(task, kit.target(), default_schedule(task, kit.target()), "ir")
        await descriptions.close()

    asyncio.run(look())


def test_one_judgement_at_a_time(kit):
    at_work, most = 0, 0
    lock = threading.Lock()

    def work():
        nonlocal at_work, most
        with lock:
            at_work += 1
            most = max(most, at_work)
        threading.Event().wait(0.01)
        with lock:
            at_work -= 1
        return at_work

    async def look():
        descriptions = Descriptions(PlainShower)
        assert await asyncio.gather(*(descriptions.analyse(n, 0, work) for n in range(5))) == [0] * 5
        await descriptions.close()

    asyncio.run(look())
    assert most == 1
